"""[pure] Data streams of one space: who owns them, who may write, who reads.

Opening, writing and closing change state here; what is said about it on the wire is `space`'s business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.system import ActiveStream
from mew_protocol.timestamp import wire_timestamp

_OURS = frozenset({"stream_id", "owner", "authorized_writers", "created", "encoding"})
"""Keys of a stream's description that only the gateway writes: a request cannot forge them."""


@dataclass(frozen=True, slots=True)
class Stream:
    """An open stream. `targets` empty means everybody; `names` are the ids a close may use for it."""

    id: str
    owner: ParticipantId
    writers: tuple[ParticipantId, ...]
    targets: tuple[str, ...]
    created: str
    metadata: dict[str, Any]
    names: frozenset[str]

    def describe(self) -> ActiveStream:
        """What a late joiner learns."""
        return ActiveStream.model_validate(
            {
                **self.metadata,
                "stream_id": self.id,
                "owner": self.owner,
                "authorized_writers": self.writers,
                "created": self.created,
            }
        )


class Streams:
    """The open streams of a space, oldest first. Ids are `stream-1`, `stream-2`, ... and never used again."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}
        self._opened = 0

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._open.values()))

    def get(self, stream_id: str) -> Stream | None:
        """An open stream by its id."""
        return self._open.get(stream_id)

    def named_by(self, names: Iterable[object]) -> Stream | None:
        """The first open stream that goes by one of these: its id, its opening's or its request's."""
        for name in names:
            if isinstance(name, str):  # it comes from a payload, and may be anything there
                for stream in self._open.values():
                    if name == stream.id or name in stream.names:
                        return stream
        return None

    def owned_by(self, participant: str) -> tuple[Stream, ...]:
        """A participant's own streams."""
        return tuple(stream for stream in self._open.values() if stream.owner == participant)

    def open(self, request: Envelope, *, targets: tuple[str, ...], now: datetime) -> Stream:
        """Open a stream for a `stream/request`; its sender owns it and is the first writer."""
        self._opened += 1
        owner = ParticipantId(request.sender)
        stream = Stream(
            id=f"stream-{self._opened}",
            owner=owner,
            writers=(owner,),
            targets=targets,
            created=wire_timestamp(now),
            metadata={key: value for key, value in request.body.items() if key not in _OURS},
            names=frozenset({request.id}),
        )
        self._open[stream.id] = stream
        return stream

    def name(self, stream: Stream, name: str) -> Stream:
        """Let a stream go by one more id."""
        return self._change(stream, names=stream.names | {name})

    def close(self, stream_id: str) -> None:
        """Forget a stream."""
        self._open.pop(stream_id, None)

    def let_write(self, stream: Stream, participant: ParticipantId) -> Stream:
        """Add a writer."""
        return self._change(stream, writers=(*(one for one in stream.writers if one != participant), participant))

    def stop_writing(self, stream: Stream, participant: str) -> Stream:
        """Take a writer away."""
        return self._change(stream, writers=tuple(one for one in stream.writers if one != participant))

    def give_to(self, stream: Stream, owner: ParticipantId) -> Stream:
        """Hand a stream over; the new owner writes, the previous one no longer does."""
        kept = tuple(one for one in stream.writers if one not in (stream.owner, owner))
        return self._change(stream, owner=owner, writers=(owner, *kept))

    def _change(self, stream: Stream, **changes: Any) -> Stream:
        changed = replace(stream, **changes)
        self._open[stream.id] = changed
        return changed
