"""The fulfiller's policy: patterns, and people's answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mew_agent.participant.event_handlers import MAX_SHOWN_CHARS, ProposalMade
from mew_agent.parts.simple_agents.fulfiller_policy import FulfillerPolicy, is_answer, read_answer
from tests.support.peers import read_proposal


def proposed(*to: str, tool: str | None = "read_file", method: str = "tools/call", **arguments: Any) -> ProposalMade:
    params = {"name": tool, "arguments": arguments} if method == "tools/call" else arguments or None
    return read_proposal(*to, payload={"method": method, **({"params": params} if params is not None else {})})


@pytest.mark.parametrize(
    ("policy", "proposal", "verdict"),
    [
        ({}, proposed("files"), "fulfil"),
        ({"otherwise": "reject"}, proposed("files"), "reject"),
        ({"ask": "ada"}, proposed("files"), "ask"),
        ({"ask": "ada", "otherwise": "reject"}, proposed("files"), "reject"),
        ({"allow": ["files/read_*"], "otherwise": "reject"}, proposed("files"), "fulfil"),
        ({"allow": ["files/read_*"], "otherwise": "reject"}, proposed("files", tool="write_file"), "reject"),
        ({"allow": ["files/read_*"], "otherwise": "reject"}, proposed("other"), "reject"),
        ({"allow": ["*"], "deny": ["*/read_*"]}, proposed("files"), "reject"),
        ({"allow": ["*/tools/list"], "otherwise": "reject"}, proposed("files", method="tools/list"), "fulfil"),
        ({"allow": ["files/*"], "ask": "ada"}, proposed("files", "other"), "ask"),
        ({"allow": ["*/*"], "deny": ["other/*"]}, proposed("files", "other"), "reject"),
        ({"allow": ["files/*"], "otherwise": "reject"}, proposed(), "reject"),
        ({"deny": ["*/read_*"]}, proposed(), "reject"),
    ],
)
def test_deny_is_checked_before_allow_and_otherwise(
    policy: dict[str, Any], proposal: ProposalMade, verdict: str
) -> None:
    assert FulfillerPolicy.model_validate(policy).decide(proposal.subjects) == verdict


def test_policy_applies_to_matching_proposers() -> None:
    policy = FulfillerPolicy(proposers=("coder", "intern-*"))
    assert [policy.applies_to(name) for name in ("coder", "intern-7", "ada")] == [True, True, False]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"allow": ["read_file"]}, "should be PEER/TOOL"),
        ({"otherwise": "ask"}, "needs `ask`"),
        ({"otherwise": "perhaps"}, "fulfil"),
        ({"alow": []}, "Extra inputs"),
        ({"ask_seconds": 0}, "greater than 0"),
    ],
)
def test_invalid_policy_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        FulfillerPolicy.model_validate(values)


def test_proposal_text_shortens_long_arguments() -> None:
    assert str(proposed("files", path="a.txt")) == (
        "'coder' proposes to call 'read_file' on 'files' with {\"path\": \"a.txt\"}"
    )
    assert str(proposed(method="tools/list")) == "'coder' proposes 'tools/list' to everyone"
    long = str(proposed("files", text="x" * 10_000))
    assert len(long) < MAX_SHOWN_CHARS + 120
    assert long.endswith("x … (9,412 more characters; `mew proposals` shows all)")
    assert "'a<U+202E>b'" in str(proposed("a\u202eb"))


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.text())))
def test_every_proposal_can_be_decided(payload: dict[str, Any]) -> None:
    proposal = read_proposal(payload=payload)
    assert FulfillerPolicy(allow=("x/*",), otherwise="reject").decide(proposal.subjects) == "reject"
    assert str(proposal).startswith("'coder' proposes ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yes", None),
        (" Y ", None),
        ("OK, go on", None),
        ("no", "disagree"),
        ("No: it is unsafe", "it is unsafe"),
        ("n - wrong file!", "wrong file!"),
    ],
)
def test_yes_fulfils_and_no_carries_a_reason(text: str, reason: str | None) -> None:
    assert is_answer(text)
    assert read_answer(text) == reason


@pytest.mark.parametrize("text", ["", "maybe", "nobody knows", "yesterday", "?"])
def test_other_text_is_no_answer_and_never_a_yes(text: str) -> None:
    assert not is_answer(text)
    assert read_answer(text) == "disagree"
