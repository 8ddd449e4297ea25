"""One chat, answered by an ACP agent.

Owns the order of the envelopes that peers see, as of an `Agent`'s turn: acknowledge, reasoning/start, the thoughts, one
reasoning/conclusion, and the final chat. Does not send prompts itself.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.agent.inbox import Inbox
from mew_agent.agent.turn import INTERRUPTED, MAX_ATTEMPTS
from mew_agent.context.store import StoredChat
from mew_agent.conversation.texts import GAVE_UP
from mew_agent.errors import GatewayError, MewAgentError, NotAccepted, NotConfirmed, NotPermitted
from mew_agent.participant.participant import Participant
from mew_agent.participant.streams import ReasoningStream

ANSWER_SECONDS: Final = 300.0
OPTIONAL_SECONDS: Final = 5.0
MAX_ARGUMENT_CHARS: Final = 4_000

EMPTY: Final = "(no text)"
NO_TIME: Final = "I stopped after {seconds:g} seconds; please ask again, perhaps in smaller steps."
STOPPED: Final = "{text}\n\n(stopped early: {reason})"
FAILED: Final = "I cannot answer: {problem}."

Prompt = Callable[[str, bool], Awaitable[Mapping[str, Any]]]
"""Sends a prompt and returns the agent's response. The flag says that an earlier process may have sent it already."""


