"""Who proposed what."""

from spaces.proposals import Proposals


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
