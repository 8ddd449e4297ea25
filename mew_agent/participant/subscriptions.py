"""The decorators with which a program subscribes to what happens in its space, and to controls of its own context.

Owns which function gets what. `Listeners` calls the functions; `ExternalContext` calls those that act on the context.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Pause, Resume, is_control_for, read_control

from mew_agent.participant.events import (
    ChatReceived,
    ContextReported,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
)
from mew_agent.participant.external_context import ClearHandler, CompactHandler, ExternalContext, ForgetHandler
from mew_agent.participant.listeners import Listeners
from mew_agent.participant.peers import Peer, PeerContext

E = TypeVar("E")
EnvelopeHandler = TypeVar("EnvelopeHandler", bound=Callable[[Envelope], object])
ChatHandler = TypeVar("ChatHandler", bound=Callable[[ChatReceived], object])
PeerHandler = TypeVar("PeerHandler", bound=Callable[[Peer], object])
ContextHandler = TypeVar("ContextHandler", bound=Callable[[Peer, PeerContext], object])
LevelHandler = TypeVar("LevelHandler", bound=Callable[[Peer, PeerContext, PeerContext], object])
ProposalHandler = TypeVar("ProposalHandler", bound=Callable[[ProposalMade], object])
ProposalClosedHandler = TypeVar("ProposalClosedHandler", bound=Callable[[ProposalClosed], object])
CompactFunction = TypeVar("CompactFunction", bound=CompactHandler)
ForgetFunction = TypeVar("ForgetFunction", bound=ForgetHandler)
ClearFunction = TypeVar("ClearFunction", bound=ClearHandler)
PauseHandler = TypeVar("PauseHandler", bound=Callable[[Pause | Resume], object])


class Subscriptions:
    """The `on...` decorators of a participant."""

    id: str
    listeners: Listeners
    external_context: ExternalContext

    @overload
    def on(self, what: type[E], /) -> Callable[[Callable[[E], object]], Callable[[E], object]]: ...

    @overload
    def on(self, what: str | None = None, /) -> Callable[[EnvelopeHandler], EnvelopeHandler]: ...

    def on(self, what: type[Any] | str | None = None, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Decorator: call the function with every event of a class, or every envelope of a kind (None: of any kind).

        `@me.on(ChatReceived)` gets a `ChatReceived`, `@me.on("chat")` an `Envelope`, `@me.on(SpaceEvent)` all events.
        Handlers run one at a time, in order; a plain `def` function runs in a thread, as a tool does. A slow handler
        delays later handlers, but neither the connection nor the replies it awaits; `start_soon` runs something in the
        background. Raises `TypeError` for any other argument.
        """

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return self.listeners.add(what, handler)

        if what is not None and not isinstance(what, type | str):
            raise TypeError(f'on() takes a kind or an event class, not {what!r}: @me.on("chat"), @me.on(ChatReceived)')
        return register

    def on_chat(self, handler: ChatHandler) -> ChatHandler:
        """Decorator: call the function with every chat from another participant, as a `ChatReceived`."""
        return self.listeners.add(ChatReceived, handler)

    def on_join(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that joins after us."""
        return self.listeners.add(PeerJoined, handler, lambda event: (event.peer,))

    def on_leave(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that leaves, as it was known."""
        return self.listeners.add(PeerLeft, handler, lambda event: (event.peer,))

    def on_context(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` for every context report of a peer."""
        return self.listeners.add(ContextReported, handler, lambda event: (event.peer, event.context))

    def on_context_level(self, handler: LevelHandler) -> LevelHandler:
        """Decorator: call the function `(peer, context, before)` when the level in a report changes.

        This includes our own reports; `peer.id` is then our id.
        """
        return self.listeners.add(PeerLevelChanged, handler, lambda event: (event.peer, event.context, event.before))

    def on_context_low(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` when a context runs low: its severity rises, to 1 or more.

        This includes our own reports.
        """
        return self.listeners.add(
            PeerLevelChanged, handler, lambda event: (event.peer, event.context) if event.is_low else None
        )

    def on_proposal(self, handler: ProposalHandler) -> ProposalHandler:
        """Decorator: call the function with every `ProposalMade` by another participant."""
        return self.listeners.add(ProposalMade, handler)

    def on_proposal_closed(self, handler: ProposalClosedHandler) -> ProposalClosedHandler:
        """Decorator: call the function with every `ProposalClosed`: decided, withdrawn, or its proposer left."""
        return self.listeners.add(ProposalClosed, handler)

    # -- controls of a context that the program owns -----------------------------------------------------

    def on_compact(self, handler: CompactFunction) -> CompactFunction:
        """Decorator: call the function with every `Compact` that asks us to compact our context.

        It returns when that is done: None, or a `CompactDone` with what it knows (`skipped` and `reason` if it did
        nothing). Until the next `report_context` the size is unknown. An exception, and more than
        `external_context.handler_timeout_seconds`, are answered as skipped. Without a handler the answer is
        `not_supported`.
        """
        self.external_context.on_compact = handler
        return handler

    def on_forget(self, handler: ForgetFunction) -> ForgetFunction:
        """Decorator: call the function with every `Forget`; it drops messages and returns how many."""
        self.external_context.on_forget = handler
        return handler

    def on_clear(self, handler: ClearFunction) -> ClearFunction:
        """Decorator: call the function, without arguments, when we are asked to clear our history or to restart."""
        self.external_context.on_clear = handler
        return handler

    def on_pause(self, handler: PauseHandler) -> PauseHandler:
        """Decorator: call the function with every `Pause` and `Resume` for us. The gateway enforces pauses anyway."""
        for kind in (kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_RESUME):
            self.listeners.add(
                kind, handler, lambda envelope: (read_control(envelope),) if is_control_for(envelope, self.id) else None
            )
        return handler

    def on_cancel(self, handler: EnvelopeHandler) -> EnvelopeHandler:
        """Decorator: call the function with every `chat/cancel` and `reasoning/cancel` for us.

        The first names chats in `correlation_id`, the second a reasoning in `context`.
        """
        for kind in (kinds.CHAT_CANCEL, kinds.REASONING_CANCEL):
            self.listeners.add(kind, handler, lambda envelope: (envelope,) if envelope.is_for(self.id) else None)
        return handler
