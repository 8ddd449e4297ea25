"""The lifetime of a participant: join, stay joined while tasks run, leave.

Owns the task group, and the error that ended the connection. Does not know what arrives, or what is sent.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import anyio.abc

from mew_agent.errors import GatewayError, MewAgentError, PeerError
from mew_agent.participant.client import Client, Receive
from mew_agent.participant.gaps import ConnectionLost
from mew_agent.participant.listeners import Listeners

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 3.0


class SpaceSession:
    """One participation in a space: `open` returns when the gateway has welcomed us."""

    def __init__(self, client: Client, listeners: Listeners) -> None:
        self.client = client
        self._listeners = listeners
        client.on_lost = lambda cause: listeners.emit(None, ConnectionLost(cause))
        self.welcomed = anyio.Event()
        """Set when a readable welcome has arrived, and at the end, so that `open` waits no longer."""
        self.ended = anyio.Event()
        """Set when the connection has ended for good."""
        self._failure: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    async def open(self, receive: Receive) -> None:
        """Join and pass everything that arrives to `receive`. Raises the error that makes joining impossible."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            log_failure = partial(self.log_failure, what="event handler failed", traceback=True)
            await self._tasks.start(self._listeners.run, log_failure)
            self._tasks.start_soon(self._stay_joined, receive)
            await self.welcomed.wait()
            if self._failure is not None:
                raise self._failure
        except BaseException:  # without a join there is no block, whose end would call `close`
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
            raise

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Leave, and end all tasks. Takes and returns what `__aexit__` takes and returns."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_SECONDS):
            await self.client.aclose()
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            # A task group would wrap the error; the author of the block wants to catch what was raised.
            await self._tasks.__aexit__(None, None, None)
            return None
        return await self._tasks.__aexit__(kind, error, trace)

    async def run_forever(self) -> None:
        """Wait until the connection has ended for good. Raises the error that ended it, if there is one."""
        await self.ended.wait()
        if self._failure is not None:
            raise self._failure

    async def run_until_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run what a program is for until the connection ends for good. `run_forever` raises a failure of it."""
        async with anyio.create_task_group() as tasks:

            async def end_with_connection() -> None:
                await self.ended.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_with_connection)
            try:
                await work()
            except Exception as error:
                logger.exception("leaving the space: unexpected error")
                self._failure = self._failure or error
                await self.client.aclose()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a task for as long as the session lasts. Its failure is logged and ends nothing else."""
        assert self._tasks is not None
        self._tasks.start_soon(self._run_logging_failures, function, args)

    async def _run_logging_failures(self, function: Callable[..., Coroutine[Any, Any, object]], args: Any) -> None:
        try:
            await function(*args)
        except MewAgentError as error:
            self.log_failure(error)
        except Exception:
            logger.exception("background task failed")

    def log_failure(self, error: Exception, what: str = "", *, traceback: bool = False) -> None:
        """Log a failure of background work: `what` failed, if given.

        At the end of a session envelopes in flight stay unconfirmed and peers stay silent. That is logged for debugging
        only: a program that ends does not wait for its background work.
        """
        is_expected = self.client.is_ending and isinstance(error, GatewayError | PeerError)
        text = f"{what}: {error}" if what else str(error)
        logger.log(
            logging.DEBUG if is_expected else logging.ERROR if traceback else logging.WARNING,
            "%s",
            text,
            exc_info=error if traceback else None,
        )

    async def _stay_joined(self, receive: Receive) -> None:
        try:
            await self.client.run(receive)
        except MewAgentError as error:
            self._failure = self._failure or error
        finally:
            self.ended.set()
            self.welcomed.set()
