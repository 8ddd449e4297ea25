"""The figures of a space over time."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.payloads.context_history import ParticipantFigures
from mew_spaces.core.state import ReportedStatus
from mew_spaces.log import figure_store
from mew_spaces.log.figure_store import FigureStore

DAY = 86_400.0
START = 1_800_000_000.0  # a whole hour


def status(tokens: int | None, **report: Any) -> dict[str, Any]:
    known = {"basis": "reported"} if tokens is not None else {"basis": "unknown", "reason": "cleared"}
    context = {**known, "level": "healthy", "severity": 0, **report}
    return {"messages_in_context": 1, "max_tokens": 8_192, "context": context} | (
        {} if tokens is None else {"tokens": tokens}
    )


class Clocked:
    """A store whose time stands still until it is set."""

    def __init__(self, path: Path | None = None) -> None:
        self.now = START
        self.store = FigureStore(path, clock=lambda: self.now)

    def receive(self, participant: str, body: dict[str, Any], at: float) -> None:
        when = datetime.fromtimestamp(at, UTC)
        self.store.waiting[participant] = ReportedStatus(status=body, envelope_id="", received_at=when, figure_at=when)

    def report(self, at: float, tokens: int | None, **report: Any) -> None:
        self.now = at
        self.receive("coder", status(tokens, **report), at)
        self.store.write()

    def kept(self, seconds: int = 90 * 86_400, limit: int = 10_000) -> ParticipantFigures:
        found = self.store.read("demo", seconds=seconds, limit=limit).participants
        return found[0] if found else ParticipantFigures(id="coder")


def test_an_unknown_figure_is_absent() -> None:
    clocked = Clocked()
    clocked.report(START, 100)
    clocked.report(START + 1, None)
    first, second = (one.model_dump(exclude_unset=True) for one in clocked.kept().samples)
    assert (first["tokens"], first["basis"], first["severity"]) == (100, "reported", 0)
    assert "tokens" not in second
    assert second["basis"] == "unknown"


def test_old_reports_thin_out_to_the_last_and_the_fullest() -> None:
    clocked = Clocked()
    for second in range(0, 120, 10):
        clocked.report(START + second, 500 if second == 20 else 100 + second)
    assert len(clocked.kept().samples) == 12
    clocked.report(START + 2 * 3_600, 7)
    assert [one.tokens for one in clocked.kept().samples] == [500, 150, 210, 7]
    clocked.report(START + 3 * DAY, 8)
    assert [one.tokens for one in clocked.kept().samples] == [500, 210, 7, 8]
    clocked.report(START + 91 * DAY, 9)
    assert [one.tokens for one in clocked.kept().samples] == [8, 9]


def test_figures_are_stored_after_the_clock_was_set_back(tmp_path: Path) -> None:
    before = Clocked(tmp_path / "figures.sqlite")
    before.report(START + 3_600, 100)
    before.store.close()
    clocked = Clocked(tmp_path / "figures.sqlite")
    clocked.report(START + 5, 200)
    assert [one.tokens for one in clocked.kept().samples] == [200, 100]
    clocked.store.close()


def test_figures_that_did_not_change_are_stored_once_a_minute() -> None:
    clocked = Clocked()
    for second in range(0, 130, 10):
        clocked.report(START + second, 100)
    assert len(clocked.kept().samples) == 3


def test_a_restart_keeps_figures_and_repeats_no_compaction(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    done = {"at": "2027-01-15T07:59:00Z", "trigger": "requested", "basis": "projected", "tokens_before": 900}
    before = Clocked(path)
    before.report(START, 100, last_compaction=done)
    before.store.close()
    assert os.name == "nt" or path.stat().st_mode & 0o077 == 0
    after = Clocked(path)
    after.report(START + 5, 200, last_compaction=done)
    after.store.observe_summary("coder", {"entries": [{"at": done["at"]}], "summary": "We chose a lexer \ud83d"})
    after.store.observe_summary("coder", {"entries": [], "summary": "of no compaction"})
    after.store.write()
    kept = after.kept()
    after.store.close()
    assert [one.tokens for one in kept.samples] == [100, 200]
    (compaction,) = kept.compactions
    assert compaction.model_dump(exclude_unset=True) == {
        "at": "2027-01-15T07:59:00.000Z",
        "trigger": "requested",
        "tokens_before": 900,
        "basis": "projected",
        "summary": "We chose a lexer ?",
    }


def test_figures_that_a_full_disk_refused_are_stored_with_the_next_status() -> None:
    done = {"at": "2027-01-15T07:59:00Z", "trigger": "requested", "basis": "projected"}
    clocked = Clocked()
    clocked.store._database.execute("PRAGMA query_only = ON")
    clocked.report(START, 100, last_compaction=done)
    clocked.store._database.execute("PRAGMA query_only = OFF")
    assert not clocked.kept().samples
    clocked.report(START + 5, 100, last_compaction=done)
    assert (len(clocked.kept().samples), len(clocked.kept().compactions)) == (1, 1)


def test_a_status_from_before_a_start_is_stored_once(tmp_path: Path) -> None:
    for _ in range(2):
        clocked = Clocked(tmp_path / "figures.sqlite")
        clocked.receive("coder", status(100), START - 5)
        clocked.receive("ada", {"tokens": "no status"}, START - 5)
        clocked.store.close()
    assert [one.tokens for one in Clocked(tmp_path / "figures.sqlite").kept().samples] == [100]


def test_a_flood_of_participants_and_reports_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_store, "MAX_SAMPLES", 1_000)
    clocked = Clocked()
    store = clocked.store
    for turn in range(3):
        for number in range(5_000):
            clocked.receive(f"p{number % 2_500}", status(number), START + turn)
    writes = 0
    while store.has_news:
        store.write()
        writes += 1
    assert writes == 2  # a batch is bounded; the rest waits for the next
    clocked.report(START + figure_store.PRUNE_SECONDS, 10**30)
    found = store.read("demo", seconds=3_600, limit=10_000)
    assert sum(len(one.samples) for one in found.participants) == 1_000
    assert store.read("demo", seconds=3_600, limit=10).more


def test_each_participant_gets_its_turn_when_more_report_than_one_write_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_store, "MAX_BATCH", 2)
    clocked = Clocked()
    for second in range(6):
        for name in ("ada", "bob", "coder"):
            clocked.receive(name, status(second), START + second)
        clocked.store.write()
    found = clocked.store.read("demo", seconds=3_600, limit=100).participants
    assert {one.id: len(one.samples) for one in found} == {
        "ada": 6,
        "bob": 3,
        "coder": 3,
    }  # each waits for one write at most


def test_compactions_of_one_participant_do_not_push_out_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_store, "MAX_COMPACTIONS", 10)
    clocked = Clocked()
    done = {"trigger": "requested", "basis": "projected"}
    for number in range(41):
        who, at = ("ada" if number < 3 else "bob"), f"2027-01-15T07:00:{number:02}Z"
        shown = status(100, last_compaction={**done, "at": at})
        clocked.receive(who, shown, START + number)
        clocked.store.write()
    clocked.receive("ada", status(1), START + figure_store.PRUNE_SECONDS + 1)
    clocked.now = START + figure_store.PRUNE_SECONDS + 1
    clocked.store.write()
    found = {one.id: len(one.compactions) for one in clocked.store.read("demo", seconds=7_200, limit=100).participants}
    assert found == {"ada": 3, "bob": 7}


def test_a_file_that_is_no_database_is_replaced_by_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "figures"
    text = "not a database, but long enough to be read as one" * 20
    path.write_text(text)
    clocked = Clocked(path)
    clocked.report(START, 100)
    assert len(clocked.kept().samples) == 1
    assert "cannot be used" in caplog.text
    clocked.store.close()
    assert path.read_text() == text


def test_an_answer_holds_a_bounded_amount_of_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_store, "MAX_READ_CHARS", 20_000)
    clocked = Clocked()
    for number in range(5):
        at = f"2027-01-15T07:5{number}:00Z"
        done = {"at": at, "trigger": "requested", "basis": "projected"}
        clocked.report(START + number, number, last_compaction=done)
        clocked.store.observe_summary(
            "coder", {"entries": [{"at": at}], "summary": "x" * figure_store.MAX_SUMMARY_CHARS}
        )
        clocked.store.write()
    found = clocked.store.read("demo", seconds=3_600, limit=10_000)
    assert [one.at[14:16] for one in found.participants[0].compactions] == ["53", "54"]
    assert found.more
