"""The content of `mew serve mcp`: actions of a participant, the board and contexts as resources, and peers' tools.

Owns the actions, and keeps the participant in the space, even after a restart at another port. Reads the board and all
members over HTTP; everything else goes through the participant. `offers_server` implements MCP.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

import anyio
from mew_board import words
from mew_board.quoting import clean, indented
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import value_at
from mew_protocol.payloads.chat import Chat, may_answer
from mew_protocol.payloads.participant import Board, BoardEntry
from mew_settings.backoff import Backoff
from pydantic import Field

from mew_agent.agent.peer_tools import PeerTools
from mew_agent.cli.app.options import ConnectionOptions
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import Identity, find_gateway, find_identity, require_person
from mew_agent.cli.remote.sent_request import check_member
from mew_agent.errors import ConfigError, MewAgentError, PeerError, PeerTimeout
from mew_agent.participant.discovery import Pace
from mew_agent.participant.messenger import PendingRequest
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext
from mew_agent.participant.stored_messages import stored_messages
from mew_agent.parts.mcp.offers_server import OffersServer
from mew_agent.tools.catalog import INVALID_PARAMS, LocalOffers, RequestFailed
from mew_agent.tools.functions import Tool
from mew_agent.tools.resources import NoSuchResource, Resource
from mew_agent.tools.results import ToolResult

T = TypeVar("T")
Changed = Callable[[str | None], None]
"""Called with the URI of a resource that has changed, or with None if any list may have changed."""

INSTRUCTIONS: Final = (
    "A MEW space: AI agents, tools and people work together. `read_board` reports how full each agent's context window "
    "is, and where each figure comes from; an unknown size is not an empty one. `request_compaction` makes an agent "
    "shorten its context. `send_chat` sends a message to one participant or to all. Tools named `participant__tool` "
    "are those of other participants."
)

BOARD: Final = "mew://board"
CHAT: Final = "mew://chat"
CONTEXT: Final = "mew://participants/{participant}/context"

READ_ONLY: Final = {"readOnlyHint": True, "openWorldHint": False}
SENDS: Final = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True}
DISCARDS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}

READY_SECONDS: Final = 1.5
"""How long a list of tools waits for the first answers of peers."""

CHECK_SECONDS: Final = 1.0
MOST_CHATS: Final = 500
MOST_CHARS: Final = 4_000_000
"""Of these chats together; at least the newest one is returned."""
MOST_SEARCHED: Final = 5_000
"""How many stored messages are searched for chats, so that a long history without chats is not read whole."""
MOST_PAGES: Final = 100
"""On how many pages they are searched. More than the default `limits.history_bytes` fills."""

Seconds = Annotated[float, Field(ge=0, le=600, description="Seconds to wait for the answer; 0 does not wait.")]
Peer = Annotated[str, Field(description="A participant's id, as listed by `list_participants`.")]


def make_server(connection: ConnectionOptions, me: Participant | None = None) -> OffersServer:
    """Create the server for the participant of `connection`, which joins the space, or for `me`.

    `me` must discover the tools of its peers.
    """
    link = SpaceLink(connection, me)
    offers = SpaceOffers(connection, link)

    @asynccontextmanager
    async def running(_server: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            yield
            tasks.cancel_scope.cancel()

    server = OffersServer("mew", INSTRUCTIONS, offers, has_resources=True, running=running)
    link.on_change = lambda uri: server.notify_lists() if uri is None else server.notify_resource(uri)
    return server


@dataclass(eq=False, repr=False)
class PlaceLost(PeerError):
    """Our connection ended for good before a peer answered; the peer may still be in the space."""

    me: str
    peer: str

    def __str__(self) -> str:
        return f"'{self.me}' lost its place in the space before '{self.peer}' answered"


class SpaceOffers:
    """The participant's actions, the space's resources, and the tools of peers; see `Offers`."""

    def __init__(self, connection: ConnectionOptions, link: "SpaceLink") -> None:
        self._connection = connection
        self._link = link
        self._own = LocalOffers()
        for function, title, hints in (
            (self.send_chat, "Send a chat", SENDS),
            (self.read_board, "Read the board", READ_ONLY),
            (self.request_compaction, "Compact a context", DISCARDS),
            (self.list_participants, "List participants", READ_ONLY),
            (self.recent_chat, "Recent chats", READ_ONLY),
        ):
            self._own.toolbox.add(Tool.from_function(function, title=title, annotations=hints))
        link.reserved = frozenset(self._own.toolbox.tools)
        self._own.resources.add(Resource.from_function(self._board, BOARD, name="board"))
        self._own.resources.add(Resource.from_function(self._chat, CHAT, name="chat"))
        self._own.resources.add(Resource.from_function(self._context, CONTEXT, name="context"))

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """See `Offers.request`."""
        if method == "tools/call" and params.get("name") not in self._own.toolbox.tools:
            return await self._call_peer(str(params.get("name")), params.get("arguments") or {})
        if method == "resources/list":
            return {"resources": [*self._own.resources.listed(), *await self._contexts()]}
        result = await self._own.request(method, params)
        if method == "tools/list":
            await self._link.ready()
            result["tools"] += self._link.listed_tools()
        return result

    async def _call_peer(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a peer's tool. Cancelling this cancels the peer's work, or withdraws the proposal."""
        me, peer_tools = await self._link.joined()
        peer_tools.offered()  # makes the names of tools known
        target = peer_tools.target_of(name)
        if target is None:
            raise RequestFailed(INVALID_PARAMS, f"no tool '{name}' in space '{me.space}'; list the tools again")
        try:
            return (await me.call_tool(target.peer, target.tool, arguments)).to_mcp()
        except MewAgentError as error:
            return ToolResult.from_error(error).to_mcp()

    # -- tools: docstrings are what the client's model sees ----------------------------------------------

    async def send_chat(
        self,
        text: Annotated[str, Field(description="The message.")],
        to: Annotated[str | None, Field(description="A participant's id; omit it to send to all.")] = None,
        wait_seconds: Seconds = 0.0,
    ) -> dict[str, Any]:
        """Send a message in the space. With `wait_seconds`, wait for the recipient's answer."""
        if not text.strip():
            raise ConfigError("text", "is empty", "a message")
        if to is None and wait_seconds > 0:
            raise ConfigError("wait_seconds", "requires a recipient", "`to` with a participant's id")
        me = await self._me(to)
        if to is None or wait_seconds == 0:
            return {"id": (await me.chat(text, to=to or ())).id, "to": to, "answer": None}
        before = me.peers.last_context(to) or PeerContext()
        request = PendingRequest(me.messenger.draft(kinds.CHAT, Chat(text=text), to=(to,)), to, kinds.CHAT)
        outcome: dict[str, Any] = {"id": request.sent.id, "to": to, "answer": None}
        try:
            with self._link.accepting_uncorrelated(request):
                answer = await me.messenger.answer_to(request, wait_seconds)
        except PeerTimeout:
            return {**outcome, "waited_seconds": wait_seconds}
        outcome["answer"] = str(answer.body.get("text") or "")
        now = me.peers.last_context(to) or PeerContext()
        failure = words.chat_failure(answer.body, now.as_status(), status_id=now.at, id_before=before.at)
        return outcome if failure is None else {**outcome, "failed": failure}

    async def read_board(
        self, details: Annotated[bool, Field(description="Add the complete reports as structured content.")] = False
    ) -> Any:
        """Report how full each participant's context window is: its last report, where the figure is from, its age."""
        board = await self._board()
        text = board_text(Board.model_validate(board), datetime.now(UTC))
        return {"content": [{"type": "text", "text": text}], "structuredContent": board} if details else text

    async def request_compaction(
        self,
        peer: Peer,
        reason: Annotated[str | None, Field(description="Reason to send to the participant.")] = None,
        target_tokens: Annotated[
            int | None,
            Field(ge=0, description="Compact to at most this many tokens; omit it to keep only the newest turns."),
        ] = None,
        wait_seconds: Annotated[float, Field(ge=1, le=600, description="Seconds to wait for the answer.")] = 120.0,
    ) -> dict[str, Any]:
        """Compact a participant's context. Returns the tokens freed, or why the compaction was skipped."""
        me = await self._me(peer)
        done = await me.compact(peer, reason=reason, target_tokens=target_tokens, timeout_seconds=wait_seconds)
        return {"participant": peer, **done.model_dump(mode="json", exclude_none=True)}

    async def list_participants(self) -> dict[str, Any]:
        """List the participants of the space, their connections, and the kinds of envelopes that each may send."""
        found = [
            {
                "id": one.get("id"),
                "connected": one.get("connected"),
                "may_send": [pattern.get("kind") for pattern in one.get("capabilities", ())],
            }
            for one in await self._read(GatewayApi.participants)
        ]
        return {"participants": found}

    async def recent_chat(
        self, limit: Annotated[int, Field(ge=1, le=MOST_CHATS, description="Maximum number of messages.")] = 20
    ) -> dict[str, Any]:
        """Return the most recent messages in the space, oldest first."""
        client = (await self._me()).session.client
        bounds = {"most_messages": MOST_SEARCHED, "most_pages": MOST_PAGES}
        found = await stored_messages(client, (kinds.CHAT,), None, limit, **bounds)
        chats = [_as_chat(one) for one in found]
        sizes = accumulate(len(one["text"]) for one in reversed(chats))
        return {"chats": chats[-max(1, sum(size <= MOST_CHARS for size in sizes)) :]}

    # -- resources ---------------------------------------------------------------------------------------

    async def _board(self) -> dict[str, Any]:
        """Return the last report of each participant."""
        return (await self._read(GatewayApi.board)).model_dump(mode="json", by_alias=True, exclude_unset=True)

    async def _chat(self) -> str:
        """Return the most recent messages in the space, each on a line; further lines of a message are indented."""
        return "\n".join(
            indented(f"{one['at']} {one['from']} -> {', '.join(one['to']) or 'all'}: {one['text']}")
            for one in (await self.recent_chat(100))["chats"]
        )

    async def _context(self, participant: str) -> dict[str, Any]:
        """Return a participant's last context report."""
        for entry in (await self._board())["participants"]:
            if entry["id"] == participant:
                return dict(entry)
        raise NoSuchResource(context_uri(participant))

    async def _contexts(self) -> list[dict[str, Any]]:
        """Return the entries of all participants' contexts; none while no space runs."""
        try:
            names = [str(entry["id"]) for entry in (await self._board())["participants"]]
        except MewAgentError:
            return []
        return [
            {"uri": context_uri(name), "name": f"context of {name}", "mimeType": "application/json"} for name in names
        ]

    # -- the space ---------------------------------------------------------------------------------------

    async def _me(self, peer: str | None = None) -> Participant:
        """Return the participant. Raises `NoSuchParticipant` or `ParticipantOffline` for an absent `peer`."""
        me, _ = await self._link.joined()
        if peer not in (None, me.id, *me.peers):
            await self._read(lambda api: check_member(api, api.board(), str(peer)))
        return me

    async def _read(self, read: Callable[[GatewayApi], T]) -> T:
        """Find the space's gateway, and read from it. Raises the errors of `find_gateway`."""
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()  # it runs to its end, even without a waiter

        def run() -> None:
            try:
                outcome.set_result(read(find_gateway(self._connection)))
            except Exception as error:
                outcome.set_exception(error)

        # A daemon thread does not delay the end of the program, even if a gateway does not answer.
        threading.Thread(target=run, name="read", daemon=True).start()
        return await asyncio.wrap_future(outcome)


