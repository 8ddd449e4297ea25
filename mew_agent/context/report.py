"""[pure] Builds the context report from a tracker.

Owns which keys are present: an unknown figure is left out, and each figure has its basis. Changes and decides nothing.
"""

import math
from typing import TYPE_CHECKING, Any

from mew_protocol.bounded_dict import cached_by_text
from mew_protocol.context_report import Basis, ContextReport, PinReport, SavingSuggestion, pin_hash

from mew_agent.context.history import pin_line
from mew_agent.context.policy import Policy, compact_at_tokens, level_of
from mew_agent.tokens.projection import Units, features

if TYPE_CHECKING:
    from mew_agent.context.tracker import Tracker


def report_of(tracker: "Tracker") -> ContextReport:
    """Build the report of this moment."""
    snapshot, policy, measurement = tracker.snapshot(), tracker.policy, tracker.measurement
    basis, reason = tracker.shown_basis
    level, severity = level_of(policy, snapshot)
    limit_tokens, model_wait = tracker.shown_limit_tokens, tracker.model_wait
    known: dict[str, Any] = {
        "basis": basis,
        "reason": reason,
        "measure": policy.measure,
        "max_tokens_basis": None if limit_tokens is None else tracker.window.basis,
        "level": level,
        "severity": "unknown" if severity is None else severity,
        "policy": policy.name,
        "stale_messages": measurement.stale_messages(tracker.history.items),
        "measured_at": measurement.measured_at,
        "call_id": measurement.call_id,
        "revision": measurement.revision,
        "compactions": tracker.compactions,
        "last_compaction": tracker.last_compaction,
        "injection": tracker.injection,
        "waiting": (tracker.waiting if model_wait is None else (*tracker.waiting, model_wait)) or None,
        "progress": tracker.progress,
        "spending": tracker.spending,
        "spent_for": tracker.spent_for or None,
        "queued": tracker.queued,
        "sessions": tracker.sessions or None,
        "pins": pin_reports(tracker) if tracker.history.pins else None,
        "model": tracker.model,
    }
    if (drift := tracker.drift) is not None:
        known["drift_tokens"] = drift.tokens
    if snapshot.next_prompt_tokens:
        known["next_prompt_tokens"] = snapshot.next_prompt_tokens
        known["next_prompt_basis"] = tracker.next_prompt.basis
    if snapshot.suggestions:
        known["suggestions"] = tuple(
            SavingSuggestion(text=one.text, tokens_saved=one.tokens_saved, impact=one.impact)
            for one in snapshot.suggestions
        )
    _add_usage(known, tracker, basis)
    _add_outlook(known, tracker, snapshot.used_tokens, limit_tokens)
    # One validation of the whole: a report follows every call, and building each part on its own costs twice as much.
    return ContextReport.model_validate(known)


def _add_usage(known: dict[str, Any], tracker: "Tracker", basis: Basis) -> None:
    """Add the figures of the newest usage as far as they still hold, and the parts of the size."""
    measurement, usage = tracker.measurement, tracker.measurement.usage
    if basis != "reported":
        known["last_reported"] = measurement.last_reported
    if basis in ("reported", "provisional") and usage is not None:
        known["prompt_tokens"], known["cached_tokens"] = usage.prompt_tokens, usage.cached_tokens
        if basis == "reported":
            known["completion_tokens"], known["reasoning_tokens"] = usage.completion_tokens, usage.reasoning_tokens
        elif usage.is_sum:
            return  # more than fills the context
    if measurement.tokens is not None and basis != "unknown":
        known["breakdown"] = _breakdown(tracker, measurement.tokens)


def pin_reports(tracker: "Tracker") -> tuple[PinReport, ...]:
    """Return the pins as reports show them."""
    project = tracker.ledger.calibration.project
    return tuple(
        PinReport(
            id=pin.id,
            hash=pin_hash(pin.text),
            tokens=project(_features_of(pin_line(pin)), messages=0),
            origin=pin.origin,
        )
        for pin in tracker.history.pins
    )


@cached_by_text(1_000_000)
def _features_of(text: str) -> Units:
    """Every report needs these, and pins rarely change."""
    return features(text)


def _add_outlook(known: dict[str, Any], tracker: "Tracker", used_tokens: int | None, limit_tokens: int | None) -> None:
    """Add the spend and its budget, or the trend and the next compaction."""
    # A spend is not part of the window, so no compaction can lower it.
    if tracker.policy.measure == "cumulative":
        known["spent_tokens"], known["budget_tokens"] = used_tokens, _budget_tokens(tracker.policy)
        return
    at = known["compact_at_tokens"] = compact_at_tokens(tracker.policy, limit_tokens)
    per_turn = tracker.measurement.trend.tokens_per_turn
    if per_turn is None:
        return
    known["tokens_per_turn"] = round(per_turn, 1)
    if per_turn > 0 and at is not None and used_tokens is not None:
        known["turns_to_compaction"] = max(0, math.ceil((at - used_tokens) / per_turn))


def _budget_tokens(policy: Policy) -> int | None:
    """Return the smallest spend that the policy compares with; None if there is none."""
    marks = (c.tokens for c in policy.conditions() if c.figure == "used" and c.op != "lt")
    return min((tokens for tokens in marks if tokens is not None), default=None)


def _breakdown(tracker: "Tracker", tokens: int) -> tuple[dict[str, Any], ...] | None:
    """Return the parts of `tokens`, as `BreakdownPart` has them; None if the books do not explain them."""
    prompt_tokens = tracker.ledger.prompt_tokens
    if prompt_tokens is None or tokens < prompt_tokens:
        return None
    sizes = tracker.ledger.parts
    rows = (
        ("prefix", sizes.prefix, "projected"),
        ("summary", sizes.summary, "projected"),
        ("pins", sizes.pins, "projected"),
        ("messages", sizes.messages, "exact" if sizes.items_exact and not sizes.tool_results else "projected"),
        ("tool_results", sizes.tool_results, "projected"),
        ("reply", tokens - prompt_tokens, "reported" if tracker.basis == "reported" else "projected"),
        ("unsent", tracker.unsent_besides_reply_tokens if sizes.unsent else 0, "projected"),
    )
    return tuple([{"part": part, "tokens": size, "basis": basis} for part, size, basis in rows if size])
