"""Envelopes as typed events, and what a program can do about them."""

from typing import Any

import pytest
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope

from mew_agent.participant.event_handlers import (
    MAX_OPEN_PROPOSALS,
    ChatReceived,
    ContextReported,
    EventEmitter,
    Listeners,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
    ProposalRejected,
)
from mew_agent.participant.gaps import SpaceEvent
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerChanges, PeerContext


def peer(level: str, severity: int | str) -> Peer:
    report = ContextReport.model_validate(
        {"basis": "unknown", "reason": "no_call_yet", "level": level, "severity": severity, "policy": "mew"}
        | {"max_tokens_basis": "assumed", "measure": "total", "stale_messages": 0, "revision": 0, "compactions": 0}
    )
    return Peer("coder", context=PeerContext(report=report))


UNKNOWN, HEALTHY, NEAR, FULL = peer("unknown", "unknown"), peer("healthy", 0), peer("near_limit", 2), peer("full", 3)
ME = Participant("ws://h", space="demo", id="ada", token="t").messenger


def new_emitter() -> EventEmitter:
    return EventEmitter(ME, Listeners())


def envelope(kind: str, payload: dict[str, Any] | None, sender: str = "bob", name: str = "1", **more: Any) -> Envelope:
    return Envelope.write(kind, id=name, ts="t", sender=sender, payload=payload, **more)


def told(
    one: Envelope,
    reporter: Peer | None = None,
    before: PeerContext | None = None,
    *,
    emitter: EventEmitter | None = None,
) -> list[SpaceEvent]:
    changes = PeerChanges(reported=reporter, context_before=before or PeerContext())
    return list((emitter or new_emitter()).events_in(one, changes))


@pytest.mark.parametrize(
    ("before", "after", "is_change", "is_low"),
    [
        (None, HEALTHY, True, False),
        (None, NEAR, True, True),
        (HEALTHY, HEALTHY, False, False),
        (HEALTHY, NEAR, True, True),
        (NEAR, FULL, True, True),
        (FULL, NEAR, True, False),
        (NEAR, HEALTHY, True, False),
        (NEAR, UNKNOWN, True, False),
        (UNKNOWN, NEAR, True, True),
        (None, UNKNOWN, False, False),
    ],
)
def test_level_change_is_low_only_if_the_severity_rises(
    before: Peer | None, after: Peer, is_change: bool, is_low: bool
) -> None:
    changes = PeerChanges(reported=after, context_before=before.context if before else PeerContext())
    events = new_emitter().events_in(envelope("participant/status", {}, sender="coder"), changes)
    changed = [event for event in events if isinstance(event, PeerLevelChanged)]
    assert bool(changed) == is_change
    assert any(event.is_low for event in changed) == is_low


@pytest.mark.parametrize(
    ("to", "about", "is_to_me", "is_to_everybody", "is_answer"),
    [
        ((), (), False, True, False),
        (("ada",), (), True, False, False),
        (("coder", "ada"), ("q",), True, False, True),
        (("coder",), ("q",), False, False, True),
    ],
)
def test_chat_knows_its_addressees(
    to: tuple[str, ...], about: tuple[str, ...], is_to_me: bool, is_to_everybody: bool, is_answer: bool
) -> None:
    (received,) = told(envelope("chat", {"text": "hi"}, to=to, correlation_id=about))
    assert isinstance(received, ChatReceived)
    assert (received.text, received.sender) == ("hi", "bob")
    assert (received.is_to_me, received.is_to_everybody, received.is_answer) == (is_to_me, is_to_everybody, is_answer)


@pytest.mark.parametrize(
    "silent",
    [
        envelope("chat", {"text": "my own words"}, sender="ada"),
        envelope("chat", {"text": 5}),
        envelope("chat", None),
        envelope("mcp/proposal", {"method": "tools/call"}, sender="ada"),
        envelope("reasoning/start", {"text": "hm"}),
    ],
)
def test_own_chats_and_unreadable_payloads_are_no_events(silent: Envelope) -> None:
    assert told(silent) == []


def test_report_is_an_event_and_a_new_level_is_another() -> None:
    status = envelope("participant/status", {}, sender="coder")
    reported, changed = told(status, NEAR, HEALTHY.context)
    assert reported == ContextReported(NEAR, HEALTHY.context)
    assert changed == PeerLevelChanged(NEAR, HEALTHY.context)
    assert [type(event) for event in told(status, NEAR, NEAR.context)] == [ContextReported]


