"""Passes all arrivals to the parts of a participant, in a fixed order.

Owns the order and the reading of the welcome, and keeps the connection open whatever a peer sends.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.participant import FitQuestion
from mew_protocol.payloads.system import Welcome
from mew_protocol.payloads.text_fit import Fit

from mew_agent.errors import GatewayError
from mew_agent.participant.answers.agent_answers import AnswerRouter
from mew_agent.participant.confirmed_delivery import history_gap_in
from mew_agent.participant.event_handlers import EventEmitter
from mew_agent.participant.gaps import HistoryGap, StreamGap
from mew_agent.participant.messenger import Messenger, PendingRequest
from mew_agent.participant.peers import NO_CHANGES, PeerChanges

logger = logging.getLogger(__name__)

PEER_RETURN_SECONDS = 10.0
"""How long a peer may take to return after a lost connection before its pending answers are given up."""


_WITH_GAPS: Final = (kinds.SYSTEM_WELCOME, kinds.SYSTEM_RECEIPT)
"""The kinds in which a gateway reports a gap in the history."""


class _UnreadableWelcome(GatewayError):
    """The gateway's first welcome lacks our capabilities."""


Receiver = tuple[Collection[str], Callable[[Envelope], object]]
"""A part of a participant: the kinds of envelopes that it receives, and the function that gets them.

The known peers are up to date already. It returns at once; work that waits runs as a task.
"""


class Hooks:
    """The methods that subclasses of a participant override; called after its parts and before its event handlers.

    `Participant.use_hooks` replaces them with another object's.
    """

    async def before_join(self) -> None:
        """Hook: load stored state, before joining."""

    async def entered(self) -> None:
        """Hook: joining is complete; start tasks that run until we leave."""

    async def after_leave(self) -> None:
        """Hook: close resources, after leaving or when joining failed."""

    async def receive(self, envelope: Envelope) -> None:
        """Hook: an envelope arrived. Called in order of arrival; must return soon."""

    async def receive_past(self, envelope: Envelope) -> None:
        """Hook: an envelope from before our first join arrived; only this hook handles it."""

    receive_frame: Callable[[StreamFrame], Awaitable[object]] | None = None
    """Hook: a stream frame arrived."""

    async def joined(self) -> None:
        """Hook: the gateway welcomed us, on the first or a later connection."""

    def waits_changed(self) -> None:
        """Hook: our waits have changed, such as the decision about a proposal."""

    async def fit_of(self, question: FitQuestion) -> Fit | None:
        """Hook: return whether a text fits into our context; None if we do not know."""
        return None

    async def close_streams(self, reason: str) -> None:
        """Hook: close the streams that the subclass owns."""


class Dispatcher:
    """Dispatches an envelope to the peers, the pending requests, its parts in order, the hooks, then `events`.

    The open questions to agents, `answers`, also get stream frames.
    """

    def __init__(
        self,
        messenger: Messenger,
        parts: Iterable[Receiver],
        answers: AnswerRouter,
        *,
        hooks: Hooks,
        events: EventEmitter,
    ) -> None:
        self._messenger = messenger
        self._receivers: dict[str, list[Callable[[Envelope], object]]] = defaultdict(list)
        for received_kinds, receive in parts:
            self.add(received_kinds, receive)
        self._answers = answers
        self.hooks = hooks
        self._events = events
        self._joins_seen = 0

    def add(self, received_kinds: Collection[str], receive: Callable[[Envelope], object]) -> None:
        """Pass envelopes of these kinds to another part from now on."""
        for kind in received_kinds:
            self._receivers[kind].append(receive)

    async def dispatch(self, message: Envelope | StreamFrame | StreamGap) -> None:
        """Handle one envelope, frame or gap. Logs failures; raises only for an unreadable first welcome."""
        try:
            if isinstance(message, StreamFrame):
                if self._answers.exchanges:
                    self._answers.receive_frame(message)
                if self.hooks.receive_frame is not None:
                    await self.hooks.receive_frame(message)
            elif isinstance(message, StreamGap):
                self._answers.receive_gap(message)
                self._events.receive_gap(message)
            elif self._messenger.session.client.arrived.is_past:
                # Earlier peers, controls and requests are void: the welcome describes the current state.
                await self.hooks.receive_past(message)
            else:
                await self._dispatch_envelope(message)
        except _UnreadableWelcome:
            raise
        except Exception:
            logger.exception("failed to process an incoming message")

    async def _dispatch_envelope(self, envelope: Envelope) -> None:
        changes = self._messenger.peers.receive(envelope)
        if envelope.kind in _WITH_GAPS:
            changes = await self._receive_from_gateway(envelope, changes)
        self._messenger.pending.receive(envelope, changes)
        for receive in self._receivers.get(envelope.kind, ()):
            receive(envelope)
        if self._answers.is_in_use:
            self._answers.receive(envelope, changes)
        events, kind, wanted = self._events, envelope.kind, self._events.listeners.wanted
        has_events = wanted is None or kind in wanted or kind in events.received_kinds or changes is not NO_CHANGES
        found = [*events.events_in(envelope, changes)] if has_events else []  # first, for hooks that read proposals
        await self.hooks.receive(envelope)
        if has_events:
            events.emit(envelope, found)

    async def _receive_from_gateway(self, envelope: Envelope, changes: PeerChanges) -> PeerChanges:
        """Read a welcome or a receipt. Returns the changes and the gap in it."""
        gap = history_gap_in(envelope)
        if envelope.kind == kinds.SYSTEM_WELCOME and envelope.is_for(self._messenger.id):
            if gap is not None and not self._is_missed(gap):
                gap = None
            if not self._messenger.session.welcomed.is_set():
                changes = NO_CHANGES  # members before our join did not join now
            await self._welcome(envelope)
        return changes if gap is None else changes._replace(gap=gap)

    def _is_missed(self, gap: HistoryGap) -> bool:
        """Return whether a welcome shows that we missed envelopes which the history no longer has."""
        session = self._messenger.session
        if session.client.joins == self._joins_seen:
            return False  # nothing was missed since an earlier welcome on this connection
        return session.welcomed.is_set() or gap.reason != "not_supported"  # otherwise it was sent before our join

    async def _welcome(self, envelope: Envelope) -> None:
        session = self._messenger.session
        try:
            welcome = read_payload(envelope, Welcome)
        except PayloadError as error:
            if not session.welcomed.is_set():
                raise _UnreadableWelcome(f"cannot read the gateway's welcome: {error}") from None
            logger.warning("ignored an unreadable welcome: %s", error)
            return
        self._messenger.capabilities = CapabilitySet(welcome.you.capabilities)
        session.welcomed.set()
        if session.client.joins != self._joins_seen:
            self._joins_seen = session.client.joins
            self._messenger.pending.connected()
            if pending := self._messenger.pending.to_peers():
                session.start_soon(self._give_up_on_absent_peers, pending)
            await self.hooks.joined()

    async def _give_up_on_absent_peers(self, pending: tuple[PendingRequest, ...]) -> None:
        await anyio.sleep(PEER_RETURN_SECONDS)
        self._messenger.pending.fail_absent(self._messenger.peers, pending)
