"""Carries out the `participant/*` controls, and sends a participant's status.

Owns the answers to controls, their order (clients rely on the reference implementation's), and pausing. The
conversation carries the controls out.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, assert_never

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import read_payload, retrieval
from mew_protocol.payloads.participant import (
    CONTROL_ANSWERS,
    CONTROLS,
    Clear,
    Compact,
    CompactDone,
    Forget,
    Pause,
    PinnedText,
    PinRequest,
    PrefixPart,
    RequestStatus,
    Restart,
    Resume,
    Shutdown,
    Status,
    UnpinRequest,
    is_control_for,
    report_of,
)
from mew_protocol.payloads.participant import Control as ControlPayload
from mew_protocol.payloads.read_receipts import RequestReceipts
from mew_protocol.status_word import StatusWord, status_word
from mew_settings.environment import COMPAT_VARIABLE
from pydantic import BaseModel

from mew_agent.errors import ControlImpossible, GatewayError, NotPermitted, described
from mew_agent.participant.compaction_driver import Begun, CompactionDriver, Requester, no_news
from mew_agent.participant.dispatcher import Hooks
from mew_agent.participant.event_handlers import Listeners, PeerLevelChanged
from mew_agent.participant.messenger import Messenger, timestamp
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.participant.receipts import ReceiptSource, ReportedReads

logger = logging.getLogger("mew_agent.participant.controls")


class PinKeeper(Protocol):
    """The pins of a conversation."""

    @property
    def texts(self) -> tuple[PinnedText, ...]:
        """All pins, as reports show them, with their texts."""
        ...

    async def add(self, text: str, origin: str) -> bool:
        """Pin a text. Returns False if it was pinned already. Raises `PinRefused`."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a pin by its id or whole text. Raises `PinRefused`."""
        ...


class Archive(Protocol):
    """The archive of a conversation. Failures and refusals are in the answers."""

    async def history(self, request: retrieval.RequestHistory) -> retrieval.CompactionHistory:
        """List past compactions, or show one."""
        ...

    async def recall(self, request: retrieval.Recall) -> retrieval.RecallDone:
        """Search the archive."""
        ...

    async def undo(self, request: retrieval.Undo, asked_by: str | None = None) -> retrieval.UndoDone:
        """Undo a compaction, a forget or a clear."""
        ...


class Controllable(Protocol):
    """A conversation that carries out controls. Raises `ControlImpossible` before any change."""

    def status(self, word: StatusWord | None = None) -> Status:
        """Return the current status; `word` replaces the default status word."""
        ...

    async def status_to_announce(self, word: StatusWord | None = None) -> Status:
        """Return the current status like `status`, after notifying handlers of a new level."""
        return self.status(word)

    compacting: CompactionDriver
    """Runs the compactions."""

    @property
    def pinned(self) -> tuple[PinnedText, ...]:
        """All pins with their texts."""
        return ()

    @property
    def pins(self) -> PinKeeper:
        """The texts that stay in every request."""
        ...

    @property
    def archive(self) -> Archive:
        """The archive of the conversation."""
        ...

    async def compact(self, request: Compact, requester: Requester | None = None) -> CompactDone:
        """Compact, after any approval. The answer contains failures."""
        ...

    async def forget(self, request: Forget, asked_by: str | None = None, begun: Begun = no_news) -> int:
        """Remove entries from one end, after awaiting `begun`. Returns their number."""
        ...

    async def clear(self, asked_by: str | None = None, reason: str | None = None, begun: Begun = no_news) -> None:
        """Remove everything but the pins, after awaiting `begun`."""
        ...

    async def prefix(self) -> tuple[PrefixPart, ...] | None:
        """Return the parts of every request before the history; None if they are not known."""
        return None


def waiting_status(waiting: Sequence[Waiting]) -> StatusWord | None:
    """Return the status word of an agent that waits; None if it does not wait."""
    if any(one.kind == "approval" for one in waiting):
        return status_word("waiting_for_approval")
    peers = ", ".join(sorted(one.peer for one in waiting if one.kind == "loop" and one.peer is not None))
    return status_word("paused", f"loop with {peers}") if peers else None


