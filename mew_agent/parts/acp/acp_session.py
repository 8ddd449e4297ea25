"""A session with an ACP agent: its program, the handshake, prompts and updates.

Owns the JSON-RPC connection. It logs and skips lines that are not JSON, and unknown updates. Errors of `acp` become
`AcpFailed`. Does not know the space.
"""

import json
import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import anyio
from acp.connection import Connection
from acp.exceptions import RequestError
from mew_protocol.json_values import object_at, objects_at, text_at, value_at

from mew_agent import __version__
from mew_agent.parts.acp.modes import SessionModes, first_mode, mode_in, modes_in
from mew_agent.parts.acp.profiles import profile_for, profiles
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.parts.acp.terminals import Terminals, terminals_below
from mew_agent.parts.acp.working_folder import ProjectFiles
from mew_agent.parts.shared.child_program import ChildFailed, ChildProgram, running_program
from mew_agent.tools.catalog import INVALID_PARAMS

logger = logging.getLogger("mew_agent.parts.acp")

PROTOCOL_VERSION: Final = 1
AUTH_REQUIRED: Final = -32000
"""The error code of an agent that needs a sign-in."""

MAX_SKIPPED_LINES: Final = 100
"""Programs may write some lines of text between messages; one that writes more of them in a row is no ACP agent."""

_MAX_ERROR_CHARS: Final = 400

OnUpdate = Callable[[Mapping[str, Any]], Awaitable[None]]
OnResponse = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Called with the result of each request, after the updates before it and before those that follow."""
OnPermission = Callable[[Mapping[str, Any]], Awaitable[str | None]]
"""Decides about a permission request; returns the id of the chosen option, None to reject."""


class AcpFailed(ChildFailed):
    """An ACP agent that cannot be used."""

    role: ClassVar[str] = "the ACP agent"


@dataclass
class SignInNeeded(AcpFailed):
    """An ACP agent that needs a sign-in; `ways` says how to sign in."""

    ways: str = ""


@dataclass
class LineTransport:
    """The transport that `Connection` uses: one JSON object per line.

    It passes updates and the ends of requests to `updates`, because only here their order is known.
    """

    program: ChildProgram
    updates: "_Updates"
    closed: anyio.Event = field(default_factory=anyio.Event)
    problem: str | None = None
    """Why it was closed, if not by the program's end."""
    _incoming: AsyncIterator[bytes] | None = None
    _skipped: int = 0
    """How many lines in a row were no messages."""
    _asked: dict[object, str] = field(default_factory=dict)
    """The methods of our requests without a response, by id."""
    _session_id: str = ""
    """The session whose updates count; empty while it is not known."""

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end, or when the program is unusable."""
        if self._incoming is None:
            self._incoming = self.program.lines()
        try:
            async for line in self._incoming:
                message = self._message_in(line)
                if message is None:
                    continue
                if "method" not in message:
                    if await self._is_response(message):
                        return message
                    continue
                update = value_at(message, "params", "update")
                if message["method"] != "session/update" or not isinstance(update, Mapping):
                    return message
                # An agent may run other sessions, for example for a subagent.
                if not self._session_id or value_at(message, "params", "sessionId") in (None, self._session_id):
                    await self.updates.put(update)
            self.closed.set()
        except ChildFailed as error:
            self.close_for(error.problem)
        return None

    async def _is_response(self, message: dict[str, Any]) -> bool:
        """Note the end of a request, in the order of the updates. Returns False for an answer to no open request."""
        name, result = message.get("id"), object_at(message, "result")
        method = self._asked.pop(name, None) if isinstance(name, int | str) else None
        if method is None:
            logger.info("%s: answer to no open request", self.program.name)
            return False
        if method == "session/new":
            self._session_id = text_at(result, "sessionId")
        error = message.get("error")
        if error is not None and not isinstance(error, Mapping):  # `Connection` expects an object
            message["error"] = {"message": str(error)[:_MAX_ERROR_CHARS]}
        await self.updates.put_response(result)
        return True

    def close_for(self, problem: str) -> None:
        """Note why a running program is unusable."""
        self.problem = problem
        self.closed.set()

    def _message_in(self, line: bytes) -> dict[str, Any] | None:
        """Return the message of a line; None for other lines. Raises `AcpFailed` after too many of them in a row."""
        if not line.strip():
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._skipped = 0
            return message
        self._skipped += 1
        if self._skipped > MAX_SKIPPED_LINES:
            shown = line[:80].decode(errors="replace")
            problem = f"wrote {self._skipped:,} lines that are not JSON objects, such as '{shown}'"
            raise self.program.failure(self.program.name, problem)
        logger.info("%s: line on standard output is not a JSON object: %.200r", self.program.name, line)
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message. Do nothing if the agent has closed its input: it is exiting, and `receive` ends."""
        if "method" in message and "id" in message:
            self._asked[message["id"]] = method = message["method"]
            if method in ("session/new", "session/load"):
                self._session_id = text_at(message, "params", "sessionId")
        # An error raised here would leave `Connection` with a failed future that is never awaited.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self.program.write_line(json.dumps(message, ensure_ascii=False))

    async def close(self) -> None:
        return None


