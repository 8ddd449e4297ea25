"""Proposals are listed from the moment they are made until they are decided, for joiners and readers."""

from typing import Any
from unittest.mock import create_autospec

import pytest
from mew_protocol.capability import CapabilitySet
from mew_protocol.payloads.mcp import approval_of, digest_of
from mew_spaces.config.loading import parse_space
from mew_spaces.core.effects import Receipt
from mew_spaces.core.proposals import MAX_UNDECIDED, Proposals

from tests.support.space_driver import SpaceDriver

SPACE = """
space: {id: demo}
limits: {kept_payload_bytes: 1000}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {command: x, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}, {kind: mcp/request, to: [ada]}]}
  files: {command: x, capabilities: [{kind: mcp/response}]}
  eve: {command: x, capabilities: [{kind: mcp/proposal}, {kind: capability/grant}]}
  helper: {command: x, capabilities: [{kind: mcp/request, to: [files]}, {kind: mcp/reject}]}
"""

CALL = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "a.txt"}}}


@pytest.fixture
def driver() -> SpaceDriver:
    driver = SpaceDriver(parse_space(SPACE))
    for number, name in enumerate(("ada", "coder", "files", "helper"), start=1):
        driver.join(number, name)
    return driver


def propose(driver: SpaceDriver, name: str = "p", payload: dict[str, Any] = CALL) -> None:
    assert driver.send_envelope(2, "coder", "mcp/proposal", payload, id=name, to=["files"]).accepted is not None


def listed(driver: SpaceDriver) -> list[str]:
    proposals = driver.space.proposals(now=driver.now).proposals
    driver.join(9, "ada")
    welcomed = driver.last(9).body.get("proposals", [])
    assert [one.id for one in proposals] == [one["id"] for one in welcomed]
    driver.leave(9, "ada")
    return [one.id for one in proposals]


def test_an_open_proposal_is_listed_with_age_and_approvers(driver: SpaceDriver) -> None:
    propose(driver)
    driver.wait(12.5)
    (one,) = driver.space.proposals(now=driver.now).proposals
    assert (one.sender, one.to, one.payload, one.age_seconds) == ("coder", ("files",), CALL, 12.5)
    assert (one.may_fulfil, one.truncated) == (("ada", "helper"), False)
    assert one.as_proposal().as_dict() == driver.history[-1].as_dict()
    driver.join(5, "helper")
    added = {"age_seconds": 12.5, "digest": digest_of(CALL, "coder", ["files"]), "short_id": "p"}
    assert driver.last(5).body["proposals"] == [{**driver.history[-2].as_dict(), **added}]


def test_a_proposer_sets_no_key_that_the_gateway_adds(driver: SpaceDriver) -> None:
    claimed = {"age_seconds": "x", "may_fulfil": 5, "truncated": "maybe"}
    driver.send_envelope(2, "coder", "mcp/proposal", CALL, id="p", to=["files"], **claimed)
    (one,) = driver.space.proposals(now=driver.now).proposals
    assert (one.age_seconds, one.may_fulfil, one.truncated) == (0.0, ("ada", "helper"), False)
    assert listed(driver) == ["p"]


def test_a_welcome_without_proposals_has_no_such_key(driver: SpaceDriver) -> None:
    driver.join(5, "ada")
    assert "proposals" not in driver.last(5).body


@pytest.mark.parametrize(
    ("number", "name", "kind", "payload", "to"),
    [
        (4, "helper", "mcp/request", {**CALL, "params": {"name": "write", "arguments": {"path": "b"}}}, ["files"]),
        (2, "coder", "mcp/withdraw", {"reason": "timeout"}, []),
        (3, "files", "mcp/response", {"result": {}}, ["coder"]),
        (None, "ada", "mcp/request", CALL, ["files"]),
    ],
)
def test_a_decision_ends_a_proposal(
    driver: SpaceDriver, number: int | None, name: str, kind: str, payload: dict[str, Any], to: list[str]
) -> None:
    propose(driver)
    propose(driver, "other")
    assert driver.send_envelope(number, name, kind, payload, to=to, correlation_id=["p"]).accepted is not None
    assert listed(driver) == ["other"]
    assert driver.stored == driver.space.state