class Control:
    """Answers `participant/*` for one participant."""

    received_kinds = CONTROLS.keys()

    def __init__(self, messenger: Messenger, listeners: Listeners, *, hooks: Hooks, conversation: Controllable) -> None:
        """`listeners` are notified of changes of the participant's own level."""
        self._messenger = messenger
        self._listeners = listeners
        self.hooks = hooks
        self.conversation: Controllable = conversation
        self._announced: tuple[Status | None, str] = None, ""
        """The newest status that everyone was sent, and when."""
        self.receipts = ReceiptSource(messenger, ReportedReads(messenger))
        self._pauses = 0
        self._follows_reference = os.environ.get(COMPAT_VARIABLE) == "reference"

    @property
    def context(self) -> PeerContext:
        """The participant's own context as last announced."""
        return PeerContext.from_status(*self._announced)

    def receive(self, envelope: Envelope) -> None:
        """Start to carry out an envelope if it is a control for this participant."""
        if is_control_for(envelope, self._messenger.id):
            self._messenger.session.start_soon(self.obey, envelope)

    async def obey(self, envelope: Envelope) -> None:
        """Carry out one control and answer it. Never raises."""
        try:
            await self._carry_out(envelope, read_payload(envelope, CONTROLS[envelope.kind]))
        except PayloadError as error:
            logger.warning("ignored a control from '%s': %s", envelope.sender, error)
            await self._refuse(envelope, f"{error.field}: {error.problem}")
        except ControlImpossible as error:
            await self._refuse(envelope, str(error))
        except GatewayError as error:
            what = f"no reply sent to '{envelope.kind}' from '{envelope.sender}'"
            self._messenger.session.log_failure(error, what)
        except Exception as error:  # a handler of the program failed; the sender waits for an answer
            logger.exception("'%s' from '%s' failed", envelope.kind, envelope.sender)
            problem = "timeout" if isinstance(error, TimeoutError) else described(error)
            await self._refuse(envelope, problem)
            await self.announce()  # others may have seen `compacting`

    async def _refuse(self, envelope: Envelope, problem: str) -> None:
        """Refuse a control, in its own kind of answer or in a status to its sender."""
        answer = _refusal(envelope.kind, problem)
        if answer is not None and self._messenger.may_send(answer[0], to=(envelope.sender,)):
            await self._answer(envelope, *answer)
        else:
            await self.announce(status_word("refused", problem), (envelope.id,), to=(envelope.sender,))

    async def _requested_status(self, fields: tuple[str, ...]) -> Status:
        """Return the status with the requested fields that broadcasts omit because of their size."""
        pins = self.conversation.pinned if "pins" in fields else None
        prefix = await self.conversation.prefix() if "prefix" in fields else None
        return self.status().model_copy(update={"pins": pins, "prefix": prefix})

    async def _carry_out(self, envelope: Envelope, request: ControlPayload) -> None:
        match request:
            case Pause():
                await self._pause(envelope, request)
            case Resume():
                self._messenger.resume()
                await self.announce(status_word("active"), (envelope.id,))
            case RequestStatus():
                answer = narrowed(await self._requested_status(request.fields or ()), request.fields)
                if request.fit is not None and (fit := await self.hooks.fit_of(request.fit)) is not None:
                    answer["fit"] = fit.model_dump(mode="json", exclude_none=True)
                await self._answer(envelope, kinds.PARTICIPANT_STATUS, answer)
            case Compact():
                answer_done = partial(self._answer, envelope, kinds.PARTICIPANT_COMPACT_DONE)
                unchanged = status_word("compacted") if self._follows_reference else None
                requester = Requester(envelope.sender, (envelope.id,), answer_done, unchanged)
                await self.conversation.compact(request, requester)
            case Forget() | Clear() | Restart() | PinRequest() | UnpinRequest():
                await self._change_conversation(envelope, request)
            case Shutdown():
                await self.announce(status_word("shutting_down", request.reason), (envelope.id,))
                await self.hooks.close_streams("shutdown")
                await self._messenger.session.client.aclose()
            case retrieval.RequestHistory() | retrieval.Recall() | retrieval.Undo() | RequestReceipts():
                await self._inform(envelope, request)
            case _:
                assert_never(request)

    async def _change_conversation(
        self, envelope: Envelope, request: Forget | Clear | Restart | PinRequest | UnpinRequest
    ) -> None:
        match request:
            case Forget():
                first, last = ("compacting", "compacted") if self._follows_reference else ("forgetting", "forgot")
                begun = partial(self.announce, status_word(first), (envelope.id,))
                await self.conversation.forget(request, envelope.sender, begun)
                await self.announce(status_word(last), (envelope.id,))
            case Clear():
                await self.conversation.clear(envelope.sender, request.reason)
                await self.announce(status_word("cleared", request.reason), (envelope.id,))
            case Restart():
                begun = partial(self.hooks.close_streams, "restart")
                await self.conversation.clear(envelope.sender, request.reason or "restart", begun)
                await self.announce(status_word("restarted"), (envelope.id,))
            case PinRequest():
                is_new = await self.conversation.pins.add(request.text, envelope.sender)
                await self.announce(status_word("pinned" if is_new else "already_pinned"), (envelope.id,))
            case UnpinRequest():
                await self.conversation.pins.remove(request.pin)
                await self.announce(status_word("unpinned"), (envelope.id,))
            case _:
                assert_never(request)

    async def announce(
        self, word: StatusWord | None = None, correlation_id: tuple[str, ...] = (), to: tuple[str, ...] = ()
    ) -> None:
        """Send the current status, to everyone unless `to` names participants. Never raises."""
        status = await self.conversation.status_to_announce(word or self._default_word)
        await self.send(status, word, correlation_id, to)

    def status(self, word: StatusWord | None = None) -> Status:
        """Return the current status. While paused its default word is "paused"."""
        return self.conversation.status(word or self._default_word)

    @property
    def _default_word(self) -> StatusWord | None:
        return status_word("paused") if self._messenger.is_paused else None

    async def send(
        self, status: Status, word: StatusWord | None, correlation_id: tuple[str, ...] = (), to: tuple[str, ...] = ()
    ) -> None:
        """Send this status, to everyone unless `to` names participants. While paused, its default word is "paused".

        Never raises: if a capability or the gateway is missing, a new status follows after the next welcome.
        """
        if word is None and self._messenger.is_paused:
            status = status.model_copy(update={"status": "paused"})
        if not to:
            before, self._announced = self._announced, (status, timestamp())
            if report_of(status).level != report_of(before[0]).level:
                own = Peer(self._messenger.id, context=self.context)
                self._listeners.emit(None, PeerLevelChanged(own, PeerContext.from_status(*before)))
        with suppress(NotPermitted):
            try:
                await self._messenger.send(kinds.PARTICIPANT_STATUS, status, to=to, correlation_id=correlation_id)
            except GatewayError as error:
                self._messenger.session.log_failure(error, "status not sent")

    async def _pause(self, envelope: Envelope, pause: Pause) -> None:
        self._pauses += 1
        number = self._pauses
        self._messenger.pause()
        await self.announce(status_word("paused"), (envelope.id,))
        if pause.timeout_seconds is None:
            return
        with anyio.move_on_after(pause.timeout_seconds):
            await self._messenger.until_active()
        if self._messenger.is_paused and self._pauses == number:
            self._messenger.resume()
            await self.announce(status_word("active"), (envelope.id,))
            await self._answer(envelope, kinds.PARTICIPANT_RESUME, Resume(reason="timeout"))

    async def _inform(
        self,
        envelope: Envelope,
        request: retrieval.RequestHistory | retrieval.Recall | retrieval.Undo | RequestReceipts,
    ) -> None:
        """Carry out a request that has its own kind of answer. Refuse it without the capability for that answer."""
        answer, inform = CONTROL_ANSWERS[envelope.kind], self._informing(request, envelope.sender)
        if not self._messenger.may_send(answer, to=(envelope.sender,)):
            await self._refuse(envelope, f"'{self._messenger.id}' lacks the capability {answer}")
            return
        payload = await inform()
        await self._answer(envelope, answer, payload)
        if isinstance(payload, retrieval.UndoDone) and payload.status == "undone":
            await self.announce(status_word("undone", payload.number), (envelope.id,))

    def _informing(
        self,
        request: retrieval.RequestHistory | retrieval.Recall | retrieval.Undo | RequestReceipts,
        sender: str,
    ) -> Callable[[], Awaitable[BaseModel]]:
        """Return the function that makes the answer to a request. Raises `ControlImpossible`."""
        match request:
            case RequestReceipts():
                return partial(self.receipts.of, request, sender)
            case retrieval.RequestHistory():
                return partial(self.conversation.archive.history, request)
            case retrieval.Recall():
                return partial(self.conversation.archive.recall, request)
            case retrieval.Undo():
                return partial(self.conversation.archive.undo, request, sender)

    async def _answer(self, envelope: Envelope, kind: str, payload: BaseModel | dict[str, Any]) -> None:
        """Answer the sender of a control, if our capabilities allow it."""
        with suppress(NotPermitted):
            await self._messenger.send(kind, payload, to=(envelope.sender,), correlation_id=(envelope.id,))


