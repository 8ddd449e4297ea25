"""The answering of one chat, whatever makes the answer: a model (`Turn`), or an agent whose engine is elsewhere.

Owns the steps from the question to the confirmed answer, and the envelopes that peers see of them: acknowledge,
reasoning/start, thoughts, one reasoning/conclusion, chat. The inbox records each step before the next one begins, so
that a restarted process continues there. It sends each envelope under the same id, so that the gateway drops
repetitions.
"""

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.agent.inbox import Inbox
from mew_agent.context.store import StoredChat
from mew_agent.conversation.texts import GAVE_UP
from mew_agent.errors import GatewayError, NotAccepted, NotConfirmed, NotConnected, NotPermitted
from mew_agent.participant.participant import Participant
from mew_agent.participant.streams import ReasoningStream

logger = logging.getLogger("mew_agent.agent.chat_turn")

MAX_ATTEMPTS = 5
"""How many processes may begin to answer one question, in case the question itself ends them."""

RETRY_SECONDS = 1.0
"""Pause before an answer is sent again that the gateway did not confirm."""

ANSWER_SECONDS: Final = 300.0
"""How long an answer waits for a lost gateway to return; then the next attempt begins."""

OPTIONAL_SECONDS: Final = 5.0
"""The same for acknowledgements and reasoning envelopes."""

INTERRUPTED: Final = "I was restarted while I worked on this; I continue."


