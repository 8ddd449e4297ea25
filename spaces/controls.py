"""[pure] Which participants are told to be quiet: paused ones until they are resumed, shut down ones until they join.

Owns who may say what meanwhile. Whether somebody may send a control at all is a matter of capabilities, and acting
on it is the participant's; the gateway only makes sure that a participant that does not act is not heard.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from protocol import kinds
from protocol.envelope import Draft, Envelope
from protocol.errors import PayloadError
from protocol.payloads import read_payload
from protocol.payloads.participant import Pause, Shutdown

_OBSERVED = frozenset({kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_RESUME, kinds.PARTICIPANT_SHUTDOWN})

_MAX_TIMEOUT_SECONDS = 10 * 365 * 24 * 3600.0


class Controls:
    """Who is quiet in one space."""

    def __init__(self, *, enforce_pause: bool, enforce_shutdown: bool, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._enforce_pause = enforce_pause
        self._enforce_shutdown = enforce_shutdown
        self._paused_until: dict[str, datetime | None] = {}
        self._shut_down: set[str] = set()

    def observe(self, envelope: Envelope, *, now: datetime) -> None:
        """Take note of a control that was accepted. Only who is named is held to it; nobody pauses itself for good."""
        if envelope.kind not in _OBSERVED:
            return
        try:
            match envelope.kind:
                case kinds.PARTICIPANT_PAUSE if self._enforce_pause:
                    self._pause(envelope, read_payload(envelope, Pause), now)
                case kinds.PARTICIPANT_RESUME:
                    self._resume(envelope)
                case kinds.PARTICIPANT_SHUTDOWN if self._enforce_shutdown:
                    read_payload(envelope, Shutdown)
                    self._shut_down.update(self._others(envelope))
                case _:
                    pass
        except PayloadError:
            return  # its addressees cannot read it either, and say so

    @property
    def is_anybody_quiet(self) -> bool:
        """Whether there is anybody who may have to be objected to."""
        return bool(self._paused_until or self._shut_down)

    def objection(self, draft: Draft, sender: str, *, now: datetime) -> str | None:
        """Why a participant may not say this now, or None."""
        if draft.kind in kinds.ALLOWED_WHILE_PAUSED:
            return None
        if sender in self._shut_down:
            return f"'{sender}' was shut down; join again to go on"
        if sender not in self._paused_until:
            return None
        until = self._paused_until[sender]
        if until is not None and now >= until:
            del self._paused_until[sender]
            return None
        return f"'{sender}' is paused; only acknowledgements, cancellations, statuses and responses pass"

    def joined(self, participant: str) -> None:
        """A new connection begins anew; a pause outlives it."""
        self._shut_down.discard(participant)

    def forget(self, participant: str) -> None:
        """Somebody is gone for good."""
        self._shut_down.discard(participant)
        self._paused_until.pop(participant, None)

    def _pause(self, envelope: Envelope, pause: Pause, now: datetime) -> None:
        seconds = pause.timeout_seconds
        until = None if seconds is None else now + timedelta(seconds=min(float(seconds), _MAX_TIMEOUT_SECONDS))
        self._paused_until.update(dict.fromkeys(self._others(envelope), until))

    def _resume(self, envelope: Envelope) -> None:
        if envelope.to:
            for name in self._others(envelope):
                self._paused_until.pop(name, None)
        else:
            self._paused_until = {name: until for name, until in self._paused_until.items() if name == envelope.sender}

    def _others(self, envelope: Envelope) -> tuple[str, ...]:
        return tuple(name for name in envelope.addressees if name != envelope.sender and self._is_known(name))
