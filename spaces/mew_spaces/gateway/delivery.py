"""Numbered delivery: the reached number of each session, and replay after a reconnect.

A session is a connection that joined with `delivery`. It gets every broadcast with its number: first the missed ones,
at its reading speed, then new ones. Other connections get only the plain bytes. `service` decides when an envelope is
stored and written.

Also limits the work when all members of a large space join at once, for example after a restart. Each join causes a
welcome with all members, and a presence for every member, so the work grows quadratically. `PresenceBatches` combines
small writes for sessions that requested it. `JoinPace` spreads the joins of sessions, so that each is answered in time.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio
from mew_protocol import kinds
from mew_protocol.codec import kind_in
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY, Position
from mew_protocol.join import DeliveryRequest

from mew_spaces.core.admission import RateLimit
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.state import Change, Stream
from mew_spaces.gateway.clock import now_utc, steady_seconds
from mew_spaces.gateway.outbound import Fanout, OutboundChannel, frame_json
from mew_spaces.log.memory import Entry, SpaceLog

REPLAY_BATCH = 64
"""How many envelopes a replay writes before it looks at the buffer again."""

REPLAY_BUFFER_BYTES = 256 * 1024
"""How much may wait for a session before its replay pauses; far below the limit of a slow consumer."""

REMEMBERED_CLOSED_STREAMS = 1_000
"""How many closed streams have their frames counted, for sessions that come back later."""

_PRESENCE = kinds.SYSTEM_PRESENCE.encode()


@dataclass(slots=True)
class DeliverySession:
    """The progress of one connection. `reached` is the number of the last envelope written to it."""

    reached: int
    began: int = 0
    """The same when it joined."""
    newest: int = 0
    """The number of the newest envelope when it joined, stored or not."""
    participant: str = ""
    welcome: dict[str, Any] = field(default_factory=dict)
    """The `delivery` key of its welcome."""
    is_live: bool = False
    batches_presence: bool = False


def numbered(data: bytes, sequence: int, age_seconds: float | None = None) -> bytes:
    """Return an envelope's JSON with its number as the last key; it overrides a sender's own `seq`.

    `age_seconds` is the age of a replayed envelope.
    """
    age = b"" if age_seconds is None else b',"age_seconds":%.3f' % max(0.0, age_seconds)
    return b'%s%s,"seq":%d}' % (data[:-1], age, sequence)


class RelayedFrames:
    """The number of frames per stream that this run of the gateway has relayed.

    Counts frames when written, not when accepted, because a session admitted in between gets the frame.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        """`streams` are those still open from an earlier run."""
        self._run = secrets.token_hex(4)
        self._targets = {name: stream.targets for name, stream in streams.items()}
        self.counts: Counter[str] = Counter(dict.fromkeys(streams, 0))
        """How many frames of each stream were relayed."""
        self._closed_at: OrderedDict[str, int] = OrderedDict()  # with the sequence of their close

    def follow(self, changes: Iterable[Change], sequence: int) -> None:
        """Follow the opening and closing of streams; `sequence` is the newest envelope's number, stored or not."""
        for change in changes:
            if isinstance(change.value, Stream):
                self._targets[change.key] = change.value.targets
                self.counts.setdefault(change.key, 0)
            elif change.table == "streams":
                self._closed_at[change.key] = sequence
                if len(self._closed_at) > REMEMBERED_CLOSED_STREAMS:
                    oldest, _ = self._closed_at.popitem(last=False)
                    self.counts.pop(oldest, None)
                    self._targets.pop(oldest, None)

    def seen_by(self, participant: str, since: int) -> dict[str, Any]:
        """Return the frame counts of a participant's streams, except those closed before `since`."""
        counts = {
            name: count
            for name, count in self.counts.items()
            if self._closed_at.get(name, since) >= since
            and (not (targets := self._targets.get(name)) or participant in targets)
        }
        return {"run": self._run, "counts": counts}


