"""[pure] Events: every change of a space starts with one. A space processes its events in one order.

With several gateways, a batch of events also has the time and a secret seed, from which every gateway derives the same
ids and tokens. Owns the byte format of batches. Does not know the effects of events.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, NewType

from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from pydantic_core import from_json, to_json

ConnectionId = NewType("ConnectionId", int)

RULES_VERSION = 3
"""Changes with the form of the events, and with their effects in the core."""

SEED_BYTES = 16

_CONNECTION_BITS = 32
_MAX_NUMBER = 1 << 63
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ConnectionJoins(NamedTuple):
    """A connection joins. `token_checked_at` is the newest batch that its gateway had applied when it checked the
    token.
    """

    connection: ConnectionId
    participant: ParticipantId
    token_checked_at: int


class ConnectionLeaves(NamedTuple):
    """A connection is closed."""

    connection: ConnectionId
    participant: ParticipantId


class EnvelopeArrives(NamedTuple):
    """A participant's envelope with a checked form; without a connection, it came over HTTP.

    `may_repeat`: the sender repeats envelopes without an outcome. `data` are the bytes of `draft`, if equal to its
    `encode`; one of the two is enough. An event from another gateway only has `data`.
    """

    connection: ConnectionId | None
    sender: ParticipantId
    token_checked_at: int
    may_repeat: bool
    data: bytes | None
    draft: Draft | None = None


class LogFileJoins(NamedTuple):
    """The log file of a participant starts to receive."""

    connection: ConnectionId
    participant: ParticipantId


class FrameArrives(NamedTuple):
    """A stream frame of a member. It stays behind its sender's earlier envelopes, and is never stored."""

    connection: ConnectionId
    sender: ParticipantId
    frame: StreamFrame


class ClockJumps(NamedTuple):
    """The wall clock of the only gateway was set, so all deadlines shift."""

    by: timedelta


class TimePasses(NamedTuple):
    """Time has passed, and something may have expired."""


class GatewayStarts(NamedTuple):
    """The gateway of this batch starts to accept connections."""


class GatewayIsGone(NamedTuple):
    """All connections of a gateway leave, and its later batches have no effect."""

    gateway: int


InputEvent = (
    ConnectionJoins
    | ConnectionLeaves
    | EnvelopeArrives
    | LogFileJoins
    | FrameArrives
    | ClockJumps
    | TimePasses
    | GatewayStarts
    | GatewayIsGone
)

_BY_NAME: dict[str, Callable[..., InputEvent]] = {
    "join": ConnectionJoins,
    "leave": ConnectionLeaves,
    "log": LogFileJoins,
    "send": EnvelopeArrives,
    "time": TimePasses,
    "start": GatewayStarts,
    "gone": GatewayIsGone,
}
_FIELDS: dict[str, tuple[str, ...]] = {
    "join": ("number", "name", "number"),
    "leave": ("number", "name"),
    "log": ("number", "name"),
    "send": ("connection", "name", "number", "flag", "number"),
    "time": (),
    "start": (),
    "gone": ("number",),
}
"""The fields in the line of each event: whole numbers from 0, names, flags, and connections that may be None."""
_NAMES: dict[Any, str] = {event: name for name, event in _BY_NAME.items()}


class BatchHeader(NamedTuple):
    """The gateway, number and time of a batch. Batches of a gateway are numbered from 1."""

    gateway: int
    number: int
    now: datetime
    seed: bytes


def first_connection(gateway: int) -> int:
    """Return the number just below a gateway's connection ids."""
    return gateway << _CONNECTION_BITS


def gateway_of(connection: ConnectionId) -> int:
    """Return the gateway of a connection."""
    return connection >> _CONNECTION_BITS


def encode_event(event: InputEvent) -> bytes:
    """Return an event as one line of JSON, followed by its envelope if it has one."""
    name = _NAMES[type(event)]
    if isinstance(event, EnvelopeArrives):
        data = event.data or (event.draft or Draft()).encode()
        return b"%s\n%s\n" % (to_json((name, *event[:4], len(data))), data)
    return to_json((name, *event)) + b"\n"


def encode_batch(header: BatchHeader, events: Iterable[bytes]) -> bytes:
    """Return encoded events as one batch."""
    at = (header.now - EPOCH) // _MICROSECOND
    line = to_json((RULES_VERSION, header.gateway, header.number, at, header.seed.hex()))
    return b"".join((line, b"\n", *events))


def decode_batch(data: bytes) -> tuple[BatchHeader, list[InputEvent]]:
    """Return the header and the events of a batch. Raises `ValueError` for another rules version, or for data that no
    gateway wrote.
    """
    head, _, rest = data.partition(b"\n")
    try:
        version, gateway, number, at, seed = from_json(head)
        if not all(map(_is_field, (version, gateway, number, at), ("number",) * 4)) or version != RULES_VERSION:
            raise ValueError("the batch has another rules version")
        header = BatchHeader(gateway, number, EPOCH + at * _MICROSECOND, bytes.fromhex(seed))
        return header, list(_decode_events(rest))
    except (TypeError, KeyError, OverflowError, ValueError) as error:
        raise ValueError("the batch has another rules version or form") from error


def _decode_events(data: bytes) -> Iterator[InputEvent]:
    start = 0
    while start < len(data):
        end = data.index(b"\n", start)
        name, *values = from_json(data[start:end])
        start = end + 1
        fields = _FIELDS[name]
        if len(values) != len(fields) or not all(map(_is_field, values, fields)):
            raise ValueError("an event has an unknown form")
        if name == "send":
            *others, size = values
            content = data[start : start + size]
            if len(content) < size:
                raise ValueError("an event without its envelope")
            values = [*others, content]
            start += size + 1
        yield _BY_NAME[name](*values)


def _is_field(value: object, kind: str) -> bool:
    if type(value) is int:
        return kind in ("number", "connection") and 0 <= value < _MAX_NUMBER
    return (
        (type(value) is str and kind == "name")
        or (type(value) is bool and kind == "flag")
        or (value is None and kind == "connection")
    )