@dataclass(eq=False, kw_only=True)
class ChatTurn(ABC):
    """Answers one chat; see `attempt`."""

    last_thought: ClassVar[dict[str, Any] | None] = None
    """The thought that precedes the conclusion of an answer; None for none."""

    participant: Participant
    inbox: Inbox
    question: StoredChat
    shows_reasoning: bool = True
    reasoning_id: str | None = field(init=False, default=None)
    stream: ReasoningStream | None = field(init=False, default=None)
    """Both are None while peers see no reasoning."""
    instead: str | None = None
    """What is sent in place of an answer, if anything."""
    _scope: anyio.CancelScope = field(init=False, default_factory=anyio.CancelScope)
    _cancel_reason: str | None = None
    _was_begun: bool = False
    """Whether an earlier process began this turn."""

    @property
    def chat(self) -> Envelope:
        """The chat to answer."""
        return self.question.envelope

    def cancel(self, reason: str) -> None:
        """Stop the turn; no answer is sent."""
        self._cancel_reason = reason
        self._scope.cancel()

    async def attempt(self) -> bool:
        """Answer the chat. Returns False if the gateway did not confirm the answer: the chat is queued again.

        Any other failure is logged and ends the attempt only.
        """
        sender = self.chat.sender
        try:
            await self.answer()
        except (NotConnected, NotConfirmed) as error:
            self.participant.session.log_failure(error, f"answer to '{sender}' not sent yet")
            self.inbox.put_back(self.question)
            await anyio.sleep(RETRY_SECONDS)
            return False
        except (GatewayError, NotPermitted) as error:
            logger.warning("answer to '%s' not sent: %s", sender, error)
        except Exception:
            logger.exception("failed to answer a chat from '%s'", sender)
        return True

    @property
    @abstractmethod
    def spent(self) -> tuple[int, int]:
        """The tokens of all calls that the conversation has made so far, as reported, and how many reported none."""

    @abstractmethod
    async def answer(self) -> None:
        """Do what precedes the answer, call `run`, and do what follows it. May raise."""

    async def run(self, instead: str | None = None) -> None:
        """Answer the chat, or send the text `instead` if given. Raises the `GatewayError` of sending.

        Returns when the answer is confirmed or the turn is cancelled.
        """
        instead = instead or self.instead
        self._was_begun = self.question.state == "answering"
        if self.question.state != "queued":
            await self._conclude_for_killed_process()
        if self._was_begun and self.question.attempts >= MAX_ATTEMPTS:
            instead = GAVE_UP.format(count=self.question.attempts)
        if instead is not None:
            self.question = await self.inbox.keep_answer(self.question, instead)
        if self.question.state in ("queued", "answering"):
            await self._send_optional(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"}, to=self.chat.sender)
            self.question = await self._begin()
            answer = await self._make_answer()
            if answer is None:
                self.question = replace(self.question, state="cancelled")  # only the conclusion is tried again
                await self.inbox.mark_cancelled()
            else:
                self.question = await self.inbox.keep_answer(self.question, answer)
                if self.last_thought is not None:
                    await self._send_thought(self.last_thought)
            await self._conclude(answer)
        if self.question.answer is not None:
            payload = {"text": self.question.answer, **await self._report()}
            name = self.inbox.id_for(self.question, "answer")
            await self._send(kinds.CHAT, payload, ANSWER_SECONDS, to=self.chat.sender, id=name)

    @abstractmethod
    async def _begin(self) -> StoredChat:
        """Record in the inbox that the chat is being answered. Returns the recorded chat."""

    @abstractmethod
    async def _make_answer(self) -> str | None:
        """Make the answer, or report why there is none; None if the turn was cancelled."""

    async def _report(self) -> dict[str, Any]:
        """Return further keys of the answer."""
        return {}

    # -- what peers see ----------------------------------------------------------------------------------

    async def start_reasoning(self) -> None:
        """Announce the reasoning and request its stream, if our capabilities allow it."""
        if not self.shows_reasoning or not self.participant.may_send(kinds.REASONING_START):
            return
        text = str(self.chat.body.get("text") or "")
        payload, name = {"message": text, "input": text}, self.inbox.id_for(self.question, "reasoning")
        try:
            await self._send(kinds.REASONING_START, payload, OPTIONAL_SECONDS, id=name)
        except NotConfirmed:
            pass  # members may have it, so it must get its conclusion
        except GatewayError:
            return
        self.reasoning_id = name
        self.stream = ReasoningStream(self.participant.messenger, name)
        self.stream.start()

    async def write(self, kind: str, **values: Any) -> None:
        """Send a frame of the reasoning stream, if there is one."""
        if self.stream is not None:
            await self.stream.write(kind, **values)

    async def send_call(self, call_id: str, tool: str, arguments: object, message: str = "") -> dict[str, Any]:
        """Send the thought that a tool is called, and return it. `message` is what was written before the call."""
        message = message or f"I call {tool}."
        call = {"tool": tool, "arguments": arguments, "toolCallId": call_id}
        thought = {"message": message, "reasoning": message, "action": "tool", "actionInput": call}
        await self._send_thought(thought)
        return thought

    async def close_stream(self, reason: str) -> None:
        """Close the reasoning stream before the turn ends."""
        if self.stream is not None:
            await self.stream.aclose(reason)

    async def _send_thought(self, thought: dict[str, Any]) -> None:
        if self.reasoning_id is not None:
            await self._send_optional(kinds.REASONING_THOUGHT, thought, context=self.reasoning_id)

    async def _conclude(self, answer: str | None) -> None:
        """Conclude the reasoning; `answer` None: it was cancelled. Raises the `GatewayError` of sending."""
        if self.reasoning_id is None:
            return
        await self._send_conclusion(_conclusion_of(answer, self._cancel_reason))
        if self.stream is not None:
            await self.stream.write("status", event="conclusion", cancelled=answer is None)
            self.participant.start_soon(self.stream.aclose, "cancelled" if answer is None else "complete")

    async def _conclude_for_killed_process(self) -> None:
        """Conclude the reasoning that a killed process left open. The gateway drops a conclusion that it knows."""
        question = self.question
        if not self.shows_reasoning or not question.attempts:
            return
        self.reasoning_id = self.inbox.id_for(question, "reasoning")
        if question.state == "answering":
            await self._send_conclusion({"message": INTERRUPTED, "interrupted": True})
        else:
            await self._send_conclusion(_conclusion_of(question.answer, None))
        self.reasoning_id = None

    async def _send_conclusion(self, payload: dict[str, Any]) -> None:
        name = self.inbox.id_for(self.question, "conclusion")
        with suppress(NotPermitted, NotAccepted):
            await self._send(kinds.REASONING_CONCLUSION, payload, ANSWER_SECONDS, context=self.reasoning_id, id=name)

    async def _send_optional(self, kind: str, payload: dict[str, Any], **headers: Any) -> None:
        """Send what no answer depends on. Without capability or gateway the answer still follows."""
        with suppress(NotPermitted, GatewayError):
            await self._send(kind, payload, OPTIONAL_SECONDS, **headers)

    async def _send(self, kind: str, payload: dict[str, Any], wait_seconds: float, **headers: Any) -> None:
        # The answer is also for the chat with which its sender chose how to deliver the question.
        about = tuple(name for name in (self.chat.id, self.question.chosen_by) if name is not None)
        messenger = self.participant.messenger
        await messenger.send(kind, payload, correlation_id=about, wait_seconds=wait_seconds, **headers)


def _conclusion_of(answer: str | None, reason: str | None) -> dict[str, Any]:
    if answer is None:
        return {"cancelled": True, "reason": reason or "cancelled", "message": "cancelled"}
    return {"message": answer[:200]}
