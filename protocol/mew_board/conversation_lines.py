"""[pure] Lines of the conversation: requests between participants, and changes of membership and capabilities.

Shown by the dashboard, the terminal application and the line chat.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.envelope import Draft
from mew_protocol.json_values import objects_at, value_at
from mew_protocol.payloads.participant import Compact, Forget, Pause, PinRequest, UnpinRequest
from mew_protocol.payloads.retrieval import Undo
from pydantic import ValidationError

from mew_board import words
from mew_board.figures import span
from mew_board.quoting import clean
from mew_board.shared_words import PRESENCE_WORDS, PROPOSAL_WORDS
from mew_board.visible import short

_QUOTED_CHARS: Final = 80


def request(envelope: Draft) -> str:
    """Format a request to a participant: `ada asked coder to compact to at most 50,000 tokens: long review ahead`."""
    kind = envelope.kind or ""
    try:
        what = _REQUESTS[kind](envelope.body)
    except ValidationError:
        what = words.words(kind.partition("/")[2])
    whom = ", ".join(envelope.addressees) or "everyone"
    return _with_reason(f"{envelope.sender} asked {whom} to {what}", envelope)


def _compact(body: Mapping[str, Any]) -> str:
    asked = Compact.model_validate(body)
    if asked.target_tokens is not None:
        return f"compact to at most {asked.target_tokens:,} tokens"
    return "compact" if asked.target_percent is None else f"compact to at most {asked.target_percent}% of its window"


def _forget(body: Mapping[str, Any]) -> str:
    asked = Forget.model_validate(body)
    if asked.entries is None:
        return f"forget half of its messages, the {asked.direction}"
    return f"forget its {asked.direction} {words.count_of(asked.entries, 'message')}"


def _undo(body: Mapping[str, Any]) -> str:
    number = Undo.model_validate(body).number
    return "undo its last compaction" if number is None else f"undo compaction {number}"


def _pause(body: Mapping[str, Any]) -> str:
    seconds = Pause.model_validate(body).timeout_seconds
    return f"pause for {span(seconds)}" if seconds else "pause"


def _quoted(text: str) -> str:
    return f"“{short(text, _QUOTED_CHARS)}”"


_REQUESTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    kinds.PARTICIPANT_COMPACT: _compact,
    kinds.PARTICIPANT_FORGET: _forget,
    kinds.PARTICIPANT_CLEAR: lambda _: "clear its history",
    kinds.PARTICIPANT_PIN: lambda body: f"pin {_quoted(PinRequest.model_validate(body).text)}",
    kinds.PARTICIPANT_UNPIN: lambda body: f"remove the pin {_quoted(UnpinRequest.model_validate(body).pin)}",
    kinds.PARTICIPANT_UNDO: _undo,
    kinds.PARTICIPANT_RESTART: lambda _: "start again with an empty history",
    kinds.PARTICIPANT_SHUTDOWN: lambda _: "shut down",
    kinds.PARTICIPANT_PAUSE: _pause,
    kinds.PARTICIPANT_RESUME: lambda _: "resume",
}

REQUEST_KINDS: Final = frozenset(_REQUESTS)
"""The kinds that ask something of a participant."""

_CHANGES: Final = {
    kinds.CAPABILITY_GRANT: ("granted capabilities to", "recipient"),
    kinds.CAPABILITY_REVOKE: ("revoked capabilities of", "recipient"),
    kinds.SPACE_KICK: ("removed", "participant_id"),
}
"""The gateway's actions: a verb, and the key of the payload with the participant."""

CHANGE_KINDS: Final = frozenset(_CHANGES)
"""The kinds that change rights or the membership."""


NOTED_KINDS: Final = frozenset((*_REQUESTS, *_CHANGES, kinds.CAPABILITY_ENDED, kinds.REASONING_CANCEL))
"""The kinds that are one line of the conversation each."""


def change(envelope: Draft) -> str:
    """Format a change of the rights or of the membership of a participant: `ada removed coder: it is done`."""
    verb, key = _CHANGES[envelope.kind or ""]
    return _with_reason(f"{envelope.sender} {verb} {envelope.body.get(key)}", envelope)


def concerned(envelope: Draft) -> tuple[str, ...]:
    """Return the participants that a line is about."""
    body, found = envelope.body, [envelope.sender, *envelope.addressees]
    found += [value_at(body, "participant", "id"), *(one.get("participant") for one in objects_at(body, "ended"))]
    if (known := _CHANGES.get(envelope.kind or "")) is not None:
        found.append(body.get(known[1]))
    return tuple(dict.fromkeys(str(one) for one in found if one))


def cancelled(envelope: Draft) -> str:
    """Format the request to cancel a turn: `ada cancelled the turn of coder: enough`."""
    whose = f"the turn of {', '.join(envelope.addressees)}" if envelope.addressees else "a turn"
    return _with_reason(f"{envelope.sender} cancelled {whose}", envelope)


def presence(envelope: Draft) -> str:
    """Return the event of a presence as a verb: `joined`."""
    return PRESENCE_WORDS.get(str(envelope.body.get("event")), "")


def decision(envelope: Draft) -> str:
    """Format the end of a proposal: `rejected by eve: not on a Friday`."""
    state = "rejected" if envelope.kind == kinds.MCP_REJECT else "withdrawn"
    return _with_reason(PROPOSAL_WORDS[state].format(participant=envelope.sender), envelope)


def _with_reason(text: str, envelope: Draft) -> str:
    reason = envelope.body.get("reason")
    why = reason.strip() if isinstance(reason, str) else ""
    return short(clean(f"{text}: {why}" if why else text))


def ended(envelope: Draft) -> str:
    """Format the rights that ended with another right: `no longer held: writer: space/kick from eve; 3 more`."""
    return short(clean(f"no longer held: {'; '.join(ended_rights(envelope.body))}"))


def ended_rights(body: Mapping[str, Any]) -> list[str]:
    """Return each participant's rights that ended with another right: `writer: space/kick from eve`."""
    found = [
        f"{one.get('participant')}: {rights(objects_at(one, 'capabilities'))} from {one.get('granted_by')}"
        for one in objects_at(body, "ended")
    ]
    omitted = body.get("omitted")
    return [*found, f"{omitted:,} more"] if isinstance(omitted, int) and omitted else found


def rights(patterns: Iterable[Mapping[str, Any]]) -> str:
    """Format capabilities: `chat, mcp/request to files`."""
    texts = []
    for pattern in patterns:
        to = pattern.get("to")
        texts.append(_joined(pattern.get("kind")) + (f" to {_joined(to)}" if to else ""))
    return ", ".join(texts)


def _joined(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def receipt(kind: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Describe the result of a membership change, from the gateway's answer; None for other envelopes."""
    if kind == kinds.SPACE_INVITE:
        token = f" Its token, shown only once: {answer['token']}" if answer.get("token") else ""
        return f"{body.get('participant_id')} was added.{token}"
    if kind not in _CHANGES:
        return None
    others = ended_rights(answer)
    if kind == kinds.CAPABILITY_REVOKE and not others and not answer.get("revoked"):
        return "Nothing to revoke: no grant gave this."
    return f"Accepted by the gateway. Ended too: {'; '.join(others)}." if others else "Accepted by the gateway."
