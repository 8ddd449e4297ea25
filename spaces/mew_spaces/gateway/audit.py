"""The gateway's audit logs, as JSON Lines with the keys and the order of the reference implementation.

`envelope-history.jsonl` records received, delivered and rejected envelopes; `capability-decisions.jsonl` records
decisions with reasons, and permission changes. Composes the lines; `log_writer` renders and writes them in its thread,
so an envelope never waits for its log entry.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from pydantic_core import to_json

from mew_spaces.config.settings import GatewayLogging
from mew_spaces.core.effects import AuditNote
from mew_spaces.core.membership import PermissionDecision
from mew_spaces.gateway.log_writer import LogFile, LogWriter

ENVELOPE_HISTORY: Final = "envelope-history.jsonl"
CAPABILITY_DECISIONS: Final = "capability-decisions.jsonl"

Transport = Literal["websocket", "http", "virtual"]

Recipients = tuple[str, ...] | int
"""The recipients of an envelope, or only their number in large spaces."""

_SIZE_OF_A_DECISION = 512
"""Rough memory in bytes that a decision holds while it is queued."""

_MAX_CACHED_TAILS = 4_096

_MILLISECONDS: Final = tuple(b'%03dZ","event":"' % number for number in range(1_000))

_BOOLEANS: Final = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


def logging_options(config: GatewayLogging, environ: Mapping[str, str] | None = None) -> GatewayLogging:
    """Apply the environment variables GATEWAY_LOGGING, ENVELOPE_HISTORY and CAPABILITY_DECISIONS to the options."""
    environ = os.environ if environ is None else environ

    def overridden(name: str, default: bool) -> bool:
        return _BOOLEANS.get(environ.get(name, "").strip().lower(), default)

    def switched(switch: Any, name: str) -> Any:
        return switch.model_copy(update={"enabled": overridden(name, switch.enabled)})

    return config.model_copy(
        update={
            "enabled": overridden("GATEWAY_LOGGING", config.enabled),
            "envelope_history": switched(config.envelope_history, "ENVELOPE_HISTORY"),
            "capability_decisions": switched(config.capability_decisions, "CAPABILITY_DECISIONS"),
        }
    )


class AuditLog:
    """The audit logs of one space. Creates their folder; raises `OSError` if that fails."""

    def __init__(self, folder: Path, space: str, options: GatewayLogging, writer: LogWriter) -> None:
        def file(name: str, *, enabled: bool) -> LogFile | None:
            if not (options.enabled and enabled):
                return None
            return LogFile(folder / name, max_bytes=options.max_file_bytes, kept=options.kept_files)

        self._history = file(ENVELOPE_HISTORY, enabled=options.envelope_history.enabled)
        self._decisions = file(CAPABILITY_DECISIONS, enabled=options.capability_decisions.enabled)
        self._space = space
        self._delivered_lines = options.delivered
        self._max_envelope_bytes = options.max_envelope_bytes
        self._writer = writer
        self._tails: dict[tuple[str | None, str, str], bytes] = {}
        self._decision_tails: dict[tuple[str, str | None, Transport, int], tuple[PermissionDecision, bytes]] = {}
        self._second = datetime.min.replace(tzinfo=UTC)
        self._second_prefix = b""
        self.max_named_recipients = 1 << 30
        """With more recipients than this, only their number is logged."""
        if self._history is None or options.delivered == "never":
            self.max_named_recipients = 0
        elif options.delivered == "per_member":
            self.max_named_recipients = options.per_member_up_to
        if self.is_on:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self._history is not None or self._decisions is not None

    def log_received(
        self,
        envelope_id: str | None,
        data: bytes,
        sender: str,
        transport: Transport,
        *,
        now: datetime,
        rejected: str | None = None,
    ) -> None:
        """Record a received envelope. `rejected` is the sender's error."""
        if self._history is not None:
            about = (envelope_id, data, sender, transport, now, rejected)
            self._writer.put(self._history, self._received, len(data), *about)

    def log_delivered(
        self, envelope: Envelope, data: bytes, recipients: Recipients, *, now: datetime, metadata: Mapping[str, Any]
    ) -> None:
        """Record a delivery: one line for each named recipient, or one line with their number."""
        if self._history is not None and self._delivered_lines != "never":
            self._writer.put(self._history, self._delivered, len(data), envelope.id, data, recipients, now, metadata)

    def log_decision(
        self,
        envelope: Draft,
        sender: str,
        decision: PermissionDecision,
        transport: Transport,
        *,
        now: datetime,
    ) -> None:
        """Record a permission decision."""
        if self._decisions is not None:
            about = (envelope.id, envelope.kind, envelope.correlation_id, sender, transport, decision, now)
            self._writer.put(self._decisions, self._decided, _SIZE_OF_A_DECISION, *about)

    def log_permission_change(self, note: AuditNote, *, now: datetime) -> None:
        """Record a change of permissions."""
        if self._decisions is not None:
            self._writer.put(self._decisions, self._permission_change, _SIZE_OF_A_DECISION, note, now)

    # Rendering, in the writer's thread. The parts of a line that repeat are cached.

    def _received(
        self,
        envelope_id: str | None,
        data: bytes,
        sender: str,
        transport: Transport,
        now: datetime,
        rejected: str | None,
    ) -> bytes:
        tail = self._tail(sender, "inbound", transport)
        received = self._line("received", envelope_id, data, now) + tail + b"}\n"
        if rejected is None:
            return received
        why = b',"metadata":' + to_json({"reason": rejected}) + b"}\n"
        return received + self._line("rejected", envelope_id, data, now) + tail + why

    def _delivered(
        self, envelope_id: str, data: bytes, recipients: Recipients, now: datetime, metadata: Mapping[str, Any]
    ) -> bytes:
        names: tuple[str | None, ...] = (None,)
        if isinstance(recipients, int):
            metadata = {**metadata, "recipients": recipients}
        else:
            names = recipients
        start = self._line("delivered", envelope_id, data, now)
        end = b',"metadata":' + to_json(metadata) + b"}\n"
        return b"".join([part for name in names for part in (start, self._tail(name, "outbound", "websocket"), end)])

    def _decided(
        self,
        envelope_id: str | None,
        kind: str | None,
        correlation_id: tuple[str, ...] | None,
        sender: str,
        transport: Transport,
        decision: PermissionDecision,
        now: datetime,
    ) -> bytes:
        key = (sender, kind, transport, id(decision))
        known = self._decision_tails.get(key)
        if known is None or known[0] is not decision:
            fields = {
                "participant": sender,
                "space_id": self._space,
                "result": "denied" if decision.matched is None else "allowed",
                "required_capability": kind,
                "matched_capability": decision.matched,
                "matched_source": decision.source,
            }
            known_fields = to_json({name: value for name, value in fields.items() if value is not None})[1:-1]
            granted = b',"granted_capabilities":' + decision.permissions.patterns_json
            source = to_json({"source": "http_api" if transport == "http" else transport, "transport": transport})
            if len(self._decision_tails) >= _MAX_CACHED_TAILS:
                self._decision_tails.clear()
            # The metadata stays open, because correlation ids may follow.
            known = decision, b"," + known_fields + granted + b',"metadata":' + source[:-1]
            self._decision_tails[key] = known
        named = b',"envelope_id":' + to_json(envelope_id) if envelope_id is not None else b""
        correlation = b',"correlation_id":' + to_json(correlation_id) if correlation_id else b""
        return b"".join((self._stamp(now), b'capability_check"', named, known[1], correlation, b"}}\n"))

    def _permission_change(self, note: AuditNote, now: datetime) -> bytes:
        metadata = {"by": note.envelope.sender, "grant_id": note.grant_id, "reason": note.reason}
        fields = {
            "timestamp": wire_timestamp(now),
            "event": note.event,
            "envelope_id": note.envelope.id,
            "participant": note.participant,
            "space_id": self._space,
            "granted_capabilities": note.capabilities,
            "metadata": {key: value for key, value in metadata.items() if value is not None},
        }
        return to_json(fields) + b"\n"

    def _line(self, event: str, envelope_id: str | None, data: bytes, now: datetime) -> bytes:
        """Return a line up to and including the envelope."""
        named = b'","id":' + to_json(envelope_id) if envelope_id is not None else b'"'
        return self._stamp(now) + event.encode() + named + b',"envelope":' + self._kept(data)

    def _kept(self, data: bytes) -> bytes:
        """Return an envelope in the form of the log; a very long one is replaced by its size."""
        return data if len(data) <= self._max_envelope_bytes else b'{"omitted_bytes":%d}' % len(data)

    def _tail(self, participant: str | None, direction: str, transport: Transport) -> bytes:
        key = (participant, direction, transport)
        known = self._tails.get(key)
        if known is None:
            named = {} if participant is None else {"participant": participant}
            fields = {**named, "space_id": self._space, "direction": direction, "transport": transport}
            if len(self._tails) >= _MAX_CACHED_TAILS:
                self._tails.clear()
            known = self._tails[key] = b"," + to_json(fields)[1:-1]
        return known

    def _stamp(self, now: datetime) -> bytes:
        """Return the start of a line, up to the event's name. Lines of the same second share most of it."""
        passed = now - self._second
        if passed.days or passed.seconds:
            self._second = now.replace(microsecond=0)
            self._second_prefix = b'{"timestamp":"' + wire_timestamp(self._second)[: -len("000Z")].encode()
            passed = now - self._second
        return self._second_prefix + _MILLISECONDS[passed.microseconds // 1000]
