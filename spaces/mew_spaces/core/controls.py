"""[pure] Which participants are told to be quiet: paused ones until they are resumed, shut down ones until they join.

Owns who may say what meanwhile. Whether somebody may send a control at all is a matter of capabilities, and acting
on it is the participant's; the gateway only makes sure that a participant that does not act is not heard.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from mew_protocol import kinds
from mew_protocol.controls import read_control
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads.participant import Pause, Resume, Shutdown

_MAX_TIMEOUT_SECONDS = 10 * 365 * 24 * 3600.0


class _Held(NamedTuple):
    """A pause that stands; without an end until it is lifted."""

    until: datetime | None
    reason: str | None


class Controls:
    """Who is quiet in one space."""

    def __init__(self, *, enforce_pause: bool, enforce_shutdown: bool, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._enforce_pause = enforce_pause
        self._enforce_shutdown = enforce_shutdown
        self._paused: dict[str, _Held] = {}
        self._shut_down: set[str] = set()

    def observe(self, envelope: Envelope, *, now: datetime) -> None:
        """Take note of a control that was accepted. Only who is named is held to it; nobody pauses itself for good."""
        try:
            match read_control(envelope):
                case Pause() as pause if self._enforce_pause:
                    self._pause(envelope, pause, now)
                case Resume():
                    self._resume(envelope)
                case Shutdown() if self._enforce_shutdown:
                    self._shut_down.update(self._others(envelope))
                case _:
                    pass
        except PayloadError:
            return  # its addressees cannot read it either, and say so

    @property
    def is_anybody_quiet(self) -> bool:
        """Whether there is anybody who may have to be objected to."""
        return bool(self._paused or self._shut_down)

    def objection(self, draft: Draft, sender: str, *, now: datetime) -> str | None:
        """Why a participant may not say this now, or None."""
        if draft.kind in kinds.ALLOWED_WHILE_PAUSED:
            return None
        if sender in self._shut_down:
            return f"'{sender}' was shut down; join again to go on"
        if self.pause_of(sender, now=now) is None:
            return None
        return f"'{sender}' is paused; only acknowledgements, cancellations, statuses and responses pass"

    def pause_of(self, participant: str, *, now: datetime) -> Pause | None:
        """The pause that somebody is held to, with what is left of its time; None when there is none, or no more."""
        held = self._paused.get(participant)
        if held is None:
            return None
        left = None if held.until is None else (held.until - now).total_seconds()
        if left is not None and left <= 0:
            del self._paused[participant]
            return None
        return Pause(reason=held.reason, timeout_seconds=left)

    def joined(self, participant: str) -> None:
        """A new connection begins anew; a pause outlives it."""
        self._shut_down.discard(participant)

    def forget(self, participant: str) -> None:
        """Somebody is gone for good."""
        self._shut_down.discard(participant)
        self._paused.pop(participant, None)

    def _pause(self, envelope: Envelope, pause: Pause, now: datetime) -> None:
        seconds = pause.timeout_seconds
        until = None if seconds is None else now + timedelta(seconds=min(float(seconds), _MAX_TIMEOUT_SECONDS))
        self._paused.update(dict.fromkeys(self._others(envelope), _Held(until, pause.reason)))

    def _resume(self, envelope: Envelope) -> None:
        if envelope.to:
            for name in self._others(envelope):
                self._paused.pop(name, None)
        else:
            self._paused = {name: held for name, held in self._paused.items() if name == envelope.sender}

    def _others(self, envelope: Envelope) -> tuple[str, ...]:
        return tuple(name for name in envelope.addressees if name != envelope.sender and self._is_known(name))
