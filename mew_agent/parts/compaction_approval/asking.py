"""Asks before the agent compacts: publishes the plan as a proposal to itself, and carries out the decision.

Decides the approvers, the deadline, the contents of a proposal, and the duration of a rejection; announces the end. The
agent keeps working while a proposal is open.
"""

import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
from mew_board.visible import short_line
from mew_protocol import kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.payloads.mcp import COMPACT_CONTEXT, CallSubject, arguments_of
from mew_protocol.status_word import status_word

from mew_agent.compaction.approval import CompactionDecision, ProposedCompaction, read_approval
from mew_agent.compaction.planner import STUB_TOKENS, NothingToDo, Prices
from mew_agent.context.history import History, Item
from mew_agent.context.policy import CompactAction
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ContextCleared, ContextCompacted, ConversationEvent
from mew_agent.errors import AnswerLost, GatewayError, NotPermitted, PeerError, PinRefused, Rejected
from mew_agent.participant.participant import Participant
from mew_agent.settings import CompactionSettings
from mew_agent.tools.catalog import INVALID_PARAMS, INVALID_REQUEST, RequestFailed

logger = logging.getLogger("mew_agent.parts.compaction_approval")

MAX_PROPOSALS: Final = 5
"""How often one compaction is proposed: again if a request changes it in a way that cannot be carried out, if a
participant that may not decide has closed the proposal, or if it was lost with the connection."""

NO_TIME: Final = "the window would overflow"


SHOWN_CHARS: Final = 80

REJECTION_PART: Final = 20
"""A rejection ends when the context has grown by 1/20 of the window."""

REJECTION_SECONDS: Final = 600.0
"""A rejection also ends after this time."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection, with the time and the size of the next request."""

    text: str
    tokens: int
    at_seconds: float

    def holds(self, tokens: int, window_tokens: int, at_seconds: float) -> bool:
        """Return whether another proposal would only repeat the question."""
        has_grown = (tokens - self.tokens) * REJECTION_PART >= window_tokens
        return not has_grown and at_seconds - self.at_seconds < REJECTION_SECONDS


