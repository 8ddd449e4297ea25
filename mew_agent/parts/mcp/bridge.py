"""Keeps an MCP server running and offers it to a space as a participant.

Decides which failures cause a restart, and reports them to peers. Only `mcp_session` imports `mcp`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus
from mew_protocol import kinds
from mew_protocol.json_values import text_at
from mew_protocol.status_word import status_word
from mew_settings.backoff import Backoff

from mew_agent.errors import MewAgentError, first_cause
from mew_agent.failed_connections import connection_cause
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp.changes import CollectedChanges
from mew_agent.parts.mcp.mcp_session import Notify, ServerFailed, ServerSession, connected
from mew_agent.parts.mcp.settings import BridgeSettings
from mew_agent.tools.catalog import UNAVAILABLE, RequestFailed
from mew_agent.tools.peer_offers import LIST_CHANGED

logger = logging.getLogger("mew_agent.parts.mcp")

CLOSED: Final = "closed the connection"


class Bridge:
    """The `Offers` of an MCP server that `keep_running` restarts.

    `notify` receives notifications of the server. `report_status` receives `"ready"`, or why the server is down.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        notify: Notify,
        report_status: Callable[[str], Awaitable[None]],
        first_pause_seconds: float = 1.0,
    ) -> None:
        self.settings = settings
        self._notify = notify
        self._report_status = report_status
        self._restarts = Backoff(first_pause_seconds)
        self._session: ServerSession | None = None
        self._down_reason = "has not started yet"

    @property
    def server(self) -> str:
        """The name that the server announces, else the configured command or URL."""
        return self._session.name if self._session is not None else str(self.settings.server)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Forward a request to the server. Raises `RequestFailed`; at once while the server is down."""
        if self._session is None or self._session.ended.is_set():
            raise RequestFailed(UNAVAILABLE, f"the MCP server '{self.settings.server}' {self._down_reason}")
        return await self._session.request(method, params)

    async def keep_running(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the server until cancelled, and restart it when it fails. Signals `task_status` once it is ready.

        Raises `ServerFailed` if the first start fails, or if the server fails too often in a row. The first connection
        to a URL is retried like later ones.
        """
        was_ready = False
        while True:
            started_at = anyio.current_time()
            try:
                async with connected(self.settings, self._notify) as self._session:
                    logger.info("the MCP server %s is ready (MCP %s)", self._session.name, self._session.version)
                    self._down_reason = "has ended and is being restarted"
                    if was_ready:
                        await self._report_status("ready")
                        for method in LIST_CHANGED.values():  # the new process may have other tools
                            await self._notify(method, {})
                    else:
                        was_ready = True
                        task_status.started()
                    await self._session.ended.wait()
                failure = ServerFailed(str(self.settings.server), CLOSED)
            except Exception as error:
                failure = self._failure_from(error)
            finally:
                self._session = None
            pause_seconds = self._restarts.failed(anyio.current_time() - started_at)
            await self._wait_before_restart(failure, pause_seconds, was_ready=was_ready)

    async def _wait_before_restart(self, failure: ServerFailed, pause_seconds: float, *, was_ready: bool) -> None:
        may_retry = self.settings.reconnect and (was_ready or self.settings.server.url is not None)
        count, most = self._restarts.failures, self.settings.max_reconnects
        if not may_retry or count > most:
            self._down_reason = "is not running"
            raise failure
        self._down_reason = f"{failure.problem} and is being restarted"
        logger.warning("%s; restart in %g s (%d of %d)", failure, pause_seconds, count, most)
        if was_ready:
            await self._report_status(str(status_word("mcp_server_down", failure.problem)))
        await anyio.sleep(pause_seconds)

    def _failure_from(self, error: Exception) -> ServerFailed:
        """Return the server's failure in an exception, which may be a group of groups."""
        cause = first_cause(error)
        if isinstance(cause, ServerFailed):
            return cause
        if isinstance(cause, anyio.BrokenResourceError | anyio.ClosedResourceError):  # a request was in flight
            return ServerFailed(str(self.settings.server), CLOSED)
        text = str(cause) or type(cause).__name__
        logger.debug("the connection to the MCP server failed", exc_info=error)
        return ServerFailed(str(self.settings.server), f"cannot be reached: {connection_cause(error, text)}")


async def run_bridge(
    settings: BridgeSettings,
    *,
    gateway: str,
    space: str,
    id: str,  # noqa: A002 - the wire's word
    token: str,
    joined: Callable[[Bridge], None] = lambda _bridge: None,
) -> None:
    """Start the server, join the space, then call `joined`, and forward requests until the server or the connection
    ends for good.
    """
    me: Participant

    async def announce(changed: Sequence[tuple[str, str]]) -> None:
        for method, uri in changed if me.may_send(kinds.MCP_NOTIFICATION) else ():
            try:
                await me.send(kinds.MCP_NOTIFICATION, {"method": method, "params": {"uri": uri} if uri else {}})
            except MewAgentError as error:  # peers ask a participant that joins again
                logger.info("a change of the MCP server was not announced: %s", error)

    changes = CollectedChanges(announce)

    async def forward(method: str, params: dict[str, Any]) -> None:
        uri = text_at(params, "uri")
        changes.add((method, uri), can_be_spared=bool(uri))

    # Send in the participant's tasks, because a missing gateway must not delay the server.
    async def send_status(status: str) -> None:
        if me.may_send(kinds.PARTICIPANT_STATUS):
            me.start_soon(me.send, kinds.PARTICIPANT_STATUS, {"messages_in_context": 0, "status": status})

    bridge = Bridge(settings, notify=forward, report_status=send_status)
    me = Participant(gateway, space=space, id=id, token=token, offers=bridge)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(changes.run)
            await tasks.start(bridge.keep_running)
            async with me:
                joined(bridge)
                await me.run_forever()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise first_cause(group) from None
