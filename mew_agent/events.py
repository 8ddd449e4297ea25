"""What a user's functions hear of a space: every envelope, every context report, every change of a level.

Owns who subscribed to what, and that functions run one after the other, in order, beside the connection. A function
that fails is told in the log and stops nothing else. It knows no gateway.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mew_agent.peers import Peer, PeerContext
from protocol.envelope import Envelope

logger = logging.getLogger("mew_agent.participant")

Handler = Callable[[Envelope], Awaitable[None]]
ContextHandler = Callable[[Peer, PeerContext], Awaitable[None]]
LevelHandler = Callable[[Peer, PeerContext, PeerContext], Awaitable[None]]

EVENT_BUFFER = 10_000
"""Envelopes waiting for slow handlers; beyond that the newest are dropped, with a line in the log."""

LOW_SEVERITY = 1
"""From here on a context is getting full."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Somebody's context report has another level than the one before, which is `before`."""

    peer: Peer
    before: PeerContext

    @staticmethod
    def between(peer: Peer | None, before: Peer | None) -> "LevelChange | None":
        """The change from what was known of a peer before; None where there is none."""
        known = before.context if before is not None else PeerContext()
        return LevelChange(peer, known) if peer is not None and peer.context.level != known.level else None

    @property
    def is_low(self) -> bool:
        """Whether there is less room than before, and not much."""
        now = self.peer.context.severity
        return now >= LOW_SEVERITY and now > self.before.severity


Event = tuple[Envelope | None, Peer | None, LevelChange | None]
"""What happened: an envelope, whose report it brought, whose level that changed."""


class Events:
    """See the module. Use it as an async context manager; `run` calls the functions until it is closed."""

    def __init__(self) -> None:
        self._handlers: dict[str | None, list[Handler]] = {}
        self._context_handlers: list[ContextHandler] = []
        self._level_handlers: list[LevelHandler] = []
        self._low_handlers: list[ContextHandler] = []
        self._sending: MemoryObjectSendStream[Event]
        self._waiting: MemoryObjectReceiveStream[Event]

    def open(self) -> None:
        """Begin anew: what is told from now on waits for `run`."""
        self._sending, self._waiting = anyio.create_memory_object_stream[Event](EVENT_BUFFER)

    def close(self) -> None:
        """Nobody hears anything any more."""
        self._sending.close()
        self._waiting.close()

    # -- who listens -------------------------------------------------------------------------------------

    def on(self, kind: str | None, handler: Handler) -> None:
        """Call it for every envelope of a kind; None: of every kind."""
        self._handlers.setdefault(kind, []).append(handler)

    def on_context(self, handler: ContextHandler) -> None:
        """Call it for every context report."""
        self._context_handlers.append(handler)

    def on_level(self, handler: LevelHandler) -> None:
        """Call it with every context report whose level is another one than before, and the context before."""
        self._level_handlers.append(handler)

    def on_low(self, handler: ContextHandler) -> None:
        """Call it with every context report that says for the first time that room gets short."""
        self._low_handlers.append(handler)

    # -- what is told ------------------------------------------------------------------------------------

    def tell(self, envelope: Envelope | None, peer: Peer | None = None, change: LevelChange | None = None) -> None:
        """Something happened; the functions hear it in their turn."""
        if envelope is None and change is None:
            return
        try:
            self._sending.send_nowait((envelope, peer, change))
        except anyio.WouldBlock:
            if envelope is not None:
                logger.warning("handlers are too slow: dropped '%s' of '%s'", envelope.kind, envelope.sender)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            logger.debug("nobody listens any more")

    async def run(self) -> None:
        """Call the functions, until closed."""
        async for envelope, peer, change in self._waiting:
            if envelope is not None:
                for handler in (*self._handlers.get(envelope.kind, ()), *self._handlers.get(None, ())):
                    await _call(handler, envelope)
            if peer is not None:
                for context_handler in self._context_handlers:
                    await _call(context_handler, peer, peer.context)
            if change is not None:
                await self._tell_change(change)

    async def _tell_change(self, change: LevelChange) -> None:
        peer = change.peer
        for level_handler in self._level_handlers:
            await _call(level_handler, peer, peer.context, change.before)
        for low_handler in self._low_handlers if change.is_low else ():
            await _call(low_handler, peer, peer.context)


async def _call(handler: Callable[..., Awaitable[None]], *args: Any) -> None:
    """A handler is the user's code: its failure is told in the log and stops nothing else."""
    try:
        await handler(*args)
    except Exception:
        logger.exception("a handler failed")
