"""`mew_agent.Space`: a space that a Python program runs or joins, with the participants that it adds.

Invites each added participant as the program's own participant, passes it the credentials, and runs it in a task. Their
roles give them the same capabilities as in space.yaml. Starts no other programs.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import anyio.abc
from mew_settings.roles import Role

from mew_agent.agent.agent import Agent
from mew_agent.errors import ConfigError, GatewayError
from mew_agent.extras import require_extra
from mew_agent.participant.client import Credentials
from mew_agent.participant.event_handlers import PeerJoined, PeerLeft
from mew_agent.participant.participant import Participant

logger = logging.getLogger("mew_agent.space")

OWNER: Final = "program"
"""Id of the program's own participant."""

PRESENCE_SECONDS: Final = 10.0
"""How long the news of a join or a leave may take."""

P = TypeVar("P", bound=Participant)


class Space:
    """A space for the agents of a program: `async with Space("review") as space: await space.add(Agent("coder"))`.

    Runs a gateway in this process while the block runs, and writes no files. `me` is the program's own participant,
    which may send everything. Leaving the block lets all participants leave and stops the gateway.
    """

    me: Participant
    """The program's own participant."""

    def __init__(
        self, name: str = "space", *, host: str = "127.0.0.1", port: int = 0, me: Participant | None = None
    ) -> None:
        """Run the space `name` at `host` and `port` (default: a free port).

        With `me`, add participants to the space of this joined participant, which needs the capability `space/invite`;
        no gateway is started. Raises `MissingExtra` without the extra `space`.
        """
        require_extra("space", "`mew_agent.Space`")
        self.name = name if me is None else me.space
        self._host, self._port, self._given = host, port, me
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._presence: anyio.Event
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def __aenter__(self) -> Self:
        try:
            self.me = await self._open() if self._given is None else self._given
            self._presence = anyio.Event()
            self.me.on(PeerJoined)(self._notice)
            self.me.on(PeerLeft)(self._notice)
            self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            # A task group would wrap the error, but the caller expects the original one.
            await self._stack.aclose()
            return None
        return await self._stack.__aexit__(kind, error, trace)

    async def _open(self) -> Participant:
        """Start the gateway, and join as the program's participant."""
        from mew_agent.cli.programs.start_gateway import serve_in_process

        members = {OWNER: {"capabilities": [{"kind": "*"}]}}
        space = json.dumps({"space": {"id": self.name}, "participants": members})
        gateway = await self._stack.enter_async_context(serve_in_process(space, host=self._host, port=self._port))
        token = gateway.token_of(OWNER)
        me = Participant(gateway.ws_url, space=self.name, id=OWNER, token=token, reports_context=False)
        return await self._stack.enter_async_context(me)

    @property
    def url(self) -> str:
        """The HTTP address of the gateway; `{url}/dashboard` is the dashboard."""
        return "http" + self.gateway.removeprefix("ws")

    @property
    def gateway(self) -> str:
        """The WebSocket address of the gateway."""
        return self.me.session.client.credentials.gateway.partition(",")[0]

    async def add(
        self,
        participant: P,
        *,
        role: Role | None = None,
        capabilities: Iterable[Mapping[str, Any] | str] = (),
    ) -> P:
        """Let a participant join, and return it once joined. It stays until `remove` or the end of the block.

        It gets the capabilities of its `role` (default: agent for an `Agent`, else tool), and `capabilities` (patterns
        or kinds). Raises the errors of `invite` and of entering the participant.
        """
        if participant.has_place:
            raise ConfigError(
                f"participant '{participant.id}'",
                "already has a gateway or token",
                "a participant made with its id only",
            )
        if self._tasks is None:
            raise RuntimeError(f"space '{self.name}' is not open; add participants inside `async with Space(...)`")
        if isinstance(capabilities, str):
            raise TypeError(f"capabilities is a list: [{capabilities!r}]")
        role = role or ("agent" if isinstance(participant, Agent) else "tool")
        invited = await self.me.invite(participant.id, role, *capabilities)
        assert invited.token is not None
        participant.use(Credentials(self.gateway, self.name, participant.id, invited.token))
        try:
            self._scopes[participant.id] = await self._tasks.start(self._stay, participant)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self.me.kick(participant.id, reason="it failed to start")
            raise
        await self._until(participant.id, is_here=True)
        return participant

    async def remove(self, participant: Participant) -> None:
        """Let an added participant leave, and remove it from the space. Raises the errors of `send`."""
        self._scopes.pop(participant.id).cancel()
        await self.me.kick(participant.id)
        await self._until(participant.id, is_here=False)

    async def _until(self, name: str, *, is_here: bool) -> None:
        """Wait until `me` knows that a participant joined or left; the gateway may notify it a little later."""
        with anyio.move_on_after(PRESENCE_SECONDS):
            while (name in self.me.peers) is not is_here:
                await self._presence.wait()

    async def _notice(self, _: object) -> None:
        """Wake the tasks that wait for a join or a leave."""
        noticed, self._presence = self._presence, anyio.Event()
        noticed.set()

    async def _stay(self, participant: Participant, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        with anyio.CancelScope() as scope:
            try:
                async with participant:
                    task_status.started(scope)
                    await participant.run_forever()
            except GatewayError as error:
                if participant.id not in self._scopes:
                    raise
                logger.warning("'%s' has left the space: %s", participant.id, error)
