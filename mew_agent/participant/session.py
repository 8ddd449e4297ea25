"""The life of a participant: joining, staying joined, leaving, and what runs beside the connection meanwhile.

Owns the tasks and what ended the connection. What arrives and what is said is not its business.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope

from mew_agent.errors import MewAgentError
from mew_agent.participant.client import Address, Client
from mew_agent.participant.listeners import Listeners

logger = logging.getLogger("mew_agent.participant.participant")


class Joining(ABC):
    """See the module. Entering returns when we are welcomed, or raises what makes that impossible."""

    def __init__(self, address: Address, *, first_connect_seconds: float) -> None:
        self._client = Client(address, first_connect_seconds=first_connect_seconds)
        self._events = Listeners()
        self._welcomed = anyio.Event()
        self._ended = anyio.Event()
        self._failure: MewAgentError | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._events.open()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(self._stay_joined)
            self._tasks.start_soon(self._events.run)
            await self._first_of_welcome_and_end()
        except BaseException:
            self._tasks.cancel_scope.cancel()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                self._events.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(3):
            await self.aclose()
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            if isinstance(error, Exception):
                # A task group would wrap it; whoever wrote the block wants to catch what was raised.
                await self._tasks.__aexit__(None, None, None)
                return None
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._events.close()

    async def until_ended(self) -> None:
        """Wait until the connection has ended for good, whatever the cause."""
        await self._ended.wait()

    async def run_forever(self) -> None:
        """Stay until the connection ends for good. Raises the `GatewayError` that ended it, if one did."""
        await self.until_ended()
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        """Leave the space."""
        await self._client.aclose()

    @property
    def is_joined(self) -> bool:
        """Whether there is a joined connection right now; without one, sending waits for the next."""
        return self._client.is_joined

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run something beside the connection, as long as the participant lives; its failure stops nothing else."""
        assert self._tasks is not None
        self._tasks.start_soon(self._run_guarded, function, args)

    # -- inside ------------------------------------------------------------------------------------------

    async def _run_guarded(self, function: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...]) -> None:
        try:
            await function(*args)
        except MewAgentError as error:
            logger.warning("%s", error)
        except Exception:
            logger.exception("something beside the connection failed")

    async def _first_of_welcome_and_end(self) -> None:
        async with anyio.create_task_group() as race:

            async def first(event: anyio.Event) -> None:
                await event.wait()
                race.cancel_scope.cancel()

            race.start_soon(first, self._welcomed)
            race.start_soon(first, self._ended)
        if self._failure is not None:
            raise self._failure

    async def _stay_joined(self) -> None:
        try:
            await self._client.run(self._take)
        except MewAgentError as error:
            self._failure = error
        finally:
            self._ended.set()

    @abstractmethod
    async def _take(self, message: Envelope | StreamFrame) -> None:
        """Everything that arrives."""
