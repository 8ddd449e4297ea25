"""The exit codes of `mew`: the one list that help, documentation and all commands use."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """How a command ended; `meaning` is its text in help and documentation."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "done"
    FAILED = 1, "failed"
    BAD_INPUT = 2, "bad input: an option, file, token or capability, or a port in use"
    SKIPPED = 3, "skipped by the participant: for example, nothing to compact"
    NO_ANSWER = 4, "no answer: no gateway, or no reply in time"
    INTERRUPTED = 130, "interrupted"
    PIPE_CLOSED = 141, "the reader closed the pipe"


def exit_code_rows() -> list[tuple[str, str]]:
    """Return the table of exit codes: code and meaning."""
    return [(str(int(code)), code.meaning) for code in ExitCode]
