"""[pure] The status board: the last status of each participant, for late joiners, HTTP readers and the dashboard.

Keeps each status unchanged; the board adds its age, and whether its figure is old. The gateway requests newer figures
from participants that do not report on their own, some seconds after they joined, and after chats from or to them. Does
not check who may read or be asked.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from mew_protocol import errors, kinds
from mew_protocol.context_report import Outdated, outdated_by, plausible, reports_only_when_asked
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.ids import GATEWAY
from mew_protocol.json_values import value_at
from mew_protocol.payloads.base import read_payload
from mew_protocol.payloads.participant import BoardEntry, Status, StoredMessages, check_new_status, is_whole_status

from mew_spaces.core.effects import Receipt, StateChanged, accept, refuse
from mew_spaces.core.state import Change, ReportedStatus, SpaceState

TREND_SECONDS: Final = 3_600.0
"""How far back the growth of a context is looked at."""

_TREND_SAMPLES: Final = 64
_TREND_SPAN_SECONDS: Final = 5.0
"""A shorter time says nothing about growth."""

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Keeps a time that a participant made up within the range of `datetime` when the clock is set."""


_FIGURES: Final = frozenset({"tokens", "max_tokens", "messages_in_context", "context"})

Trend = tuple[tuple[float, int], ...]
"""When one context had which sizes since it last shrank, to project when it is full. Times are in seconds."""


def _extended(trend: Trend, at: float, tokens: int | None) -> Trend:
    """Add a reported size. An unknown, smaller or implausible size starts a new series."""
    tokens = plausible(tokens)
    if tokens is None:
        return ()
    if trend and (tokens < trend[-1][1] or at < trend[-1][0]):
        trend = ()
    trend = trend[1 - _TREND_SAMPLES :]
    while trend and at - trend[0][0] > TREND_SECONDS:
        trend = trend[1:]
    return (*trend, (at, tokens))


def _figure_at(status: Status, known: ReportedStatus | None, at: datetime) -> datetime:
    """Return when a new status's figure was first reported."""
    if known is None or status.context is None or status.context.measured_at is None:
        return at
    same = all(
        value_at(known.status, *path) == figure
        for path, figure in ((("tokens",), status.tokens), (("context", "measured_at"), status.context.measured_at))
    )
    return known.figure_at if same else at


JOIN_GRACE: Final = timedelta(seconds=2)
"""How long a participant that joined has to report by itself."""

REQUEST_INTERVAL: Final = timedelta(seconds=10)
"""At most one request to a participant in this time."""

MAX_UNANSWERED: Final = 2
"""Participants that leave this many requests unanswered are not asked again before they join or report."""

MAX_AT_ONCE: Final = 10
"""How many participants are asked each time, so that a thousand that join together cost little."""


class StatusRequest(NamedTuple):
    """The request to one participant. `due_at` None: its figure is current, or it does not answer."""

    due_at: datetime | None = None
    asked_at: datetime | None = None
    unanswered: int = 0


NEVER: Final = StatusRequest(unanswered=MAX_UNANSWERED)


