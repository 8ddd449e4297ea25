"""Asks agents for answers: sends the question, follows the answer, and cancels the agent's work when the caller leaves.

Owns one participant's questions to agents. The caller's `AnswerBuilder` builds the answer; `router` assigns envelopes
to questions.
"""

import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, value_at
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.chat import (
    MAIN_SESSION,
    REFUSAL_CODES,
    RESPONSE_FORMAT_UNSUPPORTED,
    SESSIONS_UNSUPPORTED,
    TurnReport,
    chat_refusal_in,
)
from mew_protocol.payloads.participant import is_whole_status
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW

from mew_agent.errors import GatewayError, MewAgentError, NoAnswer, NotPermitted
from mew_agent.participant.answers.context_notes import PAUSED_TEXT, ContextNote, ContextNotes, approval_text
from mew_agent.participant.gaps import StreamGap
from mew_agent.participant.messenger import CANCEL_SECONDS, Messenger, is_refusal
from mew_agent.participant.peers import Peer, PeerChanges, PeerContext, Peers, StreamOwners

if TYPE_CHECKING:  # only a participant that asks agents builds answers
    from mew_agent.participant.answers.builder import AnswerBuilder, Answered, AnswerEvent

RETURN_SECONDS = 60.0
"""How long an agent that left may take to return, if the inactivity timeout is not shorter."""


