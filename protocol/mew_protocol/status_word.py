"""[pure] A status as a type: a word, and an optional detail after a colon (`compaction_failed:no answer`).

Writes and reads statuses. `statuses.json` lists the words, with marks for readers, explanations and actions for people.
Other participants may send further words, which have no marks.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

STATUSES_FILE: Final = Path(__file__).with_name("statuses.json")

Mark = Literal["calm", "working", "begun", "done", "warning", "blocking", "failure", "shared"]
"""`calm`: nothing to tell; `working`: on a turn; `begun`, `done`: a control; `warning`, `blocking`: needs attention;
`failure`: the last turn failed; `shared`: also holds for every session of the agent."""

_STATUSES: Final[Mapping[str, Mapping[str, Any]]] = json.loads(STATUSES_FILE.read_text(encoding="utf-8"))

WORDS: Final[Mapping[str, frozenset[Mark]]] = {
    word: frozenset(about.get("marks", ())) for word, about in _STATUSES.items()
}

NEEDS: Final[Mapping[str, Mapping[str, Any]]] = {
    word: about["needs"] for word, about in _STATUSES.items() if "needs" in about
}
"""The words that need a person: `kind` and `level` of the item, and `says`, a verb phrase about the participant.

`actions` name possible actions; with `says_detail` the detail of the status follows.
"""


class StatusWord(NamedTuple):
    """One status. `detail` is the text after the first colon, empty without one."""

    word: str = ""
    detail: str = ""

    @classmethod
    def read(cls, status: object) -> Self:
        """Read a status from the wire, with or without a blank after the colon; other values have no word."""
        word, _, detail = status.partition(":") if isinstance(status, str) else ("", "", "")
        return cls(word.strip(), detail.strip())

    @property
    def reason(self) -> str:
        """The detail in one line."""
        return " ".join(self.detail.split())

    def has(self, *marks: Mark) -> bool:
        """Return True if the word has one of these marks."""
        return not WORDS.get(self.word, frozenset()).isdisjoint(marks)

    def __str__(self) -> str:
        """Return the status in the form of the wire."""
        return f"{self.word}:{self.detail}" if self.detail else self.word


def status_word(word: str, detail: object = "") -> StatusWord:
    """Return a status to send. Raises `ValueError` for a word that is not in `statuses.json`."""
    if word not in WORDS:
        raise ValueError(f"no status word '{word}'; add it to {STATUSES_FILE.name}")
    return StatusWord(word, "" if detail is None else str(detail).strip())
