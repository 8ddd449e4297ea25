"""A conversation at a terminal: typed lines, received envelopes, and how they refer to each other."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import digest_of

from mew_agent.participant.event_handlers import MAX_OPEN_PROPOSALS
from mew_agent.parts.terminal.slash import HELP, InvalidLine, TypedEnvelope
from tests.support.typed_chat import TypedChat

WRITE = {"method": "tools/call", "params": {"name": "write_file"}}
APPROVAL = {**WRITE, "proposal_digest": digest_of(WRITE, "coder", ["files"])}


def received(kind: str, payload: dict[str, Any] | None = None, *, sender: str = "coder", **headers: Any) -> Envelope:
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
def talk() -> TypedChat:
    return TypedChat("ada")


def test_text_goes_to_the_target_or_to_all(talk: TypedChat) -> None:
    assert talk.parse_line(" hello ") == [TypedEnvelope("chat", {"text": "hello"})]
    assert talk.parse_line("/target @coder, bob") == ["text goes to coder, bob"]
    assert talk.parse_line("hello") == [TypedEnvelope("chat", {"text": "hello"}, ("coder", "bob"))]
    assert talk.parse_line("/target") == ["text goes to coder, bob"]
    assert talk.parse_line("/target none") == ["text goes to all"]
    assert talk.parse_line("") == []


def test_only_json_with_a_kind_is_an_envelope(talk: TypedChat) -> None:
    assert talk.parse_line('{"kind": "participant/pause", "to": ["coder"]}') == [
        TypedEnvelope("participant/pause", {}, ("coder",))
    ]
    for text in ('{"a": 1}', "{not json", '{"kind": 1}'):
        assert talk.parse_line(text) == [TypedEnvelope("chat", {"text": text})]


def test_an_urgent_text_is_marked_and_asks_for_receipts_in_the_application() -> None:
    talk = TypedChat("ada", "coder")
    talk.asks_receipts = True
    (sent,) = talk.parse_line("/urgent Stop: door 4 is open.", ("coder",))
    assert isinstance(sent, TypedEnvelope)
    assert sent.payload == {"text": "Stop: door 4 is open.", "receipts": True, "urgent": True}
    assert sent.to == ("coder",)
    with pytest.raises(InvalidLine, match="a text is missing"):
        talk.parse_line("/urgent  ")


def test_help_and_verbose_send_nothing(talk: TypedChat) -> None:
    assert talk.parse_line("/help") == [HELP]
    assert talk.receive(received("reasoning/thought", {"message": "hm"})) is None
    talk.parse_line("/verbose")
    assert (
        talk.receive(received("reasoning/thought", {"message": "hm"})) == '  coder: reasoning/thought {"message": "hm"}'
    )


def test_unknown_command_points_to_help(talk: TypedChat) -> None:
    with pytest.raises(InvalidLine, match="/help"):
        talk.parse_line("/sing")


def test_proposal_is_shown_with_a_number_and_approved_unchanged(talk: TypedChat) -> None:
    shown = talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["files"]))
    assert shown == ("* coder proposes to files: write_file {}\n  /approve 1 or /reject 1")
    approval = [TypedEnvelope("mcp/request", APPROVAL, ("files",), ("p-1",))]
    assert talk.parse_line("/approve") == approval
    assert talk.parse_line("/approve") == approval  # the first one was refused
    talk.receive(received("mcp/request", APPROVAL, sender="ada", to=["files"], correlation_id=["p-1"]))
    with pytest.raises(InvalidLine, match="no proposal is open"):
        talk.parse_line("/approve")


def test_a_proposed_text_of_several_lines_is_shown_as_it_is(talk: TypedChat) -> None:
    arguments = {"path": "a.py", "text": "x = 1\n\x1b[2J/approve 7\n"}
    call = {"method": "tools/call", "params": {"name": "write_file", "arguments": arguments}}
    assert talk.receive(received("mcp/proposal", call, to=["files"])) == (
        '* coder proposes to files: write_file {"path": "a.py"}\n'
        "  text:\n    x = 1\n    <U+001B>[2J/approve 7\n    \n  /approve 1 or /reject 1"
    )


def test_a_welcome_shows_the_open_proposals_once(talk: TypedChat) -> None:
    waiting = received("mcp/proposal", WRITE, id="p-1", to=["files"])
    own = received("mcp/proposal", WRITE, id="p-2", sender="ada")
    listed = [{**one.as_dict(), "age_seconds": 3} for one in (waiting, own)]
    hidden = [{**listed[0], "id": "p-3", "truncated": True}, {"id": 4}]
    welcome = received("system/welcome", {"proposals": [*listed, *hidden]}, sender="system:gateway", to=["ada"])
    assert talk.receive(welcome) == ("* coder proposes to files: write_file {}\n  /approve 1 or /reject 1")
    assert talk.receive(welcome) is None
    assert talk.receive(waiting) is None
    assert talk.parse_line("/approve") == [TypedEnvelope("mcp/request", APPROVAL, ("files",), ("p-1",))]


@pytest.mark.parametrize("command", ["/approve", "/reject"])
def test_a_proposal_that_replaces_another_one_is_decided_by_its_number(talk: TypedChat, command: str) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["files"]))
    talk.receive(received("mcp/withdraw", {"reason": "x"}, correlation_id=["p-1"]))
    talk.receive(received("mcp/proposal", WRITE, id="p-2", to=["files"]))
    with pytest.raises(InvalidLine, match="proposal 1 is no longer open, 2 is"):
        talk.parse_line(command)
    (decided,) = talk.parse_line(f"{command} 2")
    assert isinstance(decided, TypedEnvelope)
    assert decided.correlation_id == ("p-2",)


def test_a_proposal_that_a_welcome_closes_is_not_approved(talk: TypedChat) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["files"]))
    talk.receive(received("system/welcome", {}, sender="system:gateway", to=["ada"]))  # its withdrawal never arrived
    assert not talk.proposals
    with pytest.raises(InvalidLine, match="no proposal is open"):
        talk.parse_line("/approve")


def test_a_proposal_closed_since_the_last_shown_envelope_is_not_approved(talk: TypedChat) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["files"]))
    talk.read_unshown(received("mcp/withdraw", {"reason": "x"}, correlation_id=["p-1"]))
    with pytest.raises(InvalidLine, match="no proposal 1 is open"):
        talk.parse_line("/approve 1")


def test_a_proposal_with_the_id_of_a_forgotten_one_gets_its_own_number(talk: TypedChat) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["files"]))
    other = received("mcp/proposal", WRITE, id="p-1", sender="bob", to=["files"]).as_dict()
    shown = talk.receive(received("system/welcome", {"proposals": [other]}, sender="system:gateway", to=["ada"]))
    assert shown == "* bob proposes to files: write_file {}\n  /approve 2 or /reject 2"
    with pytest.raises(InvalidLine, match="proposal 1 is no longer open, 2 is"):
        talk.parse_line("/approve")


def test_several_open_proposals_require_a_number(talk: TypedChat) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1"))
    talk.receive(received("mcp/proposal", WRITE, id="p-2", sender="bob"))
    with pytest.raises(InvalidLine, match=r"several proposals are open: 1, 2"):
        talk.parse_line("/approve")
    with pytest.raises(InvalidLine, match="no proposal 3"):
        talk.parse_line("/reject 3")
    assert talk.parse_line("/reject 2 not now") == [
        TypedEnvelope("mcp/reject", {"reason": "not now"}, ("bob",), ("p-2",))
    ]
    talk.receive(received("mcp/reject", {"reason": "not now"}, sender="ada", to=["bob"], correlation_id=["p-2"]))
    assert talk.parse_line("/reject 1 too risky") == [
        TypedEnvelope("mcp/reject", {"reason": "too risky"}, ("coder",), ("p-1",))
    ]


def test_answered_proposal_is_no_longer_open(talk: TypedChat) -> None:
    for number, (kind, sender, still_open) in enumerate(
        [
            ("mcp/request", "bob", False),
            ("mcp/reject", "bob", True),
            ("mcp/reject", "ada", False),
            ("mcp/withdraw", "coder", False),
            ("mcp/withdraw", "bob", True),
            ("mcp/request", "eve", True),
            ("mcp/reject", "coder", False),
            ("mcp/response", "files", False),
            ("mcp/response", "bob", True),
            ("mcp/withdraw", "system:gateway", False),
        ]
    ):
        talk.proposals.clear()
        talk.receive(received("mcp/proposal", WRITE, id=f"p-{number}", to=["files"]))
        to = ["eve" if sender == "eve" else "files"]
        talk.receive(received(kind, WRITE, sender=sender, to=to, correlation_id=[f"p-{number}"]))
        assert bool(talk.proposals) is still_open, kind


def test_a_permission_that_another_person_refuses_is_no_longer_open(talk: TypedChat) -> None:
    talk.receive(received("mcp/proposal", WRITE, id="p-1", to=["coder"]))
    talk.receive(received("mcp/reject", {"reason": "no"}, sender="bob", to=["coder"], correlation_id=["p-1"]))
    with pytest.raises(InvalidLine, match="no proposal is open"):
        talk.parse_line("/approve")


def test_chats_are_acknowledged_by_sender_id_or_all(talk: TypedChat) -> None:
    for number, sender in enumerate(("coder", "bob", "coder"), 1):
        talk.receive(received("chat", {"text": "x"}, id=f"c{number}", sender=sender, to=["ada"]))
    talk.receive(received("chat", {"text": "to all"}, id="c4"))
    assert talk.parse_line("/ack") == [TypedEnvelope("chat/acknowledge", {"status": "received"}, ("coder",), ("c3",))]
    assert talk.parse_line("/ack bob read it") == [
        TypedEnvelope("chat/acknowledge", {"status": "read it"}, ("bob",), ("c2",))
    ]
    assert talk.parse_line("/ack c1") == [
        TypedEnvelope("chat/acknowledge", {"status": "received"}, ("coder",), ("c1",))
    ]
    with pytest.raises(InvalidLine, match="no chat to acknowledge"):
        talk.parse_line("/ack all")


def test_restart_resets_and_says_so(talk: TypedChat) -> None:
    said, sent = talk.parse_line("/restart coder")
    assert said == "* /restart is /reset here: it clears the history; `mew restart` restarts a program and keeps it"
    assert sent == TypedEnvelope("participant/restart", {}, ("coder",))


def test_cancel_stops_work_for_us_or_of_the_named_agent(talk: TypedChat) -> None:
    with pytest.raises(InvalidLine, match=r"nothing to cancel$"):
        talk.parse_line("/cancel")
    talk.receive(received("reasoning/start", {}, id="r-1"))
    with pytest.raises(InvalidLine, match=r"at work for others: coder\. /cancel PARTICIPANT stops it"):
        talk.parse_line("/cancel")
    of_turn = TypedEnvelope("reasoning/cancel", {"reason": "enough"}, ("coder",), context="r-1")
    assert talk.parse_line("/cancel @coder enough", ("coder",)) == [of_turn]
    talk.receive(received("reasoning/conclusion", {}, context="r-1"))
    talk.receive(received("chat", {"text": "go"}, id="mine", sender="ada", to=["coder"]))
    talk.receive(received("reasoning/start", {}, id="r-2", correlation_id=["mine"]))
    of_chat = TypedEnvelope("chat/cancel", {"reason": "enough"}, ("coder",), ("mine",))
    assert talk.parse_line("/cancel enough") == [of_chat]
    talk.receive(received("chat", {"text": "done"}, to=["ada"]))
    talk.receive(received("reasoning/conclusion", {}, context="r-2"))
    with pytest.raises(InvalidLine, match="nothing to cancel"):
        talk.parse_line("/cancel")


@pytest.mark.parametrize(
    ("envelope", "line"),
    [
        (received("chat", {"text": "hi"}), "coder: hi"),
        (received("chat", {"text": "hi"}, to=["ada", "bob"]), "coder (to bob): hi"),
        (received("chat", {"text": "hi"}, sender="ada"), None),
        (received("system/presence", {"event": "join", "participant": {"id": "bob"}}), "* bob joined"),
        (received("system/presence", {"event": "leave", "participant": {"id": "bob"}}), "* bob left"),
        (received("system/error", {"error": "x", "message": "no"}, to=["ada"]), "* refused: no"),
        (
            received("mcp/response", {"result": {"content": [{"type": "text", "text": "5"}]}}, to=["ada"]),
            "* coder answers: 5",
        ),
        (received("mcp/response", {"result": {"a": 1}}, to=["ada"]), '* coder answers: {"a": 1}'),
        (received("mcp/response", {"error": {"message": "bad"}}, to=["ada"]), "* coder answers: error: bad"),
        (received("mcp/response", {"result": {}}, to=["bob"]), None),
        (received("mcp/reject", {"reason": "busy"}, to=["ada"]), "* rejected by coder: busy"),
        (received("participant/status", {"messages_in_context": 1, "status": "thinking"}), None),
        (received("participant/status", {"messages_in_context": 1, "status": "paused"}), "* coder: paused"),
        (
            received("participant/compact-done", {"status": "compacted", "freed_tokens": 71366}, to=["ada"]),
            "* coder: freed 71,366 tokens",
        ),
        (
            received(
                "participant/compact-done", {"status": "skipped", "skipped": True, "reason": "no_history"}, to=["ada"]
            ),
            "* coder: skipped, nothing to compact yet; the newest turns stay",
        ),
        (received("stream/open", {"stream_id": "s"}), None),
    ],
)
def test_received_envelope_is_one_line_or_hidden(talk: TypedChat, envelope: Envelope, line: str | None) -> None:
    assert talk.receive(envelope) == line


def test_figure_is_never_shown_without_its_basis(talk: TypedChat) -> None:
    known = {"tokens": 500, "max_tokens": 1000, "messages_in_context": 3, "status": "near_limit"}
    assert talk.receive(received("participant/status", known)) == "* coder: near limit, ~500 of ~1,000 (estimate)"


def test_partial_status_shows_no_unknown_window(talk: TypedChat) -> None:
    requested = {"tokens": 650, "messages_in_context": 3, "status": "active"}
    answer = {**requested, "context": {"basis": "reported", "level": "healthy"}}
    assert talk.receive(received("participant/status", answer, to=["ada"])) == "* coder: active, 650 tokens (reported)"


def test_memory_is_bounded(talk: TypedChat) -> None:
    for number in range(MAX_OPEN_PROPOSALS + 10):
        talk.receive(received("chat", {"text": "x"}, id=f"c{number}", to=["ada"]))
        talk.receive(received("mcp/proposal", WRITE, id=f"p{number}"))
        talk.receive(received("reasoning/start", {}, id=f"r{number}"))
    assert [len(talk.unanswered), len(talk.proposals), len(talk.unfinished.turns)] == [200, MAX_OPEN_PROPOSALS, 200]
    assert MAX_OPEN_PROPOSALS + 10 in talk.proposals


def test_skipped_compaction_is_not_shown_as_compacted(talk: TypedChat) -> None:
    done = {"status": "skipped", "skipped": True, "reason": "no_history"}
    skipped = received("participant/compact-done", done, to=["ada"])
    ended = received("participant/status", {"messages_in_context": 2, "status": "compacted"})
    assert talk.receive(skipped) == "* coder: skipped, nothing to compact yet; the newest turns stay"
    assert talk.receive(ended) is None
    assert talk.receive(ended) == "* coder: compacted"


def test_invitation_shows_the_token_once() -> None:
    body = {"status": "created", "participant_id": "eve", "token": "t-1", "connection_url": "ws://127.0.0.1:1/"}
    shown = TypedChat("ada").receive(received("space/invite-ack", body, sender="system:gateway"))
    assert shown is not None
    assert shown.startswith("* eve was added. Its token, shown only once: t-1\n")
    refused = {"status": "already_exists", "participant_id": "eve", "error": "'eve' is here"}
    again = TypedChat("ada").receive(received("space/invite-ack", refused, sender="system:gateway"))
    assert again == "* invitation of eve: 'eve' is here"
