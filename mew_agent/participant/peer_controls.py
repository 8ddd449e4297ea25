"""Asks peers to change or report their context: compactions, pins, status requests; and whether a text fits there.

Owns how the answer to each control is read. Participants inherit these methods.
"""

from mew_protocol import kinds
from mew_protocol.context_report import PinReport, pin_hash
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.fit import Delivery, Fit, TextBasis, fit_in
from mew_protocol.payloads.participant import (
    Compact,
    CompactDone,
    PinnedText,
    PinRequest,
    RequestStatus,
    Status,
    UnpinRequest,
    refusal_in,
)
from pydantic import BaseModel

from mew_agent.errors import BadAnswer, ControlRefused, PeerAbsent
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.requests import CompactionRequest, read_answer
from mew_agent.tokens.projection import Calibration
from mew_agent.tokens.sizes import Sizes


class PeerControls:
    """The controls that a participant sends to its peers."""

    def __init__(self, messenger: Messenger) -> None:
        self.messenger = messenger

    async def compact(
        self,
        peer: str,
        *,
        reason: str | None = None,
        target_tokens: int | None = None,
        target_percent: int | None = None,
        timeout_seconds: float = 120.0,
    ) -> CompactDone:
        """Ask a peer to compact its context and wait until it has. Check `skipped` and `freed_tokens`.

        `target_tokens` is the size to compact to, `target_percent` the same as a part of the window. A peer without the
        capability `participant/compact-done` does not report `freed_tokens`. Raises what `ask` raises, and `BadAnswer`.
        """
        payload = Compact(reason=reason, target_tokens=target_tokens, target_percent=target_percent)
        request = CompactionRequest(self.messenger.draft(kinds.PARTICIPANT_COMPACT, payload, to=(peer,)), peer)
        await self.messenger.send_and_wait(request, timeout_seconds)
        return request.outcome(timeout_seconds)

    async def pin(self, peer: str, text: str, *, timeout_seconds: float = 30.0) -> PinReport:
        """Pin a text in a peer's context: it stays verbatim in every prompt. Repeating it changes nothing.

        Returns the pin as the peer reports it. Raises `ControlRefused` if it does not fit, and what `ask` raises.
        """
        status = await self._control(kinds.PARTICIPANT_PIN, PinRequest(text=text), peer, timeout_seconds)
        pins = status.context.pins if status.context is not None else None
        found = next((pin for pin in pins or () if pin.hash == pin_hash(text)), None)
        if found is None:
            raise BadAnswer(peer, "its report does not show the pin")
        return found

    async def unpin(self, peer: str, pin: str, *, timeout_seconds: float = 30.0) -> None:
        """Remove a pin by its id or its whole text. Raises what `pin` raises."""
        await self._control(kinds.PARTICIPANT_UNPIN, UnpinRequest(pin=pin), peer, timeout_seconds)

    async def pins(self, peer: str, *, timeout_seconds: float = 30.0) -> tuple[PinnedText, ...]:
        """Ask a peer for its pins with their texts. Raises what `ask` raises, and `BadAnswer`."""
        request = RequestStatus(fields=("pins",))
        return (await self._ask_status(kinds.PARTICIPANT_REQUEST_STATUS, request, peer, timeout_seconds)).pins or ()

    async def would_fit(self, peer: str, text: str | int) -> Fit:
        """Whether a text, or a number of tokens, fits into a peer's context, by its last report.

        The size of a text is a `heuristic`: only the peer knows its model's tokens. `fits` is None if it is not known;
        the peer decides by its own figures when a chat arrives. Raises `PeerAbsent`.
        """
        known = self.messenger.peers.get(peer)
        if known is None:
            raise PeerAbsent(peer)
        basis: TextBasis = "given"
        if isinstance(text, str):
            size = await Sizes().measure(text)
            text, basis = Calibration().project(size.units), "heuristic"
        return fit_in(known.context.as_status(), text, basis, as_of=known.context.at or None)

    async def deliver(self, peer: str, chat_id: str, how: Delivery) -> Envelope:
        """Say how a peer is to deliver our chat that it holds because it does not fit. Raises what `send` raises.

        As `reference` it reads parts of the text with a tool, as `digest` the sentences that matter most; `anyway`
        delivers all of it, and `cancel` none.
        """
        return await self.messenger.send(kinds.CHAT, {"text": how, "deliver": how}, to=peer, correlation_id=(chat_id,))

    async def _control(self, kind: str, payload: BaseModel, peer: str, timeout_seconds: float) -> Status:
        """Send a control and return the status that answers it. Raises `ControlRefused` and what `ask` raises."""
        status = await self._ask_status(kind, payload, peer, timeout_seconds)
        if (problem := refusal_in(status.status)) is not None:
            raise ControlRefused(peer, kind, problem)
        return status

    async def request_status(self, peer: str, *, timeout_seconds: float = 30.0) -> Status:
        """Ask a peer for its current status. Raises what `ask` raises, and `BadAnswer`."""
        return await self._ask_status(kinds.PARTICIPANT_REQUEST_STATUS, RequestStatus(), peer, timeout_seconds)

    async def _ask_status(self, kind: str, payload: BaseModel, peer: str, timeout_seconds: float) -> Status:
        answer = kinds.PARTICIPANT_STATUS
        envelope = await self.messenger.ask(kind, payload, to=peer, answer=answer, timeout_seconds=timeout_seconds)
        return read_answer(envelope, Status)
