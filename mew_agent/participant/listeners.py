"""The event handlers of a program: registered by kind of envelope or class of event, called one after the other.

Owns who subscribed to what, and that handlers run in order in a separate task; a plain function runs in a thread,
as plain tools do. A handler that fails is logged and stops nothing else. Does not know what the events are, or what
others learn of a failure.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectSendStream
from mew_protocol.envelope import Envelope

from mew_agent.participant.gaps import HistoryGap
from mew_agent.tools.functions import run_function

logger = logging.getLogger(__name__)

EVENT_BUFFER = 10_000
"""How many events may wait for slow handlers; beyond that, the newest are dropped and a `HistoryGap` is emitted."""

Handler = Callable[..., object]
"""An `async def` or `def` function; what it returns is discarded."""

H = TypeVar("H", bound=Handler)

Arguments = Callable[[Any], tuple[Any, ...] | None]
"""Returns the arguments of a handler for an event or an envelope; None if the handler is not called."""

LogFailure = Callable[[Exception], None]
"""Logs an error that a handler raised."""

Handled = Callable[[Envelope | None, Sequence[tuple[Handler, Exception | None]]], None]
"""Notes what the handlers that one arrival called have raised, if anything."""

Emitted = tuple[Envelope | None, tuple[object, ...]]
"""The envelope that caused the events, if there is one, and the events."""


class Listeners:
    """All handlers of one participant, which `run` calls. Events before and after it are dropped."""

    def __init__(self) -> None:
        self._by_kind: dict[str | None, list[tuple[Handler, Arguments]]] = {}
        self._by_class: list[tuple[type, Handler, Arguments]] = []
        self._queue: MemoryObjectSendStream[Emitted] | None = None
        self.on_handled: Handled = lambda envelope, outcomes: None

    def add(self, what: type | str | None, handler: H, arguments: Arguments = lambda event: (event,)) -> H:
        """Call `handler`, which is returned, for every event of a class, or every envelope of a kind (None: any kind).

        `arguments` chooses what it is called with (default: the event or the envelope itself).
        """
        if isinstance(what, type):
            self._by_class.append((what, handler, arguments))
        else:
            self._by_kind.setdefault(what, []).append((handler, arguments))
        return handler

    def emit(self, envelope: Envelope | None, *events: object) -> None:
        """Queue an envelope and its events; the handlers of the envelope come first."""
        if (envelope is None and not events) or self._queue is None:
            return
        waiting = self._queue.statistics().current_buffer_used
        if waiting < EVENT_BUFFER:
            self._queue.send_nowait((envelope, events))
        elif waiting == EVENT_BUFFER:  # the last place is for the gap, so that it stands where events are missing
            logger.warning("handlers are too slow: dropping events until they have caught up")
            self._queue.send_nowait((None, (HistoryGap("handlers_too_slow"),)))

    async def run(self, log_failure: LogFailure, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Call the handlers until cancelled. `log_failure` logs their errors."""
        self._queue, arrivals = anyio.create_memory_object_stream[Emitted](EVENT_BUFFER + 1)
        task_status.started()
        try:
            async for envelope, events in arrivals:
                outcomes: list[tuple[Handler, Exception | None]] = []
                for handler, values in self._calls(envelope, events):
                    try:
                        if (passed := values()) is not None:
                            await call_handler(handler, *passed)
                            outcomes.append((handler, None))
                    except Exception as error:
                        log_failure(error)
                        outcomes.append((handler, error))
                if outcomes:
                    self.on_handled(envelope, outcomes)
        finally:
            for stream in (self._queue, arrivals):
                stream.close()
            self._queue = None

    def _calls(
        self, envelope: Envelope | None, events: tuple[object, ...]
    ) -> Iterator[tuple[Handler, Callable[[], tuple[Any, ...] | None]]]:
        """Yield the handlers of an arrival, each with the function that returns its arguments."""
        if envelope is not None:
            for handler, arguments in (*self._by_kind.get(envelope.kind, ()), *self._by_kind.get(None, ())):
                yield handler, partial(arguments, envelope)
        for event in events:
            for event_class, handler, arguments in tuple(self._by_class):
                if isinstance(event, event_class):
                    yield handler, partial(arguments, event)


async def call_handler(handler: Handler, *arguments: object) -> None:
    """Call a handler of either kind and wait until it is done. Raises its errors."""
    await run_function(partial(handler, *arguments), {})