@dataclass
class AcpSession:
    """A session that is ready for prompts."""

    settings: AcpConfig
    program: ChildProgram
    lines: LineTransport
    connection: Connection
    updates: "_Updates"
    name: str = ""
    """The name that the agent announces."""
    version: str = ""
    sign_in: str = ""
    """How to sign in, as the agent says."""
    session_id: str = ""
    opened: Mapping[str, Any] = field(default_factory=dict)
    """The answer to `session/new` or `session/load`."""
    was_loaded: bool = False
    is_loading: bool = False
    """Whether the agent repeats an earlier conversation now: its updates are history."""
    mode: str | None = None
    """The mode in which the agent works; None if it names none."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """The working folder and the MCP servers of its sessions."""

    @property
    def ended(self) -> anyio.Event:
        """Set when the agent can no longer answer."""
        return self.lines.closed

    async def open(
        self, files: Mapping[str, bool], session_id: str | None, mcp_servers: Sequence[Mapping[str, Any]]
    ) -> None:
        """Initialise the agent, and load the session with `session_id` or begin one. Raises `AcpFailed`."""
        declared = {"fs": files, "terminal": self.settings.terminal, "session": {"compaction": {}}}
        client = {"name": "mew-agent", "version": __version__}
        about = await self.request(
            "initialize",
            {"protocolVersion": PROTOCOL_VERSION, "clientInfo": client, "clientCapabilities": declared},
        )
        info = object_at(about, "agentInfo")
        self.name, self.version = str(info.get("name") or ""), str(info.get("version") or "")
        self.sign_in = _ways_to_sign_in(about, self.settings)
        capabilities = object_at(about, "agentCapabilities")
        usable = [one for one in mcp_servers if _can_use(capabilities, one)]
        if len(usable) < len(mcp_servers):
            logger.warning("%s uses no MCP server over HTTP, so it has no tools of the space", self.program.name)
        self.where = {"cwd": str(await anyio.Path(self.settings.cwd).resolve()), "mcpServers": usable}
        if session_id is not None and capabilities.get("loadSession"):
            try:
                self.is_loading = True
                self.opened = await self.request("session/load", {"sessionId": session_id, **self.where})
                self.session_id, self.was_loaded = session_id, True
                await self.updates.drained()
                self.is_loading = False
                await self._begin_mode()
                return
            except AcpFailed as error:
                if self.ended.is_set():
                    raise
                logger.warning("the earlier session is gone: %s", error)
                self.is_loading = False
        await self.renew()

    async def prompt(self, text: str, on_cancel: Callable[[], None]) -> Mapping[str, Any]:
        """Send a prompt and return the response, after all updates before it. Raises `AcpFailed`.

        When cancelled, asks the agent to end the turn, and waits for the end, so that the agent is idle for the next
        prompt. An agent that does not end the turn in time needs a restart: `ended` is set.
        """
        params = {"sessionId": self.session_id, "prompt": [{"type": "text", "text": text}]}
        answered, outcome, scope = anyio.Event(), list[Mapping[str, Any] | AcpFailed](), anyio.CancelScope(shield=True)

        async def ask() -> None:
            with scope:
                try:
                    outcome.append(await self.request("session/prompt", params))
                    await self.updates.drained()
                except AcpFailed as error:
                    outcome.append(error)
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            try:
                await answered.wait()
            except anyio.get_cancelled_exc_class():
                on_cancel()
                with anyio.move_on_after(self.settings.cancel_seconds, shield=True):
                    with suppress(ConnectionError):
                        await self.connection.send_notification("session/cancel", {"sessionId": self.session_id})
                    await answered.wait()
                if not answered.is_set():
                    waited = f"{self.settings.cancel_seconds:g} s"
                    self.lines.close_for(f"did not end a turn within {waited} after its cancel")
                scope.cancel()
                raise
        if isinstance(outcome[0], AcpFailed):
            raise outcome[0]
        return outcome[0]

    async def renew(self) -> None:
        """Begin a new, empty session. Raises `AcpFailed`."""
        self.opened = await self.request("session/new", self.where)
        self.session_id = str(self.opened.get("sessionId") or "")
        await self._begin_mode()

    async def _begin_mode(self) -> None:
        """Set the configured mode, else a mode that asks. Raises `AcpFailed` if the configured mode cannot be set."""
        modes, configured = modes_in(self.opened), self.settings.mode
        self.mode = None if modes is None else modes.current
        if configured is not None and (modes is None or configured not in modes.offered):
            offered = "none" if modes is None else ", ".join(modes.offered)
            raise AcpFailed(
                self.program.name, f"has no mode '{configured}'; set `acp.mode` to one it offers: {offered}"
            )
        if modes is None:
            return
        wanted = first_mode(modes, profile_for(self.settings.agent, self.name), configured)
        if wanted != modes.current:
            await self._change_mode(modes, wanted, is_configured=configured is not None)

    async def _change_mode(self, modes: SessionModes, wanted: str, *, is_configured: bool) -> None:
        method, params = modes.request_for(wanted)
        self.mode = wanted  # before the request, because a later update may report another mode
        try:
            await self.request(method, {"sessionId": self.session_id, **params})
        except AcpFailed as error:
            self.mode = modes.current
            if is_configured or self.ended.is_set():
                raise
            logger.warning("works in its mode '%s': %s", modes.current, error)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request. Raises `AcpFailed`."""
        try:
            answer = await self.connection.send_request(method, dict(params))
        except RequestError as error:
            if error.code == AUTH_REQUIRED:
                raise SignInNeeded(self.program.name, f"needs a sign-in: {self.sign_in}", ways=self.sign_in) from None
            detail = value_at(error.data, "details") or value_at(error.data, "message")
            problem = f"refused {method}: {error}{f': {detail}' if detail else ''}"
            raise AcpFailed(self.program.name, problem) from None
        except ConnectionError:
            # If its output has not ended, we closed the connection, so do not wait.
            problem = await self.end_reason() if self.ended.is_set() else "was stopped"
            raise AcpFailed(self.program.name, problem, self.program.stderr_tail) from None
        return object_at(answer)

    async def end_reason(self) -> str:
        """Return why the session ended, as a predicate."""
        return self.lines.problem or await self.program.exit_reason()


