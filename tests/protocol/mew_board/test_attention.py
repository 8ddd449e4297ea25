"""What needs a person: each kind, its words and actions, the order, and many of one kind as one."""

from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from mew_board.attention import aggregate, attention, entry_items, not_stored_item, sort_items
from mew_protocol.payloads.attention_items import AttentionItem, AttentionKind
from mew_protocol.payloads.mcp import UndecidedProposal, digest_of
from mew_protocol.payloads.participant import BoardEntry, StoredMessages

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
AT = "2026-01-01T11:59:00Z"
EARLIER = "2026-01-01T11:00:00Z"


def entry(
    name: str = "coder", word: str = "active", *, connected: bool = True, at: str = AT, **context: Any
) -> BoardEntry:
    """A participant that reports 90 of 100 tokens."""
    report = {"basis": "reported", "level": "healthy", "severity": 0, **context}
    status = {"messages_in_context": 1, "tokens": 90, "max_tokens": 100, "status": word, "context": report}
    return BoardEntry.model_validate({"id": name, "connected": connected, "status": status, "received_at": at})


def proposal(
    number: int = 1, *, tool: str = "write_file", truncated: bool = False, **arguments: Any
) -> UndecidedProposal:
    body = {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"protocol": "mew/v0.4", "id": f"proposal-{number}", "ts": EARLIER, "from": "coder", "to": ["files"]}
    return UndecidedProposal.model_validate(
        {**headers, "kind": "mcp/proposal", "payload": body, "truncated": truncated, "age_seconds": 1800}
    )


def waiting(kind: str, what: str = "x", **more: Any) -> dict[str, Any]:
    return {"waiting": [{"kind": kind, "what": what, "since": EARLIER, **more}]}


def items(
    *entries: BoardEntry, proposals: tuple[UndecidedProposal, ...] = (), **more: Any
) -> tuple[AttentionItem, ...]:
    return attention(entries, proposals, now=NOW, **more)


MODEL_DOWN = waiting("model", "http://localhost:1/v1 (connection refused)")

KINDS = [
    (
        entry("a", "model_unreachable", **MODEL_DOWN),
        "model_unreachable",
        "blocking",
        "http://localhost:1/v1 (connection refused)",
    ),
    (entry("a", "model_unauthorized"), "sign_in", "blocking", "no valid key"),
    (entry("a", "sign_in_needed:run `codex login`"), "sign_in", "blocking", "needs a sign-in: run `codex login`"),
    (entry("a", "failed:exited with code 3"), "program_ended", "blocking", "exited with code 3"),
    (entry("a", "failed:no sign-in is possible"), "program_ended", "blocking", "no sign-in is possible"),
    (entry("a", "model_error"), "model_failed", "blocking", "an error"),
    (entry("a", "model_rate_limited"), "model_failed", "warning", "rate limited"),
    (entry("a", "context_overflow"), "model_failed", "blocking", "larger than the window"),
    (entry("a", "turn_stopped:after 40 steps"), "turn_stopped", "warning", "after 40 steps"),
    (entry("a", "handler_failed:answer: OSError: no disk"), "handler_failed", "warning", "answer: OSError: no disk"),
    (entry("a", "compaction_stalled"), "compaction_stalled", "blocking", "without getting smaller"),
    (entry("a", "compacting", at=EARLIER), "compaction_stalled", "warning", "more than 10 minutes"),
    (entry("a", "compacting", at="2020-01-01T00:00:00"), "compaction_stalled", "warning", "more than 10 minutes"),
    (entry("a", "compaction_failed:no summary"), "compaction_failed", "warning", "no summary"),
    (
        entry("a", "paused: loop with b", **waiting("loop", "20 answers", peer="b")),
        "loop",
        "warning",
        "answers b: 20 answers",
    ),
    (entry("a", **waiting("room", peer="ada")), "held", "warning", "holds 1 message that does not fit"),
    (
        entry("a", **waiting("tools", "9 of 10", peer="b")),
        "tools_left_out",
        "warning",
        "leaves out tools of b: 9 of 10",
    ),
    (entry("a", **waiting("budget", "5 of 5", peer="b")), "budget_spent", "warning", "spent its tokens for b: 5 of 5"),
    (entry("a", connected=False), "disconnected", "notice", "no longer connected"),
    (entry("a", severity=2), "nearly_full", "warning", "nearly full"),
    (entry("a", severity="unknown"), "nearly_full", "warning", "nearly full"),
    (entry("a", compact_at_tokens=90), "about_to_compact", "notice", "its next turn, at 90 tokens"),
    (entry("a", compact_at_tokens=95, turns_to_compaction=1), "about_to_compact", "notice", "at 95 tokens"),
    (entry("a", compact_at_tokens=95, next_prompt_tokens=96), "about_to_compact", "notice", "its next turn"),
]