class StatusRequests:
    """The requests to the participants of a space that do not report on their own."""

    def __init__(self) -> None:
        self.asked: dict[str, StatusRequest] = {}

    def shift(self, by: timedelta) -> None:
        """Shift all times by a jump of the wall clock."""
        for name, one in self.asked.items():
            due_at, asked_at = (None if at is None else at + by for at in (one.due_at, one.asked_at))
            self.asked[name] = StatusRequest(due_at, asked_at, one.unanswered)

    def joined(self, participant: str, *, now: datetime) -> None:
        """Plan a request to a participant, unless it reports on its own."""
        self.asked[participant] = StatusRequest(now + JOIN_GRACE)

    def left(self, participant: str) -> None:
        """Cancel requests to a participant."""
        self.asked.pop(participant, None)

    def worked(self, participant: str, *, now: datetime) -> None:
        """Plan a request to a participant that works on a chat, and so has a context, unless known."""
        self.asked.setdefault(participant, StatusRequest(now))

    def reported(self, participant: str, *, only_when_asked: bool) -> None:
        """Note a status. A participant is asked again only if it does not report on its own."""
        known = self.asked.get(participant, NEVER)
        self.asked[participant] = StatusRequest(None, known.asked_at) if only_when_asked else NEVER

    def chatted(self, participants: Iterable[str], *, now: datetime) -> None:
        """Note a chat from or to these participants."""
        for name in participants:
            known = self.asked.get(name)
            if known is not None and known.due_at is None and known.unanswered < MAX_UNANSWERED:
                due_at = now if known.asked_at is None else max(now, known.asked_at + REQUEST_INTERVAL)
                self.asked[name] = known._replace(due_at=due_at)

    @property
    def is_waiting(self) -> bool:
        """Whether any participant will be asked."""
        return any(one.due_at is not None for one in self.asked.values())

    def take_due(self, may_ask: Callable[[str], bool], *, now: datetime) -> list[str]:
        """Return the participants to ask now, longest waiting first, at most `MAX_AT_ONCE`."""
        due = sorted((one.due_at, name) for name, one in self.asked.items() if one.due_at and one.due_at <= now)
        found: list[str] = []
        for _, name in due:
            if len(found) == MAX_AT_ONCE:
                break
            known = self.asked[name]
            if known.unanswered >= MAX_UNANSWERED or not may_ask(name):
                self.asked[name] = NEVER
                continue
            self.asked[name] = StatusRequest(now + REQUEST_INTERVAL, now, known.unanswered + 1)
            found.append(name)
        return found


class StoredChats(NamedTuple):
    """The chats for one participant since it left. `has_left`: it left during this run, so none is missing."""

    messages: int = 0
    oldest_at: datetime | None = None
    has_left: bool = False


