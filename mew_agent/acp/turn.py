"""One chat, answered by an ACP agent.

Owns the steps from the question to the answer, and what peers see of the agent's updates. Does not send prompts itself;
`TurnEnvelopes` sends the envelopes.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import value_at

from mew_agent.agent.inbox import Inbox
from mew_agent.agent.turn import MAX_ATTEMPTS
from mew_agent.agent.turn_envelopes import TurnEnvelopes
from mew_agent.context.store import StoredChat
from mew_agent.conversation.texts import GAVE_UP
from mew_agent.errors import MewAgentError
from mew_agent.participant.participant import Participant

MAX_ARGUMENT_CHARS: Final = 4_000

EMPTY: Final = "(no text)"
NO_TIME: Final = "I stopped after {seconds:g} seconds; please ask again, perhaps in smaller steps."
STOPPED: Final = "{text}\n\n(stopped early: {reason})"
FAILED: Final = "I cannot answer: {problem}."

Prompt = Callable[[str, bool], Awaitable[Mapping[str, Any]]]
"""Sends a prompt and returns the agent's response. The flag says that an earlier process may have sent it already."""


class AcpTurn:
    """Answers one chat. `run` returns when the answer is confirmed, or the turn is cancelled."""

    def __init__(self, me: Participant, inbox: Inbox, question: StoredChat) -> None:
        self._inbox, self.question = inbox, question
        self.envelopes = TurnEnvelopes(me, inbox, question)
        self._scope = anyio.CancelScope()
        self._cancelled: str | None = None
        self._failure: str | None = None
        self.texts: list[str] = []
        """What the agent has written so far."""
        self._calls: set[str] = set()

    @property
    def chat(self) -> Envelope:
        """The chat to answer."""
        return self.question.envelope

    def cancel(self, reason: str) -> None:
        """Stop: the agent is asked to end its turn, and no answer is sent."""
        self._cancelled = reason
        self._scope.cancel()

    def fail(self, problem: str) -> None:
        """Stop: the agent is gone for good; the answer reports it."""
        self._failure = problem
        self._scope.cancel()

    async def run(self, prompt: Prompt, remarks: str, max_seconds: float) -> None:
        """Answer the chat. `remarks` are what was said to others before. Raises the `GatewayError` of sending.

        Each step is in the inbox before the next one: a restarted process continues there, and sends an answer that it
        has under the same id.
        """
        if self.question.state != "queued":
            await self.envelopes.conclude_for_killed_process(self.question)
        if self.question.state in ("queued", "answering"):
            was_begun = self.question.state == "answering"
            await self.envelopes.acknowledge()
            self.question = await self._inbox.begin(self.question, 0, 0)
            await self.envelopes.start_reasoning(self.question)
            said = f"{self.chat.sender}: {self.chat.body.get('text')}"
            text = f"{remarks}\n{said}" if remarks else said
            answer: str | None = GAVE_UP.format(count=self.question.attempts - 1)
            if self.question.attempts <= MAX_ATTEMPTS:
                answer = await self._answer(prompt, text, max_seconds, is_repeated=was_begun)
            if answer is None:
                self.question = replace(self.question, state="cancelled")
                await self._inbox.mark_cancelled()
            else:
                self.question = await self._inbox.keep_answer(self.question, answer)
            await self.envelopes.conclude(self.question, answer, self._cancelled)
        if self.question.answer is not None:
            await self.envelopes.send_answer(self.question, {})

    async def _answer(self, prompt: Prompt, text: str, max_seconds: float, *, is_repeated: bool) -> str | None:
        response: Mapping[str, Any] | None = None
        self._scope.deadline = anyio.current_time() + max_seconds
        try:
            with self._scope:
                response = await prompt(text, is_repeated)
        except MewAgentError as error:
            return FAILED.format(problem=error)
        if self._cancelled is not None:
            return None
        if self._failure is not None:
            return FAILED.format(problem=self._failure)
        if response is None:
            return NO_TIME.format(seconds=max_seconds)
        written = "".join(self.texts).strip() or EMPTY
        reason = str(response.get("stopReason") or "end_turn")
        return written if reason == "end_turn" else STOPPED.format(text=written, reason=reason.replace("_", " "))

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Show an update of the agent: its text, its thoughts, its tool calls."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = text_in(update.get("content"))
                self.texts.append(text)
                if text:
                    await self.envelopes.write("token", value=text)
            case "agent_thought_chunk":
                await self.envelopes.write("thinking", value=text_in(update.get("content")))
            case "tool_call" | "tool_call_update":
                await self._show_call(update)
            case _:
                pass

    async def _show_call(self, update: Mapping[str, Any]) -> None:
        """Announce a call once its arguments are known; show its end in the stream."""
        call_id, arguments = str(update.get("toolCallId")), update.get("rawInput")
        title, status = str(update.get("title") or update.get("kind") or "a tool"), str(update.get("status") or "")
        await self.envelopes.write("tool", toolCallId=call_id, tool=title, status=status)
        if call_id in self._calls or not (arguments or status in ("in_progress", "completed", "failed")):
            return
        self._calls.add(call_id)
        if self.texts and not self.texts[-1].endswith("\n"):
            self.texts.append("\n\n")  # what follows the call is a new paragraph
        shown = arguments if len(json.dumps(arguments, default=str)) <= MAX_ARGUMENT_CHARS else None
        call, text = {"tool": title, "arguments": shown or {}, "toolCallId": call_id}, f"I call {title}."
        thought = {"message": text, "reasoning": text, "action": "tool", "actionInput": call}
        await self.envelopes.send_thought(thought)


def text_in(content: object) -> str:
    """The text of a content block; empty for other kinds."""
    return str(value_at(content, "text") or "") if value_at(content, "type") == "text" else ""
