"""The envelopes of one turn, as peers see them: acknowledge, reasoning/start, thoughts, one reasoning/conclusion, chat.

Owns their correlation ids, their ids (the same in a restarted process, so that the gateway drops repetitions), the
reasoning stream, and how long each waits for a lost gateway. Does not know how the answer is made: by a `Turn` with a
model, or by an agent whose engine is elsewhere.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Final

from mew_protocol import kinds

from mew_agent.agent.inbox import Inbox
from mew_agent.context.store import StoredChat
from mew_agent.errors import GatewayError, NotAccepted, NotConfirmed, NotPermitted
from mew_agent.participant.participant import Participant
from mew_agent.participant.streams import ReasoningStream

ANSWER_SECONDS: Final = 300.0
"""How long an answer waits for a lost gateway to return; then the next attempt begins."""

OPTIONAL_SECONDS: Final = 5.0
"""The same for acknowledgements and reasoning envelopes."""

INTERRUPTED: Final = "I was restarted while I worked on this; I continue."


class TurnEnvelopes:
    """Sends the envelopes of one turn. `reasoning_id` and `stream` are None while peers see no reasoning."""

    def __init__(
        self, participant: Participant, inbox: Inbox, question: StoredChat, *, shows_reasoning: bool = True
    ) -> None:
        self._participant, self._inbox = participant, inbox
        self._shows_reasoning = shows_reasoning
        self._asker = question.envelope.sender
        # The answer is also for the chat with which its sender chose how to deliver the question.
        about = tuple(name for name in (question.envelope.id, question.chosen_by) if name is not None)
        self._send = partial(participant.messenger.send, correlation_id=about)
        self.reasoning_id: str | None = None
        self.stream: ReasoningStream | None = None

    async def start_reasoning(self, question: StoredChat) -> None:
        """Announce the reasoning and request its stream, if our capabilities allow it."""
        if not self._shows_reasoning or not self._participant.may_send(kinds.REASONING_START):
            return
        text = str(question.envelope.body.get("text") or "")
        payload, name = {"message": text, "input": text}, self._inbox.id_for(question, "reasoning")
        try:
            await self._send(kinds.REASONING_START, payload, id=name, wait_seconds=OPTIONAL_SECONDS)
        except NotConfirmed:
            pass  # members may have it, so it must get its conclusion
        except GatewayError:
            return
        self.reasoning_id = name
        self.stream = ReasoningStream(self._participant.messenger, name)
        self.stream.start()

    async def write(self, kind: str, **values: Any) -> None:
        """Send a frame of the reasoning stream, if there is one."""
        if self.stream is not None:
            await self.stream.write(kind, **values)

    async def send_thought(self, thought: dict[str, Any]) -> None:
        """Send a thought of the reasoning, if there is one."""
        if self.reasoning_id is not None:
            await self._send_optional(kinds.REASONING_THOUGHT, thought, context=self.reasoning_id)

    async def send_call(self, call_id: str, tool: str, arguments: object, message: str = "") -> dict[str, Any]:
        """Send the thought that a tool is called, and return it. `message` is what was written before the call."""
        message = message or f"I call {tool}."
        call = {"tool": tool, "arguments": arguments, "toolCallId": call_id}
        thought = {"message": message, "reasoning": message, "action": "tool", "actionInput": call}
        await self.send_thought(thought)
        return thought

    async def acknowledge(self) -> None:
        """Tell the asker that the work on its chat has begun."""
        await self._send_optional(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"}, to=self._asker)

    async def conclude(self, question: StoredChat, answer: str | None, reason: str | None) -> None:
        """Conclude the reasoning; `answer` None: it was cancelled for this reason. Raises as `send_answer` does."""
        if self.reasoning_id is None:
            return
        await self._send_conclusion(question, _conclusion_of(answer, reason))
        if self.stream is not None:
            await self.stream.write("status", event="conclusion", cancelled=answer is None)
            self._participant.start_soon(self.stream.aclose, "cancelled" if answer is None else "complete")

    async def conclude_for_killed_process(self, question: StoredChat) -> None:
        """Conclude the reasoning that a killed process left open. The gateway drops a conclusion that it knows."""
        if not self._shows_reasoning or not question.attempts:
            return
        self.reasoning_id = self._inbox.id_for(question, "reasoning")
        if question.state == "answering":
            await self._send_conclusion(question, {"message": INTERRUPTED, "interrupted": True})
        else:
            await self._send_conclusion(question, _conclusion_of(question.answer, None))
        self.reasoning_id = None

    async def send_answer(self, question: StoredChat, report: dict[str, Any]) -> None:
        """Send the answer that the inbox keeps, with these further keys.

        Raises `NotConnected` and `NotConfirmed`, after which the turn is tried again, and other errors of sending.
        """
        payload, name = {"text": question.answer, **report}, self._inbox.id_for(question, "answer")
        await self._send(kinds.CHAT, payload, to=self._asker, id=name, wait_seconds=ANSWER_SECONDS)

    async def close_stream(self, reason: str) -> None:
        """Close the reasoning stream before the turn ends."""
        if self.stream is not None:
            await self.stream.aclose(reason)

    async def _send_conclusion(self, question: StoredChat, payload: dict[str, Any]) -> None:
        kind, name = kinds.REASONING_CONCLUSION, self._inbox.id_for(question, "conclusion")
        with suppress(NotPermitted, NotAccepted):
            await self._send(kind, payload, context=self.reasoning_id, id=name, wait_seconds=ANSWER_SECONDS)

    async def _send_optional(self, kind: str, payload: dict[str, Any], **headers: Any) -> None:
        """Send what no answer depends on. Without capability or gateway the answer still follows."""
        with suppress(NotPermitted, GatewayError):
            await self._send(kind, payload, wait_seconds=OPTIONAL_SECONDS, **headers)


def _conclusion_of(answer: str | None, reason: str | None) -> dict[str, Any]:
    if answer is None:
        return {"cancelled": True, "reason": reason or "cancelled", "message": "cancelled"}
    return {"message": answer[:200]}
