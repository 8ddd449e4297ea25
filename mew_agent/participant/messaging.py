"""What a participant says to its peers, and what it asks of them.

Owns that nothing is sent which its capabilities do not cover, or which must wait while it is paused. How the single
ways of asking go is the business of `asking`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.ids import GATEWAY, STREAM_GATEWAY
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.participant import Compact, CompactDone, Status
from mew_protocol.timestamp import wire_timestamp
from pydantic import BaseModel

from mew_agent.errors import BadAnswer, NotPermitted, PeerAbsent
from mew_agent.participant.answers.asking import SILENCE_SECONDS, Exchanges
from mew_agent.participant.answers.events import Asking
from mew_agent.participant.client import SEND_TIMEOUT_SECONDS, Client
from mew_agent.participant.compactions import CompactionQuestion
from mew_agent.participant.controls import Control
from mew_agent.participant.discovery import Discovery
from mew_agent.participant.peers import Peer, Peers
from mew_agent.participant.proposals import PeerRequests, Waits
from mew_agent.participant.requests import Question, Questions
from mew_agent.tools.results import ToolResult

Answer = TypeVar("Answer", bound=Payload)


class Saying:
    """See the module. What it needs is put in place by `Participant`."""

    id: str
    peers: Peers
    capabilities: CapabilitySet
    control: Control
    requests: PeerRequests
    discovery: Discovery
    exchanges: Exchanges
    _client: Client
    _questions: Questions

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Whether our capabilities cover such an envelope."""
        return self.capabilities.allows(self.draft(kind, payload, to=to))

    async def send(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        wait_seconds: float = SEND_TIMEOUT_SECONDS,
    ) -> Envelope:
        """Send one envelope and return it as sent. While paused, what may not be said waits for the resume.

        Raises `NotPermitted` without a capability that covers it, `NotConnected` when no gateway came back within
        `wait_seconds`.
        """
        addressees = (to,) if isinstance(to, str) else tuple(to)
        envelope = self.draft(kind, payload, to=addressees, correlation_id=correlation_id, context=context)
        await self.post(envelope, wait_seconds=wait_seconds)
        return envelope

    async def post(self, envelope: Envelope, *, wait_seconds: float = SEND_TIMEOUT_SECONDS) -> None:
        """Send an envelope that was drafted; see `send`."""
        self._refuse_unpermitted(envelope)
        if envelope.kind not in kinds.ALLOWED_WHILE_PAUSED:
            await self.control.until_active()
        await self._client.send(envelope, wait_seconds=wait_seconds)

    async def chat(
        self, text: str, *, to: tuple[str, ...] | list[str] | str = (), correlation_id: tuple[str, ...] = ()
    ) -> Envelope:
        """Say something, to everybody unless `to` names somebody."""
        return await self.send(kinds.CHAT, {"text": text}, to=to, correlation_id=correlation_id)

    async def send_frame(self, frame: bytes | str, *, wait_seconds: float = SEND_TIMEOUT_SECONDS) -> None:
        """Send a raw stream frame (`protocol.encode_frame`). Raises `NotConnected` after `wait_seconds`."""
        await self._client.send(frame, wait_seconds=wait_seconds)

    async def ask(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: str,
        answer: str,
        timeout_seconds: float = 120.0,
    ) -> Envelope:
        """Send an envelope and wait for `to`'s answer of kind `answer` that names it.

        Raises a `PeerError` when there is none (`PeerAbsent` at once for nobody who is here, and as soon as the peer
        leaves, `PeerTimeout`, `Refused` when the gateway did not deliver it, `AnswerLost`), and what `send` raises.
        """
        question = Question(self.draft(kind, payload, to=(to,)), to, answer)
        await self._wait_for(question, timeout_seconds)
        return question.answered(timeout_seconds)

    @asynccontextmanager
    async def posing(self, question: Question) -> AsyncIterator[None]:
        """Send an envelope that waits for its answer; while the block runs, what arrives may be it.

        Raises `NotPermitted`, `PeerAbsent` where there is nobody to answer it, and `NotConnected`.
        """
        self._refuse_unpermitted(question.sent)
        if question.peer not in self.peers and question.peer not in (self.id, GATEWAY, STREAM_GATEWAY):
            raise PeerAbsent(question.peer)
        with self._questions.open(question):
            await self.post(question.sent)
            question.is_sent = True
            yield

    def asking(self, agent: str, text: str, *, silence_seconds: float = SILENCE_SECONDS) -> Asking:
        """Ask an agent: `await` it for the `Answered`, or read it with `async for`, piece by piece as it is written.

        Pieces are `Thinking`, `Writing`, `ToolCalled`, `Noticed`, and at last `Answered`. Whoever stops reading before
        that stops the agent. Raises, when it is awaited or read, `NoAnswer` when the agent will not answer or shows no
        sign of working on it for `silence_seconds`; `PeerAbsent`, and what `send` raises.
        """
        return Asking(self.exchanges, agent, text, silence_seconds)

    async def compact(
        self, peer: str, *, reason: str | None = None, target_tokens: int | None = None, timeout_seconds: float = 120.0
    ) -> CompactDone:
        """Ask a peer to compact its context and wait until it has. Check `skipped` and `freed_tokens`.

        Peers that may not tell what they freed leave that out. Raises what `ask` raises, and `BadAnswer`.
        """
        wanted = Compact(reason=reason, target_tokens=target_tokens)
        question = CompactionQuestion(self.draft(kinds.PARTICIPANT_COMPACT, wanted, to=(peer,)), peer)
        await self._wait_for(question, timeout_seconds)
        return question.outcome(timeout_seconds)

    async def request_status(self, peer: str, *, timeout_seconds: float = 30.0) -> Status:
        """Ask a peer for its status of this moment."""
        answer = await self.ask(
            kinds.PARTICIPANT_REQUEST_STATUS,
            {},
            to=peer,
            answer=kinds.PARTICIPANT_STATUS,
            timeout_seconds=timeout_seconds,
        )
        return _read(answer, Status)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> Any:
        """Make an MCP request of a peer and return its result, as the peer shaped it.

        It goes as an `mcp/request` where our capabilities cover that, else as an `mcp/proposal` that somebody who may
        has to fulfil. Raises `NotPermitted` where we may do neither, `PeerFailed` for an error of the peer's,
        `Rejected`, and what `ask` raises.
        """
        return await self.requests.request(peer, method, params, waits=waits)

    async def propose(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> Any:
        """Propose an MCP request to a peer and return its result once somebody has fulfilled it; see `request`.

        The proposal is withdrawn when nobody does in time, or when the caller is cancelled.
        """
        return await self.requests.propose(peer, method, params, waits=waits)

    async def call_tool(
        self, peer: str, name: str, arguments: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> ToolResult:
        """Call a peer's tool, by request or proposal. A tool that failed has a result with `is_error`.

        Raises what `request` raises.
        """
        params = {"name": name, "arguments": dict(arguments or {})}
        return ToolResult.from_peer(await self.request(peer, "tools/call", params, waits=waits))

    async def discover(self, peer: str) -> Peer:
        """Ask a peer what it offers, now, and return it with its `tools`, `resources` and `prompts`.

        Raises what `request` raises when it does not tell its tools.
        """
        return await self.discovery.discover(peer)

    def draft(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None,
        *,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
    ) -> Envelope:
        """An envelope of ours with a new id, not sent."""
        return Envelope.write(
            kind,
            id=str(uuid4()),
            ts=timestamp(),
            sender=self.id,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
            context=context,
        )

    async def _wait_for(self, question: Question, timeout_seconds: float) -> None:
        with anyio.move_on_after(timeout_seconds):
            async with self.posing(question):
                await question.settled.wait()

    def _refuse_unpermitted(self, envelope: Envelope) -> None:
        if not self.capabilities.allows(envelope):
            raise NotPermitted(self.id, envelope.kind)


def _read(answer: Envelope, model: type[Answer]) -> Answer:
    try:
        return read_payload(answer, model)
    except PayloadError as error:
        raise BadAnswer(answer.sender, str(error)) from None


def timestamp() -> str:
    """Now, as the wire writes it: RFC 3339 with milliseconds, UTC."""
    return wire_timestamp(datetime.now(UTC))
