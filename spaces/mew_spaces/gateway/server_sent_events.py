"""Server-sent events: a space for readers without a WebSocket connection, live and resumable.

Sends only what a member would receive: the board, then each accepted envelope with its position in the history.
`attention` follows at each change, and after a reconnect. So does `outdated`, with the participants whose figures are
old, after their statuses. A page may follow `view` instead of `board` and `outdated`: the board in words, then its
changes. It also gets `said`, an answer in words, before that answer's envelope. A new reader may request the newest
envelopes, which precede the board, and stream frames, which are not stored. A reader that reconnects with its last
position gets the missed events, or a `reset` event if they are no longer stored. After a gateway restart, the board
follows, because no envelope announced the disconnected members. Limits the open streams per token and address, and ends
them with their token.
"""

import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import anyio
import anyio.lowlevel
from mew_board.answers import ANSWER_KINDS, said
from mew_listener.bounded_dict import cached_by_text
from mew_protocol import kinds
from mew_protocol.codec import StreamFrame, kind_in
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId, Position
from mew_protocol.payloads.attention_items import AttentionItem
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.memory import Entry, SpaceLog, within_bytes

KEEP_ALIVE_SECONDS = 15.0

_BATCH = 256
"""How many events are written at once at most."""

PAGE_BYTES = 1024 * 1024
"""How many bytes of envelopes are written at once at most; a single one may be larger."""

_WORDED_PAGE_BYTES = 256 * 1024
"""The same if answers are put into words, which blocks the event loop. A single larger answer gets no words."""

MAX_LAST = 2_000
"""How many envelopes a new reader may ask for."""

_MAX_FRAMES = 2_000
"""How many frames wait for a reader at most; the oldest are dropped."""

_SEARCHED = 20_000
"""How many of the newest envelopes are searched for those that a new reader asks for."""

_SEARCH_STEP = 1_000

_STATUS = kinds.PARTICIPANT_STATUS.encode()
_CACHED_BYTES = 2 * PAGE_BYTES
"""How many bytes of answers are cached with their words: several pages follow one space."""

_ANSWERS = frozenset(kind.encode() for kind in ANSWER_KINDS)


@dataclass(eq=False, slots=True)
class EventReader:
    """The reader of an event stream."""

    service: SpaceService
    token: str
    address: str
    with_frames: bool = False
    with_views: bool = False
    waiting: anyio.CancelScope | None = None
    """Set while the stream has nothing to send."""
    frames: deque[bytes] = field(default_factory=deque)
    """The events of frames to send."""
    frame_bytes: int = 0
    """The size of `frames`."""

    @property
    def may_read(self) -> bool:
        """Whether the reader's token is valid."""
        return self.service.tokens.may_read(self.token)

    def receive_frame(self, frame: StreamFrame, recipients: AbstractSet[ParticipantId] | None) -> None:
        """Receive a text frame of a stream, for `recipients` (None: all members)."""
        if isinstance(frame.raw, bytes):
            return
        if recipients is None or self.service.tokens.identify(self.token) in recipients:
            data = frame.raw[len(frame.stream_id) + 2 :]
            written = event("frame", to_json({"stream_id": frame.stream_id, "data": data}))
            while self.frames and (len(self.frames) >= _MAX_FRAMES or self.frame_bytes + len(written) > PAGE_BYTES):
                self.frame_bytes -= len(self.frames.popleft())
            self.frames.append(written)
            self.frame_bytes += len(written)
            if self.waiting is not None:
                self.waiting.cancel()