@pytest.mark.parametrize(("given", "kind", "level", "words"), KINDS)
def test_each_kind_has_its_level_and_says_why(given: BoardEntry, kind: str, level: str, words: str) -> None:
    (found,) = items(given)
    assert (found.kind, found.level, found.participant) == (kind, level, "a")
    assert words in found.reason
    assert found.reason.startswith(("a ", "a: "))
    assert found.since == (
        EARLIER if given.status and given.status.context and given.status.context.waiting else found.since
    )
    for action in found.actions:
        assert (action.capability is None) == (action.envelope is None)


CALM = [
    entry(),
    entry(word="compacting"),
    entry(word="shutting_down", connected=False),
    entry(compact_at_tokens=95, turns_to_compaction=3),
    entry(word="compacting", compact_at_tokens=80, turns_to_compaction=0),
    BoardEntry(id="ada", connected=False),
    BoardEntry(id="files", connected=True),
]


@pytest.mark.parametrize("given", CALM)
def test_states_that_end_on_their_own_need_no_attention(given: BoardEntry) -> None:
    assert items(given) == ()


def test_an_overflow_offers_to_make_room() -> None:
    (found,) = items(entry("coder", "context_overflow"))
    assert [one.command for one in found.actions] == ["mew compact coder", "mew clear coder"]


def test_a_proposal_shows_its_arguments_and_how_to_decide() -> None:
    (found,) = items(proposals=(proposal(path="x.txt"),))
    assert (found.kind, found.level, found.since) == ("approval", "blocking", "2026-01-01T11:30:00.000Z")
    assert found.reason == 'coder waits for approval of write_file on files: {"path": "x.txt"}'
    approve, reject, always = found.actions
    assert approve.command == "mew approve proposal-1"
    call = {"method": "tools/call", "params": {"name": "write_file", "arguments": {"path": "x.txt"}}}
    assert approve.envelope == {
        "kind": "mcp/request",
        "to": ["files"],
        "correlation_id": ["proposal-1"],
        "payload": {**call, "proposal_digest": digest_of(call, "coder", ["files"])},
    }
    assert always.envelope is not None
    assert always.envelope["payload"]["capabilities"] == [
        {
            "kind": "mcp/request",
            "to": ["files"],
            "payload": {"method": "tools/call", "params": {"name": "write_file"}},
            "approve": False,
        }
    ]
    assert always.confirm is not None
    assert always.confirm.startswith("coder may then call write_file on files without asking, with any arguments")
    assert "`mew revoke coder mcp/request --to files --tool write_file` ends it" in always.confirm
    assert reject.envelope is not None
    assert (reject.envelope["kind"], reject.envelope["to"]) == ("mcp/reject", ["coder"])


def test_a_proposal_without_its_parameters_can_only_be_rejected() -> None:
    (found,) = items(proposals=(proposal(truncated=True),))
    assert [one.label for one in found.actions] == ["Reject"]


def test_a_proposed_compaction_names_the_tokens_it_would_free() -> None:
    sizes: dict[str, Any] = {"present_tokens": 90_000, "freed_tokens": 40_000}
    one = proposal(tool="compact_context", **sizes)
    (found,) = items(proposals=(one.model_copy(update={"to": ("coder",)}),))
    assert found.reason == "coder asks before it compacts its context of ~90,000 tokens, which frees ~40,000"
    (of_another,) = items(proposals=(one,))
    assert of_another.reason.startswith("coder waits for approval of compact_context on files: {")


def test_a_short_text_gives_the_size_of_omitted_parts() -> None:
    (found,) = items(proposals=(proposal(path="a\u202eb", text="x" * 3_000),))
    assert 'files: {"path": "a<U+202E>b", "text": "xxx' in found.reason
    assert found.reason.endswith("x … (2,874 more characters; `mew proposals` shows all)")


