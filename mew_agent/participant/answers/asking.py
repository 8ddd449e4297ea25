"""Asking agents: a question is said, what happens to it is followed, and an agent whose asker went away is stopped.

Owns the open exchanges of one participant. What an answer is put together as is the asker's choice; which envelope
belongs to which question is `listening`'s matter.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope

from mew_agent.errors import GatewayError, MewAgentError, NotPermitted, PeerAbsent
from mew_agent.participant.answers.exchange import Assembly, Exchange
from mew_agent.participant.answers.routing import Listening
from mew_agent.participant.answers.usage import CallUsage
from mew_agent.participant.messenger import Voice

SILENCE_SECONDS: Final = 300.0
"""How long an agent may show no sign of working on a question."""

SEND_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 2.0
_ASKER_LEFT: Final = {"reason": "the asker left"}

P = TypeVar("P")


class Exchanges:
    """Questions of one participant to agents."""

    def __init__(self, me: Voice) -> None:
        self._me = me
        self._listening = Listening(me.id, me.peers)

    def __len__(self) -> int:
        return len(self._listening.exchanges)

    @asynccontextmanager
    async def open(
        self, agent: str, text: str, answer: Assembly[P], *, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[Exchange[P]]:
        """Say something to an agent, and read its answer while the block runs. Leaving it early stops the agent.

        Raises `PeerAbsent`, `NotPermitted` and `NotConnected` when it cannot be said.
        """
        me = self._me
        if agent not in me.peers:
            raise PeerAbsent(agent)
        chat = me.draft(kinds.CHAT, {"text": text}, to=(agent,))
        if not me.capabilities.allows(chat):
            raise NotPermitted(me.id, kinds.CHAT)
        context = me.peers[agent].context
        exchange = Exchange(agent, chat.id, text, answer, CallUsage(context), silence_seconds, context)
        self._listening.add(exchange)
        try:
            await me.post(chat, wait_seconds=SEND_SECONDS)
            exchange.sign_of_life()
            yield exchange
        finally:
            del self._listening.exchanges[chat.id]
            if exchange.is_to_be_stopped:
                with anyio.CancelScope(shield=True), anyio.move_on_after(GOODBYE_SECONDS):
                    await self._stop(exchange)

    def may_use_tools(self, agent: str) -> bool:
        """Whether an agent was seen calling a tool, or its capabilities let it call or propose to call one."""
        peer = self._me.peers.get(agent)
        held = CapabilitySet(peer.capabilities if peer is not None else ())
        return agent in self._listening.users_of_tools or any(
            held.allows(Envelope.write(kind, id="", ts="", sender=agent, payload={"method": "tools/call"}))
            for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)
        )

    def fail_all(self, code: str, problem: str) -> None:
        """No open question will be answered; `code` as in `NoAnswer`."""
        self._listening.fail_all(code, problem)

    # -- what happens ------------------------------------------------------------------------------------

    def rejoined(self) -> None:
        """After a reconnect nobody knows what was missed: waiting on would be guessing."""
        self.fail_all("connection_lost", "the connection to the space broke during the answer")

    def receive(self, envelope: Envelope) -> None:
        """An envelope arrived, and `peers` have taken it in."""
        if self._listening.hear(envelope):
            self._me.start_soon(self._cancel_reasoning, envelope.sender, envelope.id)

    def receive_frame(self, frame: StreamFrame) -> None:
        """A stream frame arrived."""
        self._listening.hear_frame(frame)

    # -- inside ------------------------------------------------------------------------------------------

    async def _stop(self, exchange: Exchange[P]) -> None:
        """Nobody reads any more: take the question back, and stop the thinking about it."""
        with suppress(GatewayError, NotPermitted):
            about = (exchange.chat_id,)
            await self._me.send(kinds.CHAT_CANCEL, _ASKER_LEFT, to=exchange.agent, correlation_id=about)
        if exchange.reasoning_id is None:
            self._listening.abandon(exchange)
        else:
            await self._cancel_reasoning(exchange.agent, exchange.reasoning_id)

    async def _cancel_reasoning(self, agent: str, reasoning_id: str) -> None:
        with suppress(MewAgentError):
            await self._me.send(kinds.REASONING_CANCEL, _ASKER_LEFT, to=agent, context=reasoning_id)
