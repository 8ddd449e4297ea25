"""One chat, answered by an ACP agent.

Owns how the agent's response becomes an answer, and what peers see of its updates. Does not send prompts itself.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mew_protocol.json_values import value_at
from mew_protocol.quoting import spoken

from mew_agent import tracing
from mew_agent.agent.chat_turn import ChatTurn
from mew_agent.context.store import StoredChat
from mew_agent.errors import MewAgentError
from mew_agent.parts.acp.figures import spent_tokens
from mew_agent.parts.acp.own_compactions import OwnCompactions

MAX_ARGUMENT_CHARS: Final = 4_000

EMPTY: Final = "(no text)"
NO_TIME: Final = "I stopped after {seconds:g} seconds; please ask again, perhaps in smaller steps."
STOPPED: Final = "{text}\n\n(stopped early: {reason})"
FAILED: Final = "I cannot answer: {problem}."

Prompt = Callable[[str, bool], Awaitable[Mapping[str, Any]]]
"""Sends a prompt and returns the agent's response. The flag says that an earlier process may have sent it already."""


@dataclass(eq=False, kw_only=True)
class AcpTurn(ChatTurn):
    """Answers one chat with an ACP agent."""

    prompt: Prompt
    max_seconds: float
    compactions: OwnCompactions
    texts: list[str] = field(default_factory=list)
    """What the agent has written so far."""
    _failure: str | None = None
    _was_prompted: bool = False
    _call_tokens: int = 0
    """The sum of what the program reported of its calls."""
    _turn_tokens: int = 0
    """What it reported of the whole turn."""
    _calls: set[str] = field(default_factory=set)

    @property
    def spent(self) -> tuple[int, int]:
        """See `ChatTurn.spent`: of this turn; one whose program reported no tokens counts as one call."""
        tokens = self._turn_tokens or self._call_tokens
        return tokens, int(self._was_prompted and not tokens)

    def fail(self, problem: str) -> None:
        """Stop: the agent is gone for good; the answer reports it."""
        self._failure = problem
        self._scope.cancel()

    async def answer(self) -> None:
        """Answer the chat, and compact if that is due."""
        with tracing.turn_span(self.participant.id, None, self.chat, None):
            await self.run()
        await self.compactions.apply_pending()

    async def _begin(self) -> StoredChat:
        return await self.inbox.begin(self.question, 0, 0)

    async def _make_answer(self) -> str | None:
        await self.start_reasoning()
        chats = [self.chat]
        if not self._was_begun:  # the prompt of an earlier process contained them
            for remark in self.inbox.take_overheard():
                chats.insert(-1, remark.envelope)
                await self.inbox.forget_overheard(remark)
        text = "\n".join(spoken(str(chat.body.get("text")), chat.sender) for chat in chats)
        response: Mapping[str, Any] | None = None
        self._scope.deadline = anyio.current_time() + self.max_seconds
        try:
            with self._scope:
                self._was_prompted = True
                response = await self.prompt(text, self._was_begun)
        except MewAgentError as error:
            return FAILED.format(problem=error)
        if self._cancel_reason is not None:
            return None
        if self._failure is not None:
            return FAILED.format(problem=self._failure)
        if response is None:
            return NO_TIME.format(seconds=self.max_seconds)
        self._turn_tokens = spent_tokens(response.get("usage"))
        written = "".join(self.texts).strip() or EMPTY
        reason = str(response.get("stopReason") or "end_turn")
        return written if reason == "end_turn" else STOPPED.format(text=written, reason=reason.replace("_", " "))

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Show an update of the agent: its text, its thoughts, its tool calls."""
        self._call_tokens += spent_tokens(value_at(update, "_meta", "usage"))
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = text_in(update.get("content"))
                self.texts.append(text)
                if text:
                    await self.write("token", value=text)
            case "agent_thought_chunk":
                await self.write("thinking", value=text_in(update.get("content")))
            case "tool_call" | "tool_call_update":
                await self._show_call(update)
            case _:
                pass

    async def _show_call(self, update: Mapping[str, Any]) -> None:
        """Announce a call once its arguments are known; show its end in the stream."""
        call_id, arguments = str(update.get("toolCallId")), update.get("rawInput")
        title, status = str(update.get("title") or update.get("kind") or "a tool"), str(update.get("status") or "")
        await self.write("tool", toolCallId=call_id, tool=title, status=status)
        if call_id in self._calls or not (arguments or status in ("in_progress", "completed", "failed")):
            return
        self._calls.add(call_id)
        if self.texts and not self.texts[-1].endswith("\n"):
            self.texts.append("\n\n")  # what follows the call is a new paragraph
        shown = arguments if len(json.dumps(arguments, default=str)) <= MAX_ARGUMENT_CHARS else None
        await self.send_call(call_id, title, shown or {})


def text_in(content: object) -> str:
    """Return the text of a content block; empty for other kinds."""
    return str(value_at(content, "text") or "") if value_at(content, "type") == "text" else ""