@pytest.mark.parametrize(
    ("number", "name", "kind", "payload", "to"),
    [
        (1, "ada", "mcp/request", {"method": "tools/call", "params": {"name": "delete"}}, ["files"]),
        (1, "ada", "mcp/request", CALL, ["helper"]),
        (1, "ada", "mcp/withdraw", {"reason": "mine"}, []),
        (1, "ada", "mcp/response", {"result": {}}, ["coder"]),
        (1, "ada", "mcp/request", {**CALL, "proposal_digest": "sha256:0"}, ["files"]),
        (1, "ada", "chat", {"text": "Yes."}, ["coder"]),
    ],
)
def test_other_envelopes_leave_a_proposal_open(
    driver: SpaceDriver, number: int, name: str, kind: str, payload: dict[str, Any], to: list[str]
) -> None:
    propose(driver)
    driver.send_envelope(number, name, kind, payload, to=to, correlation_id=["p"])
    assert listed(driver) == ["p"]


def test_a_proposal_ends_when_its_proposer_does_not_come_back(driver: SpaceDriver) -> None:
    propose(driver)
    driver.leave(2, "coder")
    driver.wait(4)
    assert listed(driver) == ["p"]
    driver.wait(4)
    assert listed(driver) == []
    driver.join(2, "coder")
    propose(driver, "q")
    driver.send_envelope(1, "ada", "space/kick", {"participant_id": "coder"})
    assert listed(driver) == []


def test_open_proposals_survive_a_restart_of_the_gateway(driver: SpaceDriver) -> None:
    propose(driver)
    propose(driver, "q")
    driver.send_envelope(2, "coder", "mcp/withdraw", {"reason": "no"}, correlation_id=["p"])
    again = SpaceDriver(parse_space(SPACE), driver.stored)
    again.wait(1)
    assert listed(again) == ["q"]
    again.join(2, "coder")
    again.wait(10)
    assert listed(again) == ["q"]
    without_proposer = SpaceDriver(parse_space(SPACE), driver.stored)
    without_proposer.wait(1)
    without_proposer.wait(10)
    assert listed(without_proposer) == []


def test_the_parameters_of_a_large_proposal_are_not_kept(driver: SpaceDriver) -> None:
    propose(driver, payload={**CALL, "params": {"name": "write", "arguments": {"text": "x" * 2000}}})
    (one,) = driver.space.proposals(now=driver.now).proposals
    assert (one.truncated, one.payload) == (True, {"method": "tools/call", "params": {"name": "write"}})
    assert listed(driver) == ["p"]


def test_the_number_of_listed_proposals_is_bounded(driver: SpaceDriver) -> None:
    for number in range(MAX_UNDECIDED + 1):
        propose(driver, str(number))
        driver.wait(0.1)
    assert listed(driver) == [str(number) for number in range(1, MAX_UNDECIDED + 1)]


def test_a_member_with_many_proposals_loses_only_its_own(driver: SpaceDriver) -> None:
    assert driver.send_envelope(1, "ada", "mcp/proposal", CALL, id="mine", to=["files"]).accepted
    for number in range(MAX_UNDECIDED + 20):
        propose(driver, str(number))
        driver.wait(0.1)
    assert listed(driver) == ["mine", *(str(number) for number in range(20, MAX_UNDECIDED + 20))]
    again = SpaceDriver(parse_space(SPACE), driver.stored)
    assert [one.id for one in again.space.proposals(now=again.now).proposals] == listed(driver)