@dataclass(eq=False)
class _EndedRequest:
    """The result of a request, and whether all updates before it are handled."""

    result: Mapping[str, Any]
    is_handled: anyio.Event = field(default_factory=anyio.Event)


class _Updates:
    """The updates and ended requests of one session, handled one by one in order."""

    def __init__(self, handle: OnUpdate, on_response: OnResponse) -> None:
        self._handle, self._on_response = handle, on_response
        self._send, self._receive = anyio.create_memory_object_stream[Mapping[str, Any] | _EndedRequest](10_000)
        self._last_response = _EndedRequest({})

    async def put(self, update: Mapping[str, Any]) -> None:
        await self._send.send(update)

    async def put_response(self, result: Mapping[str, Any]) -> None:
        self._last_response = _EndedRequest(result)
        await self._send.send(self._last_response)

    async def drained(self) -> None:
        """Wait until the newest response and all updates before it are handled."""
        await self._last_response.is_handled.wait()

    async def run(self) -> None:
        with self._send, self._receive:
            async for update in self._receive:
                try:
                    if isinstance(update, _EndedRequest):
                        await self._on_response(update.result)
                    else:
                        await self._handle(update)
                except Exception:
                    logger.exception("failed to handle an update of the agent")
                finally:
                    if isinstance(update, _EndedRequest):
                        update.is_handled.set()


