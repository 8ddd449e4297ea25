"""[pure] Reads a model's reply, whole or streamed, from the bytes that pass a meter.

Owns decompression and a meter's digests. Keeps no text. `model.reply_events` interprets the events.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from mew_agent.model.event_stream import Event, EventDecoder
from mew_agent.model.reply_events import ReplyEvents
from mew_agent.model.usage import Usage
from mew_agent.parts.meter.apis import READERS, Api
from mew_agent.parts.meter.request_facts import digest_of

READABLE_ENCODINGS: Final = ("identity", "gzip", "deflate")

_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """The contents of a complete reply. `usage` is None if unreported or implausible."""

    usage: Usage | None = None
    tool_calls: frozenset[str] = frozenset()  # digests of their ids
    response: str | None = None  # digest of the id of the response
    model: str | None = None
    problem: str | None = None  # why the reported usage cannot be true


@dataclass(slots=True)
class ReplyReader:
    """Reads one reply while its bytes pass. `feed` never raises: unreadable bytes leave the usage unknown."""

    api: Api
    encoding: str = "identity"
    _events: ReplyEvents = field(init=False)
    _decoder: EventDecoder = field(default_factory=EventDecoder)
    _is_readable: bool = True
    _inflate: Any = None

    def __post_init__(self) -> None:
        self._events = ReplyEvents(READERS[self.api]())
        self._is_readable = self.encoding in READABLE_ENCODINGS
        if self._is_readable and self.encoding != "identity":
            self._inflate = zlib.decompressobj(wbits=47 if self.encoding == "gzip" else 15)

    @property
    def is_whole(self) -> bool:
        """True unless the reply is known to be streamed."""
        return self._is_readable and self._decoder.is_whole is not False

    @property
    def has_ended(self) -> bool:
        """True after the mark that ends a stream, when no usage can follow."""
        return self._events.has_ended

    @property
    def awaits_usage(self) -> bool:
        """True if the stream has ended, and its usage may still follow."""
        return self._events.is_done and not self.has_ended

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the body."""
        self._read(event for piece in self._inflated(chunk) for event in self._decoder.feed(piece))

    def end(self, *, was_cut: bool = False) -> Reply | None:
        """Return the reply at the end of the body; None if it is incomplete. `was_cut`: the connection broke."""
        is_whole, events = self._decoder.is_whole, self._events
        if not was_cut:
            self._read(self._decoder.end())
        if is_whole and not events.chunks:
            return None  # invalid JSON, which the client cannot read either
        if not (events.is_complete or (not was_cut and not self._is_readable)):
            return None
        if was_cut and not events.may_break_off:
            return None
        tool_calls = frozenset(digest_of(name) for name in events.tool_calls)
        response = None if events.response is None else digest_of(events.response)
        return Reply(events.usage, tool_calls, response, events.model)

    def _read(self, events: Iterator[Event]) -> None:
        if not self._is_readable:
            return
        try:
            for event in events:
                self._events.read(event)
        except (ValueError, zlib.error):
            self._is_readable = False
            self._decoder = EventDecoder()

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        """Yield bounded pieces, because a small chunk may inflate to a very large one."""
        if self._inflate is None:
            yield chunk
            return
        while chunk:
            yield self._inflate.decompress(chunk, _PIECE_BYTES)
            chunk = self._inflate.unconsumed_tail