class CompactionApproval:
    """The approval of one conversation's compactions. At most one proposal is open."""

    def __init__(
        self, me: Participant, conversation: Conversation, settings: CompactionSettings, session: str | None = None
    ) -> None:
        """`session` is the name of the conversation; None: the agent's own."""
        self._me, self._conversation, self._settings, self._session = me, conversation, settings, session
        self._asking: anyio.CancelScope | None = None
        self._why_cancelled: CompactionDecision | None = None
        self._rejection: Rejection | None = None
        me.mcp_server.own_requests = self.answer
        conversation.events.subscribe(self._follow)

    def must_ask(self, requester: str) -> bool:
        """Return whether a compaction requested by this participant needs approval."""
        return requester not in self._settings.approve

    def admit(self, action: CompactAction, *, is_urgent: bool) -> CompactionDecision | None:
        """Decide about a compaction by the policy now; None: not yet, because a proposal is open or a rejection
        applies.

        An urgent one always runs, because the next request would not fit otherwise.
        """
        asked, self._rejection = self._rejection, None if is_urgent else self._rejection
        if is_urgent:
            undecided = "not asked" if self._asking is None else "no decision yet"
            before = undecided if asked is None else asked.text
            decision = CompactionDecision("urgent", f"{NO_TIME} ({before})")
            self._cancel(decision)
            return decision
        tracker = self._conversation.tracker
        tokens, window_tokens = tracker.ledger.next_prompt_tokens, tracker.window.max_tokens
        if self._asking is not None or (asked is not None and asked.holds(tokens, window_tokens, time.monotonic())):
            return None
        state = self._conversation.state
        plan = state.plan_compaction(action.target_tokens, action.method)
        if isinstance(plan, NothingToDo):
            return CompactionDecision("unanswered", plan.reason)  # no compaction is planned
        self._asking, self._why_cancelled = anyio.CancelScope(), None
        proposed = ProposedCompaction(
            plan, action.trigger, action.target_tokens, state.history.revision, reason=action.reason
        )
        self._me.start_soon(self._ask_and_compact, action, proposed)
        return None

    async def decide(self, proposed: ProposedCompaction) -> CompactionDecision:
        """Ask for approval of a requested compaction, and wait for the decision."""
        if self._asking is not None:
            return CompactionDecision("dropped", "compaction_in_progress")
        self._asking, self._why_cancelled = anyio.CancelScope(), None
        decision = await self._ask(proposed)
        # A compaction that could not wait is one by the policy. It does not approve the requested one.
        return replace(decision, outcome="dropped") if decision.outcome == "urgent" else decision

    async def _ask_and_compact(self, action: CompactAction, proposed: ProposedCompaction) -> None:
        decision = await self._ask(proposed)
        if decision.outcome == "urgent":
            return  # already running
        if decision.outcome == "rejected":
            tokens = self._conversation.tracker.ledger.next_prompt_tokens
            self._rejection = Rejection(decision.sentence, tokens, time.monotonic())
        elif decision.allows:
            await self._conversation.compact_as_decided(action, decision)

    def close(self, why: str) -> None:
        """Drop an open proposal, because the conversation ends."""
        self._cancel(CompactionDecision("dropped", why))

    # -- asking ------------------------------------------------------------------------------------------

    async def _ask(self, proposed: ProposedCompaction) -> CompactionDecision:
        """Publish the plan until a decision or the deadline, and announce the end."""
        assert self._asking is not None
        decision: CompactionDecision | None = None
        try:
            with self._asking:
                decision = await self._propose(proposed)
        finally:
            self._asking = None
        if decision is None:
            decision = self._why_cancelled or CompactionDecision("dropped", "cancelled")
        if decision.outcome != "urgent":
            await self._conversation.emit_status(decision.status)
        return replace(decision, proposed=proposed)

    async def _propose(self, proposed: ProposedCompaction) -> CompactionDecision:
        approvers, seconds = self._settings.approve, self._settings.wait_seconds
        ends = anyio.current_time() + seconds
        goes_on_at = wire_timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
        named = " or ".join(approvers)
        for _ in range(MAX_PROPOSALS):
            params = {"name": COMPACT_CONTEXT, "arguments": self._arguments(proposed, goes_on_at)}
            remaining = max(0.0, ends - anyio.current_time())
            try:
                envelope = await self._me.mcp.propose_to_self(params, approvers, remaining)
            except (AnswerLost, Rejected):
                continue  # the connection was lost, or all others have rejected it: the gateway has no proposal of ours
            except (NotPermitted, GatewayError, PeerError) as error:
                logger.warning("compaction not proposed: %s", error)
                return CompactionDecision("unanswered", f"it could not be proposed: {error}")
            if envelope is None:
                break
            if (decision := await self._decision_in(envelope, proposed)) is not None:
                return decision
        # Others that close the proposals do not shorten the time of the approvers.
        await anyio.sleep(max(0.0, ends - anyio.current_time()))
        here = [name for name in approvers if name in self._me.peers]
        return CompactionDecision(
            "unanswered", f"{named} did not decide within {seconds:g} seconds{'' if here else ' (not in the space)'}"
        )

    def _arguments(self, proposed: ProposedCompaction, goes_on_at: str) -> dict[str, Any]:
        """Return the arguments of a proposal, with the present figures."""
        tracker = self._conversation.tracker
        arguments = proposal_arguments(
            proposed,
            tracker.history,
            tracker.ledger.item_prices(),
            present_tokens=tracker.ledger.next_prompt_tokens,
            summary_tokens=tracker.ledger.preamble.summary_tokens,
        )
        session = {} if self._session is None else {"session": self._session}
        return {**arguments, **session, "approvers": list(self._settings.approve), "goes_on_at": goes_on_at}

    async def _decision_in(self, envelope: Envelope, proposed: ProposedCompaction) -> CompactionDecision | None:
        """Return the decision in the answer to a proposal; None if a new proposal is needed."""
        if envelope.sender not in self._settings.approve:
            logger.warning("'%s' may not decide about a compaction; proposing it again", envelope.sender)
            return None
        if envelope.kind == kinds.MCP_REJECT:
            reason = str(envelope.body.get("reason") or "no reason given")
            return CompactionDecision("rejected", f"{envelope.sender}: {reason}")
        return await self._approved(envelope, proposed)

    async def _approved(self, request: Envelope, proposed: ProposedCompaction) -> CompactionDecision | None:
        """Return the decision in an approver's request. Announce one that cannot be carried out, and return None."""
        try:
            approved = read_approval(arguments_of(request.body))
            target_tokens = None if approved.target_tokens == proposed.target_tokens else approved.target_tokens
            if target_tokens is not None:
                plan = self._conversation.state.plan_compaction(target_tokens)
                if isinstance(plan, NothingToDo):
                    raise ValueError(f"arguments.target_tokens: {target_tokens:,} cannot be reached ({plan.reason})")
            for line in approved.pins:
                await self._conversation.pins.add(line, request.sender)
        except (ValueError, PinRefused) as error:
            await self._conversation.emit_status(status_word("compaction_not_approved", f"{request.sender}: {error}"))
            return None
        return CompactionDecision("approved", request.sender, target_tokens)

    async def answer(self, request: Envelope) -> dict[str, Any] | None:
        """Return the result of a request that decides a proposal; None for other requests.

        Raises `RequestFailed` if the participant may not decide, or for invalid arguments.
        """
        if CallSubject.read(request.body).tool != COMPACT_CONTEXT:
            return None
        if request.sender not in self._settings.approve:
            problem = f"only {' or '.join(self._settings.approve)} may approve a compaction of '{self._me.id}'"
            raise RequestFailed(INVALID_REQUEST, problem)
        if not request.correlation_ids:
            problem = "name the proposal in correlation_id; participant/compact requests a compaction"
            raise RequestFailed(INVALID_REQUEST, problem)
        try:
            read_approval(arguments_of(request.body))
        except ValueError as error:
            raise RequestFailed(INVALID_PARAMS, str(error)) from None
        return {"content": [{"type": "text", "text": "Received; the status says what follows."}]}

    async def _follow(self, event: ConversationEvent) -> None:
        """Withdraw an open proposal after a clear or another compaction."""
        if isinstance(event, ContextCleared | ContextCompacted):
            self._rejection = None
            self._cancel(CompactionDecision("dropped", "the context was cleared or compacted meanwhile"))

    def _cancel(self, why: CompactionDecision) -> None:
        if self._asking is not None:
            self._why_cancelled = self._why_cancelled or why
            self._asking.cancel()