@asynccontextmanager
async def open_session(
    settings: AcpConfig,
    on_update: OnUpdate,
    on_permission: OnPermission,
    on_response: OnResponse,
    *,
    session_id: str | None = None,
    mcp_servers: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[AcpSession]:
    """Start the agent and open a session, the one with `session_id` if the agent can load it. Raises `AcpFailed`."""

    files = ProjectFiles(settings.cwd, settings.files)
    terminals: Terminals

    async def handle(method: str, params: Any, is_notification: bool) -> Any:
        values = object_at(params)
        if method == "session/request_permission":
            chosen = await on_permission(values)
            outcome = {"outcome": "cancelled"} if chosen is None else {"outcome": "selected", "optionId": chosen}
            return {"outcome": outcome}
        asked = next((one for one in (files, terminals) if one.allows(method)), None)
        if asked is not None:
            try:
                return await asked.request(method, values)
            except (ValueError, OSError) as error:
                raise RequestError(INVALID_PARAMS, str(error)) from None
        if not is_notification:
            raise RequestError.method_not_found(method)
        logger.debug("ignored %s", method)
        return None

    async with (
        terminals_below(settings.cwd, settings.terminal) as terminals,
        running_program(settings.program, settings.environment(os.environ), settings.cwd, AcpFailed) as program,
        anyio.create_task_group() as tasks,
    ):

        async def receive(update: Mapping[str, Any]) -> None:
            if session.is_loading and update.get("sessionUpdate") != "available_commands_update":
                return
            session.mode = mode_in(update) or session.mode
            await on_update(update)

        updates = _Updates(receive, on_response)
        lines = LineTransport(program, updates)
        connection = Connection(handle, lines)
        session = AcpSession(settings, program, lines=lines, connection=connection, updates=updates)
        tasks.start_soon(updates.run)
        try:
            with anyio.move_on_after(settings.start_seconds) as bound:
                await session.open(files.capabilities, session_id, mcp_servers)
            if bound.cancelled_caught:
                waited = f"did not answer within {settings.start_seconds:g} seconds"
                raise AcpFailed(program.name, waited, program.stderr_tail)
            yield session
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()
            tasks.cancel_scope.cancel()


def _can_use(capabilities: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    """Return True if the agent can reach an MCP server; every agent supports standard input and output."""
    kind = server.get("type", "stdio")
    return kind == "stdio" or bool(value_at(capabilities, "mcpCapabilities", kind))


def _ways_to_sign_in(about: Mapping[str, Any], settings: AcpConfig) -> str:
    """Return the agent's `authMethods` as a sentence, with the commands to run."""
    profile = profiles().get(settings.agent or "")
    own = (profile.sign_in,) if profile is not None and profile.sign_in else ()
    named = (_way_to_sign_in(one, settings) for one in objects_at(about, "authMethods"))
    return "; or ".join((*own, *named)) or "start it once by hand"


def _way_to_sign_in(method: Mapping[str, Any], settings: AcpConfig) -> str:
    text = str(method.get("description") or method.get("name") or method.get("id")).rstrip(".")
    terminal = object_at(method, "_meta", "terminal-auth")
    if terminal.get("command"):
        program, given = [str(terminal["command"])], terminal.get("args")
    elif method.get("type") == "terminal":
        program, given = list(settings.program), method.get("args")
    else:
        return text
    return f"{text}: run `{shlex.join([*program, *map(str, given if isinstance(given, list) else ())])}`"
