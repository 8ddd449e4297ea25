"""The `participant/*` controls: which envelopes answer which request, in which order.

Owns that order (the reference's, so that its clients understand us) and pausing. What a control does to a
conversation is behind `Controllable`; a participant without one has nothing to compact and says so.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, assert_never

import anyio
from mew_protocol import kinds
from mew_protocol.controls import is_control_for, read_control
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads.participant import (
    Clear,
    Compact,
    CompactDone,
    Forget,
    Pause,
    RequestStatus,
    Restart,
    Resume,
    Shutdown,
    Status,
)
from mew_protocol.payloads.participant import Control as Asked
from pydantic import BaseModel

from mew_agent.errors import GatewayError, NotPermitted

logger = logging.getLogger("mew_agent.participant.controls")

NOTHING_TO_DO = frozenset({"no_history", "compaction_in_progress", "already_below_target"})
"""Why a compaction is skipped although nothing went wrong."""


class Controllable(Protocol):
    """A conversation that can be steered. `NoConversation` is the one of participants that have none."""

    def status(self, word: str | None = None) -> Status:
        """The status of this moment; `word` replaces its own word for what it is doing."""
        ...

    async def compact(self, request: Compact, requester: str) -> CompactDone: ...

    @property
    def is_compacting(self) -> bool: ...

    async def forget(self, request: Forget) -> int:
        """Returns how many entries were dropped."""
        ...

    async def clear(self) -> None: ...


class NoConversation:
    """Nothing to count and nothing to forget."""

    @property
    def is_compacting(self) -> bool:
        return False

    def status(self, word: str | None = None) -> Status:
        return Status(messages_in_context=0, status=word or "active")

    async def compact(self, request: Compact, requester: str) -> CompactDone:
        return CompactDone(status="skipped", skipped=True, reason="no_history")

    async def forget(self, request: Forget) -> int:
        return 0

    async def clear(self) -> None:
        return None


Say = Callable[..., Awaitable[Envelope]]
"""`say(kind, payload, to=..., correlation_id=...)`: send one envelope."""


class Control:
    """Answers `participant/*` for one participant."""

    def __init__(
        self,
        me: str,
        say: Say,
        close_streams: Callable[[str], Awaitable[None]],
        leave: Callable[[], Awaitable[None]],
        conversation: Controllable | None = None,
        noted: Callable[[Status], None] = lambda status: None,
    ) -> None:
        """`noted` hears every status that is announced to everybody, whether or not it can be sent."""
        self._me = me
        self._noted = noted
        self._say = say
        self._close_streams, self._leave = close_streams, leave
        self.conversation: Controllable = conversation or NoConversation()
        self._active = anyio.Event()
        self._active.set()
        self._pauses = 0

    @property
    def is_paused(self) -> bool:
        """Whether most of what we would say has to wait."""
        return not self._active.is_set()

    async def until_active(self) -> None:
        """Wait until not paused. Bounded by the pause's own timeout or by whoever resumes us."""
        while self.is_paused:  # a new pause may have come before we woke up
            await self._active.wait()

    def is_for_us(self, envelope: Envelope) -> bool:
        """Whether a control is ours to carry out."""
        return is_control_for(envelope, self._me)

    async def obey(self, envelope: Envelope) -> None:
        """Carry out one control and answer it. Never raises for what the envelope holds."""
        try:
            asked = read_control(envelope)
            if asked is not None:
                await self._carry_out(envelope, asked)
        except PayloadError as error:
            logger.warning("ignored a control of '%s': %s", envelope.sender, error)
            if envelope.kind == kinds.PARTICIPANT_COMPACT:
                await self._done(envelope, _skipped(str(error)))
            else:
                await self.announce(f"refused:{error.field}: {error.problem}", (envelope.id,), to=(envelope.sender,))
        except GatewayError as error:
            logger.warning("'%s' of '%s' stays unanswered: %s", envelope.kind, envelope.sender, error)

    async def _carry_out(self, envelope: Envelope, asked: Asked) -> None:
        match asked:
            case Pause():
                await self._pause(envelope, asked)
            case Resume():
                await self._resume(envelope)
            case RequestStatus():
                await self._request_status(envelope, asked)
            case Compact():
                await self._compact(envelope, asked)
            case Forget():
                await self._forget(envelope, asked)
            case Clear():
                await self._clear(envelope, "cleared", asked.reason)
            case Restart():
                await self._close_streams("restart")
                await self._clear(envelope, "restarted")
            case Shutdown():
                await self._shutdown(envelope, asked)
            case _:
                assert_never(asked)

    async def announce(
        self, word: str | None = None, correlation_id: tuple[str, ...] = (), to: tuple[str, ...] = ()
    ) -> None:
        """Send the status of this moment, to everybody unless `to` names somebody. Never raises.

        Silent without the capability; without a gateway too, for a new welcome brings a new status.
        """
        status = self.status(word)
        if not to:
            self._noted(status)
        with suppress(NotPermitted):
            try:
                await self._say(kinds.PARTICIPANT_STATUS, status, to=to, correlation_id=correlation_id)
            except GatewayError as error:
                logger.warning("a status was not sent: %s", error)

    def status(self, word: str | None = None) -> Status:
        """The status of this moment; being paused is said before anything else."""
        return self.conversation.status(word or ("paused" if self.is_paused else None))

    async def _pause(self, envelope: Envelope, pause: Pause) -> None:
        self._pauses += 1
        number = self._pauses
        if not self.is_paused:
            self._active = anyio.Event()
        await self.announce("paused", (envelope.id,))
        if pause.timeout_seconds is None:
            return
        with anyio.move_on_after(pause.timeout_seconds):
            await self._active.wait()
        if self.is_paused and self._pauses == number:
            self._active.set()
            await self.announce("active", (envelope.id,))
            await self._answer(envelope, kinds.PARTICIPANT_RESUME, Resume(reason="timeout"))

    async def _resume(self, envelope: Envelope) -> None:
        self._active.set()
        await self.announce("active", (envelope.id,))

    async def _request_status(self, envelope: Envelope, request: RequestStatus) -> None:
        await self._answer(envelope, kinds.PARTICIPANT_STATUS, narrowed(self.status(), request.fields))

    async def _compact(self, envelope: Envelope, request: Compact) -> None:
        if self.conversation.is_compacting:
            await self._done(envelope, _skipped("compaction_in_progress"))
            return
        await self.announce("compacting", (envelope.id,))
        try:
            done = await self.conversation.compact(request, envelope.sender)
        except Exception as error:  # whatever happened, the asker is waiting for an answer
            logger.exception("a compaction for '%s' failed", envelope.sender)
            done = _skipped(f"{type(error).__name__}: {error}")
        await self._done(envelope, done)
        if done.skipped and done.reason not in NOTHING_TO_DO:
            await self.announce(f"compaction_failed:{done.reason}", (envelope.id,))
        elif not self.conversation.is_compacting:  # else another one runs, and will say when it is done
            await self.announce("compacted", (envelope.id,))

    async def _done(self, envelope: Envelope, done: CompactDone) -> None:
        await self._answer(envelope, kinds.PARTICIPANT_COMPACT_DONE, done)

    async def _answer(self, envelope: Envelope, kind: str, payload: BaseModel | dict[str, Any]) -> None:
        """Answer whoever sent a control; without the capability it stays unanswered."""
        with suppress(NotPermitted):
            await self._say(kind, payload, to=(envelope.sender,), correlation_id=(envelope.id,))

    async def _forget(self, envelope: Envelope, request: Forget) -> None:
        await self.announce("compacting", (envelope.id,))
        await self.conversation.forget(request)
        await self.announce("compacted", (envelope.id,))

    async def _clear(self, envelope: Envelope, word: str, reason: str | None = None) -> None:
        await self.conversation.clear()
        await self.announce(_with_reason(word, reason), (envelope.id,))

    async def _shutdown(self, envelope: Envelope, request: Shutdown) -> None:
        await self.announce(_with_reason("shutting_down", request.reason), (envelope.id,))
        await self._close_streams("shutdown")
        await self._leave()


def _with_reason(word: str, reason: str | None) -> str:
    return f"{word}:{reason}" if reason else word


def _skipped(reason: str) -> CompactDone:
    return CompactDone(status="skipped", skipped=True, reason=reason)


def narrowed(status: Status, fields: tuple[str, ...] | None) -> dict[str, Any]:
    """A status with only the asked keys. What qualifies `tokens` stays with it: its basis and when it was measured."""
    whole: dict[str, Any] = status.model_dump(mode="json", exclude_none=True)
    if fields is None:
        return whole
    asked = {"latency_ms" if name == "latency" else name for name in fields}
    kept = {key: value for key, value in whole.items() if key in asked | {"messages_in_context", "status"}}
    if "tokens" in asked and "context" in whole and "context" not in asked:
        about = ("basis", "reason", "measured_at")
        kept["context"] = {key: whole["context"][key] for key in about if key in whole["context"]}
    return kept
