"""A fulfiller: fulfils or rejects the proposals of other participants by a policy, or asks a person.

Owns the question to a person in the space, and decides each proposal once. Programs that ask in another way, such as at
a terminal, pass their own function. `FulfillerPolicy` has the rules.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from mew_protocol import kinds
from mew_protocol.payloads.chat import Chat

from mew_agent.errors import GatewayError, NotAccepted, NotPermitted
from mew_agent.participant.event_handlers import ChatReceived, ProposalClosed, ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.parts.simple_agents.fulfiller_policy import FulfillerPolicy, is_answer, read_answer

logger = logging.getLogger(__name__)


@dataclass
class _OpenQuestion:
    """The question that a person is answering now."""

    person: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    text: str = ""


Decide = Callable[[ProposalMade], Awaitable[str | None]]
"""Asks for a decision: None to fulfil the proposal, otherwise the reason to reject it."""


class Fulfiller:
    """Decides about every proposal that `me` receives. `decide` asks a person; the default asks by chat."""

    def __init__(self, me: Participant, policy: FulfillerPolicy | None = None, decide: Decide | None = None) -> None:
        self._me = me
        self.policy = policy or FulfillerPolicy()
        self._decide = decide or self._ask_by_chat
        self._ask_scopes: dict[str, anyio.CancelScope] = {}
        self._one_at_a_time = anyio.Lock()
        self._question: _OpenQuestion | None = None
        me.on_proposal(self._receive_proposal)
        me.on_proposal_closed(self._stop_asking)
        me.on_chat(self._receive_chat)

    # -- what arrives ------------------------------------------------------------------------------------

    async def _receive_proposal(self, proposal: ProposalMade) -> None:
        if not self.policy.applies_to(proposal.sender) or not proposal.is_open:
            return
        match self.policy.decide(proposal.subjects):
            case "fulfil":
                await self._fulfil(proposal)
            case "reject":
                await self._reject(proposal, self.policy.reason)
            case "ask":
                self._me.start_soon(self._ask, proposal)

    async def _stop_asking(self, closed: ProposalClosed) -> None:
        scope = self._ask_scopes.get(closed.proposal.envelope.id)
        if scope is not None and closed.by != self._me.id:
            scope.cancel()

    async def _receive_chat(self, chat: ChatReceived) -> None:
        question = self._question
        if question is None or chat.sender != question.person or not chat.is_to_me:
            return
        if not is_answer(chat.text):
            await chat.reply("Please answer yes, or no and a reason.")
            return
        question.text = chat.text
        question.answered.set()

    # -- decisions ---------------------------------------------------------------------------------------

    async def _fulfil(self, proposal: ProposalMade) -> None:
        try:
            await proposal.fulfil()
        except (NotPermitted, NotAccepted):  # because its proposer must not wait
            await self._reject(proposal, "incapable")

    async def _reject(self, proposal: ProposalMade, reason: str) -> None:
        logger.info("rejected a proposal of '%s': %s", proposal.sender, reason)
        if self._me.may_send(kinds.MCP_REJECT, {"reason": reason}, (proposal.sender,)):
            await proposal.reject(reason)

    async def _ask(self, proposal: ProposalMade) -> None:
        name = proposal.envelope.id
        with anyio.CancelScope() as scope:
            self._ask_scopes[name] = scope
            try:
                async with self._one_at_a_time:
                    if not proposal.is_open:
                        return
                    reason: str | None = "timeout"
                    with anyio.move_on_after(self.policy.ask_seconds):
                        reason = await self._decide(proposal)
            except GatewayError as error:
                self._me.session.log_failure(error, f"cannot ask about a proposal of '{proposal.sender}'")
                reason = "busy"
            finally:
                del self._ask_scopes[name]
            if reason is None:
                await self._fulfil(proposal)
            else:
                await self._reject(proposal, reason)

    async def _ask_by_chat(self, proposal: ProposalMade) -> str | None:
        """Ask the participant named by the policy, and wait for its yes or no."""
        person = self.policy.ask
        if person is None or person not in self._me.peers:
            return f"'{person}' is not here to decide"
        question = self._question = _OpenQuestion(person)
        try:
            await self._me.chat(f"{proposal}. Approve? Answer yes, or no and a reason.", to=person)
            await question.answered.wait()
            return read_answer(question.text)
        except NotPermitted:
            return "incapable"
        except anyio.get_cancelled_exc_class():
            text = Chat(text="This needs no answer any more.")
            await self._me.messenger.send_even_if_cancelled(self._me.messenger.draft(kinds.CHAT, text, to=(person,)))
            raise
        finally:
            self._question = None