def proposal_arguments(
    proposed: ProposedCompaction, history: History, prices: Prices, *, present_tokens: int, summary_tokens: int
) -> dict[str, Any]:
    """Describe a compaction: removed and kept items, tokens freed, tokens spent. All sizes are projected.

    `freed_tokens` assumes that the summary uses its whole budget, so it is rather too low; `cost_tokens` are the tokens
    that the summary call reads and writes.
    """
    plan = proposed.plan
    leaving, staying = plan.leaving(history.items), plan.staying(history.items)
    cleared = [item for item in staying if item.seq in plan.stub_seqs]
    budget = plan.summary_budget_tokens
    replaced = plan.evicted_tokens + (summary_tokens if budget else 0)
    freed = replaced - budget + sum(max(0, prices[item.seq] - STUB_TOKENS) for item in cleared)
    described: dict[str, Any] = {
        "trigger": proposed.trigger,
        "reason": proposed.reason,
        "requested_by": proposed.requested_by,
        "target_tokens": proposed.target_tokens,
        "present_tokens": present_tokens,
        "freed_tokens": max(0, freed),
        "cost_tokens": replaced + budget if budget else 0,
        "basis": "projected",
        "leaves": _extent(leaving),
        "cleared_results": len(cleared),
        "stays": {**_extent(staying), "pins": len(history.pins)},
    }
    return {key: value for key, value in described.items() if value is not None}


def _extent(items: list[Item]) -> dict[str, Any]:
    said = [item for item in items if item.role != "tool" and item.content.strip()]
    known: dict[str, Any] = {"messages": len(items), "turns": len({item.turn for item in items})}
    if said:
        known |= {"from": items[0].at, "to": items[-1].at, "first": _excerpt(said[0]), "last": _excerpt(said[-1])}
    return known


def _excerpt(item: Item) -> str:
    line = short_line(item.content, SHOWN_CHARS)
    return f"{item.name}: {line}" if item.name else line
