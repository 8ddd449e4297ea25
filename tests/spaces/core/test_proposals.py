"""Proposals are listed from the moment they are made until they are decided, for joiners and readers."""

from typing import Any

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.core.membership import MAX_UNDECIDED

from tests.support.space_driver import SpaceDriver

SPACE = """
space: {id: demo}
limits: {kept_payload_bytes: 1000}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {command: x, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}, {kind: mcp/request, to: [ada]}]}
  files: {command: x, capabilities: [{kind: mcp/response}]}
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
    assert driver.last(5).body["proposals"] == [{**driver.history[-2].as_dict(), "age_seconds": 12.5}]


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
        (4, "helper", "mcp/reject", {"reason": "no"}, ["coder"]),
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
    driver.send_envelope(4, "helper", "mcp/reject", {"reason": "no"}, correlation_id=["p"])
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
    propose(driver, "q")
    assert driver.send_envelope(4, "helper", "mcp/reject", {}, correlation_id=["q"], to=["coder"]).accepted
    assert driver.send_envelope(1, "ada", "mcp/request", CALL, correlation_id=["q"], to=["files"]).refused
    propose(driver, "q")  # the same id is open again
    assert driver.send_envelope(1, "ada", "mcp/request", CALL, correlation_id=["q"], to=["files"]).accepted
