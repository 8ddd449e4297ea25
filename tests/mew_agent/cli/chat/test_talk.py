"""A conversation at a terminal: typed lines, heard envelopes, and what one refers to in the other."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope

from mew_agent.cli.chat.slash import HELP, Mistake, Send
from mew_agent.cli.chat.talk import Leave, Show, Talk

WRITE = {"method": "tools/call", "params": {"name": "write_file"}}


def heard(kind: str, payload: dict[str, Any] | None = None, *, sender: str = "coder", **headers: Any) -> Envelope:
    values = {
        "id": "e-1",
        "ts": "2026-01-01T00:00:00Z",
        "from": sender,
        "kind": kind,
        "payload": payload or {},
        **headers,
    }
    return Envelope.model_validate(values)


@pytest.fixture
def talk() -> Talk:
    return Talk("ada")


def test_text_goes_to_the_target_and_to_everybody_without_one(talk: Talk) -> None:
    assert talk.typed(" hello ") == [Send("chat", {"text": "hello"})]
    assert talk.typed("/target @coder, bob") == [Show("text goes to coder, bob")]
    assert talk.typed("hello") == [Send("chat", {"text": "hello"}, ("coder", "bob"))]
    assert talk.typed("/target") == [Show("text goes to coder, bob")]
    assert talk.typed("/target none") == [Show("text goes to everybody")]
    assert talk.typed("") == []


def test_json_with_a_kind_is_an_envelope_and_other_braces_are_text(talk: Talk) -> None:
    assert talk.typed('{"kind": "participant/pause", "to": ["coder"]}') == [Send("participant/pause", {}, ("coder",))]
    for text in ('{"a": 1}', "{not json", '{"kind": 1}'):
        assert talk.typed(text) == [Send("chat", {"text": text})]


def test_help_verbose_and_exit_are_for_this_terminal_alone(talk: Talk) -> None:
    assert talk.typed("/help") == [Show(HELP)]
    assert talk.typed("/exit") == [Leave()]
    assert talk.hear(heard("reasoning/thought", {"message": "hm"})) is None
    talk.typed("/verbose")
    assert talk.hear(heard("reasoning/thought", {"message": "hm"})) == '  coder: reasoning/thought {"message": "hm"}'


def test_what_is_not_understood_is_a_mistake_that_points_to_help(talk: Talk) -> None:
    with pytest.raises(Mistake, match="/help"):
        talk.typed("/sing")


def test_a_proposal_is_shown_with_its_number_and_approved_as_it_was_made(talk: Talk) -> None:
    shown = talk.hear(heard("mcp/proposal", WRITE, id="p-1", to=["files"]))
    assert shown == ('* coder proposes to files: tools/call {"name": "write_file"}\n  /approve 1 or /reject 1')
    assert talk.typed("/approve") == [Send("mcp/request", WRITE, ("files",), ("p-1",))]
    with pytest.raises(Mistake, match="no proposal is open"):
        talk.typed("/approve")


def test_with_several_open_proposals_the_number_must_be_said(talk: Talk) -> None:
    talk.hear(heard("mcp/proposal", WRITE, id="p-1"))
    talk.hear(heard("mcp/proposal", WRITE, id="p-2", sender="bob"))
    with pytest.raises(Mistake, match=r"which one\? open: 1, 2"):
        talk.typed("/approve")
    with pytest.raises(Mistake, match="no proposal 3"):
        talk.typed("/reject 3")
    assert talk.typed("/reject 2 not now") == [Send("mcp/reject", {"reason": "not now"}, ("bob",), ("p-2",))]
    assert talk.typed("/reject too risky") == [Send("mcp/reject", {"reason": "too risky"}, ("coder",), ("p-1",))]


def test_a_proposal_that_somebody_else_settled_is_not_open_any_more(talk: Talk) -> None:
    for number, (kind, sender, still_open) in enumerate(
        [
            ("mcp/request", "bob", False),
            ("mcp/reject", "bob", False),
            ("mcp/withdraw", "coder", False),
            ("mcp/withdraw", "bob", True),
        ]
    ):
        talk.hear(heard("mcp/proposal", WRITE, id=f"p-{number}"))
        talk.hear(heard(kind, WRITE, sender=sender, correlation_id=[f"p-{number}"]))
        assert bool(talk.proposals) is still_open, kind


def test_chats_are_acknowledged_by_sender_id_or_all(talk: Talk) -> None:
    for number, sender in enumerate(("coder", "bob", "coder"), 1):
        talk.hear(heard("chat", {"text": "x"}, id=f"c{number}", sender=sender, to=["ada"]))
    talk.hear(heard("chat", {"text": "to all"}, id="c4"))
    assert talk.typed("/ack") == [Send("chat/acknowledge", {"status": "received"}, ("coder",), ("c3",))]
    assert talk.typed("/ack bob read it") == [Send("chat/acknowledge", {"status": "read it"}, ("bob",), ("c2",))]
    assert talk.typed("/ack c1") == [Send("chat/acknowledge", {"status": "received"}, ("coder",), ("c1",))]
    with pytest.raises(Mistake, match="no chat waits"):
        talk.typed("/ack all")


def test_cancel_means_the_running_reasoning_and_else_the_last_chat(talk: Talk) -> None:
    with pytest.raises(Mistake, match="nobody reasons"):
        talk.typed("/cancel")
    talk.hear(heard("chat", {"text": "go"}, id="mine", sender="ada", to=["coder"]))
    talk.hear(heard("reasoning/start", {}, id="r-1"))
    assert talk.typed("/cancel enough") == [Send("reasoning/cancel", {"reason": "enough"}, context="r-1")]
    talk.hear(heard("reasoning/conclusion", {}, context="r-1"))
    assert talk.typed("/cancel") == [Send("chat/cancel", {}, ("coder",), ("mine",))]


@pytest.mark.parametrize(
    ("envelope", "line"),
    [
        (heard("chat", {"text": "hi"}), "coder: hi"),
        (heard("chat", {"text": "hi"}, to=["ada", "bob"]), "coder (to bob): hi"),
        (heard("chat", {"text": "hi"}, sender="ada"), None),
        (heard("system/presence", {"event": "join", "participant": {"id": "bob"}}), "* bob is here"),
        (heard("system/presence", {"event": "leave", "participant": {"id": "bob"}}), "* bob has left"),
        (heard("system/error", {"error": "x", "message": "no"}, to=["ada"]), "* refused: no"),
        (
            heard("mcp/response", {"result": {"content": [{"type": "text", "text": "5"}]}}, to=["ada"]),
            "* coder answers: 5",
        ),
        (heard("mcp/response", {"result": {"a": 1}}, to=["ada"]), '* coder answers: {"a": 1}'),
        (heard("mcp/response", {"error": {"message": "bad"}}, to=["ada"]), "* coder answers: error: bad"),
        (heard("mcp/response", {"result": {}}, to=["bob"]), None),
        (heard("mcp/reject", {"reason": "busy"}, to=["ada"]), "* coder rejects it: busy"),
        (heard("participant/status", {"messages_in_context": 1, "status": "thinking"}), None),
        (heard("participant/status", {"messages_in_context": 1, "status": "paused"}), "* coder: paused"),
        (
            heard("participant/compact-done", {"status": "compacted", "freed_tokens": 71366}, to=["ada"]),
            "* coder: freed 71,366 tokens",
        ),
        (
            heard(
                "participant/compact-done", {"status": "skipped", "skipped": True, "reason": "no_history"}, to=["ada"]
            ),
            "* coder: skipped, nothing to compact yet",
        ),
        (heard("stream/open", {"stream_id": "s"}), None),
    ],
)
def test_what_is_heard_reads_as_one_line_or_is_left_out(talk: Talk, envelope: Envelope, line: str | None) -> None:
    assert talk.hear(envelope) == line


def test_a_figure_is_never_shown_without_how_it_is_known(talk: Talk) -> None:
    known = {"tokens": 500, "max_tokens": 1000, "messages_in_context": 3, "status": "near_limit"}
    assert talk.hear(heard("participant/status", known)) == "* coder: near limit, ~500 of ~1,000 (unlabelled)"


def test_a_status_narrowed_to_what_was_asked_names_no_window_it_does_not_tell(talk: Talk) -> None:
    asked = {"tokens": 650, "messages_in_context": 3, "status": "active"}
    answer = {**asked, "context": {"basis": "reported", "level": "healthy"}}
    assert talk.hear(heard("participant/status", answer, to=["ada"])) == "* coder: active, 650 tokens (reported)"


def test_memory_is_bounded(talk: Talk) -> None:
    for number in range(500):
        talk.hear(heard("chat", {"text": "x"}, id=f"c{number}", to=["ada"]))
        talk.hear(heard("mcp/proposal", WRITE, id=f"p{number}"))
        talk.hear(heard("reasoning/start", {}, id=f"r{number}"))
    assert [len(talk.unanswered), len(talk.proposals), len(talk.reasonings)] == [200, 200, 200]
    assert 500 in talk.proposals


def test_after_a_skipped_compaction_nobody_is_said_to_have_compacted(talk: Talk) -> None:
    done = {"status": "skipped", "skipped": True, "reason": "no_history"}
    skipped = heard("participant/compact-done", done, to=["ada"])
    ended = heard("participant/status", {"messages_in_context": 2, "status": "compacted"})
    assert talk.hear(skipped) == "* coder: skipped, nothing to compact yet"
    assert talk.hear(ended) is None
    assert talk.hear(ended) == "* coder: compacted"
