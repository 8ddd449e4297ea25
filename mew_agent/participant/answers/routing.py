"""What is heard in the space of open questions: which envelope and which frame belongs to which of them.

Owns the open exchanges, who owns which stream, and the notices of each agent. Sends nothing.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY, STREAM_GATEWAY
from mew_protocol.payloads.participant import is_whole_status

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.exchange import Assembly, Exchange
from mew_agent.participant.answers.notices import Notice, Notices
from mew_agent.participant.peers import PeerContext, Peers

MAX_ABANDONED: Final = 200
CALL_AGAIN: Final = "stopped there by a control; the answer begins anew"


class Listening:
    """Feed it everything that arrives, in order, after `peers` has taken it in."""

    def __init__(self, me: str, peers: Peers) -> None:
        self._me = me
        self._peers = peers
        self.exchanges: dict[str, Exchange[Any]] = {}
        """Open exchanges by the id of their question, oldest first."""
        self.users_of_tools: set[str] = set()
        """Agents that were seen calling a tool."""
        self._abandoned: dict[str, str] = {}
        self._notices: dict[str, Notices] = {}
        self._missed: dict[str, Notice] = {}
        self._asked: set[str] = set()
        self._owners: dict[str, str] = {}

    # -- exchanges ---------------------------------------------------------------------------------------

    def add(self, exchange: Exchange[Any]) -> None:
        """A question is about to be asked. What happens to the agent, or happened meanwhile, is told first."""
        agent = exchange.agent
        self.exchanges[exchange.chat_id] = exchange
        self._asked.add(agent)
        notices = self._notices.setdefault(agent, Notices(exchange.context))
        missed = self._missed.pop(agent, None)
        if notices.is_compacting:
            exchange.put(exchange.answer.notice(notices.begun_text()))
        elif missed is not None and missed.stage == "ended":
            exchange.put(exchange.answer.notice(f"meanwhile: {missed.text}"))
        if notices.is_paused:
            exchange.put(exchange.answer.notice(notices.paused_text()))

    def abandon(self, exchange: Exchange[Any]) -> None:
        """The asker left before the agent began; `hear` tells when it does."""
        self._abandoned[exchange.chat_id] = exchange.agent
        while len(self._abandoned) > MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    def fail_all(self, code: str, problem: str) -> None:
        """No open exchange will be answered, although its agent may be at work for it."""
        for exchange in self.exchanges.values():
            exchange.fail(NoAnswer(exchange.agent, code, problem), is_to_be_stopped=True)

    def _of(self, agent: str) -> list[Exchange[Any]]:
        """The open exchanges with an agent, oldest first."""
        return [one for one in self.exchanges.values() if one.agent == agent and not one.is_over]

    # -- envelopes ---------------------------------------------------------------------------------------

    def hear(self, envelope: Envelope) -> bool:
        """Take in an envelope. Returns whether it begins a reasoning that nobody waits for any more."""
        if envelope.sender == self._me:
            return False
        is_gateways = envelope.sender in (GATEWAY, STREAM_GATEWAY)
        match envelope.kind:
            case kinds.SYSTEM_WELCOME if envelope.is_for(self._me):
                self._owners = dict(_stream_owners(envelope.body.get("active_streams")))
            case kinds.SYSTEM_PRESENCE:
                self._presence(envelope.body)
            case kinds.SYSTEM_ERROR if is_gateways:
                self._refused(envelope)
            case kinds.STREAM_OPEN if is_gateways:
                self._owners |= _stream_owners([dict(envelope.body)])
            case kinds.STREAM_CLOSE:
                self._owners.pop(str(envelope.body.get("stream_id")), None)
            case kinds.PARTICIPANT_STATUS if is_whole_status(envelope) and envelope.sender in self._peers:
                self._status(envelope.sender, self._peers[envelope.sender].context)
            case _:
                return self._hear_agent(envelope)
        return False

    def _presence(self, body: Mapping[str, Any]) -> None:
        member = body.get("participant")
        name = member.get("id") if isinstance(member, Mapping) else None
        if body.get("event") == "leave" and isinstance(name, str):
            self._notices.pop(name, None)
            for exchange in self._of(name):
                exchange.fail(NoAnswer(name, "agent_left", f"'{name}' left the space before it answered"))

    def _refused(self, envelope: Envelope) -> None:
        for chat_id in envelope.correlation_ids:
            if chat_id in self.exchanges:
                why = envelope.body.get("message") or envelope.body.get("error")
                exchange = self.exchanges[chat_id]
                told = f"the gateway did not pass the question on: {why}"
                exchange.fail(NoAnswer(exchange.agent, "refused", told))

    def _status(self, agent: str, context: PeerContext) -> None:
        notice = self._notices.setdefault(agent, Notices()).hear(context)
        exchanges = self._of(agent)
        for exchange in exchanges:
            exchange.context = context
            exchange.usage.hear(context)
            if exchange.is_queued or notice is not None:
                exchange.sign_of_life()
            if notice is not None:
                exchange.put(exchange.answer.notice(notice.text))
        if notice is not None and not exchanges and agent in self._asked:
            self._missed[agent] = notice

    def _hear_agent(self, envelope: Envelope) -> bool:
        for exchange in self._of(envelope.sender):
            if exchange.is_queued or exchange.is_about(envelope.context):
                exchange.sign_of_life()
        match envelope.kind:
            case kinds.REASONING_START:
                return self._reasoning_started(envelope)
            case kinds.REASONING_CONCLUSION if envelope.body.get("cancelled"):
                self._reasoning_cancelled(envelope)
            case kinds.CHAT_ACKNOWLEDGE:
                self._acknowledged(envelope)
            case kinds.CHAT:
                self._answered(envelope)
            case _:
                pass
        return False

    def _reasoning_started(self, start: Envelope) -> bool:
        about = set(start.correlation_ids)
        for exchange in self._of(start.sender):
            # Agents exist that do not correlate; they repeat the question.
            if exchange.chat_id in about or (not about and start.body.get("input") == exchange.text):
                exchange.begin(start.id)
                return False
        unwanted = [chat_id for chat_id in about if self._abandoned.get(chat_id) == start.sender]
        for chat_id in unwanted:
            del self._abandoned[chat_id]
        return bool(unwanted)

    def _reasoning_cancelled(self, conclusion: Envelope) -> None:
        for exchange in self._of(conclusion.sender):
            if exchange.is_about(conclusion.context):
                why = conclusion.body.get("reason") or "no reason given"
                exchange.fail(NoAnswer(exchange.agent, "cancelled", f"'{exchange.agent}' was told to stop: {why}"))

    def _acknowledged(self, envelope: Envelope) -> None:
        status = str(envelope.body.get("status") or "")
        for exchange in self._of(envelope.sender):
            if not envelope.refers_to(exchange.chat_id):
                continue
            if status.startswith("refused"):
                why = status.partition(":")[2].strip() or "no reason given"
                exchange.fail(NoAnswer(exchange.agent, "agent_busy", f"'{exchange.agent}' refused the question: {why}"))
            elif status == "queued":
                exchange.is_queued = True
                exchange.sign_of_life()
            else:
                exchange.begin(None)

    def _answered(self, chat: Envelope) -> None:
        text = chat.body.get("text")
        about = chat.correlation_ids
        if not isinstance(text, str) or not (about or chat.names(self._me)):
            return
        for exchange in self._of(chat.sender):
            if exchange.chat_id in about or not about:
                exchange.end(text)
                return

    # -- frames ------------------------------------------------------------------------------------------

    def hear_frame(self, frame: StreamFrame) -> None:
        """Take in a piece of somebody's thinking: only its own stream speaks for an agent."""
        owner = self._owners.get(frame.stream_id)
        exchanges = self._of(owner) if owner is not None else []
        if owner is None or not exchanges:
            return
        value = _json_object(frame.data)
        for exchange in exchanges:
            if exchange.is_about(value.get("context")):
                exchange.sign_of_life()
                exchange.put(self._shown(owner, exchange.answer, value))
            elif exchange.is_queued:
                exchange.sign_of_life()

    def _shown(self, agent: str, answer: Assembly[Any], frame: Mapping[str, Any]) -> list[Any]:
        value = frame.get("value")
        match frame.get("type"), value:
            case "token", str():
                return answer.whole(value) if frame.get("final") is True else answer.token(value)
            case "thinking", str():
                return answer.thinking(value)
            case "status", _ if frame.get("event") == "start" and isinstance(frame.get("tools"), int):
                answer.expect_tools(is_likely=frame["tools"] > 0)
                return []
            case "notice", _ if frame.get("event") == "call_again":
                return answer.begin_again(CALL_AGAIN)
            case "thought", dict() if value.get("action") == "tool":
                self.users_of_tools.add(agent)
                return _tool_call(answer, value)
            case _:
                return []


def _tool_call(answer: Assembly[Any], thought: Mapping[str, Any]) -> list[Any]:
    call = thought.get("actionInput")
    call = call if isinstance(call, Mapping) else {}
    arguments = call.get("arguments", "")
    return answer.tool_call(
        str(call.get("tool") or "a tool"),
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        call_id=str(call.get("toolCallId") or ""),
        remark=str(thought.get("reasoning") or thought.get("message") or ""),
    )


def _json_object(data: bytes | str) -> dict[str, Any]:
    """A frame's data; empty when it is something else."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _stream_owners(streams: object) -> Iterator[tuple[str, str]]:
    for stream in streams if isinstance(streams, list) else ():
        if isinstance(stream, Mapping) and isinstance(stream.get("stream_id"), str):
            yield stream["stream_id"], str(stream.get("owner") or "")
