"""The events of a space, and the handlers of a program that receive them.

Owns the event classes, their creation from envelopes, the undecided proposals, and the subscriptions. Runs handlers one
by one in a separate task, and plain functions in a thread, as with tools. Logs a failed handler and continues.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
from anyio.abc import TaskStatus
from mew_board.visible import visible
from mew_listener.bounded_dict import FairDict, weight_of
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY
from mew_protocol.payloads.mcp import (
    CallSubject,
    approval_of,
    arguments_of,
    fulfils,
    proposal_ids_in,
    proposals_in,
)

from mew_agent.errors import ConfigError
from mew_agent.participant.gaps import HistoryGap, SpaceEvent, StreamGap
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.peers import NO_CHANGES, Peer, PeerChanges, PeerContext
from mew_agent.participant.sized_queue import SizedQueue
from mew_agent.tools.functions import run_function

logger = logging.getLogger(__name__)

LOW_SEVERITY = 1
"""The severity from which a context counts as running low."""

MAX_OPEN_PROPOSALS = 1_000
"""How many undecided proposals are kept; the oldest are dropped without a `ProposalClosed`."""

MAX_SHOWN_CHARS = 600
"""How much of a proposal's arguments its text shows. A longer text says how much is missing."""

HowClosed = Literal["fulfilled", "rejected", "withdrawn", "left", "unknown"]


@dataclass(frozen=True, slots=True)
class ChatReceived(SpaceEvent):
    """Another participant sent a chat. Everyone in a space receives every chat; `is_to_me` marks ours."""

    text: str
    sender: str
    envelope: Envelope
    _messenger: Messenger = field(repr=False, compare=False)

    @property
    def is_to_me(self) -> bool:
        """Whether it is addressed to us by name."""
        return self.envelope.names(self._messenger.id)

    @property
    def is_to_everybody(self) -> bool:
        """Whether it is addressed to everyone."""
        return not self.envelope.addressees

    @property
    def is_answer(self) -> bool:
        """Whether it answers another envelope. Do not answer answers: two programs would never stop."""
        return bool(self.envelope.correlation_ids)

    async def reply(self, text: str) -> Envelope:
        """Answer the sender with a chat that refers to this one. Raises `NotPermitted` and `NotConnected`."""
        return await self._messenger.send(
            kinds.CHAT, {"text": text}, to=self.sender, correlation_id=(self.envelope.id,)
        )


@dataclass(frozen=True, slots=True)
class PeerJoined(SpaceEvent):
    """A peer joined. Peers that were here before us are in `Participant.peers` and cause no event."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class PeerLeft(SpaceEvent):
    """A peer left; `peer` is its last known state."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class _Report(SpaceEvent):
    peer: Peer
    before: PeerContext

    @property
    def context(self) -> PeerContext:
        """The report."""
        return self.peer.context


class ContextReported(_Report):
    """A peer reported how full its context window is; `before` is its report before this one."""

    __slots__ = ()


class PeerLevelChanged(_Report):
    """A report has another level than `before`. For our own reports, `peer.id` is our id."""

    __slots__ = ()

    @property
    def is_low(self) -> bool:
        """Whether the severity rose, to 1 or more."""
        severity = self.peer.context.severity
        return severity >= LOW_SEVERITY and severity > self.before.severity


