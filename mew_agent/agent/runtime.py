"""The part of an agent that all engines share: chats and their order, waits, and announcements.

Handles each arriving envelope: decides about each chat once, answers chats one by one, announces loops, and catches up
after a restart. `Inbox`, `AddressFilter`, `LoopGuard`, `SenderBudgets`, `HeadroomCheck` and `StaggeredCompactions` have
the rules; `ChatTurn` answers.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.join import DeliveryRequest
from mew_protocol.json_values import objects_at, text_at, value_at
from mew_protocol.payloads.chat import ChatFailure
from mew_protocol.payloads.mcp import proposal_ids_in, proposals_in
from mew_protocol.payloads.participant import FitQuestion
from mew_protocol.payloads.system import SpaceFacts
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW, Fit
from mew_protocol.status_word import status_word
from pydantic import ValidationError

from mew_agent import tracing
from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.budgets import SenderBudgets
from mew_agent.agent.engine import AgentSide, Answering, Engine
from mew_agent.agent.headroom import HeadroomCheck
from mew_agent.agent.inbox import Admission, Inbox, Outcome, asks_for_receipts, is_about
from mew_agent.agent.inbox_receipts import AgentReceipts
from mew_agent.agent.loop_guard import LOOP_STOPPED, LoopGuard, Verdict
from mew_agent.agent.shared_turn import SharedAnswer, replies
from mew_agent.agent.staggering import StaggeredCompactions
from mew_agent.context.message_facts import MessageKey
from mew_agent.context.sqlite_store import Store
from mew_agent.context.store import ChatRefusal, InboxChange, StoredChat
from mew_agent.conversation import conversation_events
from mew_agent.conversation.texts import GAVE_UP, INTERNAL_FAILURE, TOO_LARGE, TOO_OLD
from mew_agent.errors import GatewayError, NotConfirmed, NotConnected, NotPermitted, TooLarge, problem_of
from mew_agent.participant.dispatcher import Hooks
from mew_agent.participant.messenger import REFUSED_TEXT
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import ANSWER_SECONDS, Reasoning
from mew_agent.settings import BetweenSteps, LoopLimits

logger = logging.getLogger("mew_agent.agent.runtime")

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
    tell: Callable[[Iterable[MessageKey]], Awaitable[None]]
    """Tells the followers of chats, before the answer, that a model has read them."""
    instead: str | None = None
    """The text to send instead of an answer, if any."""
    failure: ChatFailure | None = None
    """Why the text that is sent is no answer."""
    _scope: anyio.CancelScope = field(init=False, default_factory=anyio.CancelScope)
    _cancel_reason: str | None = None

    def decline(self, code: str, text: str) -> None:
        """Send this text instead of an answer."""
        self.instead, self.failure = text, ChatFailure(code=code, problem=text)

    def cancel(self, reason: str) -> None:
        """Stop the turn; once its answer is stored, stop only the work after it."""
        if self.inbox.current is not None and self.inbox.current.state != "answered":
            self._cancel_reason = reason
            self._scope.cancel()
        self.answering.cancel()

    async def attempt(self) -> bool:
        """Answer the chat. Returns False if the gateway did not confirm the answer: the chat is queued again.

        Any other failure is logged and ends the attempt only. A sender without an answer receives a failure.
        """
        chat, answering = self.question.envelope, self.answering
        try:
            ids, header = {"envelope_id": chat.id, "participant": chat.sender}, tracing.header_of(chat)
            facts = {"agent": self.me.id, "model": answering.model, "session": answering.session}
            with tracing.span("turn", ids, header, **facts) as span:
                await self._answer(chat)
                span.failure = answering.failure
        except (NotConnected, NotConfirmed) as error:
            self.me.session.log_failure(error, f"answer to '{chat.sender}' not sent yet")
            self.inbox.put_back(self.question)
            await anyio.sleep(RETRY_SECONDS)
            return False
        except (GatewayError, NotPermitted) as error:
            logger.warning("answer to '%s' not sent: %s", chat.sender, error)
        except TooLarge as error:
            logger.warning("answer to '%s' not sent: %s", chat.sender, error)
            if self.instead is None:
                self.decline("failed", TOO_LARGE.format(problem=error))
                return await self.attempt()
        except Exception as error:
            logger.exception("failed to answer a chat from '%s'", chat.sender)
            if self.instead is None and self.question.state in ("queued", "answering"):
                self.decline("failed", INTERNAL_FAILURE.format(name=type(error).__name__))
                return await self.attempt()
        return True

    async def _answer(self, chat: Envelope) -> None:
        """Answer the chat, or decline it if it is too old. An old broadcast is only kept as context."""
        if all(self.inbox.is_outdated(one, self.max_age_seconds) for one in (self.question, *self.inbox.joined)):
            if not chat.names(self.me.id) and not self.inbox.joined:
                await self.inbox.remember(self.question)
                return
            self.decline("too_old", TOO_OLD.format(age=f"more than {self.max_age_seconds / 3600:g} h"))
            await self._send_answer(chat)
            return
        # If an earlier process began the chat, the remarks before it are in the context already.
        if self.question.state == "queued" and self.instead is None and self.answering.reads_remarks:
            for remark in self.inbox.take_overheard():
                if not await self.answering.add_remark(remark.envelope, InboxChange(removed=(remark.number,))):
                    await self.inbox.forget_overheard(remark)
        await self._send_answer(chat)
        await self.answering.finish(is_idle=self.inbox.is_idle and not self.me.messenger.is_paused)

    async def _send_answer(self, chat: Envelope) -> None:
        """Make the answer unless it is known, and send it. Raises the `GatewayError` of sending.

        Returns when the answer is confirmed or the turn is cancelled. Once the answer is made, cancelling is too late.
        """
        was_begun, name_of = self.question.state == "answering", self.inbox.id_for
        if self.question.state != "queued" and self.question.attempts:
            opened, concluded = name_of(self.question, "reasoning"), name_of(self.question, "conclusion")
            await self.reasoning.conclude_for_killed_process(
                opened, concluded, self.question.answer, continues=was_begun
            )
        if was_begun and self.question.attempts >= MAX_ATTEMPTS:
            self.decline("killed", GAVE_UP.format(count=self.question.attempts))
        if self.instead is not None:
            self.question = await self.inbox.update(replace(self.question, state="answered", answer=self.instead))
        if self.question.state in ("queued", "answering"):
            await self._make_answer(chat, was_begun=was_begun)
        if self.question.state != "answered":
            return
        if self.question.refusal is not None:
            await self._send_refusal(self.question.refusal)
        else:
            await self.tell(MessageKey.of(one.envelope) for one in self.inbox.answering)
            for reply in replies(self.question, self.inbox.joined):
                await self._send(reply)

    async def _send_refusal(self, refusal: ChatRefusal) -> None:
        """Send the refusal of the chat. Raises the `GatewayError` of sending."""
        await self.me.messenger.refuse_chat(
            self.question.envelope,
            refusal.problem,
            refusal.code,
            refusal.fit,
            id=self.inbox.id_for(self.question, "answer"),
            wait_seconds=ANSWER_SECONDS,
        )

    async def _send(self, reply: SharedAnswer) -> None:
        """Send one answer to the senders of the chats that it answers. Raises the `GatewayError` of sending."""
        is_own = reply.chats[0].number == self.question.number
        payload = {"text": reply.text, **(await self.answering.report(self.question) if is_own else {})}
        if self.failure is not None:
            payload["failure"] = self.failure.model_dump()
        about = [name for one in reply.chats for name in (one.envelope.id, one.chosen_by) if name is not None]
        try:
            await self.me.messenger.send(
                kinds.CHAT,
                payload,
                to=tuple(dict.fromkeys(one.envelope.sender for one in reply.chats)),
                correlation_id=tuple(dict.fromkeys(about)),
                wait_seconds=ANSWER_SECONDS,
                id=self.inbox.id_for(reply.chats[0], "answer"),
            )
        except (NotConnected, NotConfirmed):
            raise
        except (GatewayError, NotPermitted) as error:
            if is_own:
                raise
            logger.warning("answer to '%s' not sent: %s", reply.chats[0].envelope.sender, error)

    async def _make_answer(self, chat: Envelope, *, was_begun: bool) -> None:
        """Let the engine make the answer, store it, and conclude the reasoning. A cancelled turn has no answer."""
        reasoning, answering = self.reasoning, self.answering
        answer: str | ChatRefusal | None = None
        await reasoning.send_optional(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"}, to=chat.sender)
        turn, first_seq = await answering.begin(self.question, was_begun=was_begun)
        attempts = self.question.attempts + 1
        begun = replace(self.question, state="answering", turn=turn, first_seq=first_seq, attempts=attempts)
        self.question = await self.inbox.update(begun)
        try:
            await reasoning.start(text_at(chat.body, "text"), self.inbox.id_for(self.question, "reasoning"))
            self._scope.deadline = anyio.current_time() + answering.max_seconds
            with self._scope:
                answer = await answering.make()
            if self._scope.cancelled_caught and self._cancel_reason is None:
                answer = await answering.timed_out()
                self.failure = ChatFailure(
                    code="timeout", problem=f"no answer within {answering.max_seconds:g} seconds"
                )
        except GatewayError:
            raise
        except Exception as error:  # the sender waits for an answer, even after an unexpected error
            answer = await answering.failed(error)
            self.failure = ChatFailure(code="failed", problem=answering.problem or problem_of(error))
        finally:
            with anyio.CancelScope(shield=True):
                await answering.end()
        if answering.problem is not None and self.failure is None:
            self.failure = ChatFailure(code="failed", problem=answering.problem)
        if answer is None:
            self.question = replace(self.question, state="cancelled")  # only the conclusion is sent again
            await self.inbox.mark_cancelled()
        elif isinstance(answer, ChatRefusal):
            refused = replace(self.question, state="answered", answer=answer.problem, refusal=answer)
            self.question = await self.inbox.update(refused)
        else:
            self.question = await self.inbox.update(replace(self.question, state="answered", answer=answer))
            if answering.last_thought is not None and self.question.answer is not None:
                await reasoning.think(answering.last_thought)
        reason = self._cancel_reason or (None if self.failure is None else self.failure.problem)
        await reasoning.conclude(self.inbox.id_for(self.question, "conclusion"), self.question.answer, reason)


CLOSE_SECONDS: Final = 3.0

CUT: Final = "{tool}: about {tokens:,} tokens (projected) of its result stay outside the context"

FIRST_HISTORY: Final = 1_000
"""How many envelopes an agent reads after a process that was killed while it joined for the first time."""

LOOP_NOTICE: Final = (
    "I stopped answering '{peer}': {reason}. I continue as soon as a person or a program sends a message to one of us."
)


class AgentRuntime(Hooks):
    """Receives and answers chats for one participant. `store` holds the inbox and the spending of each sender."""

    def __init__(
        self,
        me: Participant,
        engine: Engine,
        store: Store,
        address_filter: AddressFilter,
        limits: LoopLimits,
        *,
        shows_reasoning: bool = True,
        max_question_age_seconds: float = float("inf"),
        max_compacting: int | None = None,
        between_steps: BetweenSteps = "never",
        together: int | None = None,
    ) -> None:
        """`between_steps` and `together` need an engine with shared turns; see `AgentSettings`."""
        self._me, self._engine, self._between_steps = me, engine, between_steps
        self._shows_reasoning, self._max_age_seconds = shows_reasoning, max_question_age_seconds
        self._loops = LoopGuard(me.id, limits)
        self.inbox = Inbox(me.id, address_filter, store, together=together, is_agent=self._loops.is_agent)
        self._budgets = SenderBudgets(limits.tokens_per_hour, store)
        address_filter.on_spent = self._budgets.record
        self.headroom = HeadroomCheck(me, engine, self.inbox)
        joining, basis = between_steps if engine.shares_turns else None, engine.receipt_basis
        self.receipts = AgentReceipts(me.messenger, self.inbox, store, engine.holding, basis, joining)
        self.staggered = StaggeredCompactions(me, engine.compacting, max_compacting)
        engine.agent = AgentSide(
            receive_event=self.receive_event,
            chats=lambda: self.inbox.answering,
            let_in=self._let_in,
            count_queued=self.headroom.count_queued,
            prompt_read=self.receipts.prompt_read,
            may_session_compact=self.staggered.may_session_compact,
        )
        self.turn: ChatTurn | None = None
        """The turn that runs now."""
        self.was_joined = False
        self._is_freeing = False
        me.control.receipts = self.receipts.source
        me.use_hooks(self)

    # -- lifetime ----------------------------------------------------------------------------------------

    async def before_join(self) -> None:
        """Load the state of an earlier process. Joining then delivers all envelopes since."""
        await self._engine.load()
        position, client = await self.inbox.load(), self._me.session.client
        self._loops.restore(chat.envelope for chat in self.inbox.in_state(LOOP_STOPPED))
        await self._budgets.load()
        await self.receipts.load()
        if position is not None:
            client.first_delivery = DeliveryRequest(since=position, batches_presence=True)
        elif self.inbox.skips_past:
            client.first_delivery = DeliveryRequest(last=FIRST_HISTORY)  # includes our own presence
        await self.headroom.count_queued()
        self.waits_changed()

    async def entered(self) -> None:
        """Start the engine, and answer chats until the connection ends for good."""
        self._me.start_soon(self._engine.run)
        self._me.start_soon(self._me.session.run_until_ended, self._answer_chats)

    async def after_leave(self) -> None:
        """Close the engine."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self._engine.aclose()

    async def joined(self) -> None:
        """Send the status right after the welcome, with a reason after a lost connection or a killed process.

        Sends followers the receipts that they missed.
        """
        me, welcome = self._me, self._me.session.client.arrived.message
        assert isinstance(welcome, Envelope)
        facts = _facts_in(welcome)
        self.headroom.mode = facts.would_fit
        word = self._engine.joined(facts)
        self.staggered.restart()
        self.receipts.source.joined()
        if self.was_joined:
            me.mcp.fail_closed_proposals(proposal_ids_in(welcome.body))
            me.start_soon(me.control.announce, word or status_word("rejoined"))
            return
        self.was_joined = True
        me.start_soon(self._clean_up_after_earlier_process, welcome)
        if interrupted := tuple(chat.envelope.id for chat in self.inbox.in_state("answering", "cancelled")):
            me.start_soon(me.control.announce, status_word("restarted"), interrupted)
        if word is not None or not interrupted:
            me.start_soon(me.control.announce, word)

    async def _clean_up_after_earlier_process(self, welcome: Envelope) -> None:
        """Close streams and withdraw proposals of an earlier process that the gateway still keeps open."""
        me = self._me
        for stream in objects_at(welcome.body, "active_streams"):
            if stream.get("owner") == me.id:
                payload = {"stream_id": stream.get("stream_id"), "reason": "the agent restarted"}
                await me.send(kinds.STREAM_CLOSE, payload)
        for proposal in proposals_in(welcome.body):
            if proposal.sender == me.id and me.may_send(kinds.MCP_WITHDRAW, to=proposal.addressees):
                reason, about = {"reason": "the agent restarted"}, (proposal.id,)
                await me.send(kinds.MCP_WITHDRAW, reason, to=proposal.addressees, correlation_id=about)

    async def close_streams(self, reason: str) -> None:
        """Close the stream of the running turn."""
        if self.turn is not None:
            await self.turn.reasoning.close(reason)

    async def fit_of(self, question: FitQuestion) -> Fit | None:
        """Return whether a text fits, by the figures of the agent's own conversation."""
        return await self.headroom.fit_of(question)

    async def receive_event(self, event: conversation_events.ConversationEvent) -> None:
        """Handle an event of the engine: send statuses to everyone, and context events to the program's handlers."""
        match event:
            case conversation_events.StatusChanged():
                await self._me.control.send(event.status, event.word, event.about)
                self.headroom.release_soon()
            case conversation_events.ItemAdded():
                await self.headroom.count_queued()  # a chat that entered the context no longer waits
            case conversation_events.PromptRead() | conversation_events.HistoryChanged():
                self.receipts.source.changed(event.cause)
            case conversation_events.ResultCut() if self.headroom.mode != "off":
                word = status_word(WOULD_OVERFLOW, CUT.format(tool=event.tool, tokens=event.omitted_tokens))
                self._me.start_soon(self._me.control.announce, word)
            case conversation_events.ReplyNotice() | conversation_events.ResultCut():
                pass
            case _:
                self._me.listeners.emit(None, event)

    # -- waits -------------------------------------------------------------------------------------------

    def waits_changed(self) -> None:
        """Report the agent's waits, if they changed."""
        me, shown = self._me, self._engine.surroundings
        waits = (*me.mcp.waits, *self._loops.waits, *self.headroom.waits, *me.tool_waits, *self._budgets.waits)
        if waits != shown.waiting and not me.session.ended.is_set():
            shown.waiting = waits
            if self.was_joined:
                me.session.start_soon(me.control.announce)

    def _budget_news(self) -> None:
        """Report the spending, and the time when a refused sender is answered again."""
        self._engine.surroundings.spent_for = self._budgets.reported
        self.waits_changed()
        if not self._is_freeing and any(one.kind == "budget" for one in self._engine.surroundings.waiting):
            self._is_freeing = True
            self._me.start_soon(self._show_when_freed)

    async def _show_when_freed(self) -> None:
        while (seconds := self._budgets.seconds_until_next()) is not None:
            await anyio.sleep(seconds + 1)
            self.waits_changed()
        self._is_freeing = False

    # -- answers -----------------------------------------------------------------------------------------

    async def _answer_chats(self) -> None:
        """Answer chats until cancelled. A failed answer is logged and does not end the loop."""
        # Do not begin a question that a missed envelope may cancel or answer.
        await self._me.session.client.caught_up.wait()
        self._budget_news()
        while True:
            await self.headroom.release()
            chat = await self.inbox.next(self._me.messenger.until_active)
            # Also correlate the answer with the chat in which the sender chose how to deliver the question.
            about = tuple(name for name in (chat.envelope.id, chat.chosen_by) if name is not None)
            reasoning = Reasoning(self._me.messenger, about, is_shown=self._shows_reasoning)
            answering = await self._engine.answering(chat, reasoning)
            self.turn = turn = ChatTurn(
                me=self._me,
                inbox=self.inbox,
                question=chat,
                reasoning=reasoning,
                answering=answering,
                max_age_seconds=self._max_age_seconds,
                tell=self.receipts.source.tell,
            )
            before = turn.answering.spent
            if chat.state == "queued" and (problem := self._budgets.refusal(chat.envelope.sender)) is not None:
                turn.decline("refused", REFUSED_TEXT.format(problem=problem))
            elif self.inbox.together is not None:
                turn.question = await self._add_waiting(chat)
            await self.headroom.count_queued()
            try:
                is_done = await turn.attempt()
            finally:
                after, self.turn = turn.answering.spent, None
                self._add_spent(chat, after[0] - before[0], after[1] - before[1])
                self._budget_news()
                with anyio.CancelScope(shield=True):
                    await self._budgets.store()
            if is_done:
                if turn.question.refusal is not None:
                    await self.receipts.source.refused(MessageKey.of(chat.envelope), is_told=True)
                self.receipts.source.changed(*await self.inbox.finish())

    async def _add_waiting(self, question: StoredChat) -> StoredChat:
        """Add waiting chats to a new turn if too many wait. Returns the question."""
        if not (waiting := self._affordable(self.inbox.to_answer_together())):
            return question
        fitting = await self.headroom.fitting((question, *waiting))
        if len(fitting) > 1:
            question = await self.inbox.join(fitting[1:], has_sections=True) or question
        return question

    async def _let_in(self) -> None:
        """Add the chats that wait for this moment to the running turn."""
        if waiting := await self.headroom.fitting(self._affordable(self.inbox.to_join(self._between_steps))):
            await self.inbox.join(waiting)
            await self.headroom.count_queued()

    def _affordable(self, chats: Sequence[StoredChat]) -> Sequence[StoredChat]:
        """Return the chats to answer: not too old, and within their senders' budgets."""
        refused = {one.envelope.sender for one in chats if self._budgets.refusal(one.envelope.sender) is not None}
        return [
            one
            for one in chats
            if one.envelope.sender not in refused and not self.inbox.is_outdated(one, self._max_age_seconds)
        ]

    def _add_spent(self, question: StoredChat, tokens: int, unreported_calls: int) -> None:
        """Add the cost of a turn to its senders' spending, in equal parts per chat."""
        chats = self.inbox.answering or (question,)
        share, rest = divmod(tokens, len(chats))
        for one in chats:
            is_first = one is chats[0]
            self._budgets.add(one.envelope.sender, share + rest * is_first, unreported_calls if is_first else 0)

    # -- what arrives ------------------------------------------------------------------------------------

    async def receive(self, envelope: Envelope) -> None:
        """Queue chats, and carry out cancellations."""
        position = self._me.session.client.arrived.position
        self.staggered.receive(envelope)
        self._loops.observe(envelope)
        match envelope.kind:
            case _ if envelope.sender == self._me.id:
                pass
            case kinds.CHAT:
                await self._add_chat(envelope, is_busy=self.inbox.current is not None or self._me.messenger.is_paused)
            case kinds.PARTICIPANT_RESUME:
                await self._release(envelope)
            case kinds.SYSTEM_PRESENCE:
                if self._me.mcp.waits:
                    self.waits_changed()  # other participants may decide now
            case kinds.CHAT_CANCEL | kinds.REASONING_CANCEL:
                await self._receive_cancel(envelope)
            case _:
                pass
        await self.inbox.reached(position)

    async def _receive_cancel(self, cancel: Envelope) -> None:
        """Cancel the running turn and the waiting chats that an envelope names."""
        turn, reason = self.turn, str(cancel.body.get("reason") or f"cancelled by {cancel.sender}")
        if cancel.kind == kinds.CHAT_CANCEL:
            await self._cancel(cancel)
            if turn is not None and is_about(cancel, turn.question.envelope):
                turn.cancel(reason)
        elif turn is not None and cancel.context == turn.reasoning.id is not None:
            await self.inbox.mark_cancelled(self._me.session.client.arrived.position, by=cancel.sender)
            turn.cancel(reason)

    async def receive_past(self, envelope: Envelope) -> None:
        """Queue chats sent while no process of this agent ran. Ignore controls from that time."""
        position = self._me.session.client.arrived.position
        if self.inbox.skips_past:
            is_join = envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join"
            is_ours = value_at(envelope.body, "participant", "id") == self._me.id
            self.inbox.skips_past = not (is_join and is_ours)
            return
        self._loops.observe(envelope)
        match envelope.kind:
            case kinds.CHAT if envelope.sender == self._me.id:  # sent by an earlier process in its last moments
                await self.inbox.forget_answered(envelope)
            case kinds.CHAT:
                # No chat begins before all missed envelopes have arrived, so tell its sender that it waits.
                await self._add_chat(envelope, is_busy=True, is_past=True)
            case kinds.CHAT_CANCEL:
                await self._cancel(envelope)
            case _:
                pass
        await self.inbox.reached(position)

    async def _add_chat(self, chat: Envelope, *, is_busy: bool, is_past: bool = False) -> None:
        # Its reader has an answer to `ask_agent` already; only the model needs it.
        is_read = chat.id in self._me.answers.router.answer_ids
        is_for_us = False if is_read else self.inbox.address_filter.check_rules(chat)
        if self._loops.stopped:
            await self._release(chat)
        stopped = set(self._loops.stopped)
        if await self.headroom.read_choice(chat):
            return
        fit = await self.headroom.overflow_of(chat, is_busy=is_busy) if is_for_us else None
        judge, refusal = partial(self._judge, chat, fit, is_past=is_past), self._refusal(chat, fit)
        decision = self.inbox.decide(chat, is_for_us, judge, refusal, fit)
        at = self._me.session.client.arrived
        outcome = await self.inbox.add(
            chat, decision, is_busy=is_busy, position=at.position, age_seconds=at.age_seconds, is_past=is_past
        )
        if outcome in ("next", "queued", "kept"):
            await self.headroom.count_queued()
        if outcome != "ignored" and asks_for_receipts(chat):
            await self.receipts.arrived(chat, is_refused=outcome == "refused")
        self._report_outcome(chat, decision, outcome)
        if self._loops.stopped.keys() - stopped:
            self.waits_changed()
            self._me.start_soon(self._announce_loop, chat)

    def _report_outcome(self, chat: Envelope, decision: Admission, outcome: Outcome) -> None:
        """Report the end of a chat to its sender and the board.

        Uses tasks: sending waits while the gateway is away, and must not delay receiving.
        """
        if outcome in ("queued", "no_room") and self._me.messenger.is_paused:
            self._me.start_soon(self._me.control.announce)  # a paused agent makes no call that would update the board
        if decision.fit is not None and outcome in ("next", "queued", "no_room"):
            self._me.start_soon(partial(self.headroom.warn, chat, decision.fit, is_held=outcome == "no_room"))
        if outcome == "queued":
            self._me.start_soon(self._acknowledge, chat)
        elif decision.refusal is not None:
            self._me.start_soon(self._refuse, chat, decision.refusal)

    def _refusal(self, chat: Envelope, fit: Fit | None) -> ChatRefusal | None:
        """Return why a chat like this is refused now; `fit` has the figures if it does not fit."""
        if (problem := self._budgets.refusal(chat.sender)) is not None:
            return ChatRefusal(problem, "budget_spent")
        return self._engine.refusal(chat) or (None if fit is None else self.headroom.refusal(fit))

    def _judge(self, chat: Envelope, fit: Fit | None, *, is_past: bool) -> Verdict:
        """Return the verdict on a chat that may be answered; `fit` as in `_refusal`."""
        verdict = self._loops.decide(chat, at_seconds=None if is_past else anyio.current_time())
        return "no_room" if verdict == "answer" and fit is not None and self.headroom.mode == "hold" else verdict

    async def _refuse(self, chat: Envelope, refusal: ChatRefusal) -> None:
        is_told = False
        try:
            await self._me.messenger.refuse_chat(chat, refusal.problem, refusal.code, refusal.fit)
            is_told = True
        finally:
            await self.receipts.source.refused(MessageKey.of(chat), is_told=is_told)

    async def _acknowledge(self, chat: Envelope) -> None:
        if self._me.may_send(kinds.CHAT_ACKNOWLEDGE) and not asks_for_receipts(chat):
            payload = {"status": "queued"}
            if (reason := self.receipts.after_turn(chat)) is not None:
                payload["reason"] = reason
            await self._me.send(kinds.CHAT_ACKNOWLEDGE, payload, to=(chat.sender,), correlation_id=(chat.id,))

    async def _cancel(self, cancel: Envelope) -> None:
        """Remove cancelled chats from the queue, and held ones from the report."""
        ended = await self.inbox.cancel(cancel, position=self._me.session.client.arrived.position)
        self.receipts.source.changed(*ended)
        await self.headroom.count_queued()
        await self.headroom.show_held()

    async def _release(self, word: Envelope) -> None:
        """Talk again to the agents that a person or program releases with a chat or a resume."""
        if released := self._loops.release(word, at_seconds=anyio.current_time()):
            await self.inbox.release(released)
            self.waits_changed()

    async def _announce_loop(self, chat: Envelope) -> None:
        """Notify the person or program that began a stopped conversation, once."""
        talk = self._loops.stopped.get(chat.sender)
        if talk is not None:
            # It refers to the waiting chat and needs no reply, so that no agent takes it for a question.
            payload = {"text": LOOP_NOTICE.format(peer=chat.sender, reason=talk.reason), "needs_reply": False}
            to = (talk.origin,) if talk.origin is not None and talk.origin in self._me.peers else ()
            await self._me.send(kinds.CHAT, payload, to=to, correlation_id=(chat.id,))


def _facts_in(welcome: Envelope) -> SpaceFacts:
    """Return the space's instructions to all agents; empty if they cannot be read."""
    try:
        return SpaceFacts.model_validate(welcome.body.get("space") or {})
    except ValidationError as error:
        logger.warning("ignored what the welcome says about the space: %s", error)
        return SpaceFacts()
