"""What a participant knows of its peers from what it receives."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Status, is_whole_status

from mew_agent.participant.peers import Peer, PeerContext, Peers

REPORT = {"basis": "reported", "level": "near_limit", "severity": 2, "revision": 0, "max_tokens_basis": "loaded"}
WHOLE = {"messages_in_context": 4, "tokens": 900, "max_tokens": 1000, "status": "active", "context": REPORT}


def envelope(kind: str, payload: dict[str, Any], sender: str = "system:gateway", to: tuple[str, ...] = ()) -> Envelope:
    return Envelope.write(kind, id="e", ts="2026-01-01T00:00:00Z", sender=sender, payload=payload, to=to)


def welcome(*members: str, board: list[dict[str, Any]] | None = None, to: tuple[str, ...] = ("ada",)) -> Envelope:
    payload = {
        "you": {"id": "ada", "capabilities": []},
        "participants": [{"id": name, "capabilities": [{"kind": "chat"}]} for name in ("ada", *members)],
        **({"board": board} if board is not None else {}),
    }
    return envelope("system/welcome", payload, to=to)


def presence(event: str, name: str) -> Envelope:
    return envelope("system/presence", {"event": event, "participant": {"id": name, "capabilities": []}})


def status(payload: dict[str, Any], sender: str = "coder", to: tuple[str, ...] = ()) -> Envelope:
    return envelope("participant/status", payload, sender, to)


@pytest.fixture
def peers() -> Peers:
    peers = Peers("ada")
    peers.receive(welcome("coder", "bob"))
    return peers


def test_welcome_lists_everyone_else(peers: Peers) -> None:
    assert list(peers) == ["coder", "bob"]
    assert len(peers) == 2
    assert "ada" not in peers
    assert peers["coder"].capabilities == ({"kind": "chat"},)
    assert peers.get("ghost") is None
    assert [(name, peer.id) for name, peer in peers.items()] == [("coder", "coder"), ("bob", "bob")]


def test_peer_without_a_status_has_no_figures(peers: Peers) -> None:
    context = peers["coder"].context
    assert (context.tokens, context.max_tokens, context.messages, context.report) == (None, None, None, None)
    assert (context.basis, context.level, context.severity) == (None, "unknown", -1)


def test_board_in_the_welcome_brings_earlier_statuses(peers: Peers) -> None:
    board = [
        {"id": "coder", "connected": True, "status": WHOLE, "received_at": "2026-01-01T00:00:00Z"},
        {"id": "gone", "connected": False, "status": WHOLE},
    ]
    peers.receive(welcome("coder", board=board))
    assert peers["coder"].context.tokens == 900
    assert peers["coder"].context.at == "2026-01-01T00:00:00Z"
    assert "gone" not in peers


def test_status_brings_the_whole_report(peers: Peers) -> None:
    told = peers.receive(status(WHOLE)).reported
    assert told is not None
    assert told is peers["coder"]
    assert (told.context.tokens, told.context.basis, told.context.severity) == (900, "reported", 2)


@pytest.mark.parametrize(
    "part",
    [
        {"messages_in_context": 4, "status": "active"},
        {"messages_in_context": 4, "status": "active", "latency_ms": 12},
        {"messages_in_context": 4, "status": "active", "tokens": 900, "context": {"basis": "reported"}},
        {"messages_in_context": 4, "status": "active", "context": REPORT},
        {"messages_in_context": 4, "status": "active", "max_tokens": 1000},
        {"messages_in_context": 4, "status": "active", "max_tokens": 1000, "context": REPORT},
    ],
)
def test_partial_status_replaces_nothing(peers: Peers, part: dict[str, Any]) -> None:
    peers.receive(status(WHOLE))
    assert peers.receive(status(part, to=("bob",))).reported is None
    assert peers["coder"].context.tokens == 900
    assert peers["coder"].context.severity == 2


def test_whole_status_for_another_participant_is_used(peers: Peers) -> None:
    peers.receive(status(WHOLE))
    unknown = {
        "messages_in_context": 0,
        "max_tokens": 1000,
        "context": {**REPORT, "basis": "unknown", "reason": "cleared"},
    }
    assert peers.receive(status(unknown, to=("bob",))).reported is not None
    assert peers["coder"].context.tokens is None


def test_status_without_a_report_is_used_as_it_is(peers: Peers) -> None:
    peers.receive(status({"messages_in_context": 2, "tokens": 50, "max_tokens": 20000, "status": "active"}))
    context = peers["coder"].context
    assert (context.tokens, context.max_tokens, context.basis) == (50, 20000, None)


def test_own_status_is_not_a_peers(peers: Peers) -> None:
    assert peers.receive(status(WHOLE, sender="ada")).reported is None
    assert "ada" not in peers


def test_permissions_of_a_peer_come_from_its_announced_capabilities() -> None:
    pattern = {"kind": "chat", "to": ["ada"]}
    assert Peer("mute").may_send("chat", {"text": "hi"}, "ada")
    assert Peer("mute", (pattern,)).may_send("chat", {"text": "hi"}, "ada")
    assert not Peer("mute", (pattern,)).may_send("chat", {"text": "hi"}, "bob")
    assert not Peer("mute", (pattern,)).may_send("participant/status", {}, "ada")


def test_joins_and_leaves_are_followed_and_reports_survive_a_rejoin(peers: Peers) -> None:
    peers.receive(status(WHOLE))
    peers.receive(presence("join", "coder"))
    assert peers["coder"].context.tokens == 900
    peers.receive(presence("join", "new"))
    peers.receive(presence("leave", "bob"))
    peers.receive(presence("leave", "never seen"))
    peers.receive(presence("join", "ada"))
    assert list(peers) == ["coder", "new"]


def test_a_status_before_the_presence_of_its_sender_hides_no_join(peers: Peers) -> None:
    peers.receive(presence("leave", "coder"))
    reported = peers.receive(status(WHOLE)).reported
    assert reported is not None
    assert reported.context.tokens == 900
    joined = peers.receive(presence("join", "coder"))
    assert [peer.id for peer in joined.joined] == ["coder"]
    assert joined.joined[0].context.tokens == 900
    assert peers.receive(presence("join", "coder")).joined == ()


def test_a_peer_that_returns_has_its_last_context(peers: Peers) -> None:
    peers.receive(status(WHOLE))
    peers.receive(presence("leave", "coder"))
    peers.receive(presence("join", "coder"))
    assert peers["coder"].context.tokens == 900


def test_the_board_gives_the_context_of_an_absent_peer(peers: Peers) -> None:
    board = [{"id": "absent", "connected": False, "status": WHOLE, "received_at": "2026-01-01T00:00:00Z"}]
    peers.receive(welcome("coder", board=board))
    assert "absent" not in peers
    peers.receive(presence("join", "absent"))
    assert peers["absent"].context.tokens == 900


def test_welcome_for_another_participant_changes_nothing(peers: Peers) -> None:
    peers.receive(welcome("x", to=("bob",)))
    assert list(peers) == ["coder", "bob"]


@given(
    st.sampled_from(["system/welcome", "system/presence", "participant/status", "chat"]),
    st.dictionaries(
        st.sampled_from(["you", "participants", "event", "participant", "messages_in_context", "tokens", "context"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "basis", "x"]), inner),
            max_leaves=6,
        ),
    ),
    st.sampled_from([(), ("ada",), ("bob",)]),
)
def test_no_envelope_breaks_the_known_peers(kind: str, payload: dict[str, Any], to: tuple[str, ...]) -> None:
    peers = Peers("ada")
    received = envelope(kind, payload, "coder", to)
    told = peers.receive(received).reported
    assert told is None or (told.id == "coder" and is_whole_status(received))


TOLD = {**WHOLE, "tokens": 98_412, "max_tokens": 128_000, "context": {**REPORT, "turns_to_compaction": 5}}
REPORTED = PeerContext.from_status(Status.model_validate(TOLD), "2026-01-01T00:00:00Z")
AGENT_REPORTED = PeerContext(98_412, 128_000, report=ContextReport(basis="agent_reported"))


@pytest.mark.parametrize(
    ("context", "text"),
    [
        (PeerContext(), "? of ? tokens (unknown)"),
        (PeerContext(tokens=0, max_tokens=128_000), "~0 of ~128,000 tokens (estimate)"),
        (REPORTED, "98,412 of 128,000 tokens (reported)"),
        (AGENT_REPORTED, "~98,412 of 128,000 tokens (agent reported)"),
    ],
)
def test_context_text_shows_figures_and_their_basis(context: PeerContext, text: str) -> None:
    assert str(context) == text


def test_turns_to_compaction_are_unknown_without_a_report() -> None:
    assert PeerContext().turns_to_compaction is None
    assert REPORTED.turns_to_compaction == 5


def test_figure_of_a_peer_is_old_after_chats_and_after_a_join(peers: Peers) -> None:
    peers.receive(status({"messages_in_context": 3, "tokens": 704, "max_tokens": 20_000}))
    peers.receive(envelope("chat", {"text": "hi"}, "ada", ("bob",)))
    found = [peers["coder"].context.outdated]
    peers.receive(envelope("chat", {"text": "hi"}, "ada"))
    found.append(peers["coder"].context.outdated)
    peers.receive(status(WHOLE))
    peers.receive(envelope("chat", {"text": "hi"}, "ada", ("coder",)))
    found.append(peers["coder"].context.outdated)
    assert found == [None, "messages_since", None]
    peers.receive(presence("leave", "coder"))
    joined = peers.receive(presence("join", "coder")).joined
    assert [one.context.outdated for one in joined] == ["before_join"]


def test_welcome_says_which_figures_are_old() -> None:
    peers = Peers("ada")
    line = {"id": "coder", "connected": True, "status": WHOLE, "received_at": "t", "outdated": "before_join"}
    peers.receive(welcome("coder", board=[line]))
    assert peers["coder"].context.outdated == "before_join"


def test_the_version_changes_with_peers_and_their_offers_and_not_with_their_figures(peers: Peers) -> None:
    changes: list[Callable[[], object]] = [
        lambda: peers.receive(status(WHOLE)),
        lambda: peers.receive(status(WHOLE)),
        lambda: peers.set_offers("coder", tools=()),
        lambda: peers.receive(presence("join", "dora")),
        lambda: peers.receive(presence("leave", "dora")),
        lambda: peers.receive(status(WHOLE, "dora")),  # before her presence
        lambda: peers.set_offers("ghost", tools=()),
        lambda: peers.receive(welcome("coder")),
    ]
    versions = [peers.version]
    for change in changes:
        change()
        versions.append(peers.version)
    assert [after != before for before, after in pairwise(versions)] == [
        *(False, False),
        *(True, True, True, True),
        *(False, True),
    ]