@dataclass(frozen=True, slots=True)
class ProposalMade(SpaceEvent):
    """Another participant proposes an MCP request that it may not send itself.

    `tool` is None unless `method` is `tools/call`; `arguments` are the tool's, or the parameters of another method.
    While it `is_open`, a participant that may send the request can `fulfil` it, and any can `reject` it. `Fulfiller`
    decides by rules.
    """

    sender: str
    peers: tuple[str, ...]
    """The participants that the request is for."""
    method: str
    tool: str | None
    arguments: Mapping[str, Any]
    envelope: Envelope
    _messenger: Messenger = field(repr=False, compare=False)
    _open: "OpenProposals" = field(repr=False, compare=False)

    @property
    def is_open(self) -> bool:
        """Whether it can still be fulfilled: it is undecided, or only others rejected it.

        Check this again before you fulfil it, because a person's decision takes time.
        """
        return self in self._open

    @property
    def subjects(self) -> tuple[str, ...]:
        """`PEER/TOOL`, or `PEER/METHOD` for other methods, for each addressee; a `FulfillerPolicy` matches these."""
        return tuple(f"{peer}/{self.tool or self.method}" for peer in self.peers or ("",))

    def __str__(self) -> str:
        """For people: `'coder' proposes to call 'count_words' on 'words' with {"text": "one two"}`."""
        from mew_board.proposal_text import arguments_in_short  # rarely needed: most programs show no proposals

        targets = " and ".join(f"'{visible(peer)}'" for peer in self.peers) or "everyone"
        is_call = self.tool is not None
        call = (
            f"to call '{visible(self.tool or '')}' on {targets}"
            if is_call
            else f"'{visible(self.method)}' to {targets}"
        )
        arguments = arguments_in_short(self.envelope.body, MAX_SHOWN_CHARS)
        return f"'{self.sender}' proposes {call}{f' with {arguments}' if arguments else ''}"

    async def fulfil(self, arguments: Mapping[str, Any] | None = None) -> Envelope:
        """Send the request; the proposer receives its answer. `arguments` replace the proposed ones.

        Raises `NotPermitted` and `NotConnected`.
        """
        params = None if arguments is None else dict(arguments)
        if params is not None and self.tool is not None:
            params = {"name": self.tool, "arguments": params}
        payload = approval_of(self.envelope, params)
        return await self._messenger.send(kinds.MCP_REQUEST, payload, to=self.peers, correlation_id=(self.envelope.id,))

    async def reject(self, reason: str = "disagree") -> Envelope:
        """Reject it with a reason. Raises `NotPermitted` and `NotConnected`."""
        return await self._messenger.send(
            kinds.MCP_REJECT, {"reason": reason}, to=self.sender, correlation_id=(self.envelope.id,)
        )


@dataclass(frozen=True, slots=True)
class ProposalClosed(SpaceEvent):
    """A proposal no longer needs a decision.

    `how` is `fulfilled` (`by` a participant), `rejected` (with the `reason`; `by` us, by anyone for the proposer's own
    call, or by the gateway after all who may approve it rejected it), `withdrawn` by its proposer, `left` if the
    proposer left and did not return soon, or `unknown` (without `by`) if it ended in a `HistoryGap`.
    """

    proposal: ProposalMade
    how: HowClosed
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProposalRejected(SpaceEvent):
    """Another participant rejected a proposal. It is open until a `ProposalClosed`: others may fulfil it."""

    proposal: ProposalMade
    by: str
    reason: str = ""


class OpenProposals:
    """Other participants' proposals that `me` may still decide."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._by_id: FairDict[str, ProposalMade] = FairDict(
            MAX_OPEN_PROPOSALS,
            lambda _, one: one.sender,
            weight=lambda _, one: weight_of(len(one.envelope.encode())),
        )

    def __contains__(self, proposal: object) -> bool:
        return isinstance(proposal, ProposalMade) and self._by_id.get(proposal.envelope.id) is proposal

    def __iter__(self) -> Iterator[ProposalMade]:
        return iter(tuple(self._by_id.values()))

    def find(self, proposal: ProposalMade | str) -> ProposalMade:
        """Return a proposal, given as an object or an id. Raises `ConfigError` if no open one has this id."""
        found = self._by_id.get(proposal) if isinstance(proposal, str) else proposal
        if found is None:
            listed = ", ".join(self._by_id) or "none"
            raise ConfigError(f"proposal '{proposal}'", "is not open", f"an id of an open proposal: {listed}")
        return found

    def is_same(self, envelope: Envelope) -> bool:
        """Return whether an envelope is an already known proposal; ids alone may repeat."""
        known = self._by_id.get(envelope.id)
        return known is not None and (known.sender, known.envelope.ts) == (envelope.sender, envelope.ts)

    def add(self, proposal: ProposalMade) -> None:
        """Follow a proposal until it is closed."""
        self._by_id[proposal.envelope.id] = proposal

    def decided_by(self, envelope: Envelope, how: HowClosed) -> Iterator[ProposalClosed | ProposalRejected]:
        """Close the proposals that an envelope decides, and yield rejections that leave a proposal open.

        A proposal is withdrawn by its proposer, or by the gateway if the proposer stays away or all who may approve it
        have rejected it. A request to its peers for the same call, or their answer, fulfils it.
        """
        by, reason = envelope.sender, str(envelope.body.get("reason") or "")
        for name in envelope.correlation_ids:
            proposal = self._by_id.get(name)
            if proposal is None or (how == "withdrawn" and by not in (proposal.sender, GATEWAY)):
                continue
            if how == "fulfilled" and not fulfils(envelope, CallSubject.read(proposal.envelope.body), proposal.peers):
                continue
            if how == "rejected" and by not in (self.me, proposal.sender) and proposal.peers != (proposal.sender,):
                yield ProposalRejected(proposal, by, reason)
            elif by == GATEWAY and envelope.body.get("cause") == "all_rejected":
                yield ProposalClosed(self._by_id.pop(name), "rejected", by, reason)
            elif by == GATEWAY:
                yield ProposalClosed(self._by_id.pop(name), "left", proposal.sender)
            else:
                yield ProposalClosed(self._by_id.pop(name), how, by, reason)

    def closed_by_welcome(
        self, welcome: Envelope, present: Container[str], gap: HistoryGap | None
    ) -> Iterator[ProposalClosed]:
        """Close absent participants' proposals that a welcome no longer lists, because we missed their withdrawal.

        After a gap, close all that it does not list, unless the gateway lists none.
        """
        listed = proposal_ids_in(welcome.body)
        is_lost = gap is not None and gap.reason != "not_supported"
        for name, proposal in tuple(self._by_id.items()):
            if name not in listed and proposal.sender not in present:
                yield ProposalClosed(self._by_id.pop(name), "left", proposal.sender)
            elif name not in listed and is_lost:
                yield ProposalClosed(self._by_id.pop(name), "unknown", "")


_CLOSING_KINDS: Mapping[str, HowClosed] = {
    kinds.MCP_REQUEST: "fulfilled",
    kinds.MCP_RESPONSE: "fulfilled",
    kinds.MCP_REJECT: "rejected",
    kinds.MCP_WITHDRAW: "withdrawn",
}

EVENT_BUFFER = 10_000
EVENT_BUFFER_BYTES = 64 * 1024 * 1024
"""How many events, and how much of their envelopes, may wait for slow handlers.

