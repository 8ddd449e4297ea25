"""Who proposed what."""

import pytest
from mew_protocol import errors, kinds
from mew_protocol.envelope import Envelope
from mew_spaces.core.proposals import Proposals


def said(kind: str, sender: str, *about: str) -> Envelope:
    return Envelope.write(kind, id="p1", ts="t", sender=sender, correlation_id=about)


def test_a_proposal_is_withdrawn_by_its_proposer_and_rejected_by_anybody() -> None:
    proposals = Proposals()
    assert proposals.receive(said(kinds.MCP_PROPOSAL, "coder")) is None
    refused = proposals.receive(said(kinds.MCP_WITHDRAW, "bob", "p1"))
    assert refused is not None
    assert refused.refused is not None
    assert (refused.refused.error, refused.accepted) == (errors.UNAUTHORIZED, None)
    assert "'p1'" in (refused.refused.message or "")
    assert proposals.receive(said(kinds.MCP_WITHDRAW, "coder", "p1")) is None
    assert proposals.receive(said(kinds.MCP_REJECT, "bob", "p1")) is None
    assert proposals.receive(said(kinds.MCP_REQUEST, "bob", "p1")) is None


@pytest.mark.parametrize("kind", [kinds.MCP_WITHDRAW, kinds.MCP_REJECT])
def test_an_ending_names_its_proposal(kind: str) -> None:
    receipt = Proposals().receive(said(kind, "bob"))
    assert receipt is not None
    assert receipt.refused is not None
    assert receipt.refused.error == errors.INVALID_ENVELOPE


def test_a_proposal_belongs_to_its_proposer_and_an_unknown_one_to_nobody() -> None:
    proposals = Proposals()
    proposals.record("p1", "coder")
    assert proposals.stranger_to(["p1"], "coder") is None
    assert proposals.stranger_to(["unknown", "p1"], "bob") == "p1"
    assert proposals.stranger_to(["unknown"], "bob") is None


def test_ids_that_repeat_belong_to_everybody_who_used_them() -> None:
    proposals = Proposals()
    for proposer in ("coder", "bob", "coder"):
        proposals.record("1", proposer)
    assert proposals.stranger_to(["1"], "coder") is proposals.stranger_to(["1"], "bob") is None
    assert proposals.stranger_to(["1"], "ada") == "1"
    assert len(proposals) == 1


def test_the_oldest_are_forgotten() -> None:
    proposals = Proposals(max_remembered=2)
    for number in range(3):
        proposals.record(str(number), "coder")
    assert len(proposals) == 2
    assert proposals.stranger_to(["0"], "bob") is None
    assert proposals.stranger_to(["1"], "bob") == "1"