def test_launched_programs_are_missed_and_faults_say_more() -> None:
    gone = BoardEntry(id="coder", connected=False)
    (missed,) = items(gone, expected={"coder"})
    assert (missed.kind, missed.level, missed.reason) == ("disconnected", "warning", "coder has not joined")
    (ended,) = items(gone, expected={"coder"}, faults={"coder": "exited with code 3"})
    assert (ended.kind, ended.level, ended.reason) == ("program_ended", "blocking", "coder: exited with code 3")


def test_a_gateway_that_cannot_store_comes_first() -> None:
    found = sort_items([*items(entry(word="model_rate_limited")), not_stored_item()])
    assert [one.kind for one in found] == ["not_stored", "model_failed"]


def test_items_are_sorted_by_level_and_then_by_age() -> None:
    found = items(
        entry("notice", compact_at_tokens=95, turns_to_compaction=0),
        entry("warning", "turn_stopped"),
        entry("late", "model_unreachable"),
        entry("early", "model_unreachable", at=EARLIER),
    )
    assert [one.participant for one in found] == ["early", "late", "warning", "notice"]


def test_an_item_stays_the_same_while_its_cause_does() -> None:
    down = [entry("a", "model_unreachable", tokens_per_turn=one, **MODEL_DOWN) for one in (1.0, 2.0)]
    assert items(down[0]) == items(down[1])


def test_many_items_of_one_kind_become_one_that_holds_them() -> None:
    names = [f"agent{number}" for number in range(9)]
    found = items(*(entry(name, "model_unreachable") for name in names), entry("writer", "turn_stopped"))
    shown = aggregate(found)
    assert [one.kind for one in shown] == ["model_unreachable", "turn_stopped"]
    assert shown[0].reason == "9 agents cannot reach their model: agent0, agent1, agent2, agent3, agent4 and 4 more"
    assert [one.participant for one in shown[0].items] == names
    assert aggregate(found, most=9) == found


@pytest.mark.parametrize("kind", get_args(AttentionKind))
def test_items_of_every_kind_can_become_one(kind: AttentionKind) -> None:
    many = [
        AttentionItem(id=f"{kind}:{name}", kind=kind, level="warning", participant=name, reason="x") for name in "abcd"
    ]
    (together,) = aggregate(many)
    assert together.reason.startswith("4 ")
    assert together.reason.endswith(": a, b, c, d")


STORED = {"messages": 3, "oldest_at": "2026-01-02T12:01:00.000Z", "is_complete": True}


def unread_of(one: BoardEntry, *, minute: int = 10) -> list[str]:
    found = entry_items(one, now=datetime(2026, 1, 2, 12, minute, tzinfo=UTC))
    return [item.reason for item in found if item.kind == "unread"]


def test_messages_stored_for_an_agent_that_is_away_need_a_look() -> None:
    away = entry(connected=False).model_copy(update={"stored": StoredMessages.model_validate(STORED)})
    assert unread_of(away, minute=2) == []
    assert unread_of(away) == ["coder has not read 3 messages, it is not connected"]
    late = datetime(2026, 1, 2, 12, 10, tzinfo=UTC)
    (item,) = [one for one in entry_items(away, now=late) if one.kind == "unread"]
    assert item.since == STORED["oldest_at"]
    assert [one.label for one in item.actions] == ["Restart", "Show log"]
    known = StoredMessages.model_validate({**STORED, "messages": 1, "is_complete": False})
    assert unread_of(away.model_copy(update={"stored": known})) == [
        "coder has not read at least 1 message, it is not connected"
    ]
    assert unread_of(away.model_copy(update={"connected": True})) == []
    assert unread_of(BoardEntry(id="ada", connected=False, stored=known)) == []


def test_messages_that_no_prompt_has_held_for_long_need_a_look() -> None:
    now = datetime(2026, 1, 2, 12, 10, tzinfo=UTC)
    status = {
        "status": "paused",
        "messages_in_context": 1,
        "context": {
            "basis": "unknown",
            "reason": "no_call_yet",
            "queued": {"messages": 3, "tokens": 90, "basis": "projected", "oldest_at": "2026-01-02T12:01:00.000Z"},
        },
    }
    entry = BoardEntry.model_validate({"id": "coder", "connected": True, "status": status})
    (item,) = [one for one in entry_items(entry, now=now) if one.kind == "unread"]
    assert item.reason == "coder has not read 3 messages, it is paused"
    assert item.since == "2026-01-02T12:01:00.000Z"
    early = datetime(2026, 1, 2, 12, 2, tzinfo=UTC)
    assert [one.kind for one in entry_items(entry, now=early) if one.kind == "unread"] == []
