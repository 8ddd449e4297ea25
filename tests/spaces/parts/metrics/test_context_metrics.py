"""The figures of a board as metrics."""

from typing import Any

from mew_protocol.payloads.participant import BoardEntry, Status
from mew_spaces.parts.metrics.context_metrics import MAX_LABEL_CHARS, context_metrics


def samples(status: dict[str, Any] | None) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """The samples of one participant by metric, without the labels of space and participant."""
    entry = BoardEntry.model_validate({"id": "coder", "connected": True, "status": status})
    metrics = context_metrics([("demo", [entry])])
    assert all(labels[:2] == ("demo", "coder") for metric in metrics for labels, _ in metric.samples)
    assert all(len(labels) == len(metric.labels) for metric in metrics for labels, _ in metric.samples)
    return {
        metric.name: [(labels[2:], value) for labels, value in metric.samples] for metric in metrics if metric.samples
    }


def test_an_unknown_figure_has_no_sample() -> None:
    assert samples(None) == {"mew_participant_connected": [((), 1)]}
    unknown = {"basis": "unknown", "reason": "no_call_yet", "last_reported": {"tokens": 9, "measured_at": "x"}}
    assert samples({"messages_in_context": 0, "context": unknown}) == {
        "mew_participant_connected": [((), 1)],
        "mew_context_info": [(("unknown", "no_call_yet", "", ""), 1)],
        "mew_context_compactions_total": [((), 0)],
    }


def test_a_figure_without_a_report_is_an_estimate() -> None:
    found = samples({"messages_in_context": 1, "tokens": 0, "max_tokens": 9})
    assert found["mew_context_tokens"] == [(("estimate",), 0)]
    assert found["mew_context_window_tokens"] == [(("estimate",), 9)]
    assert "mew_context_compactions_total" not in found


def test_waits_are_counted_by_their_kind() -> None:
    waits = [{"kind": kind, "what": "x", "since": "2026-01-01T00:00:00Z"} for kind in ("loop", "room", "loop")]
    report = {"basis": "reported", "waiting": waits}
    found = samples({"messages_in_context": 1, "tokens": 9, "context": report})
    assert found["mew_participant_waiting"] == [(("loop",), 2), (("room",), 1)]


def test_implausible_values_of_a_participant_do_no_harm() -> None:
    report = {
        "basis": "reported",
        "level": "x" * 5_000,
        "severity": 10**400,
        "last_compaction": {"at": "yesterday", "trigger": "\n\"'", "basis": "exact", "freed_tokens": -5},
        "compactions": 1,
    }
    found = samples({"messages_in_context": 1, "tokens": 10**400, "context": report})
    assert "mew_context_tokens" not in found
    assert "mew_context_level" not in found
    assert "mew_context_last_compaction_timestamp_seconds" not in found
    assert found["mew_context_last_compaction_freed_tokens"] == [(("\n\"'", "exact"), -5)]
    (labels, severity), *_ = samples({"messages_in_context": 1, "context": {**report, "severity": 2}})[
        "mew_context_level"
    ]
    assert (len(labels[0]), severity) == (MAX_LABEL_CHARS, 2)


def test_an_old_figure_has_its_time_and_the_reason() -> None:
    status = Status(messages_in_context=3, tokens=704, max_tokens=20_000)
    entry = BoardEntry(
        id="coder", connected=True, status=status, figure_at="1970-01-01T00:01:00Z", outdated="messages_since"
    )
    found = {one.name: one.samples for one in context_metrics([("demo", [entry])])}
    assert found["mew_context_tokens_timestamp_seconds"] == [(("demo", "coder"), 60)]
    assert found["mew_context_tokens_outdated"] == [(("demo", "coder", "messages_since"), 1)]