Beyond that, the newest are dropped and a `HistoryGap` is emitted.
"""

Handler = Callable[..., object]
"""An `async def` or `def` function; its result is ignored."""

H = TypeVar("H", bound=Handler)

Arguments = Callable[[Any], tuple[Any, ...] | None]
"""Returns the arguments of a handler for an event or an envelope; None if the handler is not called."""

LogFailure = Callable[[Exception], None]
"""Logs an error that a handler raised."""

Handled = Callable[[Envelope | None, Sequence[tuple[Handler, Exception | None]]], None]
"""Notes the errors of all handlers called for one arrival."""

Emitted = tuple[Envelope | None, tuple[object, ...]]
"""The envelope that caused the events, if there is one, and the events."""


class Listeners:
    """All handlers of one participant. `run` calls them; events before and after it are dropped."""

    def __init__(self) -> None:
        self._by_kind: dict[str | None, list[tuple[Handler, Arguments]]] = {}
        self._by_class: list[tuple[type, Handler, Arguments]] = []
        self._queue: SizedQueue[Emitted] | None = None
        self._is_dropping = False
        self.wanted: Collection[str] | None = None
        """The kinds of envelopes of which handlers get anything, as of the last ones handled; None: perhaps all."""
        self.on_handled: Handled = lambda envelope, outcomes: None

    def add(self, what: type | str | None, handler: H, arguments: Arguments = lambda event: (event,)) -> H:
        """Call `handler` for every event of a class, or every envelope of a kind (None: any kind). Returns `handler`.

        `arguments` returns its arguments (default: the event or the envelope). Raises `TypeError`.
        """
        if not callable(handler):
            raise TypeError(f"a handler is a function, not {handler!r}")
        self.wanted = None
        if isinstance(what, type):
            self._by_class.append((what, handler, arguments))
        else:
            self._by_kind.setdefault(what, []).append((handler, arguments))
        return handler

    def emit(self, envelope: Envelope | None, *events: object, size_bytes: int = 0) -> None:
        """Queue an envelope of this size and its events; handlers of the envelope run first."""
        if self._queue is None:
            return
        if envelope is None:
            classes = tuple(one for one, _, _ in self._by_class) if self.wanted is not None else (object,)
            if not any(isinstance(one, classes) for one in events):
                return
        # Until half of the queue is handled: else every other event would be a gap.
        was_dropping, is_behind = self._is_dropping, len(self._queue) > EVENT_BUFFER // 2
        self._is_dropping = self._queue.is_full or (was_dropping and is_behind)
        if not self._is_dropping:
            self._queue.put_nowait((envelope, events), size_bytes)
        elif not was_dropping:  # at once, so that the gap is at the place of the missing events
            logger.warning("handlers are too slow: dropping events until they have caught up")
            self._queue.put_nowait((None, (HistoryGap("handlers_too_slow"),)))

    async def run(self, log_failure: LogFailure, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Call the handlers until cancelled. `log_failure` logs their errors."""
        queue: SizedQueue[Emitted] = SizedQueue(EVENT_BUFFER, EVENT_BUFFER_BYTES)
        self._queue = queue
        task_status.started()
        try:
            async for envelope, events in queue:
                if self.wanted is None and None not in self._by_kind:
                    chats = [kinds.CHAT for one, _, _ in self._by_class if issubclass(ChatReceived, one)]
                    self.wanted = frozenset(one for one in (*self._by_kind, *chats) if one is not None)
                outcomes: list[tuple[Handler, Exception | None]] = []
                for what in events if envelope is None else (envelope, *events):
                    for handler, arguments in self._handlers_of(what):
                        try:
                            if (passed := arguments(what)) is not None:
                                await call_handler(handler, *passed)
                                outcomes.append((handler, None))
                        except Exception as error:
                            log_failure(error)
                            outcomes.append((handler, error))
                if outcomes:
                    self.on_handled(envelope, outcomes)
        finally:
            self._queue = None

    def _handlers_of(self, what: object) -> list[tuple[Handler, Arguments]]:
        """Return the handlers of an envelope or an event, each with the function that returns its arguments."""
        if isinstance(what, Envelope):
            return [*self._by_kind.get(what.kind, ()), *self._by_kind.get(None, ())]
        return [(handler, arguments) for one, handler, arguments in self._by_class if isinstance(what, one)]


