"""Who listens to what happens: functions by kind of envelope or by class of event, called one after the other.

Owns who subscribed to what, and that functions run in order, beside the connection. A function that fails is told in
the log and stops nothing else. It knows no gateway.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mew_protocol.envelope import Envelope

from mew_agent.participant.events import (
    ChatHeard,
    ContextReported,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
)
from mew_agent.participant.peers import Peer, PeerContext

logger = logging.getLogger("mew_agent.participant.participant")

E = TypeVar("E")
Handler = Callable[[Envelope], Awaitable[None]]
ChatHandler = Callable[[ChatHeard], Awaitable[None]]
ContextHandler = Callable[[Peer, PeerContext], Awaitable[None]]
LevelHandler = Callable[[Peer, PeerContext, PeerContext], Awaitable[None]]
PeerHandler = Callable[[Peer], Awaitable[None]]
ProposalHandler = Callable[[ProposalMade], Awaitable[None]]
ProposalClosedHandler = Callable[[ProposalClosed], Awaitable[None]]

EVENT_BUFFER = 10_000
"""Envelopes waiting for slow handlers; beyond that the newest are dropped, with a line in the log."""

Happened = tuple[Envelope | None, tuple[object, ...]]
"""An envelope, if one brought it about, and the events in it."""


class Listeners:
    """Everybody's functions. `run` calls them, between `open` and `close`."""

    def __init__(self) -> None:
        self._of_kinds: dict[str | None, list[Handler]] = {}
        self._of_classes: list[tuple[type, Callable[[Any], Awaitable[None]]]] = []
        self._sending: MemoryObjectSendStream[Happened] | None = None
        self._waiting: MemoryObjectReceiveStream[Happened] | None = None

    def open(self) -> None:
        """Begin anew: what is told from now on waits for `run`."""
        self._sending, self._waiting = anyio.create_memory_object_stream[Happened](EVENT_BUFFER)

    def close(self) -> None:
        """Nobody hears anything any more."""
        for end in (self._sending, self._waiting):
            if end is not None:
                end.close()

    def add(self, what: type[E] | str | None, handler: Callable[[Any], Awaitable[None]]) -> None:
        """Call it for every event of a class, or every envelope of a kind; None: every envelope."""
        if isinstance(what, type):
            self._of_classes.append((what, handler))
        else:
            self._of_kinds.setdefault(what, []).append(handler)

    def tell(self, envelope: Envelope | None, *events: object) -> None:
        """Something happened; the functions hear it in their turn, the envelope before what is in it."""
        if (envelope is None and not events) or self._sending is None:
            return
        try:
            self._sending.send_nowait((envelope, events))
        except anyio.WouldBlock:
            if envelope is not None:
                logger.warning("handlers are too slow: dropped '%s' of '%s'", envelope.kind, envelope.sender)
            else:
                logger.warning("handlers are too slow: dropped %s", events)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            logger.debug("nobody listens any more")

    async def run(self) -> None:
        """Call the functions, until closed."""
        assert self._waiting is not None
        async for envelope, events in self._waiting:
            if envelope is not None:
                for handler in (*self._of_kinds.get(envelope.kind, ()), *self._of_kinds.get(None, ())):
                    await _call(handler, envelope)
            for event in events:
                for wanted, class_handler in tuple(self._of_classes):
                    if isinstance(event, wanted):
                        await _call(class_handler, event)


async def _call(handler: Callable[[Any], Awaitable[None]], happened: object) -> None:
    """A handler is the user's code: its failure is told in the log and stops nothing else."""
    try:
        await handler(happened)
    except Exception:
        logger.exception("a handler failed")


class Hearing:
    """The decorators with which a program listens. Functions are called one at a time, in order of what happened.

    A function that takes long delays those behind it, though neither the connection nor answers that it waits for
    itself; `start_soon` does something beside it.
    """

    _events: Listeners

    @overload
    def on(self, what: type[E], /) -> Callable[[Callable[[E], Awaitable[None]]], Callable[[E], Awaitable[None]]]: ...

    @overload
    def on(self, what: str | None = None, /) -> Callable[[Handler], Handler]: ...

    def on(self, what: type[Any] | str | None = None, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Decorator: call the function with every event of a class, or every envelope of a kind (None: of every kind).

        `@me.on(ChatHeard)` gets a `ChatHeard`, `@me.on("chat")` an `Envelope`. `SpaceEvent` stands for all events.
        Raises `TypeError` for anything else.
        """

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self._events.add(what, handler)
            return handler

        if what is not None and not isinstance(what, type | str):
            raise TypeError(f'on() takes a kind or a class of events, not {what!r}: @me.on("chat"), @me.on(ChatHeard)')
        return register

    def on_chat(self, handler: ChatHandler) -> ChatHandler:
        """Decorator: call the function with everything that somebody else says, as a `ChatHeard`."""
        self._events.add(ChatHeard, handler)
        return handler

    def on_join(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that comes after us."""

        async def came(event: PeerJoined) -> None:
            await handler(event.peer)

        self._events.add(PeerJoined, came)
        return handler

    def on_leave(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that leaves, as it was known."""

        async def left(event: PeerLeft) -> None:
            await handler(event.peer)

        self._events.add(PeerLeft, left)
        return handler

    def on_context(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` for every context report of every peer."""

        async def reported(event: ContextReported) -> None:
            await handler(event.peer, event.context)

        self._events.add(ContextReported, reported)
        return handler

    def on_context_level(self, handler: LevelHandler) -> LevelHandler:
        """Decorator: call the function `(peer, context, before)` when a report has another level than the one before.

        Reports of our own count, too; `peer.id` is then ours.
        """

        async def changed(event: PeerLevelChanged) -> None:
            await handler(event.peer, event.context, event.before)

        self._events.add(PeerLevelChanged, changed)
        return handler

    def on_context_low(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` when somebody's room gets shorter than it was, and short.

        That is when the severity of a report rises to 1 or more. Reports of our own count, too.
        """

        async def changed(event: PeerLevelChanged) -> None:
            if event.is_low:
                await handler(event.peer, event.context)

        self._events.add(PeerLevelChanged, changed)
        return handler

    def on_proposal(self, handler: ProposalHandler) -> ProposalHandler:
        """Decorator: call the function with every `ProposalMade` by somebody else."""
        self._events.add(ProposalMade, handler)
        return handler

    def on_proposal_closed(self, handler: ProposalClosedHandler) -> ProposalClosedHandler:
        """Decorator: call the function with every `ProposalClosed`: decided, withdrawn, or its proposer left."""
        self._events.add(ProposalClosed, handler)
        return handler
