"""What an agent does with each envelope that arrives: queue a chat, cancel, or learn that a conversation is a loop.

Owns the order of these steps, the acknowledgement of chats that wait, the announcement of a loop, what a restarted
process catches up with, and the loop that answers one chat after another. Does not know whether a chat fits (see
`HeadroomCheck`) or how it is answered (see `ChatTurn`): the participant may be an `Agent`, or represent an agent whose
engine is elsewhere.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Generic, TypeVar

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.join import DeliveryRequest
from mew_protocol.json_values import objects_at, value_at
from mew_protocol.payloads.mcp import proposals_in

from mew_agent.agent.budgets import SenderBudgets
from mew_agent.agent.chat_turn import ChatTurn
from mew_agent.agent.headroom import HeadroomCheck
from mew_agent.agent.inbox import Inbox, is_about
from mew_agent.agent.loop_guard import LoopGuard, Verdict
from mew_agent.context.store import StoredChat
from mew_agent.participant.messenger import REFUSED_TEXT
from mew_agent.participant.participant import Participant
from mew_agent.settings import LoopLimits

FIRST_HISTORY: Final = 1_000
"""How many envelopes an agent reads after a process that was killed while it joined for the first time."""

LOOP_STOPPED = (
    "I stopped answering '{peer}': {reason}. I continue as soon as a person or a program sends a message to one of us."
)

TurnT = TypeVar("TurnT", bound=ChatTurn)


class Reception(Generic[TurnT]):
    """Receives and answers for one participant. `turn_for` returns the turn that answers a chat."""

    def __init__(
        self,
        me: Participant,
        inbox: Inbox,
        loops: LoopGuard,
        turn_for: Callable[[StoredChat], Awaitable[TurnT]],
        headroom: HeadroomCheck | None = None,
        budgets: SenderBudgets | None = None,
    ) -> None:
        self._me, self._inbox = me, inbox
        self.budgets = budgets or SenderBudgets(LoopLimits().tokens_per_hour)
        self._is_freeing = False
        self._loops = loops
        self._turn_for = turn_for
        self._headroom = headroom
        self.turn: TurnT | None = None
        """The turn that runs now."""

    @property
    def waits(self) -> tuple[Waiting, ...]:
        """What the participant waits for, as reports show it."""
        held = () if self._headroom is None else self._headroom.waits
        return (*self._me.mcp.waits, *self._loops.waits, *held, *self._me.tool_waits, *self.budgets.waits)

    async def load(self) -> None:
        """Load what an earlier process left; joining then delivers what was sent since. Call it before joining."""
        position, client = await self._inbox.load(), self._me.session.client
        self._loops.restore(self._inbox.held)
        await self.budgets.load()
        if position is not None:
            client.first_delivery = DeliveryRequest(since=position, batches_presence=True)
        elif self._inbox.skips_past:
            client.first_delivery = DeliveryRequest(last=FIRST_HISTORY)  # with our own presence

    async def answer_chats(self) -> None:
        """Answer chats until cancelled. A chat whose answer fails is logged and does not end the others."""
        # Do not begin a question that a later missed envelope cancels or answers.
        await self._me.session.client.caught_up.wait()
        self._budget_news()
        while True:
            if self._headroom is not None:
                await self._headroom.release()
            chat = await self._inbox.next(self._me.messenger.until_active)
            self.turn = await self._turn_for(chat)
            if self._headroom is not None:
                await self._headroom.count_queued()
            sender, before = chat.envelope.sender, self.turn.spent
            if chat.state == "queued" and (problem := self.budgets.refusal(sender)) is not None:
                self.turn.instead = REFUSED_TEXT.format(problem=problem)
            try:
                is_done = await self.turn.attempt()
            finally:
                after, self.turn = self.turn.spent, None
                with anyio.CancelScope(shield=True):
                    await self.budgets.record(sender, after[0] - before[0], after[1] - before[1])
                self._budget_news()
            if is_done:
                await self._inbox.finish(chat)

    async def clean_up_after_earlier_process(self, welcome: Envelope) -> None:
        """Close the streams and withdraw the proposals of an earlier process that the gateway has not missed yet."""
        me = self._me
        for stream in objects_at(welcome.body, "active_streams"):
            if stream.get("owner") == me.id:
                payload = {"stream_id": stream.get("stream_id"), "reason": "the agent restarted"}
                await me.send(kinds.STREAM_CLOSE, payload)
        for proposal in proposals_in(welcome.body):
            if proposal.sender == me.id and me.may_send(kinds.MCP_WITHDRAW, to=proposal.addressees):
                reason, about = {"reason": "the agent restarted"}, (proposal.id,)
                await me.send(kinds.MCP_WITHDRAW, reason, to=proposal.addressees, correlation_id=about)

    async def receive(self, envelope: Envelope) -> None:
        """Queue chats, and cancel what a participant cancels."""
        position = self._me.session.client.arrived.position
        turn = self.turn
        self._loops.observe(envelope)
        match envelope.kind:
            case _ if envelope.sender == self._me.id:
                pass
            case kinds.CHAT:
                await self._add_chat(envelope, is_busy=self._inbox.is_answering or self._me.messenger.is_paused)
            case kinds.PARTICIPANT_RESUME:
                await self._release(envelope)
            case kinds.SYSTEM_PRESENCE if self._me.mcp.waits:
                self._me.waits_changed()  # other participants may decide now
            case kinds.CHAT_CANCEL:
                await self._cancel(envelope)
                if turn is not None and is_about(envelope, turn.chat):
                    turn.cancel(_cancel_reason(envelope))
            case kinds.REASONING_CANCEL if turn is not None and turn.reasoning_id is not None:
                if envelope.context == turn.reasoning_id:
                    await self._inbox.mark_cancelled(position)
                    turn.cancel(_cancel_reason(envelope))
            case _:
                pass
        await self._inbox.reached(position)

    async def receive_past(self, envelope: Envelope) -> None:
        """Queue chats that were sent while no process of this agent ran; controls from that time are not obeyed."""
        position = self._me.session.client.arrived.position
        if self._inbox.skips_past:
            is_join = envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join"
            is_ours = value_at(envelope.body, "participant", "id") == self._me.id
            self._inbox.skips_past = not (is_join and is_ours)
            return
        self._loops.observe(envelope)
        match envelope.kind:
            case kinds.CHAT if envelope.sender == self._me.id:  # sent by an earlier process in its last moments
                await self._inbox.forget_answered(envelope)
            case kinds.CHAT:
                # No chat is begun before everything missed has arrived, so its sender learns that it waits.
                await self._add_chat(envelope, is_busy=True, is_past=True)
            case kinds.CHAT_CANCEL:
                await self._cancel(envelope)
            case _:
                pass
        await self._inbox.reached(position)

    async def _add_chat(self, chat: Envelope, *, is_busy: bool, is_past: bool = False) -> None:
        # Its reader has an answer to `ask_agent` already; the model only needs to know of it.
        is_read = self._me.answers.is_answer(chat)
        await self._release(chat)
        stopped = set(self._loops.stopped)
        headroom = self._headroom
        if headroom is not None and await headroom.read_choice(chat):
            return
        is_for_us = False if is_read else self._inbox.is_for_us(chat)
        fit = await headroom.overflow_of(chat, is_busy=is_busy) if headroom is not None and is_for_us else None
        verdict: Verdict = "context"
        problem = None if is_for_us is False else self.budgets.refusal(chat.sender)
        if is_for_us is not False and problem is None:
            verdict = self._loops.decide(chat, at_seconds=None if is_past else anyio.current_time())
        is_answered = verdict == "answer"
        if is_answered and fit is not None and headroom is not None and headroom.mode == "hold":
            verdict = "no_room"
        arrived = self._me.session.client.arrived
        refusal = f"refused: {problem}" if is_for_us and problem is not None else None
        status = await self._inbox.add(
            chat,
            is_busy=is_busy,
            verdict=verdict,
            position=arrived.position,
            age_seconds=arrived.age_seconds,
            is_past=is_past,
            refusal=refusal,
        )
        # What follows is sent by tasks: while the gateway is away, sending waits, and nothing else would be received.
        is_refused = status is not None and status.startswith("refused")
        if headroom is not None and fit is not None and is_answered and not is_refused:
            self._me.start_soon(partial(headroom.warn, chat, fit, is_held=status == "held"))
        if status is not None and status != "held":
            self._me.start_soon(self._acknowledge, chat, status)
        if self._loops.stopped.keys() - stopped:
            self._me.waits_changed()
            self._me.start_soon(self._announce_loop, chat)

    def _budget_news(self) -> None:
        """Show what was spent, and when a sender is answered again."""
        self._me.spent_for_changed(self.budgets.reported)
        self._me.waits_changed()
        if not self._is_freeing and self.budgets.seconds_until_next() is not None:
            self._is_freeing = True
            self._me.start_soon(self._show_when_freed)

    async def _show_when_freed(self) -> None:
        while (seconds := self.budgets.seconds_until_next()) is not None:
            await anyio.sleep(seconds + 1)
            self._me.waits_changed()
        self._is_freeing = False

    async def _cancel(self, cancel: Envelope) -> None:
        """Remove the chats that wait and are cancelled, and those that are held from the report."""
        await self._inbox.cancel(cancel, position=self._me.session.client.arrived.position)
        if self._headroom is not None:
            await self._headroom.show_held()

    async def _release(self, word: Envelope) -> None:
        """Talk again with the agents that a chat or a resume from a person or a program releases."""
        if released := self._loops.release(word, at_seconds=anyio.current_time()):
            await self._inbox.release(released)
            self._me.waits_changed()

    async def _announce_loop(self, held: Envelope) -> None:
        """Say once, to the person or program that began it, that a conversation with an agent is stopped."""
        talk = self._loops.stopped.get(held.sender)
        if talk is not None:
            # It refers to the held chat and needs no reply, so that no agent takes it for a question.
            payload = {"text": LOOP_STOPPED.format(peer=held.sender, reason=talk.reason), "needs_reply": False}
            to = (talk.origin,) if talk.origin is not None and talk.origin in self._me.peers else ()
            await self._me.send(kinds.CHAT, payload, to=to, correlation_id=(held.id,))

    async def _acknowledge(self, chat: Envelope, status: str) -> None:
        word, _, problem = status.partition(":")
        if word == "refused":
            await self._me.messenger.refuse_chat(chat, problem.strip())
        elif self._me.may_send(kinds.CHAT_ACKNOWLEDGE):
            payload = {"status": status}
            await self._me.send(kinds.CHAT_ACKNOWLEDGE, payload, to=(chat.sender,), correlation_id=(chat.id,))


def _cancel_reason(cancel: Envelope) -> str:
    return str(cancel.body.get("reason") or f"cancelled by {cancel.sender}")
