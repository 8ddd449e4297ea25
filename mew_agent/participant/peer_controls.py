"""Asks peers to change or report their context, to pause, or to leave; invites, removes, grants and revokes.

Reads the answer to each. Participants inherit these methods.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from mew_protocol import kinds
from mew_protocol.context_report import PinReport, pin_hash
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY
from mew_protocol.payloads import retrieval
from mew_protocol.payloads.capability import EndedRights, Grant, Revoke
from mew_protocol.payloads.chat import ChatCancel
from mew_protocol.payloads.participant import (
    CONTROL_ANSWERS,
    Clear,
    Compact,
    CompactDone,
    Forget,
    Pause,
    PinnedText,
    PinRequest,
    RequestStatus,
    Restart,
    Resume,
    Shutdown,
    Status,
    UnpinRequest,
)
from mew_protocol.payloads.read_receipts import ReadReceipt, ReadReceipts, RequestReceipts
from mew_protocol.payloads.text_fit import Delivery, Fit
from mew_settings.roles import invitation
from pydantic import BaseModel

from mew_agent.errors import BadAnswer, ControlRefused, GatewayError, NotPermitted, PeerAbsent, PeerError, Refused
from mew_agent.participant.messenger import (
    Answer,
    CompactionRequest,
    ControlRequest,
    Messenger,
    PendingRequest,
    RevocationRequest,
    read_answer,
)
from mew_agent.participant.unfinished import Unfinished

if TYPE_CHECKING:
    from mew_protocol.payloads.space import InviteAck

ARCHIVE_SECONDS = 60.0
"""Timeout for a peer to list or search removed messages."""

FIT_SECONDS: Final = 5.0
"""How long an agent has to say whether a text fits."""


class PeerControls:
    """The controls that a participant sends to its peers.

    All raise the errors of `ask`, and `ControlRefused` if the peer refuses, for instance because it lacks the
    capability for the answer.
    """

    def __init__(self, messenger: Messenger) -> None:
        self.messenger = messenger
        self.unfinished = Unfinished(messenger.id)
        """The requests that peers work on."""

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

        `target_tokens` is the target size; `target_percent` is the same in percent of the window. A peer without the
        capability `participant/compact-done` does not report `freed_tokens`. Raises the errors of `ask`, and
        `BadAnswer`.
        """
        payload = Compact(reason=reason, target_tokens=target_tokens, target_percent=target_percent)
        request = CompactionRequest(self.messenger.draft(kinds.PARTICIPANT_COMPACT, payload, to=(peer,)), peer)
        await self.messenger.answer_to(request, timeout_seconds)
        return request.outcome(timeout_seconds)

    async def pin(self, peer: str, text: str, *, timeout_seconds: float = 30.0) -> PinReport:
        """Pin a text in a peer's context: it stays verbatim in every prompt. Repeating it changes nothing.

        Returns the pin as the peer reports it. Raises `ControlRefused` if it does not fit, and the errors of `ask`.
        """
        status = await self._ask(peer, kinds.PARTICIPANT_PIN, PinRequest(text=text), Status, timeout_seconds)
        pins = status.context.pins if status.context is not None else None
        found = next((pin for pin in pins or () if pin.hash == pin_hash(text)), None)
        if found is None:
            raise BadAnswer(peer, "its report does not show the pin")
        return found

    async def unpin(self, peer: str, pin: str, *, timeout_seconds: float = 30.0) -> None:
        """Remove a pin by its id or its whole text. Raises the errors of `pin`."""
        await self._ask(peer, kinds.PARTICIPANT_UNPIN, UnpinRequest(pin=pin), Status, timeout_seconds)

    async def pins(self, peer: str, *, timeout_seconds: float = 30.0) -> tuple[PinnedText, ...]:
        """Ask a peer for its pins with their texts. Raises the errors of `ask`, and `BadAnswer`."""
        request = RequestStatus(fields=("pins",))
        kind = kinds.PARTICIPANT_REQUEST_STATUS
        return (await self._ask(peer, kind, request, Status, timeout_seconds)).pins or ()

    async def would_fit(self, peer: str, text: str | int, *, timeout_seconds: float = FIT_SECONDS) -> Fit:
        """Ask a peer whether a text, or a number of tokens, fits into its context.

        The peer answers from its own figures and its model's tokens. Without an answer, `by_report` of the result is
        True: it compares the last report with an estimate (`heuristic`). `fits` is None if unknown. Raises
        `PeerAbsent`.
        """
        from mew_agent.participant.fit_requests import FitRequest  # loads the code that measures texts

        known = self.messenger.peers.get(peer)
        if known is None:
            raise self.messenger.peer_absent(peer)
        request = await anyio.to_thread.run_sync(FitRequest.of, text)
        with suppress(PeerError, GatewayError, NotPermitted):
            kind = kinds.PARTICIPANT_REQUEST_STATUS
            status = await self._ask(peer, kind, request.payload, Status, timeout_seconds)
            if (fit := request.answer_in(status)) is not None:
                return fit
        context = known.context
        return request.by_report(context.as_status(), as_of=context.at or None, outdated=context.outdated)

    async def deliver(self, peer: str, chat_id: str, how: Delivery) -> Envelope:
        """Choose how to deliver our chat that a peer holds because it does not fit. Raises the errors of `send`.

        With `reference` it reads parts of the text with a tool, with `digest` also the most important sentences.
        `anyway` delivers the whole text; `cancel` discards it.
        """
        return await self.messenger.send(kinds.CHAT, {"text": how, "deliver": how}, to=peer, correlation_id=(chat_id,))

    # -- what a peer does --------------------------------------------------------------------------------

    async def pause(
        self, peer: str, *, seconds: float | None = None, reason: str | None = None, timeout_seconds: float = 30.0
    ) -> Status:
        """Pause a peer, for `seconds` or until `resume`. Returns its status. Raises the errors of `pin`."""
        payload = Pause(timeout_seconds=seconds, reason=reason)
        return await self._ask(peer, kinds.PARTICIPANT_PAUSE, payload, Status, timeout_seconds)

    async def resume(self, peer: str, *, reason: str | None = None, timeout_seconds: float = 30.0) -> Status:
        """Resume a paused peer. Returns its status. Raises the errors of `pin`."""
        return await self._ask(peer, kinds.PARTICIPANT_RESUME, Resume(reason=reason), Status, timeout_seconds)

    async def forget(
        self, peer: str, entries: int | None = None, *, newest: bool = False, timeout_seconds: float = 30.0
    ) -> Status:
        """Drop the oldest (or `newest`) messages of a peer's history (default: half of them). Returns its status.

        Raises the errors of `pin`.
        """
        payload = Forget(direction="newest" if newest else "oldest", entries=entries)
        return await self._ask(peer, kinds.PARTICIPANT_FORGET, payload, Status, timeout_seconds)

    async def clear(self, peer: str, *, reason: str | None = None, timeout_seconds: float = 30.0) -> Status:
        """Clear a peer's history. Returns its status. Raises the errors of `pin`."""
        return await self._ask(peer, kinds.PARTICIPANT_CLEAR, Clear(reason=reason), Status, timeout_seconds)

    async def reset(self, peer: str, *, reason: str | None = None, timeout_seconds: float = 30.0) -> Status:
        """Clear a peer's history and close its streams. Returns its status. Raises the errors of `pin`."""
        return await self._ask(peer, kinds.PARTICIPANT_RESTART, Restart(reason=reason), Status, timeout_seconds)

    async def shutdown(self, peer: str, *, reason: str | None = None, timeout_seconds: float = 30.0) -> None:
        """Shut a peer down, and wait until it has left the space. Raises the errors of `pin`."""
        if peer not in self.messenger.peers:
            raise self.messenger.peer_absent(peer)
        draft = self.messenger.draft(kinds.PARTICIPANT_SHUTDOWN, Shutdown(reason=reason), to=(peer,))
        # Only a refusal is an answer: the gateway reports that the peer has left.
        request = ControlRequest(draft, peer, kinds.SYSTEM_PRESENCE)
        with suppress(PeerAbsent):
            await self.messenger.answer_to(request, timeout_seconds)

    async def cancel(self, work: Envelope | str, *, reason: str | None = None) -> tuple[Envelope, ...]:
        """Cancel our chat, or all work of a peer, even a turn that another participant asked for.

        Returns the sent envelopes; none if the peer is idle. Raises the errors of `send`.
        """
        payload, send = ChatCancel(reason=reason), self.messenger.send
        if isinstance(work, Envelope):
            return (await send(kinds.CHAT_CANCEL, payload, to=work.addressees, correlation_id=(work.id,)),)
        sent = []
        for one in [*self.unfinished.cancellations(work)]:
            to, about = one.agent, one.correlation_id
            sent.append(await send(one.kind, payload, to=to, correlation_id=about, context=one.context))
        return tuple(sent)

    async def request_status(self, peer: str, *, timeout_seconds: float = 30.0) -> Status:
        """Ask a peer for its current status. Raises the errors of `ask`, and `BadAnswer`."""
        return await self._ask(peer, kinds.PARTICIPANT_REQUEST_STATUS, RequestStatus(), Status, timeout_seconds)

    async def receipts(
        self, peer: str, *ids: str, sender: str | None = None, follow: bool = False, timeout_seconds: float = 30.0
    ) -> tuple[ReadReceipt, ...]:
        """Ask a peer for the receipts of the messages with these ids: read or not, and their form in its context.

        `sender` sent them (default: we did). With `follow` the peer also sends each later change. Raises the errors of
        `pin`.
        """
        request = RequestReceipts(ids=ids, sender=sender, follow=follow)
        kind = kinds.PARTICIPANT_REQUEST_RECEIPTS
        return (await self._ask(peer, kind, request, ReadReceipts, timeout_seconds)).receipts

    # -- past compactions --------------------------------------------------------------------------------

    async def compaction_history(
        self, peer: str, *, timeout_seconds: float = ARCHIVE_SECONDS
    ) -> retrieval.CompactionHistory:
        """List a peer's compactions, oldest first: trigger, sizes, cost and requester. `dropped` entries are no longer
        stored.
        """
        return await self._page(peer, retrieval.RequestHistory(), timeout_seconds)

    async def show_compaction(
        self, peer: str, number: int, *, timeout_seconds: float = ARCHIVE_SECONDS
    ) -> retrieval.CompactionHistory:
        """Read one compaction of a peer: its `summary`, and the `items` that it replaced.

        Raises `ControlRefused` if there is no such compaction.
        """
        shown = page = await self._page(peer, retrieval.RequestHistory(number=number), timeout_seconds)
        items = list(shown.items)
        while page.next is not None:
            page = await self._page(peer, retrieval.RequestHistory(number=number, after=page.next), timeout_seconds)
            items += page.items
        return shown.model_copy(update={"items": tuple(items), "next": None})

    async def undo(
        self,
        peer: str,
        number: int | None = None,
        *,
        reason: str | None = None,
        timeout_seconds: float = 120.0,
    ) -> retrieval.UndoDone:
        """Undo a peer's compaction (default: the newest) and wait until that is done. Check `status` and `reason`."""
        return await self._ask(
            peer,
            kinds.PARTICIPANT_UNDO,
            retrieval.Undo(number=number, reason=reason),
            retrieval.UndoDone,
            timeout_seconds,
        )

    async def recall(
        self, peer: str, words: str, *, limit: int = 10, timeout_seconds: float = ARCHIVE_SECONDS
    ) -> tuple[retrieval.ArchivedItem, ...]:
        """Search a peer's archive: an extract of each matching item, best match first.

        Raises `ControlRefused` if its archive cannot be searched.
        """
        request = retrieval.Recall(words=words, limit=limit)
        done = await self._ask(peer, kinds.PARTICIPANT_RECALL, request, retrieval.RecallDone, timeout_seconds)
        if done.error is not None:
            raise ControlRefused(peer, kinds.PARTICIPANT_RECALL, done.error)
        return done.found

    # -- membership and capabilities ---------------------------------------------------------------------

    async def invite(
        self,
        participant: str,
        *capabilities: Mapping[str, Any] | str,
        reason: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> "InviteAck":
        """Admit a participant to the space; its `token` and `connection_url` are in the answer.

        A capability is a pattern, a kind alone, or a role: person (the default), agent, tool or observer. Raises
        `Refused` if it cannot be invited, and the errors of `ask`.
        """
        from mew_protocol.payloads.space import Invite, InviteAck  # rarely needed

        payload = Invite(**invitation(participant, capabilities), reason=reason)
        draft = self.messenger.draft(kinds.SPACE_INVITE, payload)
        request = PendingRequest(draft, GATEWAY, kinds.SPACE_INVITE_ACK)
        ack = read_answer(await self.messenger.answer_to(request, timeout_seconds), InviteAck)
        if ack.token is None:
            raise Refused(GATEWAY, kinds.SPACE_INVITE, ack.status, ack.error or "")
        return ack

    async def kick(self, participant: str, *, reason: str | None = None) -> None:
        """Remove a participant from the space until it is invited again. Raises the errors of `send`."""
        from mew_protocol.payloads.space import Kick

        await self.messenger.send(kinds.SPACE_KICK, Kick(participant_id=participant, reason=reason))

    async def grant(self, recipient: str, *capabilities: Mapping[str, Any] | str, reason: str | None = None) -> str:
        """Grant capabilities to a participant, and return the id of the grant, for `revoke`.

        A capability is a pattern, or a kind alone. The grant ends when the recipient leaves. Raises the errors of
        `send`.
        """
        payload = Grant(recipient=recipient, capabilities=_patterns(capabilities), reason=reason)
        return (await self.messenger.send(kinds.CAPABILITY_GRANT, payload)).id

    async def revoke(
        self,
        recipient: str,
        *capabilities: Mapping[str, Any] | str,
        grant_id: str | None = None,
        keep_passed_on: bool = False,
        reason: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> tuple[EndedRights, ...]:
        """Revoke granted capabilities of a participant, and return the rights of others that ended with them.

        Capabilities that the recipient passed on also end. With `keep_passed_on` they stay, but cannot be given back to
        the recipient. `grant_id` revokes one grant. Raises the errors of `ask`.
        """
        payload = Revoke(
            recipient=recipient,
            grant_id=grant_id,
            capabilities=_patterns(capabilities) or None,
            keep_passed_on=keep_passed_on or None,
            reason=reason,
        )
        request = RevocationRequest(self.messenger.draft(kinds.CAPABILITY_REVOKE, payload))
        await self.messenger.answer_to(request, timeout_seconds)
        return request.ended

    async def _page(
        self, peer: str, request: retrieval.RequestHistory, timeout_seconds: float
    ) -> retrieval.CompactionHistory:
        kind = kinds.PARTICIPANT_REQUEST_HISTORY
        history = await self._ask(peer, kind, request, retrieval.CompactionHistory, timeout_seconds)
        if history.error is not None:
            raise ControlRefused(peer, kind, history.error)
        return history

    async def _ask(
        self, peer: str, kind: str, payload: BaseModel, model: type[Answer], timeout_seconds: float
    ) -> Answer:
        """Send a control and read its answer. Raises `ControlRefused`, `BadAnswer`, and the errors of `ask`."""
        answer = CONTROL_ANSWERS.get(kind, kinds.PARTICIPANT_STATUS)
        request = ControlRequest(self.messenger.draft(kind, payload, to=(peer,)), peer, answer)
        return read_answer(await self.messenger.answer_to(request, timeout_seconds), model)


def _patterns(capabilities: Iterable[Mapping[str, Any] | str]) -> tuple[dict[str, Any], ...]:
    return tuple({"kind": one} if isinstance(one, str) else dict(one) for one in capabilities)
