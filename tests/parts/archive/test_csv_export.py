"""Figures over time as CSV: gaps stay gaps, and names from the wire do no harm."""

import csv
import io
from typing import Any

from mew_protocol.payloads.context_history import ParticipantFigures

from mew_agent.parts.archive.csv_export import csv_lines


def figures(name: str = "coder") -> ParticipantFigures:
    def sample(minute: int, tokens: int | None, basis: str) -> dict[str, Any]:
        return {"at": f"2026-01-01T12:0{minute}:00Z", "tokens": tokens, "max_tokens": 1_000, "basis": basis}

    return ParticipantFigures.model_validate(
        {
            "id": name,
            "samples": [
                {**sample(0, 100, "reported"), "level": "=HYPERLINK(1)"},
                sample(1, 900, "projected"),
                sample(2, None, "unknown"),
                sample(4, 300, "reported"),
            ],
            "compactions": [
                {
                    "at": "2026-01-01T12:03:00Z",
                    "trigger": "thre,sh<old>",
                    "freed_tokens": -5,
                    "summary": "not in a cell",
                }
            ],
        }
    )


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("\n".join(csv_lines(figures("@evil"))))))


def test_csv_has_reports_and_compactions_in_the_order_of_time() -> None:
    found = rows()
    assert [(row["event"], row["tokens"], row["basis"]) for row in found] == [
        ("report", "100", "reported"),
        ("report", "900", "projected"),
        ("report", "", "unknown"),
        ("compaction", "", ""),
        ("report", "300", "reported"),
    ]
    assert (found[3]["trigger"], found[3]["freed_tokens"]) == ("thre,sh<old>", "-5")


def test_csv_has_no_formula() -> None:
    assert (rows()[0]["level"], rows()[0]["participant"]) == ("'=HYPERLINK(1)", "'@evil")
