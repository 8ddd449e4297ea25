"""Decides which envelope and which stream frame belongs to which question that is asked of an agent.

Owns the open exchanges, the owners of streams, and the notices about each agent. Sends nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, value_at
from mew_protocol.payloads.chat import TurnReport, chat_refusal_in
from mew_protocol.payloads.fit import WOULD_OVERFLOW
from mew_protocol.payloads.participant import is_whole_status
from pydantic import ValidationError

from mew_agent.participant.answers.builder import AnswerBuilder, AnswerEvent
from mew_agent.participant.answers.context_notes import PAUSED_TEXT, ContextNote, ContextNotes
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.gaps import StreamGap
from mew_agent.participant.peers import PeerChanges, PeerContext, Peers, StreamOwners
from mew_agent.participant.requests import is_refusal

MAX_ABANDONED: Final = 200
PIECE_MISSING: Final = "a piece of the text was lost on the way; the rest comes with the whole answer"
CALL_RESTARTED: Final = "interrupted by a control; the answer begins again"
TOO_LONG: Final = (
    "the question does not fit into the context of '{agent}', which holds it; deliver it as `reference`, `digest` or"
    " `anyway`"
)


class AnswerRouter:
    """Routes everything that arrives, in order, after `peers` has read it."""

    def __init__(self, me: str, peers: Peers) -> None:
        self._me = me
        self._peers = peers
        self.exchanges: dict[str, Exchange] = {}
        """Open exchanges by the id of their question, oldest first."""
        self.tool_users: set[str] = set()
        """Agents that have called a tool."""
        self._abandoned: BoundedDict[str, str] = BoundedDict(MAX_ABANDONED)
        self._notes: dict[str, ContextNotes] = {}
        self._missed_notes: dict[str, ContextNote] = {}
        self._asked: set[str] = set()
        self._streams = StreamOwners()

    # -- exchanges ---------------------------------------------------------------------------------------

    def add(self, exchange: Exchange) -> None:
        """Open an exchange. It begins with notices about what the agent is doing, or did since the last question."""
        agent = exchange.agent
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
        """Remember a question whose sender stopped waiting before the agent began; see `receive`."""
        self._abandoned[exchange.chat_id] = exchange.agent

    def fail_all(self, code: str, problem: str) -> None:
        """End all open exchanges, although their agents may be working on them. `code` as in `NoAnswer`."""
        for exchange in self.exchanges.values():
            exchange.fail(code, problem, needs_cancel=True)

    def _open_with(self, agent: str | None) -> list[Exchange]:
        """Return the open exchanges with an agent, oldest first."""
        return [one for one in self.exchanges.values() if one.agent == agent and not one.is_over]

    # -- envelopes ---------------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, changes: PeerChanges) -> bool:
        """Route an envelope. Returns whether it starts a reasoning about an abandoned question.

        After a gap in the history, an answer may be lost and is not waited for.
        """
        for peer in changes.left:
            self._notes.pop(peer.id, None)
            for exchange in self._open_with(peer.id):
                exchange.agent_left()
        for peer in changes.joined:
            for exchange in self._open_with(peer.id):
                exchange.extend_deadline()  # an agent that returns continues with the questions in its inbox
        if changes.gap is not None:
            self.fail_all("connection_lost", "the connection to the space was lost during the answer")
        self._streams.receive(envelope)
        match envelope.kind:
            case kinds.SYSTEM_ERROR if is_refusal(envelope):
                self._receive_refusal(envelope)
            case kinds.PARTICIPANT_STATUS if is_whole_status(envelope) and envelope.sender in self._peers:
                self._receive_status(envelope, self._peers[envelope.sender].context)
            case _:
                return self._receive_from_agent(envelope)
        return False

    def _receive_refusal(self, envelope: Envelope) -> None:
        why = envelope.body.get("message") or envelope.body.get("error")
        for chat_id in envelope.correlation_ids:
            if (exchange := self.exchanges.get(chat_id)) is not None:
                exchange.fail("refused", f"the gateway refused the question to '{exchange.agent}': {why}")

    def _receive_status(self, status: Envelope, context: PeerContext) -> None:
        agent = status.sender
        note = self._notes.setdefault(agent, ContextNotes()).update(context)
        exchanges = [one for one in self._open_with(agent) if not one.has_own_session]
        for exchange in self._open_with(agent):
            if context.status == "restarted" and status.refers_to(exchange.chat_id):
                exchange.agent_restarted()
            if exchange.has_own_session:
                exchange.update_session(context.in_session(self._me, exchange.session))
        for exchange in exchanges:
            exchange.context = context
            exchange.usage.update(context)
            if exchange.is_queued or note is not None:
                exchange.extend_deadline()
            if note is not None:
                exchange.add(exchange.answer.add_notice(note.text))
        if note is not None and not exchanges and agent in self._asked:
            self._missed_notes[agent] = note

    def _receive_from_agent(self, envelope: Envelope) -> bool:
        for exchange in self._open_with(envelope.sender):
            if exchange.is_queued or exchange.is_about(envelope.context):
                exchange.extend_deadline()
        match envelope.kind:
            case kinds.REASONING_START:
                return self._receive_reasoning_start(envelope)
            case kinds.REASONING_CONCLUSION if envelope.body.get("cancelled"):
                self._receive_cancelled_reasoning(envelope)
            case kinds.CHAT_ACKNOWLEDGE:
                self._receive_acknowledgement(envelope)
            case kinds.CHAT:
                self._receive_answer(envelope)
            case _:
                pass
        return False

    def _receive_reasoning_start(self, start: Envelope) -> bool:
        for exchange in self._open_with(start.sender):
            # Some agents do not correlate; they repeat the question.
            repeats_question = not start.correlation_ids and start.body.get("input") == exchange.text
            if start.refers_to(exchange.chat_id) or repeats_question:
                exchange.begin(start.id)
                return False
        unwanted = [chat_id for chat_id in start.correlation_ids if self._abandoned.get(chat_id) == start.sender]
        for chat_id in unwanted:
            self._abandoned.pop(chat_id, None)
        return bool(unwanted)

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
                code = "program_failed" if envelope.body.get("code") == "program_failed" else "agent_busy"
                exchange.fail(code, f"'{exchange.agent}' refused the question: {why}")
            elif status == WOULD_OVERFLOW and _needs_choice(envelope):
                exchange.fail(WOULD_OVERFLOW, TOO_LONG.format(agent=exchange.agent))
            elif status in ("queued", WOULD_OVERFLOW):
                exchange.is_queued = exchange.is_queued or status == "queued" or bool(envelope.body.get("held"))
                exchange.extend_deadline()
            else:
                exchange.begin(None)

    def _receive_answer(self, chat: Envelope) -> None:
        text = chat.body.get("text")
        if not isinstance(text, str) or not (chat.correlation_ids or chat.names(self._me)):
            return
        for exchange in self._open_with(chat.sender):
            if chat.refers_to(exchange.chat_id) or not chat.correlation_ids:
                exchange.finish(text, chat.id, _turn_in(chat), chat.ts)
                return

    # -- frames ------------------------------------------------------------------------------------------

    def receive_frame(self, frame: StreamFrame) -> None:
        """Route a frame of an agent's reasoning stream. Frames of streams that the agent does not own are ignored."""
        exchanges = self._open_with(self._streams.owner(frame.stream_id))
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
        """Notify the readers of a stream that frames are missing, rather than join the rest of its text."""
        for exchange in self._open_with(self._streams.owner(gap.stream_id)):
            if exchange.reasoning_id is not None:
                exchange.add(exchange.answer.skip_call(PIECE_MISSING))

    def _events_in(self, exchange: Exchange, frame: Mapping[str, Any]) -> Sequence[AnswerEvent]:
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


def _tool_call(answer: AnswerBuilder, thought: Mapping[str, Any]) -> Sequence[AnswerEvent]:
    call = object_at(thought, "actionInput")
    arguments = call.get("arguments", "")
    return answer.add_tool_call(
        str(call.get("tool") or "a tool"),
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        call_id=str(call.get("toolCallId") or ""),
        remark=str(thought.get("reasoning") or thought.get("message") or ""),
    )


def _needs_choice(acknowledgement: Envelope) -> bool:
    """Return whether an agent holds a chat that it can make no room for, until its sender says how to deliver it."""
    is_stuck = value_at(acknowledgement.body, "fit", "fits_after_compaction") is False
    return is_stuck and acknowledgement.body.get("held") is True


def _turn_in(chat: Envelope) -> TurnReport | None:
    """Return the `turn` of an answer; None if it has none that can be read."""
    try:
        return TurnReport.model_validate(chat.body["turn"]) if "turn" in chat.body else None
    except ValidationError:
        return None