def _refusal(kind: str, problem: str) -> tuple[str, BaseModel] | None:
    """Return the answer that refuses a control of this kind; None if a status refuses it."""
    match kind:
        case kinds.PARTICIPANT_COMPACT:
            return kinds.PARTICIPANT_COMPACT_DONE, CompactDone.as_skipped(problem)
        case kinds.PARTICIPANT_REQUEST_HISTORY:
            return kinds.PARTICIPANT_HISTORY, retrieval.CompactionHistory(error=problem)
        case kinds.PARTICIPANT_RECALL:
            return kinds.PARTICIPANT_RECALL_DONE, retrieval.RecallDone(error=problem)
        case kinds.PARTICIPANT_UNDO:
            return kinds.PARTICIPANT_UNDO_DONE, retrieval.UndoDone(status="refused", reason=problem)
        case _:
            return None


def narrowed(status: Status, fields: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a status with only the requested keys. `tokens` keeps its basis and measurement time."""
    whole: dict[str, Any] = status.model_dump(mode="json", exclude_none=True)
    if fields is None:
        return whole
    wanted = {"latency_ms" if name == "latency" else name for name in fields}
    kept = {key: value for key, value in whole.items() if key in wanted | {"messages_in_context", "status"}}
    if "tokens" in wanted and "context" in whole and "context" not in wanted:
        about = ("basis", "reason", "measured_at")
        kept["context"] = {key: whole["context"][key] for key in about if key in whole["context"]}
    return kept
