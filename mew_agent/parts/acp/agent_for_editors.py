"""An agent of a space as an ACP agent for editors.

Turns prompts into chats, and answers, figures, compactions and proposals into updates and requests of the protocol. All
client sessions share the agent's own conversation.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.lowlevel
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.stdio import stdio_streams
from mew_board.proposal_text import argument_lines, call_text, further_params
from mew_board.quoting import markdown_block, markdown_line
from mew_board.words import compaction_answer
from mew_protocol.json_values import object_at, objects_at, value_at
from mew_protocol.payloads.mcp import arguments_of

from mew_agent import __version__
from mew_agent.errors import MewAgentError
from mew_agent.participant.answers.builder import Answered, AnswerEvent, ContextNotice, Thinking, ToolCalled, Writing
from mew_agent.participant.event_handlers import ContextReported, ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.acp.acp_session import PROTOCOL_VERSION
from mew_agent.parts.acp.acp_turn import text_in
from mew_agent.parts.shared.child_program import MAX_LINE_BYTES
from mew_agent.tools.catalog import INTERNAL_ERROR, INVALID_PARAMS

logger = logging.getLogger("mew_agent.parts.acp.agent_for_editors")

COMPACT: Final = "compact"
COMMANDS: Final = ({"name": COMPACT, "description": "Compact the agent's context", "input": None},)
OPTIONS: Final = (
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
)


class AcpServer:
    """Serves one client: `me` asks `agent` for it."""

    def __init__(self, me: Participant, agent: str) -> None:
        self._me, self._agent = me, agent
        self._connection: Connection
        self._sessions: dict[str, anyio.CancelScope | None] = {}
        """The sessions of the client, each with the scope of its running prompt."""
        self._shows_compactions = False
        self._compaction: str | None = None
        self._reported: tuple[int, int | None] | None = None
        me.on(ContextReported)(self._show_context)
        me.on_proposal(self._ask_client)

    async def serve(self) -> None:
        """Serve standard input and output until the client closes them."""
        reader, writer = await stdio_streams(limit=MAX_LINE_BYTES)
        self._connection = Connection(self._handle, writer, reader, listening=False)
        try:
            await self._connection.main_loop()
        finally:
            with anyio.CancelScope(shield=True):
                await self._connection.close()

    # -- requests of the client --------------------------------------------------------------------------

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        values = object_at(params)
        match method:
            case "initialize":
                return self._initialize(values)
            case "session/new":
                session = f"{self._agent}-{uuid4()}"
                self._sessions[session] = None
                self._me.start_soon(self._show_new_session, session)
                return {"sessionId": session}
            case "session/prompt":
                return await self._prompt(str(values.get("sessionId")), objects_at(values, "prompt"))
            case "session/cancel":
                scope = self._sessions.get(str(values.get("sessionId")))
                if scope is not None:
                    scope.cancel()
                return None
            case _ if is_notification:
                return None
            case _:
                raise RequestError.method_not_found(method)

    def _initialize(self, values: Mapping[str, Any]) -> dict[str, Any]:
        self._shows_compactions = value_at(values, "clientCapabilities", "session", "compaction") is not None
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "mew-agent", "title": f"{self._agent} in {self._me.space}", "version": __version__},
            "agentCapabilities": {"loadSession": False, "promptCapabilities": {"embeddedContext": True}},
            "authMethods": [],
        }

    async def _prompt(self, session: str, blocks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        if session not in self._sessions:
            raise RequestError(INVALID_PARAMS, f"no session '{session}'; begin one with session/new")
        if self._sessions[session] is not None:
            raise RequestError(INVALID_PARAMS, "a prompt is running in this session; cancel it or wait for its end")
        text = "\n\n".join(filter(None, map(_text_of, blocks)))
        if not text:
            raise RequestError(INVALID_PARAMS, "prompt: contains no text (expected text or embedded resources)")
        scope = self._sessions[session] = anyio.CancelScope()
        try:
            with scope:
                if text.strip() == f"/{COMPACT}":
                    await self._compact(session)
                else:
                    async for event in self._me.ask_agent(self._agent, text):
                        if (update := _update_of(event)) is not None:
                            await self._update(session, update)
        except MewAgentError as error:
            raise RequestError(INTERNAL_ERROR, str(error)) from None
        finally:
            self._sessions[session] = None
        return {"stopReason": "cancelled" if scope.cancelled_caught else "end_turn"}

    async def _compact(self, session: str) -> None:
        done = await self._me.compact(self._agent)
        outcome = "Compaction" if done.skipped else "Compacted:"  # "Compaction skipped, nothing can be removed"
        await self._update(session, _message("agent_message_chunk", f"{outcome} {compaction_answer(done)}"))

    # -- what happens in the space -----------------------------------------------------------------------

    async def _show_new_session(self, session: str) -> None:
        await anyio.lowlevel.checkpoint()  # so that the response to session/new comes first
        await self._update(session, {"sessionUpdate": "available_commands_update", "availableCommands": list(COMMANDS)})
        peer = self._me.peers.get(self._agent)
        if peer is not None and (usage := _usage_of(peer.context)) is not None:
            await self._update(session, usage)

    async def _show_context(self, event: ContextReported) -> None:
        """Send the agent's figures, and the start and end of its compactions."""
        if event.peer.id != self._agent:
            return
        await self._follow_compaction(event.context.word.word)
        usage = _usage_of(event.context)
        shown = (event.context.tokens or 0, event.context.max_tokens)
        if usage is not None and shown != self._reported:
            self._reported = shown
            for session in tuple(self._sessions):
                await self._update(session, usage)

    async def _follow_compaction(self, word: str) -> None:
        if word == "compacting" and self._compaction is None:
            self._compaction = str(uuid4())
            await self._show_compaction("in_progress")
        elif word != "compacting" and self._compaction is not None:
            await self._show_compaction("failed" if word == "compaction_failed" else "completed")
            self._compaction = None

    async def _show_compaction(self, status: str) -> None:
        if self._shows_compactions:
            for session in tuple(self._sessions):
                update = {"sessionUpdate": "compaction_update", "compactionId": self._compaction, "status": status}
                await self._update(session, update)

    async def _ask_client(self, proposal: ProposalMade) -> None:
        if proposal.sender == self._agent and self._sessions:
            self._me.start_soon(self._decide, proposal)

    async def _decide(self, proposal: ProposalMade) -> None:
        """Let the client decide about a proposal of the agent. Another participant may decide first."""
        session = next((name for name, scope in self._sessions.items() if scope), next(iter(self._sessions)))
        body = proposal.envelope.body
        text = markdown_block("\n".join([f"{call_text(proposal.envelope)}:", *argument_lines(body)]))
        call = {
            "toolCallId": proposal.envelope.id,
            "title": markdown_line(call_text(proposal.envelope)),
            "rawInput": body.get("params") if further_params(body) else arguments_of(body),
            "content": [{"type": "content", "content": {"type": "text", "text": text}}],
            "status": "pending",
        }
        params = {"sessionId": session, "toolCall": call, "options": list(OPTIONS)}
        try:
            answer = await self._connection.send_request("session/request_permission", params)
        except (RequestError, ConnectionError) as error:
            logger.info("the client did not decide: %s", error)
            return
        chosen = value_at(answer, "outcome", "optionId")
        try:
            if proposal.is_open and chosen == "allow":
                await proposal.fulfil()
            elif proposal.is_open and chosen == "reject":
                await proposal.reject("rejected in the editor")
        except MewAgentError as error:
            logger.warning("the decision was not sent: %s", error)

    async def _update(self, session: str, update: Mapping[str, Any]) -> None:
        with suppress(ConnectionError):
            await self._connection.send_notification("session/update", {"sessionId": session, "update": update})


def _text_of(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "resource":
            text = value_at(block, "resource", "text")
            return f"{value_at(block, 'resource', 'uri')}:\n{text}" if isinstance(text, str) else ""
        case "resource_link":
            return str(block.get("uri") or "")
        case _:
            return text_in(block)


def _update_of(event: AnswerEvent) -> dict[str, Any] | None:
    match event:
        case Writing(text=text):
            return _message("agent_message_chunk", text)
        case Thinking(text=text) | ContextNotice(text=text):
            return _message("agent_thought_chunk", text)
        case ToolCalled(name=name, arguments=arguments):
            call = {
                "toolCallId": str(uuid4()),
                "title": markdown_line(name),
                "rawInput": arguments,
                "status": "completed",
            }
            return {"sessionUpdate": "tool_call", **call}
        case Answered():
            return None


def _message(kind: str, text: str) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def _usage_of(context: PeerContext) -> dict[str, Any] | None:
    """Return a usage update; None without a size, because the protocol cannot express an unknown one."""
    if context.tokens is None or context.max_tokens is None:
        return None
    meta = {"basis": context.basis_label}
    return {"sessionUpdate": "usage_update", "used": context.tokens, "size": context.max_tokens, "_meta": meta}
