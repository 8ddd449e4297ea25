"""[pure] Checks before the capability check: the rate of a participant, the form of an envelope, and whether it repeats
an earlier one with its id.
"""

from collections.abc import Callable
from hashlib import blake2b

from mew_listener.bounded_dict import BoundedDict
from mew_protocol import errors, kinds
from mew_protocol.envelope import Draft
from mew_protocol.ids import MAX_ID_LENGTH
from mew_protocol.payloads.system import ErrorPayload
from pydantic_core import to_json

from mew_spaces.config.settings import COMPAT_HINT

MAX_ENVELOPE_ID_LENGTH = 4 * MAX_ID_LENGTH
"""An envelope id may be this many times as long as a name: some clients build ids from ids."""

MAX_KEYS = 8192
"""How many keys a rate limit remembers: more than a space has participants."""

_GATEWAY_KINDS = frozenset(
    {
        kinds.CAPABILITY_ENDED,
        kinds.SPACE_INVITE_ACK,
        kinds.STREAM_OPEN,
        kinds.STREAM_WRITE_GRANTED,
        kinds.STREAM_WRITE_REVOKED,
        kinds.STREAM_OWNERSHIP_TRANSFERRED,
    }
)
"""Answers of the gateway outside `system/*`. Clients act on them, so no participant may send one."""

_REQUIRED_TEXT = {kinds.CHAT: "text", kinds.MCP_REQUEST: "method", kinds.MCP_PROPOSAL: "method"}


class RateLimit:
    """A rate limit with bursts per key: `burst` permits at first, replenished at `per_second`.

    Above `MAX_KEYS`, drops the key that was unused for longest.
    """

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        """`clock` must be monotonic, because a jump would add or withhold permits."""
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._left: BoundedDict[str, list[float]] = BoundedDict(MAX_KEYS)
        """How many permits each key had left, and when."""

    def try_spend(self, key: str = "") -> bool:
        """Spend one permit of a key. Returns False if there is none."""
        now = self._clock()
        last = self._left.get(key)
        if last is None:
            last = self._left[key] = [self._burst, now]
        else:
            self._left.move_to_end(key)
        left = min(self._burst, last[0] + (now - last[1]) * self._per_second)
        is_allowed = left >= 1
        last[:] = left - 1 if is_allowed else left, now
        return is_allowed


def malformed(draft: Draft, sender: str, may_open: bool = False) -> ErrorPayload | None:
    """Return the first reason why no participant may send this envelope, regardless of capabilities; else None.

    With `may_open`, participants may send `stream/open`.
    """
    kind, claimed = draft.kind or "", draft.sender
    if not kind or kind.isspace() or len(kind) > MAX_ID_LENGTH or len(draft.id or "") > MAX_ENVELOPE_ID_LENGTH:
        return _bad_header(kind)
    if claimed is not None and claimed != sender:
        text = f"'from' is '{claimed}', but this token is for '{sender}'; leave 'from' out or set it to '{sender}'"
        return ErrorPayload(error=errors.IDENTITY_MISMATCH, message=text, attempted_kind=kind)
    required = _REQUIRED_TEXT.get(kind)
    if required is None:
        if kind not in _GATEWAY_KINDS and not kind.startswith("system/"):
            return None
        # Participants send heartbeats; a join comes before the sender is known.
        is_allowed = kind == kinds.SYSTEM_HEARTBEAT or (may_open and kind == kinds.STREAM_OPEN)
        return None if is_allowed else _reserved(kind)
    value = (draft.payload or {}).get(required)
    if not isinstance(value, str) or not value:
        return _invalid(errors.INVALID_PAYLOAD, f"{kind}: payload.{required} must be a non-empty string")
    return None


def _bad_header(kind: str) -> ErrorPayload:
    """Refuse a kind that is missing or too long, or an id that is too long."""
    if not kind or kind.isspace():
        problem = "'kind' is missing"
    elif len(kind) > MAX_ID_LENGTH:
        problem = f"'kind' may have at most {MAX_ID_LENGTH} characters"
    else:
        problem = f"'id' may have at most {MAX_ENVELOPE_ID_LENGTH} characters"
    return _invalid(errors.INVALID_ENVELOPE, problem)


def content_digest(draft: Draft) -> str:
    """Return a digest of what an envelope says, because some clients restart their ids at 1."""
    said = draft.kind, draft.to, draft.correlation_id, draft.context, draft.payload
    return blake2b(to_json(said), digest_size=8).hexdigest()


def _invalid(error: str, message: str) -> ErrorPayload:
    return ErrorPayload(error=error, message=message, code=errors.VALIDATION_ERROR)


def _reserved(kind: str) -> ErrorPayload:
    """Refuse a kind that only the gateway sends."""
    # The TypeScript gateway reserves one kind only; its clients look for this error's words.
    error = errors.INVALID_REQUEST if kind == kinds.SYSTEM_REGISTER else errors.RESERVED_KIND
    hint = f"; {COMPAT_HINT}" if kind == kinds.STREAM_OPEN else ""
    return ErrorPayload(error=error, message=f"{kind} is reserved for the gateway{hint}", attempted_kind=kind)
