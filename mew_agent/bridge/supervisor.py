"""Keeps an MCP server running, and offers it to a space as one of its participants.

Owns restarts, their pauses and their end, and what peers are told of them. It knows no `mcp`: talking to the server is
`session`'s matter.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus
from mew_protocol import kinds

from mew_agent.bridge.program import ServerFailed
from mew_agent.bridge.session import Notify, ServerSession, connected
from mew_agent.bridge.settings import BridgeSettings, HttpServer
from mew_agent.participant.participant import Participant
from mew_agent.tools.catalog import UNAVAILABLE, RequestFailed

logger = logging.getLogger("mew_agent.bridge")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
SETTLED_SECONDS: Final = 60.0
"""A server that ran this long is taken to be well; its next failure is the first again."""

LISTS: Final = ("tools", "resources", "prompts")


async def _tell_nobody(_word: str, _params: dict[str, Any]) -> None:
    return None


class Bridge:
    """`Offers` of an MCP server that is kept running by `keep`.

    `notify` is told of the server's notifications, `state` of `"ready"` and of the words for being down.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        notify: Notify = _tell_nobody,
        state: Callable[[str], Awaitable[None]] | None = None,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self.settings = settings
        self._notify = notify
        self._state = state
        self._first_pause_seconds = first_pause_seconds
        self._session: ServerSession | None = None
        self._trouble = "is not started yet"

    @property
    def server(self) -> str:
        """What the server calls itself, else what was configured."""
        return self._session.name if self._session is not None else str(self.settings.server)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The server's result. Raises `RequestFailed`, at once while the server is down."""
        if self._session is None or self._session.ended.is_set():
            raise RequestFailed(UNAVAILABLE, f"the MCP server '{self.settings.server}' {self._trouble}")
        return await self._session.request(method, params)

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the server until cancelled; started once it is ready.

        Raises `ServerFailed` when it does not start at all, or has ended too often in a row. A server reached by URL
        may take its time for the first start, too.
        """
        failures, was_ready = 0, False
        while True:
            since = anyio.current_time()
            try:
                async with connected(self.settings, self._notify) as self._session:
                    await self._say_ready(again=was_ready)
                    if not was_ready:
                        was_ready = True
                        task_status.started()
                    await self._session.ended.wait()
                failure = ServerFailed(str(self.settings.server), "closed the connection")
            except Exception as error:
                failure = self._failure_in(error)
            finally:
                self._session = None
            failures = 1 if anyio.current_time() - since > SETTLED_SECONDS else failures + 1
            await self._pause_or_give_up(failure, failures, was_ready=was_ready)

    async def _pause_or_give_up(self, failure: ServerFailed, failures: int, *, was_ready: bool) -> None:
        may_try = self.settings.reconnect and (was_ready or isinstance(self.settings.server, HttpServer))
        if not may_try or failures > self.settings.max_reconnects:
            self._trouble = "has ended"
            raise failure
        pause_seconds = min(LONGEST_PAUSE_SECONDS, self._first_pause_seconds * 2 ** (failures - 1))
        self._trouble = f"{failure.problem} and is started again"
        logger.warning(
            "%s; next try in %g s (%d of %d)", failure, pause_seconds, failures, self.settings.max_reconnects
        )
        if was_ready and self._state is not None:
            await self._state(f"mcp_server_down: {failure.problem}")
        await anyio.sleep(pause_seconds)

    async def _say_ready(self, *, again: bool) -> None:
        assert self._session is not None
        logger.info("the MCP server %s is ready (MCP %s)", self._session.name, self._session.version)
        if not again:
            return
        if self._state is not None:
            await self._state("ready")
        for what in LISTS:  # the new process may offer something else
            await self._notify(f"notifications/{what}/list_changed", {})

    def _failure_in(self, error: Exception) -> ServerFailed:
        """The first cause in what may be groups of groups. Raises what is no failure of the server's."""
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ServerFailed):
            return cause
        logger.debug("the connection to the MCP server broke", exc_info=error)
        return ServerFailed(str(self.settings.server), f"cannot be reached: {str(cause) or type(cause).__name__}")


async def run_bridge(
    settings: BridgeSettings,
    *,
    gateway: str,
    space: str,
    id: str,  # noqa: A002 - the wire's word
    token: str,
    joined: Callable[[Bridge], None] = lambda _bridge: None,
) -> None:
    """Start the server, join the space, and answer for it until cancelled or one of the two ends for good.

    `joined` is called once both are there. Raises `ServerFailed` or a `GatewayError`.
    """
    me: Participant

    async def say(kind: str, payload: Mapping[str, Any]) -> None:
        await me.send(kind, payload)

    # Telling is left to the participant: a gateway that is away must not hold up the server.
    async def pass_on(method: str, params: dict[str, Any]) -> None:
        if me.may_send(kinds.MCP_NOTIFICATION):
            me.start_soon(say, kinds.MCP_NOTIFICATION, {"method": method, "params": params})

    async def show(word: str) -> None:
        if me.may_send(kinds.PARTICIPANT_STATUS):
            me.start_soon(say, kinds.PARTICIPANT_STATUS, {"messages_in_context": 0, "status": word})

    bridge = Bridge(settings, notify=pass_on, state=show)
    me = Participant(gateway, space=space, id=id, token=token, offers=bridge)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(bridge.keep)
            async with me:
                joined(bridge)
                await me.run_forever()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _cause_of(group) from None


def _cause_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