@dataclass(eq=False)
class Exchange:
    """A question and its answer so far. Read `next_event` until it returns None."""

    agent: str
    chat_id: str
    text: str
    answer: "AnswerBuilder"
    inactivity_seconds: float
    context: PeerContext
    """The last status of the agent, or of its session; once the answer is there, the status at that time."""
    session: str | None = None
    response_format: Mapping[str, Any] | None = None
    second_sending: anyio.CancelScope | None = None
    """Ends the sending of the question without a session, once one was refused."""
    turn: TurnReport | None = None
    """The agent's report of its turn; None from an agent without sessions."""
    reasoning_id: str | None = None
    answer_ids: list[str] = field(default_factory=list)
    """The ids of the chats that answered, or refused to."""
    does_correlate: bool = False
    """Whether the agent began by referring to the question. Its answer will, and its other chats are none."""
    is_queued: bool = False
    is_over: bool = False
    needs_cancel: bool = True
    """Whether the agent may still be working on it."""
    is_agent_absent: bool = False
    failure: NoAnswer | None = None
    reported_failure: str | None = None
    """Why the agent could not answer, by its own answer."""
    deadline: float = 0.0
    """When the inactivity timeout ends, by the event loop's clock."""
    _notes: ContextNotes = field(init=False)
    _ready: "deque[AnswerEvent]" = field(default_factory=deque)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._begin_at(self.context)

    def _begin_at(self, context: PeerContext) -> None:
        """Use this context as the base of later comparisons."""
        self.context, self._notes = context, ContextNotes(context)
        self.answer.work_began(context)
        self.extend_deadline()

    async def next_event(self) -> "AnswerEvent | None":
        """Return the next event, or None at the end. Raises the `NoAnswer` that ended the question."""
        while not self._ready:
            if self.failure is not None:
                raise self.failure
            if self.is_over:
                return None
            changed = self._changed
            remaining = self.deadline - anyio.current_time()
            if remaining <= 0:
                code, why = "agent_silent", " (it is paused)" if self.context.is_paused else ""
                if self.context.status == "waiting_for_approval":
                    why = f" ({approval_text(self.context)})"
                problem = f"'{self.agent}' showed no activity for {self.inactivity_seconds:g} seconds{why}"
                if self.is_agent_absent:
                    code, problem = "agent_left", f"'{self.agent}' left the space before it answered"
                self.fail(code, problem, needs_cancel=True)
                continue
            with anyio.move_on_after(remaining):
                await changed.wait()
        return self._ready.popleft()

    @property
    def has_own_session(self) -> bool:
        """Whether the question is asked in a session, and not in the agent's own conversation."""
        return self.session not in (None, MAIN_SESSION)

    def leave_session(self, chat_id: str, context: PeerContext) -> None:
        """Wait for the answer to `chat_id` instead, which asks in the agent's own conversation."""
        self.chat_id, self.session = chat_id, None
        self._begin_at(context)

    def is_about(self, context: object) -> bool:
        """Return whether an envelope's `context` is the reasoning about this question."""
        return self.reasoning_id is not None and context == self.reasoning_id

    def add(self, events: "Sequence[AnswerEvent]") -> None:
        """Add events and wake the reader."""
        self._ready += events
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def update_session(self, context: PeerContext) -> None:
        """Read the status of the session, and add its notice."""
        self.context = context
        if (note := self._notes.update(context)) is not None:
            self.extend_deadline()
            self.add(self.answer.add_notice(note.text))

    def update_agent(self, context: PeerContext, note: ContextNote | None) -> None:
        """Read the status of the agent, and add its notice."""
        self.context = context
        self.answer.context_reported(context)
        if self.is_queued or note is not None:
            self.extend_deadline()
        if note is not None:
            self.add(self.answer.add_notice(note.text))

    def begin(self, reasoning_id: str | None) -> None:
        """Record that the agent has started work on the question."""
        if self.reasoning_id is None:
            self.answer.work_began(self.context)
        self.reasoning_id = reasoning_id or self.reasoning_id
        self.is_queued = False
        self.extend_deadline()

    def agent_left(self) -> None:
        """Shorten the wait for an agent that left: a killed one returns and answers."""
        if self.inactivity_seconds == math.inf:
            return
        self.is_agent_absent = True
        self.deadline = min(self.deadline, anyio.current_time() + RETURN_SECONDS)
        self.add(self.answer.add_notice(f"'{self.agent}' left the space; waiting for its return"))

    def agent_restarted(self) -> None:
        """Begin the answer again: the agent's process was restarted and continues with the question."""
        self.reasoning_id = None
        self.extend_deadline()
        self.add(self.answer.restart_agent())

    def finish(self, text: str, turn: TurnReport | None = None, at: str = "") -> None:
        """Record the agent's answer; `at` is its time on the wire."""
        if not self.is_over:
            self.turn = turn
            if turn is not None and turn.status is not None:
                self.context = PeerContext.from_status(turn.status, at)
            self.is_over, self.needs_cancel = True, False
            self.add(self.answer.finish(text))

    def fail(self, code: str, problem: str, *, needs_cancel: bool = False) -> None:
        """End without an answer; `code` as in `NoAnswer`."""
        if not self.is_over:
            self.is_over, self.failure = True, NoAnswer(self.agent, code, problem)
            self.needs_cancel = needs_cancel
            self.add(self.answer.close())

    def extend_deadline(self) -> None:
        """Restart the inactivity timeout, because the agent is active."""
        self.is_agent_absent = False
        self.deadline = anyio.current_time() + self.inactivity_seconds


MAX_ABANDONED: Final = 200
PIECE_MISSING: Final = "a piece of the text was lost on the way; the rest comes with the whole answer"
CALL_RESTARTED: Final = "interrupted by a control; the answer begins again"
TOO_LONG: Final = (
    "the question does not fit into the context of '{agent}', which holds it; deliver it as `reference`, `digest` or"
    " `anyway`"
)