class AcpTurn:
    """Answers one chat. `run` returns when the answer is confirmed, or the turn is cancelled."""

    def __init__(self, me: "Participant", inbox: Inbox, question: StoredChat) -> None:
        self._me, self._inbox, self.question = me, inbox, question
        self.reasoning_id: str | None = None
        self._stream: ReasoningStream | None = None
        self._scope = anyio.CancelScope()
        self._cancelled: str | None = None
        self._failure: str | None = None
        self._texts: list[str] = []
        self._calls: set[str] = set()

    @property
    def chat(self) -> Envelope:
        """The chat to answer."""
        return self.question.envelope

    @property
    def has_text(self) -> bool:
        """Whether the agent has written something."""
        return bool(self._texts)

    def cancel(self, reason: str) -> None:
        """Stop: the agent is asked to end its turn, and no answer is sent."""
        self._cancelled = reason
        self._scope.cancel()

    def fail(self, problem: str) -> None:
        """Stop: the agent is gone for good, and the answer says so."""
        self._failure = problem
        self._scope.cancel()

    async def close_stream(self, reason: str) -> None:
        """Close the reasoning stream before the turn does."""
        if self._stream is not None:
            await self._stream.aclose(reason)

    async def run(self, prompt: Prompt, remarks: str, max_seconds: float) -> None:
        """Answer the chat. `remarks` are what was said to others before. Raises the `GatewayError` of sending.

        Each step is in the inbox before the next one: a restarted process continues there, and sends an answer that it
        has under the same id.
        """
        if self.question.state != "queued":
            await self._conclude_for_killed_process()
        if self.question.state in ("queued", "answering"):
            was_begun = self.question.state == "answering"
            await self._send_optional(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"})
            self.question = await self._inbox.begin(self.question, 0, 0)
            await self._start_reasoning()
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
            await self._conclude(answer)
        if self.question.answer is not None:
            draft = self._me.messenger.draft(
                kinds.CHAT,
                {"text": self.question.answer},
                to=(self.chat.sender,),
                correlation_id=(self.chat.id,),
                id=self._inbox.answer_id(self.question),
            )
            await self._me.messenger.send_envelope(draft, wait_seconds=ANSWER_SECONDS)

    async def _conclude_for_killed_process(self) -> None:
        """Conclude the reasoning that a killed process left open. The gateway drops a conclusion that it knows."""
        if not self.question.attempts or not self._me.may_send(kinds.REASONING_CONCLUSION):
            return
        self.reasoning_id = self._inbox.reasoning_id(self.question)
        if self.question.state == "answering":
            await self._send_conclusion({"message": INTERRUPTED, "interrupted": True})
        else:
            await self._send_conclusion(self._conclusion_of(self.question.answer))
        self.reasoning_id = None

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
        written = "".join(self._texts).strip() or EMPTY
        reason = str(response.get("stopReason") or "end_turn")
        return written if reason == "end_turn" else STOPPED.format(text=written, reason=reason.replace("_", " "))

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Show an update of the agent: its text, its thoughts, its tool calls."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = text_in(update.get("content"))
                self._texts.append(text)
                if text and self._stream is not None:
                    await self._stream.write("token", value=text)
            case "agent_thought_chunk" if self._stream is not None:
                await self._stream.write("thinking", value=text_in(update.get("content")))
            case "tool_call" | "tool_call_update":
                await self._show_call(update)
            case _:
                pass

    async def _show_call(self, update: Mapping[str, Any]) -> None:
        """Announce a call once its arguments are known; show its end in the stream."""
        call_id, arguments = str(update.get("toolCallId")), update.get("rawInput")
        title, status = str(update.get("title") or update.get("kind") or "a tool"), str(update.get("status") or "")
        if self._stream is not None:
            await self._stream.write("tool", toolCallId=call_id, tool=title, status=status)
        if call_id in self._calls or not (arguments or status in ("in_progress", "completed", "failed")):
            return
        self._calls.add(call_id)
        if self._texts and not self._texts[-1].endswith("\n"):
            self._texts.append("\n\n")  # what follows the call is a new paragraph
        shown = arguments if len(json.dumps(arguments, default=str)) <= MAX_ARGUMENT_CHARS else None
        call, text = {"tool": title, "arguments": shown or {}, "toolCallId": call_id}, f"I call {title}."
        thought = {"message": text, "reasoning": text, "action": "tool", "actionInput": call}
        await self._send_optional(kinds.REASONING_THOUGHT, thought, in_reasoning=True)

    async def _start_reasoning(self) -> None:
        if not self._me.may_send(kinds.REASONING_START):
            return
        text = str(self.chat.body.get("text") or "")
        start = self._me.messenger.draft(
            kinds.REASONING_START,
            {"message": text, "input": text},
            correlation_id=(self.chat.id,),
            id=self._inbox.reasoning_id(self.question),
        )
        try:
            await self._me.messenger.send_envelope(start, wait_seconds=OPTIONAL_SECONDS)
        except NotConfirmed:
            pass  # members may have it, so it must get its conclusion
        except GatewayError:
            return
        self.reasoning_id = start.id
        self._stream = ReasoningStream(self._me.messenger, start.id)
        self._stream.start()

    async def _conclude(self, answer: str | None) -> None:
        if self.reasoning_id is None:
            return
        await self._send_conclusion(self._conclusion_of(answer))
        if self._stream is not None:
            self._me.start_soon(self._stream.aclose, "cancelled" if answer is None else "complete")

    def _conclusion_of(self, answer: str | None) -> dict[str, Any]:
        if answer is None:
            return {"cancelled": True, "reason": self._cancelled or "cancelled", "message": "cancelled"}
        return {"message": answer[:200]}

    async def _send_conclusion(self, payload: dict[str, Any]) -> None:
        conclusion = self._me.messenger.draft(
            kinds.REASONING_CONCLUSION,
            payload,
            correlation_id=(self.chat.id,),
            context=self.reasoning_id,
            id=self._inbox.conclusion_id(self.question),
        )
        with suppress(NotPermitted, NotAccepted):
            await self._me.messenger.send_envelope(conclusion, wait_seconds=ANSWER_SECONDS)

    async def _send_optional(self, kind: str, payload: dict[str, Any], *, in_reasoning: bool = False) -> None:
        if in_reasoning and self.reasoning_id is None:
            return
        envelope = self._me.messenger.draft(
            kind,
            payload,
            to=() if in_reasoning else (self.chat.sender,),
            correlation_id=(self.chat.id,),
            context=self.reasoning_id if in_reasoning else None,
        )
        with suppress(NotPermitted, GatewayError):
            await self._me.messenger.send_envelope(envelope, wait_seconds=OPTIONAL_SECONDS)


def text_in(content: object) -> str:
    """The text of a content block; empty for other kinds."""
    if isinstance(content, Mapping) and content.get("type") == "text":
        return str(content.get("text") or "")
    return ""
