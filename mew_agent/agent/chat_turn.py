"""The answering of one chat, whatever makes the answer: a model (`Turn`), or an agent whose engine is elsewhere.

Owns the steps from the question to the confirmed answer. The inbox records each step before the next one begins, so
that a restarted process continues there, and sends an answer that it has under the same id. Does not know how the
envelopes are sent; see `TurnEnvelopes`.
"""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import anyio
from mew_protocol.envelope import Envelope

from mew_agent.agent.inbox import Inbox
from mew_agent.agent.turn_envelopes import TurnEnvelopes
from mew_agent.context.store import StoredChat
from mew_agent.conversation.texts import GAVE_UP
from mew_agent.errors import GatewayError, NotConfirmed, NotConnected, NotPermitted
from mew_agent.participant.participant import Participant

logger = logging.getLogger("mew_agent.agent.chat_turn")

MAX_ATTEMPTS = 5
"""How many processes may begin to answer one question, in case the question itself ends them."""

RETRY_SECONDS = 1.0
"""Pause before an answer is sent again that the gateway did not confirm."""


@dataclass(eq=False, kw_only=True)
class ChatTurn(ABC):
    """Answers one chat; see `attempt`."""

    last_thought: ClassVar[dict[str, Any] | None] = None
    """The thought that precedes the conclusion of an answer; None for none."""

    participant: Participant
    inbox: Inbox
    question: StoredChat
    shows_reasoning: bool = True
    envelopes: TurnEnvelopes = field(init=False)
    _scope: anyio.CancelScope = field(init=False, default_factory=anyio.CancelScope)
    _cancel_reason: str | None = None
    _was_begun: bool = False
    """Whether an earlier process began this turn."""

    def __post_init__(self) -> None:
        self.envelopes = TurnEnvelopes(
            self.participant, self.inbox, self.question, shows_reasoning=self.shows_reasoning
        )

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

    @abstractmethod
    async def answer(self) -> None:
        """Do what precedes the answer, call `run`, and do what follows it. May raise."""

    async def run(self, instead: str | None = None) -> None:
        """Answer the chat, or send the text `instead` if given. Raises the `GatewayError` of sending.

        Returns when the answer is confirmed or the turn is cancelled.
        """
        self._was_begun = self.question.state == "answering"
        if self.question.state != "queued":
            await self.envelopes.conclude_for_killed_process(self.question)
        if self._was_begun and self.question.attempts >= MAX_ATTEMPTS:
            instead = GAVE_UP.format(count=self.question.attempts)
        if instead is not None:
            self.question = await self.inbox.keep_answer(self.question, instead)
        if self.question.state in ("queued", "answering"):
            await self.envelopes.acknowledge()
            self.question = await self._begin()
            answer = await self._make_answer()
            if answer is None:
                self.question = replace(self.question, state="cancelled")  # only the conclusion is tried again
                await self.inbox.mark_cancelled()
            else:
                self.question = await self.inbox.keep_answer(self.question, answer)
                if self.last_thought is not None:
                    await self.envelopes.send_thought(self.last_thought)
            await self.envelopes.conclude(self.question, answer, self._cancel_reason)
        if self.question.answer is not None:
            await self.envelopes.send_answer(self.question, await self._report())

    @abstractmethod
    async def _begin(self) -> StoredChat:
        """Record in the inbox that the chat is being answered. Returns the recorded chat."""

    @abstractmethod
    async def _make_answer(self) -> str | None:
        """Make the answer, or report why there is none; None if the turn was cancelled."""

    async def _report(self) -> dict[str, Any]:
        """Return further keys of the answer."""
        return {}
