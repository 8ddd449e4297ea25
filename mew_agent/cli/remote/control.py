"""`mew compact`, `forget`, `clear`, `pause`, `resume`: act on a participant over the protocol, and tell what it said.

Owns what counts as each one's answer and how it is said. What a control does is up to the participant that gets it.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from mew_protocol import kinds
from mew_protocol.payloads.participant import Clear, Compact, CompactDone, Forget, Pause, Resume, Status
from pydantic import BaseModel, ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import Flags
from mew_agent.cli.board import words as words
from mew_agent.cli.board.live_board import entry_of
from mew_agent.cli.remote.question import Question, asking
from mew_agent.errors import NotConnected, PeerError, PeerTimeout

_LAST_STATUS_SECONDS: Final = 3.0
"""How long to wait for the status that follows an answer and carries the new figures."""

_ANSWERS: Final = (kinds.PARTICIPANT_STATUS, kinds.PARTICIPANT_COMPACT_DONE)

P = TypeVar("P", bound=BaseModel)


def compact(
    flags: Flags, participant: str, *, target_tokens: int | None, reason: str | None, timeout_seconds: float
) -> int:
    """Ask for a compaction and wait for its outcome. Returns the exit code."""
    payload = Compact(target_tokens=target_tokens, reason=reason)
    with asking(flags, participant, kinds.PARTICIPANT_COMPACT, payload, timeout_seconds) as question:
        announced = False
        for kind, body in question.answers(*_ANSWERS):
            if kind == kinds.PARTICIPANT_COMPACT_DONE:
                return _outcome(question, _read(CompactDone, body), target_tokens)
            status = _read(Status, body)
            if status.status == "compacting" and not announced:
                announced = True
                size = f" {words.tokens(status)} tokens" if status.tokens is not None else ""
                terminal.say(f"{participant}: compacting{size} ...")
            elif status.status == "compacted" and not words.has_context(status) and not status.messages_in_context:
                terminal.say(f"{participant}: skipped, it {words.NO_CONTEXT}")
                return terminal.SKIPPED
            elif status.status == "compacted":
                terminal.say(f"{participant}: compacted, but may not say what it freed (no participant/compact-done)")
                return terminal.FAILED
    raise AssertionError("answers end with an error or a return")


def forget(flags: Flags, participant: str, *, newest: bool, entries: int | None, timeout_seconds: float) -> int:
    """Let a participant drop entries from one end of its history."""
    payload = Forget(direction="newest" if newest else "oldest", entries=entries)
    with asking(flags, participant, kinds.PARTICIPANT_FORGET, payload, timeout_seconds) as question:
        entry = entry_of(question.board, participant) if question.board else None
        before = entry.status.messages_in_context if entry is not None and entry.status is not None else None
        status = _next_status(question, passing=("compacting",))
        word = status.status or "answered"
        if word == "compacted" and before is not None:
            # The agent's word for any history that got smaller; here one wants to know by how much.
            dropped = max(0, before - status.messages_in_context)
            word = f"forgot {dropped:,} message{_s(dropped)}" if dropped else "had nothing to forget"
        return _tell(participant, word, status)


def clear(flags: Flags, participant: str, *, reason: str | None, timeout_seconds: float) -> int:
    """Let a participant forget everything."""
    return _steer(flags, participant, kinds.PARTICIPANT_CLEAR, Clear(reason=reason), timeout_seconds)


def pause(flags: Flags, participant: str, *, seconds: float | None, reason: str | None, timeout_seconds: float) -> int:
    """Let a participant fall silent, for `seconds` when given."""
    payload = Pause(timeout_seconds=seconds, reason=reason)
    return _steer(flags, participant, kinds.PARTICIPANT_PAUSE, payload, timeout_seconds)


def resume(flags: Flags, participant: str, *, reason: str | None, timeout_seconds: float) -> int:
    """Let a paused participant speak again."""
    return _steer(flags, participant, kinds.PARTICIPANT_RESUME, Resume(reason=reason), timeout_seconds)


def _steer(
    flags: Flags,
    participant: str,
    kind: str,
    payload: BaseModel,
    timeout_seconds: float,
) -> int:
    """Ask, wait for the status that answers, and print it."""
    with asking(flags, participant, kind, payload, timeout_seconds) as question:
        status = _next_status(question)
        return _tell(participant, status.status or "answered", status)


def _next_status(question: Question, *, passing: tuple[str, ...] = ()) -> Status:
    """The status that answers. `passing` are words that come before the answer."""
    for answered_by, body in question.answers(*_ANSWERS):
        status = _read(Status, body)
        if answered_by == kinds.PARTICIPANT_STATUS and status.status not in passing:
            return status
    raise AssertionError("answers end with an error or a return")


def _tell(participant: str, word: str, status: Status) -> int:
    terminal.say(f"{participant}: {words.state(word)}{_behind(status)}")
    return terminal.SKIPPED if (status.status or "").startswith("refused") else terminal.DONE


def _outcome(question: Question, done: CompactDone, target_tokens: int | None) -> int:
    name = question.participant
    if done.skipped:
        terminal.say(f"{name}: skipped, {_why_skipped(question, done, target_tokens)}")
        return terminal.SKIPPED
    freed = "an unknown number of" if done.freed_tokens is None else f"{done.freed_tokens:,}"
    messages = "" if done.freed_messages is None else f", {done.freed_messages} message{_s(done.freed_messages)}"
    status = _following_status(question)
    now = f"; now {_figures(status)}" if status is not None else ""
    terminal.say(f"{name}: freed {freed} tokens{messages}{now}")
    return terminal.DONE


def _why_skipped(question: Question, done: CompactDone, target_tokens: int | None) -> str:
    reason = done.reason or "without a reason"
    if reason != "already_below_target" or target_tokens is None:
        return words.skipped(reason)
    entry = entry_of(question.board, question.participant) if question.board else None
    size = f" ({words.tokens(entry.status)})" if entry is not None and entry.status is not None else ""
    return f"already below {target_tokens:,}{size}"


def _following_status(question: Question) -> Status | None:
    """The status that announces the end of the compaction, or None when it does not come soon."""
    question.deadline = min(question.deadline, time.monotonic() + _LAST_STATUS_SECONDS)
    try:
        for kind, body in question.answers(*_ANSWERS):
            if kind == kinds.PARTICIPANT_STATUS:
                return _read(Status, body)
    except (PeerTimeout, NotConnected):
        pass
    return None


def _behind(status: Status) -> str:
    return f"; {_figures(status)}" if words.has_context(status) else ""


def _figures(status: Status) -> str:
    if status.tokens is None:
        return f"? of {words.window(status)} ({words.reason(status)})"
    basis = words.basis(status)
    later = "; exact after its next call" if basis == "projected" else ""
    return f"{status.tokens:,} of {words.window(status)} ({basis}{later})"


def _read(model: type[P], body: Mapping[str, Any]) -> P:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise PeerError(f"an answer that cannot be read: {error.errors(include_url=False)[0]['msg']}") from None


def _s(count: int) -> str:
    return "" if count == 1 else "s"
