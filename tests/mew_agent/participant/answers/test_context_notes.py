"""The notices that a reader gets about an agent's compactions and pauses."""

from typing import Any

import pytest
from mew_protocol.context_report import ContextReport, LastCompaction

from mew_agent.participant.answers.context_notes import ContextNote, ContextNotes
from mew_agent.participant.peers import PeerContext

LAST = LastCompaction(
    at="2026-01-01T00:00:00Z",
    trigger="threshold",
    tokens_before=98_412,
    tokens_after=27_046,
    freed_tokens=71_366,
    freed_gross_tokens=71_600,
    summary_tokens=234,
    freed_messages=84,
    basis="projected",
)


def status(word: str, tokens: int | None = 98_412, **report: Any) -> PeerContext:
    basis = report.pop("basis", "reported" if tokens is not None else "unknown")
    reason = "cleared" if basis == "unknown" else None
    return PeerContext(
        tokens=tokens,
        max_tokens=128_000,
        messages=3,
        status=word,
        report=ContextReport(basis=basis, reason=reason, **report),
    )


def test_compaction_causes_a_notice_at_its_beginning_and_its_end() -> None:
    notices = ContextNotes()
    assert notices.update(status("active")) is None
    assert notices.update(status("compacting")) == ContextNote("begun", "compacting 98,412 tokens ...")
    assert notices.is_compacting
    ended = notices.update(status("compacted", 27_046, basis="projected", last_compaction=LAST))
    assert ended == ContextNote(
        "ended", "freed ~71,366 tokens; now ~27,046 of 128,000 (projected; exact after its next call)"
    )
    assert not notices.is_compacting


def test_freed_tokens_are_marked_as_an_estimate() -> None:
    unknown = ContextNotes().update(status("compacted", None, last_compaction=LAST))
    assert unknown == ContextNote("ended", "freed ~71,366 tokens")


def test_notices_say_in_words_how_a_size_is_known() -> None:
    notices = ContextNotes()
    begun = notices.update(status("compacting", basis="agent_reported"))
    assert begun == ContextNote("begun", "compacting ~98,412 tokens (agent reported) ...")
    ended = notices.update(status("compacted", 27_046, basis="server_counted", last_compaction=LAST))
    assert ended == ContextNote("ended", "freed ~71,366 tokens; now 27,046 of 128,000 (server counted)")


def test_compaction_that_freed_nothing_does_not_show_an_earlier_one() -> None:
    notices = ContextNotes(status("active", last_compaction=LAST))
    notices.update(status("compacting", last_compaction=LAST))
    ended = notices.update(status("compacted", last_compaction=LAST))
    assert ended == ContextNote("ended", "compacting freed nothing; now 98,412 of 128,000 (reported)")


def test_repeated_compacting_status_causes_one_notice() -> None:
    notices = ContextNotes()
    assert notices.update(status("compacting")) is not None
    assert notices.update(status("compacting")) is None


def test_unknown_size_is_left_out() -> None:
    assert ContextNotes().update(status("compacting", None)) == ContextNote("begun", "compacting ...")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("compaction_failed:the summary was  empty", "compaction failed: the summary was empty"),
        ("compaction_stalled", "compaction stalled: no reason given"),
    ],
)
def test_failed_compaction_shows_its_reason(word: str, text: str) -> None:
    notices = ContextNotes()
    notices.update(status("compacting"))
    assert notices.update(status(word)) == ContextNote("ended", text)
    assert not notices.is_compacting


def test_sizes_without_a_report_are_estimates() -> None:
    notices = ContextNotes()
    plain = PeerContext(tokens=900, max_tokens=1000, messages=3, status="compacting")
    assert notices.update(plain) == ContextNote("begun", "compacting ~900 tokens (estimate) ...")
    after = PeerContext(tokens=500, max_tokens=1000, messages=3, status="compacted")
    assert notices.update(after) == ContextNote("ended", "compacted; now ~500 of 1,000 (estimate)")


def test_pause_causes_one_notice() -> None:
    notices = ContextNotes()
    notice = notices.update(status("paused:lunch"))
    assert notice is not None
    assert notice.stage == "paused"
    assert notices.is_paused
    assert notices.update(status("paused")) is None
    assert notices.update(status("active")) is None
    assert not notices.is_paused


def test_approvals_and_stopped_loops_differ_from_a_pause() -> None:
    notices = ContextNotes()
    loop = {"kind": "loop", "what": "8 messages", "since": "t", "peer": "two"}
    assert notices.update(status("paused: loop with two", waiting=(loop,))) is None
    assert not notices.is_paused
    wait = {"kind": "approval", "what": "approval of write on files", "since": "t", "who_may_answer": ("ada", "bob")}
    first = status("waiting_for_approval", waiting=(wait, loop))
    notice = notices.update(first)
    assert notice is not None
    assert notice.text == "waiting for approval of write on files (ada, bob can decide)"
    assert notices.update(first) is None
    other = notices.update(status("waiting_for_approval", waiting=({**wait, "who_may_answer": ()},)))
    assert other is not None
    assert "no connected participant can decide" in other.text


def test_earlier_compacting_status_is_remembered() -> None:
    assert ContextNotes(status("compacting")).is_compacting