class AnswerRouter:
    """Routes all arrivals in order, after `peers` and `streams` have read them.

    Calls `cancel` with an agent and its reasoning about an abandoned question, and `ask_again` with a question that an
    agent without sessions refused.
    """

    def __init__(
        self,
        me: str,
        peers: Peers,
        cancel: Callable[[str, str], object],
        ask_again: Callable[[Exchange], object] = lambda _: None,
    ) -> None:
        self.me = me
        self._peers = peers
        self._cancel_reasoning, self._ask_again = cancel, ask_again
        self.exchanges: dict[str, Exchange] = {}
        """Open exchanges by the id of their question, oldest first."""
        self.answer_ids: set[str] = set()
        """The ids of chats that have answered or refused open exchanges, so that their readers get them."""
        self.tool_users: set[str] = set()
        """Agents that have called a tool."""
        self._abandoned: BoundedDict[str, str] = BoundedDict(MAX_ABANDONED)
        self._notes: dict[str, ContextNotes] = {}
        self._missed_notes: dict[str, ContextNote] = {}
        self._asked: set[str] = set()
        self.streams = StreamOwners()
        self.is_in_use = False
        """Whether anything was ever asked; until then, nothing has to be routed."""

    # -- exchanges ---------------------------------------------------------------------------------------

    def add(self, exchange: Exchange) -> None:
        """Open an exchange. It begins with notices about the agent's current work, or its work since the last
        question.
        """
        agent = exchange.agent
        self.is_in_use = True
        self.exchanges[exchange.chat_id] = exchange
        if exchange.has_own_session:
            if exchange.context.is_paused:
                exchange.add(exchange.answer.add_notice(PAUSED_TEXT))
            return
        self._asked.add(agent)
        notes = self._notes.setdefault(agent, ContextNotes(exchange.context))
        missed = self._missed_notes.pop(agent, None)
        if notes.is_compacting:
            exchange.add(exchange.answer.add_notice(notes.compacting_text()))
        elif missed is not None and missed.stage == "ended":
            exchange.add(exchange.answer.add_notice(f"meanwhile: {missed.text}"))
        if notes.is_paused:
            exchange.add(exchange.answer.add_notice(PAUSED_TEXT))

    def abandon(self, exchange: Exchange) -> None:
        """Remember a question that was abandoned before the agent started; see `receive`."""
        self._abandoned[exchange.chat_id] = exchange.agent

    def fail_all(self, code: str, problem: str) -> None:
        """End all open exchanges, even if their agents are still working. `code` as in `NoAnswer`."""
        for exchange in self.exchanges.values():
            exchange.fail(code, problem, needs_cancel=True)

    def _open_with(self, agent: str | None) -> list[Exchange]:
        """Return the open exchanges with an agent, oldest first."""
        return [one for one in self.exchanges.values() if one.agent == agent and not one.is_over]

    # -- envelopes ---------------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """Route an envelope. After a gap in the history, stop waiting for answers that may be lost."""
        self._follow_peers(changes)
        if changes.gap is not None:
            self.fail_all("connection_lost", "the connection to the space was lost during the answer")
        match envelope.kind:
            case kinds.SYSTEM_ERROR if is_refusal(envelope):
                self._receive_refusal(envelope)
            case kinds.PARTICIPANT_STATUS if is_whole_status(envelope) and envelope.sender in self._peers:
                self._receive_status(envelope, self._peers[envelope.sender].context)
            case _:
                self._receive_from_agent(envelope)

    def _follow_peers(self, changes: PeerChanges) -> None:
        for peer in changes.left:
            self._notes.pop(peer.id, None)
            for exchange in self._open_with(peer.id):
                exchange.agent_left()
        for peer in changes.joined:
            for exchange in self._open_with(peer.id):
                exchange.extend_deadline()  # a returning agent continues with the questions in its inbox

    def _receive_refusal(self, envelope: Envelope) -> None:
        why = envelope.body.get("message") or envelope.body.get("error")
        for chat_id in envelope.correlation_ids:
            if (exchange := self.exchanges.get(chat_id)) is not None:
                exchange.fail("refused", f"the gateway refused the question to '{exchange.agent}': {why}")

    def _receive_status(self, status: Envelope, context: PeerContext) -> None:
        agent = status.sender
        note = self._notes.setdefault(agent, ContextNotes()).update(context)
        is_missed = note is not None and agent in self._asked
        for exchange in self._open_with(agent):
            if context.status == "restarted" and status.refers_to(exchange.chat_id):
                exchange.agent_restarted()
            if exchange.has_own_session:
                exchange.update_session(context.in_session(self.me, exchange.session))
            else:
                exchange.update_agent(context, note)
                is_missed = False
        if note is not None and is_missed:
            self._missed_notes[agent] = note

    def _receive_from_agent(self, envelope: Envelope) -> None:
        for exchange in self._open_with(envelope.sender):
            if exchange.is_queued or exchange.is_about(envelope.context):
                exchange.extend_deadline()
        match envelope.kind:
            case kinds.REASONING_START:
                self._receive_reasoning_start(envelope)
            case kinds.REASONING_CONCLUSION if envelope.body.get("cancelled"):
                self._receive_cancelled_reasoning(envelope)
            case kinds.CHAT_ACKNOWLEDGE:
                self._receive_acknowledgement(envelope)
            case kinds.CHAT:
                self._receive_answer(envelope)
            case _:
                pass

    def _receive_reasoning_start(self, start: Envelope) -> None:
        for exchange in self._open_with(start.sender):
            # Some agents do not correlate; they repeat the question.
            repeats_question = not start.correlation_ids and start.body.get("input") == exchange.text
            if (refers := start.refers_to(exchange.chat_id)) or repeats_question:
                exchange.does_correlate |= refers
                exchange.begin(start.id)
                return
        unwanted = [chat_id for chat_id in start.correlation_ids if self._abandoned.get(chat_id) == start.sender]
        for chat_id in unwanted:
            self._abandoned.pop(chat_id, None)
        if unwanted:
            self._cancel_reasoning(start.sender, start.id)

    def _receive_cancelled_reasoning(self, conclusion: Envelope) -> None:
        for exchange in self._open_with(conclusion.sender):
            if exchange.is_about(conclusion.context):
                why = conclusion.body.get("reason") or "no reason given"
                exchange.fail("cancelled", f"the answer of '{exchange.agent}' was cancelled: {why}")

    def _receive_acknowledgement(self, envelope: Envelope) -> None:
        status = str(envelope.body.get("status") or "")
        for exchange in self._open_with(envelope.sender):
            if not envelope.refers_to(exchange.chat_id):
                continue
            if (why := chat_refusal_in(envelope)) is not None:
                self._refuse(exchange, envelope.body.get("code"), why)
            elif status == WOULD_OVERFLOW and _needs_choice(envelope):
                exchange.fail(WOULD_OVERFLOW, TOO_LONG.format(agent=exchange.agent))
            elif status in ("queued", WOULD_OVERFLOW):
                exchange.is_queued = exchange.is_queued or status == "queued" or bool(envelope.body.get("held"))
                exchange.extend_deadline()
            else:
                exchange.begin(None)

    def _refuse(self, exchange: Exchange, code: object, why: str) -> None:
        if code == SESSIONS_UNSUPPORTED and exchange.has_own_session:
            self._ask_again(exchange)
            return
        code = code if code in ("program_failed", WOULD_OVERFLOW, RESPONSE_FORMAT_UNSUPPORTED) else "agent_busy"
        exchange.fail(str(code), f"'{exchange.agent}' refused the question: {why}")

    def _receive_answer(self, chat: Envelope) -> None:
        text = chat.body.get("text")
        if not isinstance(text, str) or not (chat.correlation_ids or chat.names(self.me)):
            return
        for exchange in self._open_with(chat.sender):
            if chat.refers_to(exchange.chat_id) or not (chat.correlation_ids or exchange.does_correlate):
                exchange.answer_ids.append(chat.id)
                self.answer_ids.add(chat.id)
                failure = object_at(chat.body, "failure")
                if str(failure.get("code")) in REFUSAL_CODES:
                    self._refuse(exchange, failure["code"], str(failure.get("problem") or text))
                else:
                    exchange.reported_failure = str(failure.get("problem") or text) if failure else None
                    exchange.finish(text, read_or_none(TurnReport, chat.body.get("turn")), chat.ts)
                return

    # -- frames ------------------------------------------------------------------------------------------

    def receive_frame(self, frame: StreamFrame) -> None:
        """Route a frame of an agent's reasoning stream. Frames of streams that the agent does not own are ignored."""
        exchanges = self._open_with(self.streams.owner(frame.stream_id))
        if not exchanges:
            return
        try:
            value = object_at(json.loads(frame.data))
        except ValueError:
            value = {}
        for exchange in exchanges:
            if exchange.is_about(value.get("context")):
                exchange.extend_deadline()
                exchange.add(self._events_in(exchange, value))
            elif exchange.is_queued:
                exchange.extend_deadline()

    def receive_gap(self, gap: StreamGap) -> None:
        """Notify a stream's readers of missing frames, instead of showing its text with a gap."""
        for exchange in self._open_with(self.streams.owner(gap.stream_id)):
            if exchange.reasoning_id is not None:
                exchange.add(exchange.answer.skip_call(PIECE_MISSING))

    def _events_in(self, exchange: Exchange, frame: Mapping[str, Any]) -> "Sequence[AnswerEvent]":
        answer, value = exchange.answer, frame.get("value")
        match frame.get("type"), value:
            case "token", str():
                return answer.add_whole_text(value) if frame.get("final") is True else answer.add_text(value)
            case "thinking", str():
                return answer.add_thinking(value)
            case "status", _ if frame.get("event") == "start" and isinstance(frame.get("tools"), int):
                answer.expect_tools(is_likely=frame["tools"] > 0)
                return []
            case "notice", _ if frame.get("event") == "call_again":
                return answer.restart_call(CALL_RESTARTED)
            case "thought", dict() if value.get("action") == "tool":
                self.tool_users.add(exchange.agent)
                return _tool_call(answer, value)
            case _:
                return []