class SpaceLink:
    """Keeps the participant in the space while clients are served, and joins again when the space restarts.

    A given participant manages its own connection.
    """

    def __init__(self, connection: ConnectionOptions, me: Participant | None = None) -> None:
        self._connection = connection
        self.on_change: Changed = lambda _uri: None
        self.reserved: frozenset[str] = frozenset()
        """Names of tools that peers' tools may not have."""
        self._joined: tuple[Participant, PeerTools] | None = None
        self._problem: MewAgentError | None = None
        self._tried, self._wanted = anyio.Event(), anyio.Event()
        """The first is set after an attempt to join, the second by an action that needs one."""
        self._uncorrelated: list[PendingRequest] = []
        if me is not None:
            self._watch(me)
            self._joined = me, PeerTools(me, lambda: self.reserved, on_left_out=me.show_tools_left_out)

    async def run(self) -> None:
        """Join, stay, and join again; never returns."""
        if self._joined is not None:
            self._tried.set()
            await anyio.sleep_forever()
        backoff = Backoff(CHECK_SECONDS)
        while True:
            pause_seconds = CHECK_SECONDS
            try:
                who = find_identity(self._connection)
                require_person(who)
                # Reading files is cheap; ask a gateway that refuses us less often.
                pause_seconds = backoff.failed(0.0)
                await self._stay(who)
            except MewAgentError as error:
                self._problem = error
            if self._joined is not None:
                self._joined, backoff.failures, pause_seconds = None, 0, CHECK_SECONDS
                self._all_changed()
            self._tried.set()
            self._wanted = anyio.Event()
            with anyio.move_on_after(pause_seconds):
                await self._wanted.wait()

    async def _stay(self, who: Identity) -> None:
        """Stay until the connection ends for good, or the space has moved or disappeared."""
        me = Participant(
            who.ws_url, space=who.space, id=who.participant, token=who.token, discover=True, reports_context=False
        )
        me.discovery.pace = Pace(stagger_seconds=0.0)
        self._watch(me)
        async with me:
            self._joined = me, PeerTools(me, lambda: self.reserved, on_left_out=me.show_tools_left_out)
            self._tried.set()
            self._all_changed()
            try:
                while not me.session.ended.is_set():
                    await anyio.sleep(CHECK_SECONDS)
                    if not me.is_joined and find_identity(self._connection) != who:
                        return
                await me.run_forever()
            finally:
                for request in me.messenger.pending.to_peers():
                    request.complete(failure=PlaceLost(me.id, request.peer))

    def _watch(self, me: Participant) -> None:
        """Report changes of the resources and lists."""
        me.discovery.on_tools_changed = lambda: self.on_change(None)
        me.on(None)(self._receive)

    async def _receive(self, envelope: Envelope) -> None:
        match envelope.kind:
            case kinds.CHAT:
                self.on_change(CHAT)
                for request in self._uncorrelated:
                    if envelope.sender == request.peer and may_answer(envelope, request.sent):
                        request.complete(reply=envelope)
            case kinds.REASONING_START:  # an agent that correlates, so its other chats are no answers
                self._uncorrelated = [
                    one
                    for one in self._uncorrelated
                    if envelope.sender != one.peer or not envelope.refers_to(one.sent.id)
                ]
            case kinds.PARTICIPANT_STATUS:
                self.on_change(BOARD)
                self.on_change(context_uri(envelope.sender))
            case kinds.SYSTEM_WELCOME | kinds.SYSTEM_PRESENCE:  # a welcome may also change capabilities
                self.on_change(BOARD)
                self.on_change(None)
                if member := value_at(envelope.body, "participant", "id"):
                    self.on_change(context_uri(str(member)))
            case _:
                pass

    def _all_changed(self) -> None:
        self.on_change(BOARD)
        self.on_change(CHAT)
        self.on_change(None)

    @contextmanager
    def accepting_uncorrelated(self, request: PendingRequest) -> Iterator[None]:
        """Also accept the peer's next chat to us as the answer, because people and some agents do not correlate."""
        self._uncorrelated.append(request)
        try:
            yield
        finally:
            self._uncorrelated = [one for one in self._uncorrelated if one is not request]

    async def ready(self) -> None:
        """Wait, for a limited time, until the space is found and its peers have listed their tools."""
        with anyio.move_on_after(READY_SECONDS):
            await self._tried.wait()
            if self._joined is not None:
                await self._joined[0].discovery.wait_for_first_answers(READY_SECONDS)

    async def joined(self) -> tuple[Participant, PeerTools]:
        """Return the participant and the tools of its peers; joins if necessary. Raises `RequestFailed` if that
        fails.
        """
        if self._joined is None:
            if self._tried.is_set():
                self._tried = anyio.Event()
                self._wanted.set()
            with anyio.move_on_after(READY_SECONDS):
                await self._tried.wait()
        if self._joined is None:
            raise RequestFailed(INVALID_PARAMS, f"not in a space: {self._problem or 'still connecting'}")
        return self._joined

    def listed_tools(self) -> list[dict[str, Any]]:
        """Return the peers' tools that the participant may call or propose, in MCP's form."""
        offered = self._joined[1].offered() if self._joined is not None else ()
        return [
            {
                "name": spec.name,
                "description": spec.description,
                "inputSchema": dict(tool.schema),
                **({"title": tool.title} if tool.title else {}),
                **({"annotations": dict(tool.annotations)} if tool.annotations else {}),
                **({"outputSchema": dict(tool.output_schema)} if tool.output_schema else {}),
            }
            for spec, tool in offered
        ]


def context_uri(participant: str) -> str:
    """Return the URI of a participant's context."""
    return CONTEXT.replace("{participant}", quote(participant, safe=""))


def board_text(board: Board, now: datetime) -> str:
    """Return the board with one line per participant."""
    with_context = [entry for entry in board.participants if words.has_context(entry.status)]
    others = [_name(entry) for entry in board.participants if entry not in with_context]
    lines = [
        f"{_name(entry)}: {words.with_age(words.report_line(entry, now), entry.received_at, now, '; ')}"
        for entry in with_context
    ]
    return "\n".join([f"space {board.space}", *lines, *([f"no context report: {', '.join(others)}"] if others else [])])


def _name(entry: BoardEntry) -> str:
    return clean(entry.id) + ("" if entry.connected else " (not connected)")


def _as_chat(envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "at": envelope.ts,
        "from": envelope.sender,
        "to": list(envelope.addressees),
        "text": str(envelope.body.get("text") or ""),
    }