class DeliverySessions:
    """The sessions of one space. Returns at once from every call."""

    def __init__(
        self,
        log: SpaceLog,
        fanout: Fanout,
        notify: Callable[..., None],
        streams: Mapping[str, Stream],
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        """`notify` sends a connection a receipt about no envelope, with these payload keys.

        `streams` are the open ones. `clock` is the log's clock.
        """
        self._clock = clock
        self._log = log
        self._fanout = fanout
        self.frames = RelayedFrames(streams)
        self._notify = notify
        self.by_connection: dict[ConnectionId, DeliverySession] = {}
        self.replaying: dict[ConnectionId, OutboundChannel] = {}
        """The sessions that still have to catch up."""
        self.presences = PresenceBatches()

    def _place_of(self, position: str) -> tuple[int, str | None]:
        """Return the start for a client that has everything up to a position, and the reason of any gap."""
        since, log = Position.parse(position), self._log
        # The position is newer than the log: an older copy of the log was restored since.
        if since is None or since.epoch != log.epoch or since.sequence > log.staged_through:
            return log.staged_through, "other_epoch"
        if since.sequence < log.start.sequence:
            return log.start.sequence, "history_gone"
        return since.sequence, None

    def begin(self, connection: ConnectionId, request: DeliveryRequest) -> None:
        """Begin the session of a connection, unless it has one."""
        if connection in self.by_connection:
            return
        log = self._log
        newest = log.staged_through
        session = DeliverySession(newest, newest=newest, batches_presence=request.batches_presence)
        reason: str | None = None
        if request.since is not None:
            session.reached, reason = self._place_of(request.since)
        # A client with an unusable position counts as a new one: it gets the envelopes of its first join.
        if request.last and (request.since is None or reason == "other_epoch"):
            first = log.last(request.last)[:1]
            session.reached = first[0].sequence - 1 if first else newest
        session.welcome = {"recovered": reason is None, "live": session.reached == newest}
        session.began = session.reached
        if reason is not None:
            before = str(Position(log.epoch, session.reached + 1))
            session.welcome["gap"] = {"after": request.since, "reason": reason, "before": before}
        self.by_connection[connection] = session

    def welcome(self, connections: tuple[ConnectionId, ...], envelope: Envelope) -> Envelope:
        """Add the start position to a session's first welcome; return other envelopes unchanged.

        Later welcomes of a connection report new capabilities. A client would take their position for its own.
        """
        session = self.by_connection.get(connections[0]) if len(connections) == 1 else None
        if session is None or envelope.kind != kinds.SYSTEM_WELCOME or session.participant:
            return envelope
        session.participant = (envelope.to or ("",))[0]
        # Never a number without a stored envelope: after a restart, the gateway would give it to another one.
        epoch, stored = self._log.epoch, self._log.position.sequence
        places = {"position": session.began, "newest": session.newest}
        named = {name: str(Position(epoch, min(sequence, stored))) for name, sequence in places.items()}
        delivery = {**named, **session.welcome, "frames": self._frames_of(session)}
        return envelope.model_copy(update={"payload": {**envelope.body, "delivery": delivery}})

    def _frames_of(self, session: DeliverySession) -> dict[str, Any]:
        return self.frames.seen_by(session.participant, session.began)

    def admit(self, connection: ConnectionId, channel: OutboundChannel) -> None:
        """Send broadcasts to a connection from now on; a session gets missed ones first."""
        session = self.by_connection.get(connection)
        if session is not None and session.batches_presence:
            self.presences.begin(connection)
        if session is None:
            self._fanout.add(connection, channel)
        elif session.welcome["live"]:
            session.is_live = True
            self._fanout.add(connection, channel, numbered=True)
        else:
            self.replaying[connection] = channel

    def end(self, connection: ConnectionId) -> None:
        """Forget a connection that is closed."""
        self.pause(connection)
        self.by_connection.pop(connection, None)

    def pause(self, connection: ConnectionId) -> None:
        """Stop broadcasts to a connection that stays open."""
        self.presences.end(connection)
        self.replaying.pop(connection, None)

    def report_lost_frames(self, stream_id: str, frames: int) -> None:
        """Count frames lost on the way to this gateway, and send its sessions the new counts."""
        self.frames.counts[stream_id] += frames
        for connection, session in tuple(self.by_connection.items()):
            if session.is_live:
                self._notify(connection, status="live", position=self._log.position, frames=self._frames_of(session))

    def replay(self) -> None:
        """Continue the replays of sessions within their buffer limits.

        Call it only when everything published by the log is written to the live members.
        """
        for connection, channel in tuple(self.replaying.items()):
            session = self.by_connection[connection]
            while channel.is_open and channel.waiting_bytes <= REPLAY_BUFFER_BYTES:
                place = Position(self._log.epoch, session.reached)
                entries = self._log.since(place, limit=REPLAY_BATCH)
                if entries is None:  # its next envelopes were deleted while it caught up
                    session.reached = self._log.start.sequence
                    self._notify(connection, status="gap", position=self._log.start)
                elif entries:
                    session.reached = self._write(channel, entries, without_presence=session.batches_presence)
                else:
                    session.is_live = True
                    del self.replaying[connection]
                    self._fanout.add(connection, channel, numbered=True)
                    # It got no frames while it caught up, so report their counts.
                    frames = self._frames_of(session)
                    self._notify(connection, status="live", position=place, frames=frames)
                    break

    def _write(self, channel: OutboundChannel, entries: Sequence[Entry], *, without_presence: bool) -> int:
        """Write entries until the buffer is full enough. Returns the number of the last one written."""
        now = self._clock().timestamp()
        for entry in entries:
            if without_presence and entry.sender == GATEWAY and kind_in(entry.data) == _PRESENCE:
                continue  # the welcome says who is here
            channel.write(frame_json(numbered(entry.data, entry.sequence, now - entry.at)))
            if not channel.is_open or channel.waiting_bytes > REPLAY_BUFFER_BYTES:
                return entry.sequence
        return entries[-1].sequence


SINGLE_PRESENCES_PER_SECOND = 20.0
SINGLE_PRESENCES = 20
"""Up to this rate a presence is sent at once, so single joins are seen without delay."""
SHORTEST_PAUSE_SECONDS = 0.1
PAUSE_SECONDS_PER_SESSION = 0.001
JOINS_PER_SECOND = 200.0
JOIN_BURST = 200
MAX_RETRY_AFTER_SECONDS = 15.0


class PresenceBatches:
    """The presences since the last batch, in order."""

    def __init__(self, *, clock: Callable[[], float] = steady_seconds) -> None:
        self._rate = RateLimit(per_second=SINGLE_PRESENCES_PER_SECOND, burst=SINGLE_PRESENCES, clock=clock)
        self._changes: list[Mapping[str, Any]] = []
        self._starts: dict[ConnectionId, int] = {}
        self.collected = anyio.Event()
        """Set when there is something to take."""

    @property
    def connections(self) -> AbstractSet[ConnectionId]:
        """The sessions that take presences in batches."""
        return self._starts.keys()

    def collects(self, *, is_replaying: bool) -> bool:
        """Return True to collect a presence: in a storm, after collected ones, or while a session catches up.

        Others are sent at once, as to plain connections. Replays contain no presences, so a session that catches up
        gets them only in batches.
        """
        if not self._starts:
            return False
        return is_replaying or bool(self._changes) or not self._rate.try_spend()

    @property
    def pause_seconds(self) -> float:
        """The time to collect presences: longer with more sessions, so that a storm takes a limited share of time."""
        return max(SHORTEST_PAUSE_SECONDS, PAUSE_SECONDS_PER_SESSION * len(self._starts))

    def begin(self, connection: ConnectionId) -> None:
        """Start sending presences to a session, whose welcome contains the earlier ones."""
        self._starts[connection] = len(self._changes)

    def end(self, connection: ConnectionId) -> None:
        """Stop sending presences to a session."""
        self._starts.pop(connection, None)

    def add(self, payload: Mapping[str, Any], *, without: Iterable[ConnectionId] = ()) -> None:
        """Collect the payload of a presence. `without` are the new connections of its participant."""
        for connection in without:
            # Skip a newcomer's own presence, but only if no other change was collected before: each member gets one
            # range of changes.
            if self._starts.get(connection) == len(self._changes):
                self._starts[connection] += 1
        self._changes.append(payload)
        self.collected.set()

    def drain(self) -> Iterator[tuple[tuple[ConnectionId, ...], list[Mapping[str, Any]]]]:
        """Yield the sessions with their collected changes, and start over."""
        changes, self._changes, self.collected = self._changes, [], anyio.Event()
        groups: dict[int, list[ConnectionId]] = {}
        for connection, start in self._starts.items():
            groups.setdefault(start, []).append(connection)
            self._starts[connection] = 0
        for start, connections in groups.items():
            if start < len(changes):
                yield tuple(connections), changes[start:]


class JoinPace:
    """Decides when sessions may join: a burst at once, the rest at a steady pace, each with a retry time."""

    def __init__(
        self,
        *,
        per_second: float = JOINS_PER_SECOND,
        burst: int = JOIN_BURST,
        clock: Callable[[], float] = steady_seconds,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._per_second = per_second
        self._clock = clock
        self._rate = RateLimit(per_second=per_second, burst=burst, clock=clock)
        self._queue_end = clock()

    def retry_after_seconds(self) -> float:
        """Return 0 if a session may join now, else the seconds until its next try."""
        if self._rate.try_spend():
            return 0.0
        # Each refused session gets its own time, so that they do not all return at once.
        now = self._clock()
        self._queue_end = max(now, self._queue_end) + 1 / self._per_second
        return min(self._queue_end - now, MAX_RETRY_AFTER_SECONDS)
