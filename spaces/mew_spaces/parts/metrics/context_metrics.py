"""[pure] The context figures of participants as metrics for monitoring.

Owns the names, labels and values of the metrics, so that every server of a space exposes the same ones. `metrics`
writes them. An unknown figure has no sample, never 0.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from mew_protocol.context_report import ContextReport, Spending, plausible
from mew_protocol.envelope import unix_seconds
from mew_protocol.payloads.participant import ESTIMATE, BoardEntry, basis_label

MAX_LABEL_CHARS: Final = 100
"""Participants choose some labels, such as the name of a level; longer ones are cut."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and its samples: the values of its labels, and a value. The name of a counter ends in `_total`."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], float]] = field(default_factory=list)

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """The type of metric, as Prometheus calls it."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def add(self, value: float | None, *labels: str | None) -> None:
        """Add a sample unless its value is unknown or implausible. A label of None becomes empty."""
        if (figure := plausible(value)) is not None:
            self.samples.append((tuple((label or "")[:MAX_LABEL_CHARS] for label in labels), figure))


def context_metrics(boards: Iterable[tuple[str, Iterable[BoardEntry]]]) -> tuple[Metric, ...]:
    """Return the metrics of all participants, from the name and the board of each space."""
    metrics = _ContextMetrics()
    for space, entries in boards:
        for entry in entries:
            metrics.add(space, entry)
    return tuple(vars(metrics).values())


def _new(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, text, ("space", "participant", *labels))


class _ContextMetrics:
    """Each attribute is one metric."""

    def __init__(self) -> None:
        self._connected = _new("mew_participant_connected", "1 while the participant is connected, else 0")
        self._waiting = _new("mew_participant_waiting", "What the participant waits for, by kind", "kind")
        self._unread = _new("mew_participant_unread_messages", "Messages that no prompt of the participant has held")
        self._reported_at = _new("mew_context_status_timestamp_seconds", "When the last status arrived")
        self._info = _new("mew_context_info", "How the tokens are known; 1", "basis", "reason", "model", "policy")
        self._tokens = _new("mew_context_tokens", "Tokens in the context window", "basis")
        self._figure_at = _new("mew_context_tokens_timestamp_seconds", "When the tokens were first reported")
        self._outdated = _new("mew_context_tokens_outdated", "1 while the tokens may not be true any more", "reason")
        self._window = _new("mew_context_window_tokens", "Size of the context window", "basis")
        self._limit = _new("mew_context_compact_at_tokens", "Tokens at which the agent compacts automatically")
        self._level = _new("mew_context_level", "Severity of the level: 0 (healthy) to 3", "level", "basis")
        self._compactions = _new("mew_context_compactions_total", "Compactions")
        self._compacted_at = _new("mew_context_last_compaction_timestamp_seconds", "When the last compaction ended")
        self._freed = _new(
            "mew_context_last_compaction_freed_tokens", "Net tokens that the last compaction freed", "trigger", "basis"
        )
        self._cost = _new(
            "mew_context_last_compaction_spent_tokens", "Tokens of the last compaction's model calls", "trigger"
        )
        self._spent = _new("mew_context_spent_tokens_total", "Tokens of all model calls that reported them")
        self._spent_for = _new("mew_context_sender_spent_tokens", "Tokens spent for a sender within an hour", "sender")
        self._budget = _new("mew_context_sender_budget_tokens", "Tokens that may be spent for a sender", "sender")
        self._calls = _new("mew_context_calls_total", "Model calls, by whether they reported tokens", "usage")
        self._money = _new("mew_context_spent_amount_total", "Price of all model calls, where it is known", "currency")

    def add(self, space: str, entry: BoardEntry) -> None:
        """Add the samples of one participant."""
        self._connected.add(entry.connected, space, entry.id)
        status = entry.status
        if status is None:
            return
        report = status.context
        self._reported_at.add(unix_seconds(entry.received_at), space, entry.id)
        basis = basis_label(status.tokens, report)
        about = (report.reason, report.model, report.policy) if report is not None else (None, None, None)
        self._info.add(1, space, entry.id, basis, *about)
        self._tokens.add(status.tokens, space, entry.id, basis)
        self._figure_at.add(unix_seconds(entry.figure_at), space, entry.id)
        if entry.outdated is not None:
            self._outdated.add(1, space, entry.id, entry.outdated)
        window_basis = report.max_tokens_basis if report is not None else None
        self._window.add(status.max_tokens, space, entry.id, window_basis or ESTIMATE)
        if report is not None:
            self._add_report(report, space, entry.id)
            self._unread.add(_unread(entry), space, entry.id)

    def _add_spending(self, spent: Spending, space: str, participant: str) -> None:
        self._spent.add(spent.spent_tokens, space, participant)
        self._money.add(spent.amount, space, participant, spent.currency)
        if spent.calls is not None or spent.unreported_calls:
            self._calls.add(spent.calls or 0, space, participant, "reported")
            self._calls.add(spent.unreported_calls, space, participant, "unknown")

    def _add_report(self, report: ContextReport, space: str, participant: str) -> None:
        self._limit.add(report.compact_at_tokens, space, participant)
        if report.severity != "unknown":
            self._level.add(report.severity, space, participant, report.level, report.basis)
        self._compactions.add(report.compactions, space, participant)
        if report.spending is not None:
            self._add_spending(report.spending, space, participant)
        for one in report.spent_for or ():
            self._spent_for.add(one.tokens, space, participant, one.participant)
            self._budget.add(one.budget_tokens, space, participant, one.participant)
        for kind, count in Counter(one.kind for one in report.waiting or ()).items():
            self._waiting.add(count, space, participant, kind)
        last = report.last_compaction
        if last is not None:
            self._compacted_at.add(unix_seconds(last.at), space, participant)
            self._freed.add(last.freed_tokens, space, participant, last.trigger, last.basis)
            if last.cost is not None:
                self._cost.add(last.cost.spent_tokens, space, participant, last.trigger)


def _unread(entry: BoardEntry) -> int | None:
    """Return the number of unread messages; None if unknown."""
    return entry.unread.messages if entry.unread is not None and entry.unread.is_complete else None