@pytest.mark.parametrize(
    ("payload", "method", "tool", "arguments"),
    [
        ({"method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}, "tools/call", "add", {"a": 1}),
        ({"method": "tools/call", "params": {"name": "now"}}, "tools/call", "now", {}),
        ({"method": "resources/read", "params": {"uri": "x://y"}}, "resources/read", None, {"uri": "x://y"}),
        ({"method": "tools/list"}, "tools/list", None, {}),
        ({"method": "tools/call", "params": "all of them"}, "tools/call", None, {}),
        ({}, "None", None, {}),
    ],
)
def test_proposal_is_read_with_any_payload(
    payload: dict[str, Any], method: str, tool: str | None, arguments: dict[str, Any]
) -> None:
    (made,) = told(envelope("mcp/proposal", payload, to=("words",)))
    assert isinstance(made, ProposalMade)
    assert (made.sender, made.peers) == ("bob", ("words",))
    assert (made.method, made.tool, made.arguments) == (method, tool, arguments)


def test_proposal_text_names_proposer_request_and_targets() -> None:
    call = {"method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
    (to_two,) = told(envelope("mcp/proposal", call, to=("words", "sums")))
    assert str(to_two) == "'bob' proposes to call 'add' on 'words' and 'sums' with {\"a\": 1}"
    (to_all,) = told(envelope("mcp/proposal", {"method": "tools/list"}))
    assert str(to_all) == "'bob' proposes 'tools/list' to everyone"


def test_joined_and_left_peers_are_events_with_their_last_state() -> None:
    goes, comes = peer("full", 3), Peer("comes")
    events = list(new_emitter().events_in(PRESENCE, PeerChanges(joined=(comes,), left=(goes,))))
    assert events == [PeerLeft(goes), PeerJoined(comes)]


PRESENCE = envelope("system/presence", {}, sender="system:gateway")
PROPOSAL = envelope("mcp/proposal", {"method": "tools/list"}, name="p", to=("words",))


@pytest.mark.parametrize(
    ("kind", "sender", "how", "reason"),
    [
        ("mcp/request", "carol", "fulfilled", ""),
        ("mcp/request", "ada", "fulfilled", ""),
        ("mcp/request", "words", "fulfilled", ""),
        ("mcp/response", "words", "fulfilled", ""),
        ("mcp/reject", "ada", "rejected", "policy"),
        ("mcp/reject", "bob", "rejected", "policy"),
        ("mcp/withdraw", "bob", "withdrawn", "policy"),
    ],
)
def test_proposal_is_open_until_it_is_decided_or_withdrawn(kind: str, sender: str, how: str, reason: str) -> None:
    emitter = new_emitter()
    (made,) = told(PROPOSAL, emitter=emitter)
    assert isinstance(made, ProposalMade)
    was_open = made.is_open
    payload = {"reason": "policy"} if reason else {"method": "tools/list"}
    deciding = envelope(kind, payload, sender=sender, to=("words",), correlation_id=("p",))
    (closed,) = told(deciding, emitter=emitter)
    assert closed == ProposalClosed(made, how, sender, reason)  # type: ignore[arg-type]
    assert (was_open, made.is_open) == (True, False)
    assert told(deciding, emitter=emitter) == []


def test_others_may_fulfil_a_proposal_after_one_rejection() -> None:
    emitter = new_emitter()
    (made,) = told(PROPOSAL, emitter=emitter)
    assert isinstance(made, ProposalMade)
    rejection = envelope("mcp/reject", {"reason": "policy"}, sender="carol", to=("bob",), correlation_id=("p",))
    assert told(rejection, emitter=emitter) == [ProposalRejected(made, "carol", "policy")]
    assert made.is_open
    fulfilment = envelope("mcp/request", {"method": "tools/list"}, to=("words",), correlation_id=("p",))
    fulfilment = fulfilment.model_copy(update={"sender": "dora"})
    assert told(fulfilment, emitter=emitter) == [ProposalClosed(made, "fulfilled", "dora")]


def test_the_gateway_closes_a_proposal_that_all_have_rejected() -> None:
    emitter = new_emitter()
    (made,) = told(PROPOSAL, emitter=emitter)
    assert isinstance(made, ProposalMade)
    reason = "all who may approve it have rejected it"
    payload = {"reason": reason, "cause": "all_rejected"}
    ended = envelope("mcp/withdraw", payload, sender="system:gateway", correlation_id=("p",))
    assert told(ended, emitter=emitter) == [ProposalClosed(made, "rejected", "system:gateway", reason)]
    assert not made.is_open


def test_any_rejection_closes_a_proposal_to_the_proposer_itself() -> None:
    emitter = new_emitter()
    (made,) = told(envelope("mcp/proposal", {"method": "tools/call"}, name="p", to=("bob",)), emitter=emitter)
    assert isinstance(made, ProposalMade)
    rejection = envelope("mcp/reject", {"reason": "no"}, sender="carol", to=("bob",), correlation_id=("p",))
    assert told(rejection, emitter=emitter) == [ProposalClosed(made, "rejected", "carol", "no")]


def test_a_proposal_in_a_welcome_is_an_event_once() -> None:
    emitter = new_emitter()
    listed = [{**PROPOSAL.as_dict(), "age_seconds": 3.0}, {**PROPOSAL.as_dict(), "from": "ada", "id": "mine"}]
    welcome = envelope("system/welcome", {"proposals": listed}, sender="system:gateway", to=("ada",))
    (made,) = (one for one in told(welcome, emitter=emitter) if isinstance(one, ProposalMade))
    assert (made.envelope, made.is_open) == (PROPOSAL, True)
    assert told(PROPOSAL, emitter=emitter) == []
    assert not [one for one in told(welcome, emitter=emitter) if isinstance(one, ProposalMade)]
    forged = envelope("system/welcome", {"proposals": [{**listed[0], "id": "other"}]}, to=("ada",))
    assert told(forged, emitter=emitter) == []
    again = envelope("mcp/proposal", {"method": "tools/list"}, name="p", to=("words",)).model_copy(update={"ts": "u"})
    assert isinstance(told(again, emitter=emitter)[0], ProposalMade), "some clients count ids from 1 at every start"


@pytest.mark.parametrize(
    "other",
    [
        envelope("mcp/withdraw", {"reason": "mine to say"}, sender="eve", correlation_id=("p",)),
        envelope("mcp/reject", {"reason": "policy"}, correlation_id=("another",)),
        envelope("mcp/response", {"result": {}}, correlation_id=("p",)),
        envelope("mcp/request", {"method": "tools/list"}),
        envelope("mcp/request", {"method": "ping"}, to=("words",), correlation_id=("p",)),
        envelope("mcp/request", {"method": "tools/list"}, to=("eve",), correlation_id=("p",)),
        envelope("mcp/request", {"method": "tools/list"}, to=("words", "eve"), correlation_id=("p",)),
        envelope("mcp/request", {"method": "tools/list"}, correlation_id=("p",)),
    ],
)
def test_unrelated_envelopes_leave_a_proposal_open(other: Envelope) -> None:
    emitter = new_emitter()
    (made,) = told(PROPOSAL, emitter=emitter)
    assert isinstance(made, ProposalMade)
    assert told(other, emitter=emitter) == []
    assert made.is_open


def test_a_proposal_stays_open_when_its_proposer_leaves_until_the_gateway_withdraws_it() -> None:
    emitter = new_emitter()
    (made,) = told(PROPOSAL, emitter=emitter)
    assert isinstance(made, ProposalMade)
    bob = Peer("bob")
    assert list(emitter.events_in(PRESENCE, PeerChanges(left=(bob,)))) == [PeerLeft(bob)]
    assert made.is_open
    payload = {"reason": "its proposer left", "cause": "proposer_left"}
    ended = envelope("mcp/withdraw", payload, sender="system:gateway", correlation_id=("p",))
    assert told(ended, emitter=emitter) == [ProposalClosed(made, "left", "bob")]
    assert not made.is_open


def test_a_welcome_closes_unlisted_proposals_of_absent_participants() -> None:
    me = Participant("ws://h", space="demo", id="ada", token="t").messenger
    emitter = EventEmitter(me, Listeners())

    def welcomed(*participants: str, **more: Any) -> list[SpaceEvent]:
        members = [{"id": one, "capabilities": []} for one in ("ada", *participants)]
        body = {"you": members[0], "participants": members[1:], **more}
        one = envelope("system/welcome", body, sender="system:gateway", to=("ada",))
        return list(emitter.events_in(one, me.peers.receive(one)))

    welcomed("bob", "carol")
    (made,) = told(PROPOSAL, emitter=emitter)
    (of_carol,) = told(envelope("mcp/proposal", {"method": "ping"}, sender="carol", name="c"), emitter=emitter)
    large = envelope("mcp/proposal", {"method": "ping"}, name="large")
    (too_large,) = told(large, emitter=emitter)
    assert isinstance(made, ProposalMade)
    (left,) = welcomed("carol", proposals=[PROPOSAL.as_dict(), {**large.as_dict(), "truncated": True}])
    assert left == PeerLeft(Peer("bob"))
    assert list(emitter.proposals) == [made, of_carol, too_large]
    assert welcomed("carol") == [ProposalClosed(one, "left", "bob") for one in (made, too_large)]  # type: ignore[arg-type]
    assert list(emitter.proposals) == [of_carol]


def test_oldest_undecided_proposals_are_forgotten() -> None:
    emitter = new_emitter()
    first, *_, last = [
        told(envelope("mcp/proposal", {"method": "ping"}, name=str(number)), emitter=emitter)[0]
        for number in range(MAX_OPEN_PROPOSALS + 1)
    ]
    assert isinstance(first, ProposalMade)
    assert isinstance(last, ProposalMade)
    assert (first.is_open, last.is_open) == (False, True)