class StatusBoard:
    """The last status of every participant. A status stays when its sender disconnects."""

    def __init__(self, state: SpaceState) -> None:
        self._state = state
        self._parsed: dict[str, tuple[str, Status]] = {}
        self._written: dict[str, dict[str, Any]] = {}
        self.trends: dict[str, Trend] = {}
        self.measured_at: dict[str, datetime] = {}
        """When the newest figures of each participant were measured, by the gateway's clock at the latest."""
        self.outdated: dict[str, Outdated] = {}
        """The participants with an old figure, and the reason."""
        self.stored: dict[str, StoredChats] = {}
        """The chats that were sent to absent participants."""
        self.requests = StatusRequests()
        self._asked_only = {
            name
            for name, reported in state.statuses.items()
            if reports_only_when_asked(reported.status.get("tokens"), reported.status.get("context"))
        }
        """The participants that report only when they are asked, and perhaps some that do not any more."""

    def joined(self, participant: str, *, now: datetime, is_asked: bool) -> None:
        """Note that a participant joined, perhaps as another process with another clock, so its figure may be wrong.

        `is_asked`: it may be asked for its status.
        """
        self.measured_at.pop(participant, None)
        self.trends.pop(participant, None)
        self.stored.pop(participant, None)
        self._mark("join", participant)
        if is_asked or participant in self._asked_only:
            self.requests.joined(participant, now=now)

    def left(self, participant: str) -> None:
        """Note that a participant left. Counts the messages sent to it until it joins."""
        self.requests.left(participant)
        self.stored[participant] = StoredChats(has_left=True)

    def removed(self, participant: str) -> None:
        """Forget a removed participant."""
        self.requests.left(participant)
        self._asked_only.discard(participant)
        for table in (self._parsed, self._written, self.trends, self.measured_at, self.outdated, self.stored):
            table.pop(participant, None)

    def store_for(self, participant: str, *, now: datetime) -> None:
        """Count a chat for an absent participant."""
        known = self.stored.get(participant, StoredChats())
        oldest_at = known.oldest_at or now
        self.stored[participant] = StoredChats(known.messages + 1, oldest_at, known.has_left)

    def has_stored(self, participant: str) -> bool:
        """Return whether messages wait at the gateway for a participant."""
        return self.stored.get(participant, StoredChats()).messages > 0

    def _stored_for(self, participant: str) -> StoredMessages | None:
        known = self.stored.get(participant)
        if known is None or known.oldest_at is None:
            return None
        at = wire_timestamp(known.oldest_at)
        return StoredMessages(messages=known.messages, oldest_at=at, is_complete=known.has_left)

    def observe(self, envelope: Envelope, *, now: datetime) -> None:
        """Note a relayed envelope.

        A chat changes the contexts of its sender and its addressees. A participant that works on a chat has a context;
        one that may be a person is not asked before that.
        """
        kind, sender = envelope.kind, envelope.sender
        if kind == kinds.CHAT:
            if self._asked_only:
                everyone = self._asked_only if not envelope.to else {sender, *envelope.to} & self._asked_only
                for name in everyone:
                    self._mark("chat", name)
                self.requests.chatted(everyone, now=now)
            return
        is_working = kind == kinds.REASONING_START or envelope.body.get("status") == "processing"
        if is_working and sender not in self._state.statuses:
            self.requests.worked(sender, now=now)

    def _mark(self, event: Literal["join", "chat"], participant: str) -> None:
        received = self._state.statuses.get(participant)
        if received is None:
            return
        status = self._status_of(participant, received)
        outdated = outdated_by(event, status.tokens, status.context, self.outdated.get(participant))
        if outdated is not None:
            self.outdated[participant] = outdated

    def has_reported(self, participant: str) -> bool:
        """Return whether a participant has sent a status since it joined."""
        return participant in self._state.statuses and self.outdated.get(participant) != "before_join"

    def shift(self, by: timedelta) -> None:
        """Shift the times for the comparison of reports by a jump of the wall clock."""
        self.measured_at = {name: at + by for name, at in self.measured_at.items()}
        self.requests.shift(by)

    def receive(self, envelope: Envelope, *, now: datetime) -> Receipt | None:
        """Decide a `participant/status`: store it as its sender's last one, or return None to relay it only.

        A partial status never replaces a whole one. Refuses invalid statuses, and figures older than the sender's
        previous ones.
        """
        if not is_whole_status(envelope):
            return None
        sender, body = envelope.sender, envelope.body
        try:
            status = read_payload(envelope, Status)
            for place, sent, read in (
                ("payload", body, status),
                ("payload.context", body.get("context"), status.context),
            ):
                for name, value in (sent or {}).items():
                    # Members get the status as it was sent, and "5" or true is no number to them.
                    if isinstance(value, str | bool) and type(getattr(read, name, None)) is int:
                        raise PayloadError(envelope.kind, f"{place}.{name}", "must be a whole number")
            check_new_status(status, self.measured_at.get(sender))
        except PayloadError as error:
            # A status without figures is not misleading: simple clients report only their activity.
            has_figures = not _FIGURES.isdisjoint(body)
            return refuse(errors.INVALID_PAYLOAD, str(error), code=errors.VALIDATION_ERROR) if has_figures else None
        self._parsed[sender] = (envelope.id, status)
        figure_at = _figure_at(status, self._state.statuses.get(sender), now)
        reported = ReportedStatus(status=dict(body), envelope_id=envelope.id, received_at=now, figure_at=figure_at)
        return accept(envelope, StateChanged((Change("statuses", sender, reported),)))

    def record(self, envelope: Envelope, *, is_kept: bool) -> None:
        """Note an accepted `participant/status`. `is_kept`: its change was applied."""
        sender = envelope.sender
        reported = self._state.statuses.get(sender)
        if not is_kept or reported is None or reported.envelope_id != envelope.id:
            if envelope.names(GATEWAY) and value_at(envelope.body, "context") is None and not is_whole_status(envelope):
                self.requests.reported(sender, only_when_asked=False)  # it has no context report
            return
        status, at = self._status_of(sender, reported), reported.received_at
        measured_at = check_new_status(status)
        if measured_at is not None:  # a sender may correct a clock that was ahead
            self.measured_at[sender] = max(_EARLIEST, min(measured_at, at))
        self.trends[sender] = _extended(self.trends.get(sender, ()), at.timestamp(), status.tokens)
        self._written.pop(sender, None)
        self.outdated.pop(sender, None)
        is_asked_only = reports_only_when_asked(status.tokens, status.context)
        (self._asked_only.add if is_asked_only else self._asked_only.discard)(sender)
        self.requests.reported(sender, only_when_asked=is_asked_only)

    def entry(self, participant: str, *, connected: bool, now: datetime) -> BoardEntry:
        """Return one line of the board; `status` is absent until the participant sends one."""
        received, stored = self._state.statuses.get(participant), self._stored_for(participant)
        waiting: dict[str, Any] = {} if stored is None else {"stored": stored}
        if received is None:
            return BoardEntry(id=participant, connected=connected, **waiting)
        status = self._status_of(participant, received)
        entry = BoardEntry(
            id=participant,
            connected=connected,
            status=status,
            status_id=received.envelope_id,
            received_at=wire_timestamp(received.received_at),
            age_seconds=round(max(0.0, (now - received.received_at).total_seconds()), 3),
        )
        further = waiting
        if status.tokens is not None:
            further["figure_at"] = wire_timestamp(received.figure_at)
        if outdated := self.outdated.get(participant):
            further["outdated"] = outdated
        elif connected and (seconds := self._seconds_to_compaction(participant, status, now)) is not None:
            further["seconds_to_compaction"] = seconds
        return entry.model_copy(update=further) if further else entry

    def _seconds_to_compaction(self, participant: str, status: Status, now: datetime) -> int | None:
        """Return the time until a compaction at the current rate, including idle time; None if the context does not
        grow.
        """
        trend, report = self.trends.get(participant, ()), status.context
        limit = plausible((report.compact_at_tokens if report is not None else None) or status.max_tokens)
        if limit is None or len(trend) < 2:
            return None
        (began, first), (_, last) = trend[0], trend[-1]
        span = now.timestamp() - began
        if last <= first or not _TREND_SPAN_SECONDS <= span <= TREND_SECONDS:
            return None
        return max(0, round((limit - last) * span / (last - first)))

    def entry_json(self, participant: str, *, connected: bool, now: datetime) -> dict[str, Any] | None:
        """Return a participant's line as JSON, or None without a status. Much cheaper than `entry`.

        Writes only keys that the status had, because our model's defaults are not the sender's statements.
        """
        received = self._state.statuses.get(participant)
        if received is None:
            return None
        known = self._written.get(participant)
        if known is None or known["status_id"] != received.envelope_id:
            entry = self.entry(participant, connected=connected, now=now)
            written = entry.model_dump(
                mode="json", by_alias=True, exclude_unset=True, exclude={"seconds_to_compaction", "outdated", "stored"}
            )
            known = self._written[participant] = written
        age_seconds = round(max(0.0, (now - received.received_at).total_seconds()), 3)
        old = {"outdated": outdated} if (outdated := self.outdated.get(participant)) else {}
        waiting = {"stored": stored.model_dump(mode="json")} if (stored := self._stored_for(participant)) else {}
        return {**known, "connected": connected, "age_seconds": age_seconds, **old, **waiting}

    def _status_of(self, participant: str, received: ReportedStatus) -> Status:
        known = self._parsed.get(participant)
        if known is None or known[0] != received.envelope_id:  # restored after a restart
            known = self._parsed[participant] = (received.envelope_id, Status.model_validate(received.status))
        return known[1]