def test_all_listed_proposals_fit_into_a_welcome(driver: SpaceDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_spaces.core.proposals.MAX_UNDECIDED_BYTES", 2_000)
    assert driver.send_envelope(1, "ada", "mcp/proposal", CALL, id="mine", to=["files"]).accepted
    for number in range(20):
        propose(driver, str(number))
    kept = listed(driver)
    assert (kept[0], kept[-1]) == ("mine", "19")
    assert len(kept) < 20


def test_proposals_keep_their_order_whatever_the_order_of_the_stored_ones(driver: SpaceDriver) -> None:
    names = [f"{number:03}" for number in range(MAX_UNDECIDED, 0, -1)]
    for name in names:
        driver.wait(1)
        propose(driver, name)
    driver.stored.proposals = dict(sorted(driver.stored.proposals.items()))  # as a database returns them
    again = SpaceDriver(parse_space(SPACE), driver.stored)
    again.now = driver.now
    for number, name in ((1, "ada"), (2, "coder")):
        again.join(number, name)
    assert listed(again) == names
    propose(again, "newest")
    assert listed(again) == [*names[1:], "newest"]


def test_the_first_decision_about_a_proposal_counts(driver: SpaceDriver) -> None:
    propose(driver)
    other = {**CALL, "params": {"name": "read"}}
    late: tuple[tuple[int, str, str, dict[str, Any]], ...] = (
        (1, "ada", "mcp/request", CALL), (4, "helper", "mcp/request", CALL), (4, "helper", "mcp/reject", {})
    )  # fmt: skip
    assert driver.send_envelope(4, "helper", "mcp/request", other, correlation_id=["p"], to=["files"]).accepted
    assert driver.send_envelope(1, "ada", "mcp/request", CALL, correlation_id=["p"], to=["files"]).accepted
    for connection, name, kind, payload in late:
        to = ["files"] if kind == "mcp/request" else ["coder"]
        refused = driver.send_envelope(connection, name, kind, payload, correlation_id=["p"], to=to).refused
        assert refused is not None
        assert (refused.error, refused.message) == (
            "already_decided",
            "'ada' has already decided the proposal 'p'",
        )
    assert driver.send_envelope(1, "ada", "mcp/request", CALL, to=["files"]).accepted, "without the proposal, it is new"


def test_one_rejection_leaves_a_proposal_to_the_others(driver: SpaceDriver) -> None:
    def reject(number: int, name: str) -> Receipt:
        return driver.send_envelope(number, name, "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["coder"])

    propose(driver)
    for _ in range(2):
        assert reject(4, "helper").accepted
    (open_one,) = driver.space.proposals(now=driver.now).proposals
    assert open_one.rejected_by == ("helper",)
    assert driver.send_envelope(1, "ada", "mcp/request", CALL, correlation_id=["p"], to=["files"]).accepted
    assert listed(driver) == []


def test_a_proposal_closes_when_no_one_is_left_to_fulfil_it(driver: SpaceDriver) -> None:
    propose(driver)
    (open_one,) = driver.space.proposals(now=driver.now).proposals
    numbers = {"ada": 1, "files": 3, "helper": 4, "coder": 2}
    *earlier, last = [name for name in open_one.may_fulfil or () if name != "coder"]
    for name in (*earlier, last):
        assert listed(driver) == ["p"]
        driver.send_envelope(numbers[name], name, "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["coder"])
    assert listed(driver) == []
    *_, rejection, withdrawal = driver.history
    assert (rejection.kind, rejection.sender) == ("mcp/reject", last)
    assert (withdrawal.kind, withdrawal.sender, withdrawal.correlation_id, withdrawal.body) == (
        "mcp/withdraw",
        "system:gateway",
        ("p",),
        {"reason": "all who may approve it have rejected it", "cause": "all_rejected"},
    )
    assert [one.kind for one in driver.history].count("mcp/withdraw") == 1
    late = driver.send_envelope(numbers[last], last, "mcp/request", CALL, correlation_id=["p"], to=["files"]).refused
    assert late is not None
    assert late.error == "already_decided"


@pytest.mark.parametrize("how", ["removed", "revoked", "absent"])
def test_a_proposal_closes_when_all_other_approvers_lose_the_right(driver: SpaceDriver, how: str) -> None:
    right = {"kind": "mcp/request", "to": ["files"]}
    grant = {"recipient": "eve", "capabilities": [right]}
    driver.join(5, "eve")
    assert driver.send_envelope(1, "ada", "capability/grant", grant).accepted
    propose(driver)
    for number, name in ((1, "ada"), (4, "helper")):
        driver.send_envelope(number, name, "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["coder"])
    assert listed(driver) == ["p"]
    match how:
        case "removed":
            assert driver.send_envelope(1, "ada", "space/kick", {"participant_id": "eve"}).accepted
        case "revoked":
            assert driver.send_envelope(1, "ada", "capability/revoke", grant).accepted
        case _:
            driver.leave(5, "eve")
            driver.wait(5)
    assert listed(driver) == []
    (withdrawal,) = [one for one in driver.history if one.kind == "mcp/withdraw"]
    assert (withdrawal.sender, withdrawal.correlation_id) == ("system:gateway", ("p",))
    assert withdrawal.body["cause"] == "all_rejected"


def test_a_removal_withdraws_only_proposals_that_all_others_have_rejected(driver: SpaceDriver) -> None:
    for name in ("p", "q", "r"):
        propose(driver, name)
    assert driver.send_envelope(4, "helper", "mcp/proposal", CALL, id="own", to=["files"]).refused
    driver.send_envelope(1, "ada", "mcp/reject", {"reason": "no"}, correlation_id=["q"], to=["coder"])
    driver.send_envelope(4, "helper", "mcp/reject", {"reason": "no"}, correlation_id=["r"], to=["coder"])
    assert driver.send_envelope(1, "ada", "space/kick", {"participant_id": "helper"}).accepted
    assert listed(driver) == ["p", "r"]


def test_a_removal_withdraws_each_proposal_once(driver: SpaceDriver) -> None:
    right = [{"kind": "mcp/request", "to": ["files"]}, {"kind": "capability/grant"}]
    driver.join(5, "eve")
    driver.join(6, "files")
    assert driver.send_envelope(1, "ada", "capability/grant", {"recipient": "eve", "capabilities": right}).accepted
    passed_on = {"recipient": "files", "capabilities": right[:1]}
    assert driver.send_envelope(5, "eve", "capability/grant", passed_on).accepted
    assert driver.send_envelope(5, "eve", "mcp/proposal", CALL, id="p", to=["files"]).accepted
    for number, name in ((1, "ada"), (4, "helper")):
        driver.send_envelope(number, name, "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["eve"])
    assert listed(driver) == ["p"]
    assert driver.send_envelope(1, "ada", "space/kick", {"participant_id": "eve"}).accepted
    assert listed(driver) == []
    (withdrawal,) = [one for one in driver.history if one.kind == "mcp/withdraw"]
    assert withdrawal.body["cause"] == "proposer_left"


def test_the_last_possible_rejection_closes_a_proposal(driver: SpaceDriver) -> None:
    propose(driver)
    driver.send_envelope(1, "ada", "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["coder"])
    again = SpaceDriver(parse_space(SPACE.replace("{kind: mcp/request, to: [files]}, ", "")), driver.stored)
    for number, name in ((1, "ada"), (2, "coder")):
        again.join(number, name)
    assert listed(again) == ["p"]
    again.send_envelope(1, "ada", "mcp/reject", {"reason": "no"}, correlation_id=["p"], to=["coder"])
    assert listed(again) == []


def test_the_gateway_withdraws_no_proposal_that_its_proposer_rejects(driver: SpaceDriver) -> None:
    assert driver.send_envelope(1, "ada", "mcp/proposal", CALL, id="p", to=["files"]).accepted
    assert driver.send_envelope(1, "ada", "mcp/reject", {"reason": "no"}, correlation_id=["p"]).accepted
    assert listed(driver) == []
    assert "mcp/withdraw" not in [one.kind for one in driver.history]


@pytest.mark.parametrize("how", ["leaves", "is removed"])
def test_the_gateway_withdraws_the_proposals_of_a_participant_that_is_gone(driver: SpaceDriver, how: str) -> None:
    propose(driver)
    propose(driver, "q")
    if how == "leaves":
        driver.leave(2, "coder")
        driver.wait(4)
        assert (listed(driver), driver.last(1).kind) == (["p", "q"], "system/presence")
        driver.wait(1)
    else:
        assert driver.send_envelope(1, "ada", "space/kick", {"participant_id": "coder"}).accepted
    assert listed(driver) == []
    withdrawn = [one for one in driver.history if one.kind == "mcp/withdraw"]
    assert [(one.sender, one.correlation_id, one.body) for one in withdrawn] == [
        ("system:gateway", ("p", "q"), {"reason": "its proposer left", "cause": "proposer_left"})
    ]


OTHER_PARAMS = {"name": "write", "arguments": {"path": "/etc/passwd"}}
OTHER = {"method": "tools/call", "params": OTHER_PARAMS}


def refusal(receipt: Receipt) -> str | None:
    return None if receipt.refused is None else receipt.refused.error


@pytest.mark.parametrize("ending", ["", "mcp/withdraw", "mcp/reject", "mcp/request", "left", "restart"])
@pytest.mark.parametrize(
    ("sender", "payload", "to"),
    [
        ((2, "coder"), OTHER, ["files"]),
        ((2, "coder"), {"method": "resources/read", "params": {"uri": "a"}}, ["files"]),
        ((2, "coder"), CALL, ["helper"]),
        ((2, "coder"), CALL, []),
        ((1, "ada"), CALL, ["files"]),
    ],
)
def test_a_proposal_never_changes(
    driver: SpaceDriver, ending: str, sender: tuple[int, str], payload: dict[str, Any], to: list[str]
) -> None:
    propose(driver)
    if ending == "left":
        driver.leave(2, "coder")
        driver.wait(6)
        driver.join(2, "coder")
    elif ending == "restart":
        driver = SpaceDriver(parse_space(SPACE), driver.stored)
        for number, name in ((1, "ada"), (2, "coder"), (3, "files"), (4, "helper")):
            driver.join(number, name)
    elif ending:
        who = (2, "coder") if ending == "mcp/withdraw" else (1, "ada")
        body = CALL if ending == "mcp/request" else {"reason": "no"}
        assert driver.send_envelope(*who, ending, body, to=["files"], correlation_id=["p"]).accepted
    before = driver.stored.model_copy(deep=True)
    again = driver.send_envelope(*sender, "mcp/proposal", payload, id="p", to=to)
    assert refusal(again) == "already_exists"
    assert driver.stored == before
    assert listed(driver) == (["p"] if ending in ("", "restart", "mcp/reject") else [])


def test_an_open_proposal_may_be_repeated(driver: SpaceDriver) -> None:
    propose(driver)
    sent = len(driver.history)
    assert driver.send_envelope(2, "coder", "mcp/proposal", CALL, id="p", to=["files"]).accepted is not None
    assert (listed(driver), driver.history[sent:]) == (["p"], [])


def test_an_approval_with_the_digest_of_the_proposal_is_accepted(driver: SpaceDriver) -> None:
    propose(driver)
    approval = approval_of(driver.history[-1])
    assert approval == {**CALL, "proposal_digest": digest_of(CALL, "coder", ["files"])}
    assert driver.send_envelope(1, "ada", "mcp/request", approval, to=["files"], correlation_id=["p", "p"]).accepted
    assert listed(driver) == []


@pytest.mark.parametrize(
    ("change", "to", "about"),
    [
        ({"proposal_digest": digest_of(OTHER, "coder", ["files"])}, ["files"], ["p"]),
        ({"proposal_digest": digest_of(CALL, "eve", ["files"])}, ["files"], ["p"]),
        ({"proposal_digest": digest_of(CALL, "coder", ["files", "ada"])}, ["files"], ["p"]),
        ({"proposal_digest": 5}, ["files"], ["p"]),
        ({"params": OTHER_PARAMS}, ["files"], ["p"]),
        ({}, ["files"], ["unknown"]),
        ({}, ["files"], ["p", "q"]),
        ({}, [], ["p"]),
    ],
)
def test_an_approval_of_something_else_is_refused(
    driver: SpaceDriver, change: dict[str, Any], to: list[str], about: list[str]
) -> None:
    propose(driver, "q")
    propose(driver)
    approval = {**approval_of(driver.history[-1]), **change}
    refused = driver.send_envelope(1, "ada", "mcp/request", approval, to=to, correlation_id=about)
    assert refusal(refused) in ("proposal_differs", "unauthorized")
    assert listed(driver) == ["q", "p"]


def test_an_approver_may_change_the_arguments_and_says_so(driver: SpaceDriver) -> None:
    propose(driver)
    changed = approval_of(driver.history[-1], OTHER_PARAMS)
    assert changed["proposal_changed"] is True
    wrong = {**changed, "proposal_digest": digest_of(OTHER, "coder", ["files"])}
    refused = driver.send_envelope(1, "ada", "mcp/request", wrong, to=["files"], correlation_id=["p"])
    assert refusal(refused) == "proposal_differs"
    assert driver.send_envelope(1, "ada", "mcp/request", changed, to=["files"], correlation_id=["p"]).accepted


def test_a_proposal_to_everyone_stays_open_after_a_response(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "mcp/proposal", CALL, id="p")
    assert driver.send_envelope(
        4, "helper", "mcp/response", {"result": {}}, to=["coder"], correlation_id=["p"]
    ).accepted
    assert listed(driver) == ["p"]


@pytest.mark.parametrize(
    ("payload", "to"),
    [
        ({"method": "tools/call", "params": {"name": "x" * 257}}, ["files"]),
        ({"method": "m" * 257}, ["files"]),
        (CALL, [f"p{number}" for number in range(17)]),
    ],
)
def test_a_proposal_that_cannot_be_remembered_whole_is_refused(
    driver: SpaceDriver, payload: dict[str, Any], to: list[str]
) -> None:
    assert refusal(driver.send_envelope(2, "coder", "mcp/proposal", payload, id="p", to=to)) == "limit_exceeded"


def test_a_right_to_own_calls_does_not_approve_those_of_others(driver: SpaceDriver) -> None:
    pattern = {"kind": "mcp/request", "to": ["files"], "payload": CALL, "approve": False}
    grant = {"recipient": "eve", "capabilities": [pattern]}
    driver.join(6, "eve")
    assert driver.send_envelope(1, "ada", "capability/grant", grant, to=["eve"]).accepted
    propose(driver)
    (one,) = driver.space.proposals(now=driver.now).proposals
    assert one.may_fulfil == ("ada", "helper")
    for payload in (CALL, approval_of(driver.history[-1])):
        refused = driver.send_envelope(6, "eve", "mcp/request", payload, to=["files"], correlation_id=["p"])
        assert refusal(refused) == "capability_violation"
    assert driver.send_envelope(6, "eve", "mcp/request", CALL, to=["files"]).accepted, "its own call"
    assert driver.send_envelope(6, "eve", "mcp/proposal", CALL, to=["files"], id="own").accepted
    assert driver.send_envelope(6, "eve", "mcp/request", CALL, to=["files"], correlation_id=["own"]).accepted
    wider = {"recipient": "helper", "capabilities": [{**pattern, "approve": True}]}
    refused = driver.send_envelope(6, "eve", "capability/grant", wider, to=["helper"])
    assert refusal(refused) == "grant_exceeds_own"
    assert listed(driver) == ["p"]


def test_equal_capabilities_are_checked_once_for_all_their_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    people = "".join(f"  p{number}: {{capabilities: [chat, mcp/*]}}\n" for number in range(50))
    driver = SpaceDriver(parse_space(f"{SPACE}{people}"))
    driver.join(2, "coder")
    for number in range(3):
        propose(driver, f"p{number}")
    check = create_autospec(CapabilitySet.allows, side_effect=CapabilitySet.allows)
    monkeypatch.setattr(CapabilitySet, "allows", check)
    proposals = driver.space.proposals(now=driver.now).proposals
    assert [len(one.may_fulfil or ()) for one in proposals] == [52, 52, 52]
    different = 6  # of five participants in SPACE, and of the people
    assert check.call_count == 3 * different
    driver.send_envelope(None, "helper", "mcp/reject", {"reason": "disagree"}, correlation_id=["p0"])
    assert check.call_count == 3 * different + 1, "one that may fulfil it is enough"


def test_the_list_is_computed_once_until_rights_change(driver: SpaceDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def approvers() -> list[tuple[str, ...] | None]:
        return [one.may_fulfil for one in driver.space.proposals(now=driver.now).proposals]

    propose(driver)
    assert approvers() == [("ada", "helper")]
    check = create_autospec(CapabilitySet.allows, side_effect=CapabilitySet.allows)
    monkeypatch.setattr(CapabilitySet, "allows", check)
    assert approvers() == [("ada", "helper")]
    assert check.call_count == 0
    right = {"recipient": "files", "capabilities": [{"kind": "mcp/request", "to": ["files"]}]}
    assert driver.send_envelope(1, "ada", "capability/grant", right).accepted
    assert approvers() == [("ada", "files", "helper")]
    invited = {"participant_id": "max", "initial_capabilities": [{"kind": "mcp/*"}]}
    assert driver.send_envelope(1, "ada", "space/invite", invited).accepted
    assert approvers() == [("ada", "files", "helper", "max")]
    assert driver.send_envelope(1, "ada", "space/kick", {"participant_id": "helper"}).accepted
    assert driver.send_envelope(1, "ada", "capability/revoke", right).accepted
    propose(driver, "q")
    assert approvers() == [("ada", "max")] * 2


def test_repeated_rejections_search_nobody_again(monkeypatch: pytest.MonkeyPatch) -> None:
    others = "\n".join(f"  p{number}: {{capabilities: [{{kind: chat}}, {{kind: x{number}}}]}}" for number in range(50))
    owner = '  ada: {capabilities: [{kind: "*"}]}'
    driver = SpaceDriver(parse_space(SPACE.replace(f"{owner}\n", "") + f"{others}\n{owner}\n"))
    driver.join(2, "coder")
    names = [f"{number:02}-proposal" for number in range(20)]
    for name in names:
        propose(driver, name)
    check = create_autospec(CapabilitySet.allows, side_effect=CapabilitySet.allows)
    monkeypatch.setattr(CapabilitySet, "allows", check)
    for _ in range(3):
        check.reset_mock()
        driver.send_envelope(None, "helper", "mcp/reject", {"reason": "no"}, correlation_id=names)
    assert check.call_count <= len(names)


def test_an_invitation_and_a_removal_read_no_proposal(driver: SpaceDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    propose(driver)
    read: list[Any] = []
    monkeypatch.setattr(Proposals, "reindex", lambda _, name: read.append(name))
    for kind in ("space/invite", "space/kick"):
        assert driver.send_envelope(1, "ada", kind, {"participant_id": "newcomer"}).accepted is not None
    assert read == []
