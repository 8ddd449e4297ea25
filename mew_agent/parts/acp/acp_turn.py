"""One chat, answered by an ACP agent.

Turns the agent's response into an answer, and shows its updates to peers. Sends no prompts.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at, value_at

from mew_agent.agent.engine import AgentSide, Answering
from mew_agent.context.store import InboxChange, StoredChat
from mew_agent.errors import MewAgentError
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.parts.acp.acp_figures import spent_tokens
from mew_agent.prompt_tags import spoken

MAX_ARGUMENT_CHARS: Final = 4_000

EMPTY: Final = "(no text)"
NO_TIME: Final = "I stopped after {seconds:g} seconds; please ask again, perhaps in smaller steps."
STOPPED: Final = "{text}\n\n(stopped early: {reason})"
FAILED: Final = "I cannot answer: {problem}."

_WORK: Final = frozenset({"agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update"})
"""Updates that show that the agent's model has read the prompt."""

Prompt = Callable[[str, bool], Awaitable[Mapping[str, Any]]]
"""Sends a prompt and returns the agent's response. The flag says that an earlier process may have sent it already."""


class AcpAnswer(Answering):
    """The answer of an ACP agent to one chat."""

    def __init__(
        self,
        question: StoredChat,
        reasoning: Reasoning,
        prompt: Prompt,
        max_seconds: float,
        agent: AgentSide,
        after_answer: Callable[[], Awaitable[None]],
    ) -> None:
        """`after_answer` is called when the answer is confirmed."""
        self.chat, self.max_seconds = question.envelope, max_seconds
        self.texts: list[str] = []
        """The agent's text so far."""
        self._reasoning, self._prompt, self._agent, self._after_answer = reasoning, prompt, agent, after_answer
        self._remarks: list[Envelope] = []
        self._gone = anyio.CancelScope()
        self._failure: str | None = None
        self._was_begun = self._was_prompted = False
        self._call_tokens = 0
        """The sum of the tokens that the program reported of its calls."""
        self._turn_tokens = 0
        """The tokens that it reported of the whole turn."""
        self._calls: set[str] = set()
        self._is_read = False

    @property
    def spent(self) -> tuple[int, int]:
        """See `Answering`. Covers this turn; without reported tokens it counts as one call."""
        tokens = self._turn_tokens or self._call_tokens
        return tokens, int(self._was_prompted and not tokens)

    def fail(self, problem: str) -> None:
        """Stop, because the agent is gone for good. The answer reports it."""
        self._failure = problem
        self._gone.cancel()

    async def add_remark(self, remark: Envelope, removed: InboxChange) -> bool:
        self._remarks.append(remark)
        return False

    async def begin(self, question: StoredChat, *, was_begun: bool) -> tuple[int, int]:
        self._was_begun = was_begun  # then the prompt of the earlier process contained the remarks
        return 0, 0

    async def make(self) -> str:
        text = "\n".join(spoken(text_at(chat.body, "text"), chat.sender) for chat in (*self._remarks, self.chat))
        response: Mapping[str, Any] = {}
        with self._gone:
            self._was_prompted = True
            response = await self._prompt(text, self._was_begun)
            await self._note_read()
        if self._failure is not None:
            self.problem = self._failure
            return FAILED.format(problem=self._failure)
        self._turn_tokens = spent_tokens(response.get("usage"))
        written = "".join(self.texts).strip() or EMPTY
        reason = str(response.get("stopReason") or "end_turn")
        return written if reason == "end_turn" else STOPPED.format(text=written, reason=reason.replace("_", " "))

    async def timed_out(self) -> str:
        return NO_TIME.format(seconds=self.max_seconds)

    async def failed(self, error: Exception) -> str:
        if isinstance(error, MewAgentError):
            return FAILED.format(problem=error)
        raise error

    async def finish(self, *, is_idle: bool) -> None:
        await self._after_answer()

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Show an update of the agent: its text, its thoughts, its tool calls."""
        self._call_tokens += spent_tokens(value_at(update, "_meta", "usage"))
        if update.get("sessionUpdate") in _WORK:
            await self._note_read()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = text_in(update.get("content"))
                self.texts.append(text)
                if text:
                    await self._reasoning.write("token", value=text)
            case "agent_thought_chunk":
                await self._reasoning.write("thinking", value=text_in(update.get("content")))
            case "tool_call" | "tool_call_update":
                await self._show_call(update)
            case _:
                pass

    async def _note_read(self) -> None:
        """Note, once, that the agent's model has read the prompt."""
        if self._was_prompted and not self._is_read:
            self._is_read = True
            await self._agent.prompt_read((*self._remarks, self.chat))

    async def _show_call(self, update: Mapping[str, Any]) -> None:
        """Announce a call when its arguments are known; show its end in the stream."""
        call_id, arguments = str(update.get("toolCallId")), update.get("rawInput")
        title, status = str(update.get("title") or update.get("kind") or "a tool"), str(update.get("status") or "")
        await self._reasoning.write("tool", toolCallId=call_id, tool=title, status=status)
        if call_id in self._calls or not (arguments or status in ("in_progress", "completed", "failed")):
            return
        self._calls.add(call_id)
        if self.texts and not self.texts[-1].endswith("\n"):
            self.texts.append("\n\n")  # text after the call is a new paragraph
        shown = arguments if len(json.dumps(arguments, default=str)) <= MAX_ARGUMENT_CHARS else None
        await self._reasoning.call(call_id, title, shown or {})


def text_in(content: object) -> str:
    """Return the text of a content block; empty for other kinds."""
    return str(value_at(content, "text") or "") if value_at(content, "type") == "text" else ""
