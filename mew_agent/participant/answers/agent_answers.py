"""Asks agents for answers: sends the question, follows the answer, and cancels the agent's work when the caller leaves.

Owns the questions of one participant to agents. How an answer is built is the caller's choice of `AnswerBuilder`; which
envelope belongs to which question is decided in `router`.
"""

import math
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope

from mew_agent.errors import GatewayError, MewAgentError, NotPermitted, PeerAbsent
from mew_agent.participant.answers.builder import AnswerBuilder, Answered, AnswerEvent
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.answers.router import AnswerRouter
from mew_agent.participant.dispatcher import Subscriber
from mew_agent.participant.gaps import StreamGap
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.peers import Peer, PeerChanges

INACTIVITY_SECONDS: Final = 300.0
"""How long an agent may show no activity before its answer is given up."""

SEND_SECONDS: Final = 10.0
CANCEL_SECONDS: Final = 2.0
_ASKER_LEFT: Final = {"reason": "the asker left"}


class AgentAnswers(Subscriber):
    """The open questions of one participant to agents."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._router = AnswerRouter(messenger.id, messenger.peers)

    def __len__(self) -> int:
        return len(self._router.exchanges)

    @asynccontextmanager
    async def open(
        self,
        agent: str,
        text: str,
        answer: AnswerBuilder,
        *,
        inactivity_seconds: float = INACTIVITY_SECONDS,
        session: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Exchange]:
        """Chat to an agent and yield its answer; leaving early cancels its work. Raises if the chat is not sent.

        `session` and `response_format` are those of the payload (see `mew_protocol.payloads.chat.Chat`). With an
        infinite `inactivity_seconds`, `agent` may be absent: it answers when it has read the chat.
        """
        messenger = self._messenger
        peer = messenger.peers.get(agent, Peer(agent))
        if agent not in messenger.peers and inactivity_seconds < math.inf:
            raise PeerAbsent(agent)
        payload: dict[str, Any] = {"text": text, "session": session, "response_format": response_format}
        payload = {name: value for name, value in payload.items() if value is not None}
        chat = messenger.draft(kinds.CHAT, payload, to=(agent,))
        if not messenger.capabilities.allows(chat):
            raise NotPermitted(messenger.id, kinds.CHAT)
        context = peer.context.in_session(messenger.id, session)
        exchange = Exchange(agent, chat.id, text, answer, inactivity_seconds, context, session)
        self._router.add(exchange)
        try:
            await messenger.send_envelope(chat, wait_seconds=SEND_SECONDS)
            exchange.extend_deadline()
            yield exchange
        finally:
            del self._router.exchanges[chat.id]
            if exchange.needs_cancel:
                with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS):
                    await self._cancel(exchange)

    def is_answer(self, chat: Envelope) -> bool:
        """Return whether a chat has just answered an open question, so that its reader gets it."""
        return any(exchange.answer_id == chat.id for exchange in self._router.exchanges.values())

    def may_use_tools(self, agent: str) -> bool:
        """Return whether an agent has called a tool, or may send or propose a call."""
        peer = self._messenger.peers.get(agent)
        held = CapabilitySet(peer.capabilities if peer is not None else ())
        return agent in self._router.tool_users or any(
            held.allows(Envelope.write(kind, id="", ts="", sender=agent, payload={"method": "tools/call"}))
            for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)
        )

    def fail_all(self, code: str, problem: str) -> None:
        """End all open questions without an answer; `code` as in `NoAnswer`."""
        self._router.fail_all(code, problem)

    # -- what arrives ------------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """See `Subscriber.receive`."""
        if self._router.receive(envelope, changes):
            self._messenger.session.start_soon(self._cancel_reasoning, envelope.sender, envelope.id)

    def receive_frame(self, frame: StreamFrame) -> None:
        """See `Subscriber.receive_frame`."""
        self._router.receive_frame(frame)

    def receive_gap(self, gap: StreamGap) -> None:
        """See `Subscriber.receive_gap`."""
        self._router.receive_gap(gap)

    async def _cancel(self, exchange: Exchange) -> None:
        """Cancel the question, and the reasoning about it if that began."""
        with suppress(GatewayError, NotPermitted):
            about = (exchange.chat_id,)
            await self._messenger.send(kinds.CHAT_CANCEL, _ASKER_LEFT, to=exchange.agent, correlation_id=about)
        if exchange.reasoning_id is None:
            self._router.abandon(exchange)
        else:
            await self._cancel_reasoning(exchange.agent, exchange.reasoning_id)

    async def _cancel_reasoning(self, agent: str, reasoning_id: str) -> None:
        with suppress(MewAgentError):
            await self._messenger.send(kinds.REASONING_CANCEL, _ASKER_LEFT, to=agent, context=reasoning_id)


@dataclass(frozen=True)
class AnswerStream:
    """The answer to one question: `await` it, or read it with `async for`. Each of these asks the question again."""

    answers: AgentAnswers
    agent: str
    text: str
    inactivity_seconds: float

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        answer, seconds = AnswerBuilder(may_use_tools=self.answers.may_use_tools(self.agent)), self.inactivity_seconds
        async with self.answers.open(self.agent, self.text, answer, inactivity_seconds=seconds) as exchange:
            while (event := await exchange.next_event()) is not None:
                yield event
        yield Answered(answer.text, self.agent, exchange.context)

    def __await__(self) -> Generator[Any, Any, Answered]:
        return self._last_event().__await__()

    async def _last_event(self) -> Answered:
        last: AnswerEvent | None = None
        async for event in self:
            last = event
        assert isinstance(last, Answered)  # every other end raises
        return last
