"""Deciding about proposals by a policy: what is fulfilled, what is rejected and why, what a person is asked about.

Owns the asking of a person in the space, and that each proposal is decided once. Whoever asks in another way (at a
terminal, in a program) hands over a function. It decides about other people's proposals only.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.errors import GatewayError, NotPermitted
from mew_agent.participant.events import ProposalClosed, ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.simple_agents.fulfiller_policy import FulfillerPolicy, Proposed, is_answer, read_answer

logger = logging.getLogger("mew_agent.simple_agents.fulfiller")

GOODBYE_SECONDS = 2.0


@dataclass
class _Asking:
    """A question that a person has before them."""

    person: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    text: str = ""


Decide = Callable[[Proposed], Awaitable[str | None]]
"""Ask somebody: None to fulfil, else the reason to reject."""


class Fulfiller:
    """Decides about every proposal that `me` hears. `decide` asks a person; without it they are asked by chat."""

    def __init__(self, me: Participant, policy: FulfillerPolicy | None = None, decide: Decide | None = None) -> None:
        self._me = me
        self.policy = policy or FulfillerPolicy()
        self._decide = decide or self._ask_by_chat
        self._being_asked: dict[str, anyio.CancelScope] = {}
        self._made: deque[tuple[str, Envelope]] = deque(maxlen=1_000)
        self._one_at_a_time = anyio.Lock()
        self._asking: _Asking | None = None
        me.on_proposal(self._made_to_us)
        me.on_proposal_closed(self._closed)
        me.on(kinds.SYSTEM_ERROR)(self._refused)
        me.on(kinds.CHAT)(self._chat)

    # -- what is heard -----------------------------------------------------------------------------------

    async def _made_to_us(self, proposal: ProposalMade) -> None:
        if not self.policy.concerns(proposal.sender) or not proposal.is_open:
            return
        match self.policy.verdict(Proposed.read(proposal.envelope)):
            case "fulfil":
                await self._fulfil(proposal.envelope)
            case "reject":
                await self._reject(proposal.envelope, self.policy.reason)
            case "ask":
                self._me.start_soon(self._ask, proposal)

    async def _closed(self, closed: ProposalClosed) -> None:
        """It was withdrawn, or its proposer left, or somebody else was quicker: nobody needs to be asked any more."""
        scope = self._being_asked.get(closed.proposal.envelope.id)
        if scope is not None and closed.by != self._me.id:
            scope.cancel()

    async def _refused(self, error: Envelope) -> None:
        """The gateway did not pass on the request with which we fulfilled: whoever proposed it must not wait for it."""
        about = error.correlation_ids
        for request_id, proposal in tuple(self._made):
            if request_id in about:
                self._made.remove((request_id, proposal))
                await self._reject(proposal, "incapable")

    async def _chat(self, chat: Envelope) -> None:
        text, asking = chat.body.get("text"), self._asking
        if asking is None or chat.sender != asking.person or not chat.names(self._me.id) or not isinstance(text, str):
            return
        if not is_answer(text):
            await self._me.chat("Please answer yes, or no and why.", to=chat.sender, correlation_id=(chat.id,))
            return
        asking.text = text
        asking.answered.set()

    # -- what is done ------------------------------------------------------------------------------------

    async def _fulfil(self, proposal: Envelope) -> None:
        try:
            request = await self._me.send(
                kinds.MCP_REQUEST, proposal.payload, to=proposal.addressees, correlation_id=(proposal.id,)
            )
        except NotPermitted:
            await self._reject(proposal, "incapable")
        else:
            self._made.append((request.id, proposal))

    async def _reject(self, proposal: Envelope, reason: str) -> None:
        logger.info("rejected a proposal of '%s': %s", proposal.sender, reason)
        if self._me.may_send(kinds.MCP_REJECT, {"reason": reason}, (proposal.sender,)):
            about = (proposal.id,)
            await self._me.send(kinds.MCP_REJECT, {"reason": reason}, to=proposal.sender, correlation_id=about)

    async def _ask(self, proposal: ProposalMade) -> None:
        envelope = proposal.envelope
        with anyio.CancelScope() as scope:
            self._being_asked[envelope.id] = scope
            try:
                async with self._one_at_a_time:
                    if not proposal.is_open:
                        return
                    reason: str | None = "timeout"
                    with anyio.move_on_after(self.policy.ask_seconds):
                        reason = await self._decide(Proposed.read(envelope))
            except GatewayError as error:
                logger.warning("nobody could be asked: %s", error)
                reason = "busy"
            finally:
                del self._being_asked[envelope.id]
            if reason is None:
                await self._fulfil(envelope)
            else:
                await self._reject(envelope, reason)

    async def _ask_by_chat(self, proposal: Proposed) -> str | None:
        """Ask the participant that the policy names, and wait for a yes or no of theirs to us."""
        person = self.policy.ask
        if person is None or person not in self._me.peers:
            return f"'{person}' is not here to be asked"
        asking = self._asking = _Asking(person)
        try:
            await self._me.chat(f"{proposal}. May it? Answer yes, or no and why.", to=person)
            await asking.answered.wait()
            return read_answer(asking.text)
        except NotPermitted:
            return "incapable"
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._me.chat("No answer is needed any more.", to=person)
            raise
        finally:
            self._asking = None
