"""The answering of one chat, whatever engine makes the answer.

Owns the steps from the question to the confirmed answer. The inbox records each step before the next one begins, so
that a restarted process continues there. Each envelope is sent under the same id, so that the gateway drops
repetitions.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent import tracing
from mew_agent.agent.engine import Answering
from mew_agent.agent.inbox import Inbox
from mew_agent.context.store import InboxChange, StoredChat
from mew_agent.conversation.texts import GAVE_UP, TOO_OLD
from mew_agent.errors import GatewayError, NotConfirmed, NotConnected, NotPermitted
from mew_agent.participant.participant import Participant
from mew_agent.participant.streams import ANSWER_SECONDS, Reasoning

logger = logging.getLogger("mew_agent.agent.chat_turn")

MAX_ATTEMPTS: Final = 5
"""How many processes may begin to answer one question, in case the question itself ends them."""

RETRY_SECONDS: Final = 1.0
"""Pause before an answer is sent again that the gateway did not confirm."""


@dataclass(eq=False, kw_only=True)
class ChatTurn:
    """Answers one chat; see `attempt`."""

    me: Participant
    inbox: Inbox
    question: StoredChat
    reasoning: Reasoning
    answering: Answering
    max_age_seconds: float
    """A question from before the start of the process that is older than this is declined."""
    instead: str | None = None
    """The text to send instead of an answer, if any."""
    _scope: anyio.CancelScope = field(init=False, default_factory=anyio.CancelScope)
    _cancel_reason: str | None = None

    @property
    def chat(self) -> Envelope:
        """The chat to answer."""
        return self.question.envelope

    def cancel(self, reason: str) -> None:
        """Stop the turn; no answer is sent."""
        self._cancel_reason = reason
        self._scope.cancel()
        self.answering.cancel()

    async def attempt(self) -> bool:
        """Answer the chat. Returns False if the gateway did not confirm the answer: the chat is queued again.

        Any other failure is logged and ends the attempt only.
        """
        sender, answering = self.chat.sender, self.answering
        try:
            with tracing.turn_span(self.me.id, answering.model, self.chat, answering.session) as span:
                await self._answer()
                if answering.failure is not None:
                    span.fail(answering.failure)
        except (NotConnected, NotConfirmed) as error:
            self.me.session.log_failure(error, f"answer to '{sender}' not sent yet")
            self.inbox.put_back(self.question)
            await anyio.sleep(RETRY_SECONDS)
            return False
        except (GatewayError, NotPermitted) as error:
            logger.warning("answer to '%s' not sent: %s", sender, error)
        except Exception:
            logger.exception("failed to answer a chat from '%s'", sender)
        return True

    async def _answer(self) -> None:
        if self.inbox.is_outdated(self.question, self.max_age_seconds):
            # A question that names no one is only kept as context.
            if not self.chat.names(self.me.id):
                await self.inbox.remember(self.question)
                return
            self.instead = TOO_OLD.format(age=f"more than {self.max_age_seconds / 3600:g} h")
            await self._run()
            return
        # A chat that an earlier process began has the remarks before it in the context already.
        if self.question.state == "queued" and self.answering.reads_remarks:
            for remark in self.inbox.take_overheard():
                if not await self.answering.add_remark(remark.envelope, InboxChange(removed=(remark.number,))):
                    await self.inbox.forget_overheard(remark)
        await self.answering.prepare()
        await self._run()
        await self.answering.finish(is_idle=not len(self.inbox) and not self.me.messenger.is_paused)

    async def _run(self) -> None:
        """Send the answer. Raises the `GatewayError` of sending.

        Returns when the answer is confirmed or the turn is cancelled.
        """
        instead, was_begun = self.instead, self.question.state == "answering"
        if self.question.state != "queued" and self.question.attempts:
            await self.reasoning.conclude_for_killed_process(
                self._name("reasoning"), self._name("conclusion"), self.question.answer, continues=was_begun
            )
        if was_begun and self.question.attempts >= MAX_ATTEMPTS:
            instead = GAVE_UP.format(count=self.question.attempts)
        if instead is not None:
            self.question = await self.inbox.keep_answer(self.question, instead)
        if self.question.state in ("queued", "answering"):
            await self._work(was_begun=was_begun)
        if self.question.answer is not None:
            payload = {"text": self.question.answer, **await self.answering.report(self.question)}
            name = self._name("answer")
            await self.reasoning.send(kinds.CHAT, payload, ANSWER_SECONDS, to=self.chat.sender, id=name)

    async def _work(self, *, was_begun: bool) -> None:
        """Let the engine make the answer, keep it, and conclude the reasoning."""
        reasoning, answering = self.reasoning, self.answering
        await reasoning.send_optional(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"}, to=self.chat.sender)
        turn, first_seq = await answering.begin(self.question, was_begun=was_begun)
        self.question = await self.inbox.begin(self.question, turn, first_seq)
        answer = await self._made()
        if answer is None:
            self.question = replace(self.question, state="cancelled")  # only the conclusion is tried again
            await self.inbox.mark_cancelled()
        else:
            self.question = await self.inbox.keep_answer(self.question, answer)
            if answering.last_thought is not None:
                await reasoning.think(answering.last_thought)
        await reasoning.conclude(self._name("conclusion"), answer, self._cancel_reason)

    async def _made(self) -> str | None:
        """Return the answer of the engine; None if the turn was cancelled."""
        answer: str | None = None
        try:
            await self.reasoning.start(str(self.chat.body.get("text") or ""), self._name("reasoning"))
            self._scope.deadline = anyio.current_time() + self.answering.max_seconds
            with self._scope:
                answer = await self.answering.make()
            if self._scope.cancelled_caught and self._cancel_reason is None:
                answer = await self.answering.timed_out()
        except GatewayError:
            raise
        except Exception as error:  # the sender waits for an answer, whatever failed
            answer = await self.answering.failed(error)
        finally:
            with anyio.CancelScope(shield=True):
                await self.answering.end()
        return answer

    def _name(self, what: str) -> str:
        return self.inbox.id_for(self.question, what)