def _tool_call(answer: "AnswerBuilder", thought: Mapping[str, Any]) -> "Sequence[AnswerEvent]":
    call = object_at(thought, "actionInput")
    arguments = call.get("arguments", "")
    return answer.add_tool_call(
        str(call.get("tool") or "a tool"),
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        call_id=str(call.get("toolCallId") or ""),
        remark=str(thought.get("reasoning") or thought.get("message") or ""),
    )


def _needs_choice(acknowledgement: Envelope) -> bool:
    """Return whether an agent holds a chat until its sender chooses how to deliver it."""
    is_stuck = value_at(acknowledgement.body, "fit", "fits_after_compaction") is False
    return is_stuck and acknowledgement.body.get("held") is True


INACTIVITY_SECONDS: Final = 300.0
"""How long an agent may show no activity before its answer is given up."""

SEND_SECONDS: Final = 10.0
_ASKER_LEFT: Final = {"reason": "the asker left"}


class AgentAnswers:
    """The open questions of one participant to agents. Pass everything that arrives to `router`."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        cancel = partial(messenger.session.start_soon, self._cancel_reasoning)
        self.router = AnswerRouter(messenger.id, messenger.peers, cancel, self._ask_without_session)

    def __len__(self) -> int:
        return len(self.router.exchanges)

    @asynccontextmanager
    async def open(
        self,
        agent: str,
        text: str,
        answer: "AnswerBuilder",
        *,
        inactivity_seconds: float = INACTIVITY_SECONDS,
        session: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Exchange]:
        """Chat to an agent and yield its answer; leaving early cancels its work. Raises if the chat is not sent.

        `session` and `response_format` are those of the payload (see `mew_protocol.payloads.chat.Chat`). An agent that
        refuses sessions is asked without: the exchange then has no `session`. With an infinite `inactivity_seconds`,
        `agent` may be absent and answer later.
        """
        messenger = self._messenger
        peer = messenger.peers.get(agent, Peer(agent))
        if agent not in messenger.peers and inactivity_seconds < math.inf:
            raise messenger.peer_absent(agent)
        payload: dict[str, Any] = {"text": text, "session": session, "response_format": response_format}
        payload = {name: value for name, value in payload.items() if value is not None}
        chat = messenger.draft(kinds.CHAT, payload, to=(agent,))
        if not messenger.capabilities.allows(chat):
            raise messenger.not_permitted(kinds.CHAT)
        context = peer.context.in_session(messenger.id, session)
        exchange = Exchange(agent, chat.id, text, answer, inactivity_seconds, context, session, response_format)
        self.router.add(exchange)
        try:
            await messenger.send_envelope(chat, wait_seconds=SEND_SECONDS)
            exchange.extend_deadline()
            yield exchange
        finally:
            if exchange.second_sending is not None:
                exchange.second_sending.cancel()
            del self.router.exchanges[exchange.chat_id]
            self.router.answer_ids.difference_update(exchange.answer_ids)
            await self._cancel(exchange)

    def _ask_without_session(self, exchange: Exchange) -> None:
        """Ask in the agent's own conversation.

        Forgets the old id at once, so that a second refusal has no effect.
        """
        payload: dict[str, Any] = {"text": exchange.text}
        if exchange.response_format is not None:
            payload["response_format"] = exchange.response_format
        chat = self._messenger.draft(kinds.CHAT, payload, to=(exchange.agent,))
        del self.router.exchanges[exchange.chat_id]
        peer = self._messenger.peers.get(exchange.agent, Peer(exchange.agent))
        exchange.leave_session(chat.id, peer.context)
        self.router.add(exchange)
        exchange.second_sending = anyio.CancelScope()
        self._messenger.session.start_soon(self._send_again, exchange, chat, exchange.second_sending)

    async def _send_again(self, exchange: Exchange, chat: Envelope, sending: anyio.CancelScope) -> None:
        """Send the question unless its reader leaves first."""
        with sending:
            try:
                await self._messenger.send_envelope(chat, wait_seconds=SEND_SECONDS)
                exchange.extend_deadline()
            except (GatewayError, NotPermitted) as error:
                exchange.fail("connection_lost", str(error))

    def may_use_tools(self, agent: str) -> bool:
        """Return whether an agent has called a tool, or may call or propose one."""
        peer = self._messenger.peers.get(agent)
        held = CapabilitySet(peer.capabilities if peer is not None else ())
        return agent in self.router.tool_users or any(
            held.allows(Envelope.write(kind, id="", ts="", sender=agent, payload={"method": "tools/call"}))
            for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)
        )

    async def cancel_all(self) -> None:
        """Cancel all open questions, because their asker leaves the space."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for exchange in self.router.exchanges.values():
                    tasks.start_soon(self._cancel, exchange)

    async def _cancel(self, exchange: Exchange) -> None:
        """Cancel the question, and the reasoning about it if that began, unless the agent has finished."""
        if not exchange.needs_cancel:
            return
        exchange.needs_cancel = False
        if exchange.reasoning_id is None:
            self.router.abandon(exchange)
        to, about = (exchange.agent,), (exchange.chat_id,)
        draft = self._messenger.draft(kinds.CHAT_CANCEL, _ASKER_LEFT, to=to, correlation_id=about)
        await self._messenger.send_even_if_cancelled(draft)
        if exchange.reasoning_id is not None:
            with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                await self._cancel_reasoning(exchange.agent, exchange.reasoning_id)

    async def _cancel_reasoning(self, agent: str, reasoning_id: str) -> None:
        with suppress(MewAgentError):
            await self._messenger.send(kinds.REASONING_CANCEL, _ASKER_LEFT, to=agent, context=reasoning_id)


class AnswerStream:
    """The answer to one question: `await` it, or read it with `async for`. Each use asks the question again."""

    def __init__(self, answers: AgentAnswers, agent: str, text: str, inactivity_seconds: float) -> None:
        self.agent, self.text = agent, text
        self._answers, self._inactivity_seconds = answers, inactivity_seconds

    async def __aiter__(self) -> "AsyncIterator[AnswerEvent]":
        from mew_agent.participant.answers.builder import AnswerBuilder, Answered

        answer, seconds = AnswerBuilder(may_use_tools=self._answers.may_use_tools(self.agent)), self._inactivity_seconds
        async with self._answers.open(self.agent, self.text, answer, inactivity_seconds=seconds) as exchange:
            while (event := await exchange.next_event()) is not None:
                yield event
        yield Answered(answer.text, self.agent, exchange.context, exchange.reported_failure)

    def __await__(self) -> "Generator[Any, Any, Answered]":
        return self._last_event().__await__()

    async def _last_event(self) -> "Answered":
        last: AnswerEvent | None = None
        async for event in self:
            last = event
        return cast("Answered", last)  # all other ends raise