class EventStreams:
    """The open event streams of a gateway."""

    def __init__(self, *, per_token: int, per_address: int) -> None:
        self._per_token = per_token
        self._per_address = per_address
        self._readers: dict[EventReader, None] = {}
        self._open: Counter[tuple[str, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._readers)

    def enter(self, reader: EventReader) -> bool:
        """Count a new stream. Returns False if its token or address has too many."""
        by_token, by_address = _keys(reader)
        if self._open[by_token] >= self._per_token or self._open[by_address] >= self._per_address:
            return False
        self._readers[reader] = None
        self._open.update((by_token, by_address))
        return True

    def leave(self, reader: EventReader) -> None:
        """Stop counting a stream that has ended."""
        if reader in self._readers:
            del self._readers[reader]
            self._open.subtract(keys := _keys(reader))
            for key in keys:
                if not self._open[key]:
                    del self._open[key]

    def end_revoked(self) -> None:
        """End idle streams with a token that was revoked or has expired. Call this regularly."""
        for reader in self._readers:
            if reader.waiting is not None and not reader.may_read:
                reader.waiting.cancel()

    def wake(self) -> None:
        """Wake idle streams; they send changed attention items."""
        for reader in self._readers:
            if reader.waiting is not None:
                reader.waiting.cancel()


class EventResponse(StreamingResponse):
    """The response to a counted reader. Stops counting it when either side ends."""

    def __init__(self, streams: EventStreams, reader: EventReader, since: str | None, *, last: int = 0) -> None:
        super().__init__(
            event_stream(reader, since, last=last),
            media_type="text/event-stream",
            headers={
                "cache-control": "no-store",
                "x-accel-buffering": "no",
                "mew-position": str(reader.service.log.position),
            },
        )
        self._streams = streams
        self._reader = reader
        if reader.with_frames:
            reader.service.performer.frame_readers.add(reader.receive_frame)
        reader.service.attention.views.followers += reader.with_views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reader.service.performer.frame_readers.discard(self._reader.receive_frame)
            self._reader.service.attention.views.followers -= self._reader.with_views
            self._streams.leave(self._reader)


def _keys(reader: EventReader) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (reader.service.space.id, reader.token), (reader.address,)


async def event_stream(
    reader: EventReader, since: str | None, *, last: int = 0, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Yield the events of the reader's space from `since` (`<epoch>-<sequence>`) or from now, until the gateway stops.

    Without `since`, the newest `last` envelopes except statuses come first; the board has the statuses.

    Also ends when the reader's token is revoked, even if the participant has a new one.
    """
    history = reader.service.log
    source = _EventSource(reader, Position.parse(since) if since else None, is_new=since is None)
    if since is None:
        place = history.position
        newest = newest_before(history, place.sequence + 1, last).entries
        while newest:
            page = within_bytes(newest, page_bytes(with_words=reader.with_views))
            newest = newest[len(page) :]
            yield _envelopes(history, page, with_words=reader.with_views)
            await anyio.lowlevel.checkpoint()  # writing does not wait while the connection accepts more
        yield await source.board(place)
    while not history.is_closed and reader.may_read:
        if written := await source.take():
            yield written
            await anyio.lowlevel.checkpoint()
        elif await source.waits_in_vain(keep_alive_seconds):
            yield b": keep-alive\n\n"


class _EventSource:
    """The pending events of one reader, in order of delivery."""

    def __init__(self, reader: EventReader, place: Position | None, *, is_new: bool) -> None:
        """`place` is the reader's position; None if it cannot be continued."""
        self._reader = reader
        self._service = reader.service
        self._watch = reader.service.attention
        self._history = reader.service.log
        self._place = place
        started = self._service.started_position.sequence
        self._is_from_earlier_run = not is_new and place is not None and place.sequence < started
        self._attention: tuple[AttentionItem, ...] | None = () if is_new else None  # items that the reader has already
        self._outdated: Mapping[str, dict[str, str]] | None = {} if is_new else None
        self._view: int | None = None

    async def board(self, place: Position) -> bytes:
        """Return the whole board as an event at this position: its views for a page, else its entries."""
        self._place, self._is_from_earlier_run = place, False
        if not self._reader.with_views:
            data = self._service.board().model_dump_json(by_alias=True, exclude_unset=True).encode()
            return event("board", data, id=str(place))
        await self._watch.refresh_views()
        self._view = None
        return self._take_views(place)

    async def take(self) -> bytes:
        """Return the next events; empty if there is nothing to send now."""
        place, history = self._place, self._history
        most = page_bytes(with_words=self._reader.with_views)
        entries = history.since(place, limit=_BATCH, max_bytes=most) if place is not None else None
        if entries is None or place is None:
            return event("reset", b'{"reason":"history_gone"}') + await self.board(history.position)
        if entries:
            self._place = Position(history.epoch, entries[-1].sequence)
            # Pauses are short, so a reader that has all current items gets new ones in between.
            more = b"" if self._attention is None else self._take_attention() + self._take_views()
            return _envelopes(history, entries, with_words=self._reader.with_views) + more
        if self._is_from_earlier_run:
            return await self.board(place)
        return self._take_frames() or self._take_attention() or self._take_views() or self._take_outdated()

    def _take_frames(self) -> bytes:
        reader = self._reader
        frames = b"".join(reader.frames)
        reader.frames.clear()
        reader.frame_bytes = 0
        return frames

    def _take_attention(self) -> bytes:
        items = self._watch.items
        if self._attention == items:
            return b""
        self._attention = items
        known = self._service.tokens.identify(self._reader.token)
        return event("attention", self._watch.for_reader(known).model_dump_json(exclude_unset=True).encode())

    def _take_views(self, place: Position | None = None) -> bytes:
        if not self._reader.with_views or self._view == self._watch.views.number:
            return b""
        found = self._watch.views.since(self._view, self._service.now())
        self._view = self._watch.views.number
        data = found.model_dump_json(exclude_defaults=True).encode()
        return event("view", data, id=None if place is None else str(place))

    def _take_outdated(self) -> bytes:
        outdated = self._watch.outdated
        if self._reader.with_views or self._outdated == outdated:
            return b""
        self._outdated = outdated
        return event("outdated", to_json(outdated))

    async def waits_in_vain(self, seconds: float) -> bool:
        """Wait for something to send. Returns True on timeout."""
        reader, place = self._reader, self._place
        assert place is not None
        with anyio.move_on_after(seconds) as waiting:
            reader.waiting = waiting
            await self._history.wait_beyond(place)
        reader.waiting = None
        return waiting.cancelled_caught and not reader.frames


def event(name: str, data: bytes, *, id: str | None = None) -> bytes:  # noqa: A002 - the field's name in the format
    """Format one event. `data` is JSON without line breaks, as our encoder writes it."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


def page_bytes(*, with_words: bool) -> int:
    """Return the most bytes of envelopes to write at once; a single envelope may be larger."""
    return _WORDED_PAGE_BYTES if with_words else PAGE_BYTES


class Earlier(NamedTuple):
    """Entries before a position, oldest first; the end of the search, and whether older ones may exist."""

    entries: Sequence[Entry]
    place: Position
    has_more: bool


def newest_before(history: SpaceLog, sequence: int, count: int, *, max_bytes: float = math.inf) -> Earlier:
    """Return the newest `count` entries before a number, without statuses. Searches a limited part of the log.

    Returns fewer if they exceed `max_bytes` in total, but at least one.
    """
    found: list[Entry] = []
    oldest, searched = sequence, 0
    start = history.start.sequence
    while oldest > start + 1 and len(found) < count and searched < _SEARCHED:
        first = max(start, oldest - 1 - _SEARCH_STEP)
        entries = history.since(Position(history.epoch, first), limit=oldest - 1 - first) or ()
        entries = [entry for entry in entries if entry.sequence < oldest]
        found = [entry for entry in entries if kind_in(entry.data) != _STATUS] + found
        oldest, searched = first + 1, searched + _SEARCH_STEP
    shown = within_bytes(islice(reversed(found), count), max_bytes)[::-1]
    if len(shown) < len(found):
        oldest = shown[0].sequence
    return Earlier(shown, Position(history.epoch, oldest), oldest > start + 1)


def _envelopes(history: SpaceLog, entries: Sequence[Entry], *, with_words: bool) -> bytes:
    found: list[bytes] = []
    for entry in entries:
        if with_words and (words := in_words(entry.data)):
            found.append(event("said", words))
        found.append(event("envelope", entry.data, id=str(Position(history.epoch, entry.sequence))))
    return b"".join(found)


def in_words(data: bytes) -> bytes:
    """Return the JSON of an answer in words; empty for other envelopes. Rarely parses those.

    Also empty for answers above `_WORDED_PAGE_BYTES`.
    """
    if len(data) > _WORDED_PAGE_BYTES:
        return b""
    kind = kind_in(data)
    if kind not in _ANSWERS or (kind == _STATUS and b'"correlation_id"' not in data):
        return b""
    return _answer_in_words(data)


@cached_by_text(_CACHED_BYTES)
def _answer_in_words(data: bytes) -> bytes:
    try:
        shown = said(Draft.model_validate_json(data))
    except ValidationError:
        return b""
    return b"" if shown is None else shown.model_dump_json(exclude_defaults=True).encode()
