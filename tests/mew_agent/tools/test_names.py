"""Tool names for model servers: each means one tool and depends on it alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.interface import MAX_NAME_LENGTH
from mew_agent.tools.sources import Target, ToolNames, digest_name, plain_name

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# Few letters, so that names are similar; and any text.
close = st.text(alphabet="ab_-/.", max_size=12)
targets = st.builds(Target, close | st.text(max_size=90), close | st.text(max_size=90))


@given(st.lists(targets, unique=True, max_size=30), st.lists(close, max_size=3))
def test_each_target_has_one_accepted_and_reversible_name(given_: list[Target], reserved: list[str]) -> None:
    names = ToolNames()
    called = [names.name_of(target, reserved) for target in given_]
    assert all(ACCEPTED.fullmatch(name) for name in called)
    assert len(set(called)) == len(given_)
    assert not set(called) & set(reserved)
    assert [names.target_of(name) for name in called] == given_


@given(targets, st.lists(targets))
def test_a_name_does_not_depend_on_other_peers(target: Target, others: list[Target]) -> None:
    names = ToolNames()
    for other in others:
        names.name_of(other)
    assert names.name_of(target) == ToolNames().name_of(target)


@given(targets, targets)
def test_a_digest_name_is_never_a_plain_name(one: Target, other: Target) -> None:
    assert digest_name(one) != plain_name(other)


@pytest.mark.parametrize(
    ("peer", "tool", "name"),
    [
        ("calculator", "add", "calculator__add"),
        ("file-server", "read_file", "file-server__read_file"),
        ("files", "__init", "files____init"),
    ],
)
def test_ordinary_names_stay_readable(peer: str, tool: str, name: str) -> None:
    assert ToolNames().name_of(Target(peer, tool)) == name


@pytest.mark.parametrize(
    ("peer", "tool"),
    [("a__b", "c"), ("a_", "b"), ("files", "read/file"), ("3d", "x"), ("x" * 40, "y" * 40), ("a", ""), ("ä", "ö")],
)
def test_other_names_get_a_digest(peer: str, tool: str) -> None:
    name = ToolNames().name_of(Target(peer, tool))
    assert re.fullmatch(r"t_.*[0-9a-f]{16}", name)
    assert len(name) <= MAX_NAME_LENGTH


def test_an_unknown_name_has_no_target() -> None:
    assert ToolNames().target_of("calculator__add") is None