async def call_handler(handler: Handler, *arguments: object) -> None:
    """Call a handler of either kind and wait until it is done. Raises its errors."""
    await run_function(partial(handler, *arguments), {})


class EventEmitter:
    """Reads events from envelopes and emits them to the program's handlers."""

    received_kinds = frozenset({kinds.SYSTEM_WELCOME, kinds.MCP_PROPOSAL, *_CLOSING_KINDS})
    """The kinds that tell which proposals are open; it must receive them although no handler does."""

    def __init__(self, messenger: Messenger, listeners: Listeners) -> None:
        self._messenger = messenger
        self.listeners = listeners
        self.proposals = OpenProposals(messenger.id)

    def emit(self, envelope: Envelope, events: Iterable[SpaceEvent]) -> None:
        """Emit an envelope and the events in it."""
        size_bytes = self._messenger.session.client.arrived.size_bytes
        self.listeners.emit(envelope, *events, size_bytes=size_bytes)

    def receive_gap(self, gap: StreamGap) -> None:
        """Emit a loss of stream frames, in its order among the envelopes."""
        self.listeners.emit(None, gap)

    def events_in(self, envelope: Envelope, changes: PeerChanges) -> Iterator[SpaceEvent]:
        """Yield the events in one envelope. Must be called for every envelope, in order."""
        if changes is not NO_CHANGES:
            yield from self._peers_changed(changes)
        if (how := _CLOSING_KINDS.get(envelope.kind)) is not None:
            yield from self.proposals.decided_by(envelope, how)
        if changes.gap is not None:
            yield changes.gap
        if (envelope.sender, envelope.kind) == (GATEWAY, kinds.SYSTEM_WELCOME) and envelope.is_for(self._messenger.id):
            yield from self.proposals.closed_by_welcome(envelope, self._messenger.peers, changes.gap)
            for proposal in proposals_in(envelope.body):
                yield from self._proposed(proposal)
        if envelope.sender == self._messenger.id:
            return
        if envelope.kind == kinds.CHAT and isinstance(text := envelope.body.get("text"), str):
            yield ChatReceived(text, envelope.sender, envelope, self._messenger)
        elif envelope.kind == kinds.MCP_PROPOSAL:
            yield from self._proposed(envelope)

    def _peers_changed(self, changes: PeerChanges) -> Iterator[SpaceEvent]:
        for peer in changes.left:
            yield PeerLeft(peer)
        yield from (PeerJoined(peer) for peer in changes.joined)
        if changes.reported is not None:
            yield ContextReported(changes.reported, changes.context_before)
            if changes.reported.context.level != changes.context_before.level:
                yield PeerLevelChanged(changes.reported, changes.context_before)

    def _proposed(self, envelope: Envelope) -> Iterator[ProposalMade]:
        """Yield another participant's proposal once: it may arrive both in a welcome and as a missed envelope."""
        if envelope.sender == self._messenger.id or self.proposals.is_same(envelope):
            return
        arguments = arguments_of(envelope.body)
        proposal = ProposalMade(
            sender=envelope.sender,
            peers=envelope.addressees,
            method=str(envelope.body.get("method")),
            tool=CallSubject.read(envelope.body).tool,
            arguments=arguments if isinstance(arguments, dict) else {},
            envelope=envelope,
            _messenger=self._messenger,
            _open=self.proposals,
        )
        self.proposals.add(proposal)
        yield proposal
