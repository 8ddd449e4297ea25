"""Whether one capability pattern is contained in another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_spaces.core.containment import covers

R = "mcp/request"


@pytest.mark.parametrize(
    ("held", "wanted", "verdict"),
    [
        ({"kind": "*"}, {"kind": "chat"}, True),
        ({"kind": "*"}, {"kind": "*"}, True),
        ({"kind": "**"}, {"kind": "mcp/*", "payload": {"method": "tools/*"}}, True),
        ({"kind": "chat"}, {"kind": "chat"}, True),
        ({"kind": "chat"}, {"kind": "*"}, False),
        ({"kind": "chat"}, {"kind": R}, False),
        ({"kind": "mcp/*"}, {"kind": R}, True),
        ({"kind": "mcp/*"}, {"kind": R, "payload": {"method": "tools/*"}}, True),
        ({"kind": "mcp/*"}, {"kind": "mcp/*", "payload": {"method": "x"}}, True),
        ({"kind": "mcp/*"}, {"kind": "mcp/re*"}, False),
        ({"kind": "mcp/*"}, {"kind": [R, "mcp/proposal"]}, True),
        ({"kind": "mcp/*"}, {"kind": [R, "chat"]}, False),
        ({"kind": "!chat"}, {"kind": R}, True),
        ({"kind": R, "payload": {"method": "tools/*"}}, {"kind": R}, False),
        ({"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "tools/call"}}, True),
        ({"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "resources/list"}}, False),
        (
            {"kind": R, "payload": {"method": "tools/*"}},
            {"kind": R, "payload": {"method": "tools/call", "params": {"name": "read_*"}}},
            True,
        ),
        ({"kind": R, "payload": {"method": "*"}}, {"kind": R, "payload": {"method": "tools/*"}}, True),
        ({"kind": R, "payload": {"a": {"b": "x*"}}}, {"kind": R, "payload": {"a": {"b": "xy", "c": 1}}}, True),
        ({"kind": R, "payload": {"a": {"b": "x*"}}}, {"kind": R, "payload": {"a": "xy"}}, False),
        ({"kind": R, "payload": {"n": ["a", "b"]}}, {"kind": R, "payload": {"n": "a"}}, True),
        ({"kind": R, "payload": {"n": ["a", "b*"]}}, {"kind": R, "payload": {"n": "b*"}}, True),
        ({"kind": R, "payload": {"n": ["a", "b"]}}, {"kind": R, "payload": {"n": ["a", "b"]}}, True),
        ({"kind": R, "payload": {"n": ["a", "b", "c"]}}, {"kind": R, "payload": {"n": ["a", "b"]}}, False),
        ({"kind": R, "payload": {"n": 5}}, {"kind": R, "payload": {"n": 5}}, True),
        ({"kind": R, "payload": {"n": 1}}, {"kind": R, "payload": {"n": True}}, False),
        ({"kind": R, "payload": {"$.a": "x"}}, {"kind": R, "payload": {"a": "x"}}, False),
        ({"kind": R, "payload": {"$.a": "x"}}, {"kind": R, "payload": {"$.a": "x", "b": 1}}, True),
        ({"kind": R, "to": ["files"]}, {"kind": R, "to": ["files"]}, True),
        ({"kind": R, "to": ["files", "web*"]}, {"kind": R, "to": "webby"}, True),
        ({"kind": R, "to": ["files"]}, {"kind": R}, False),
        ({"kind": R, "to": ["files"]}, {"kind": R, "to": ["files", "other"]}, False),
        ({"kind": R, "payload": "x"}, {"kind": R, "payload": "x"}, False),
        ({"kind": 5}, {"kind": 5}, False),
        ({"kind": "/(/"}, {"kind": "chat"}, False),
    ],
)
def test_a_contained_pattern_may_be_passed_on(held: dict[str, Any], wanted: dict[str, Any], verdict: bool) -> None:
    assert covers([held], wanted) is verdict


def test_ignore_to_also_ignores_to_in_containment() -> None:
    assert covers([{"kind": R, "to": ["files"]}], {"kind": R}, ignore_to=True)


TEXTS = st.sampled_from(["a", "b", "ab", "a/b", "a*", "a/*", "*", "**", "!a", "!a*", "/^a/", "a?"])
VALUES = st.recursive(
    TEXTS | st.sampled_from([1, True, None]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", "$.x", "**", "x*"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PATTERNS = st.fixed_dictionaries(
    {"kind": TEXTS},
    optional={
        "payload": st.dictionaries(st.sampled_from(["x", "y", "$.x", "**"]), VALUES, max_size=2),
        "to": st.lists(TEXTS, min_size=1, max_size=2),
    },
)
PLAIN = st.sampled_from(["a", "b", "ab", "a/b", "a/b/c", "ax"])
MESSAGES = st.fixed_dictionaries(
    {"kind": PLAIN},
    optional={
        "to": st.lists(PLAIN, max_size=2),
        "payload": st.dictionaries(
            st.sampled_from(["x", "y"]),
            st.recursive(
                PLAIN | st.sampled_from([1, True, None]),
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2)
                ),
                max_leaves=4,
            ),
            max_size=2,
        ),
    },
)


@given(held=st.lists(PATTERNS, min_size=1, max_size=3), wanted=PATTERNS, message=MESSAGES)
def test_a_passed_on_pattern_matches_nothing_beyond_its_source(
    held: list[dict[str, Any]], wanted: dict[str, Any], message: dict[str, Any]
) -> None:
    draft = Draft.model_validate(message)
    if covers(held, wanted) and CapabilitySet([wanted]).allows(draft):
        assert CapabilitySet(held).allows(draft)
