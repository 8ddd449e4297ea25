"""The capability matcher: the matching table, `to`, bounded costs, and properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.capability import BASELINE, CapabilitySet, advertised, normalise
from mew_protocol.envelope import Draft

R = "mcp/request"


def draft(kind: str | None, payload: dict[str, Any] | None = None, to: list[str] | None = None) -> Draft:
    return Draft.model_validate({"kind": kind, "payload": payload, "to": to})


def allows(capability: dict[str, Any], message: Draft, *, ignore_to: bool = False) -> bool:
    return CapabilitySet([capability]).allows(message, ignore_to=ignore_to)


def row(number: int, capability: dict[str, Any], message: dict[str, Any], verdict: str) -> Any:
    return pytest.param(capability, message, verdict == "T", id=f"row-{number}")


TABLE = [
    row(1, {"kind": "chat"}, {"kind": "chat"}, "T"),
    row(2, {"kind": "chat/*"}, {"kind": "chat"}, "F"),
    row(4, {"kind": "chat*"}, {"kind": "chat/acknowledge"}, "F"),
    row(5, {"kind": "*"}, {"kind": "chat"}, "T"),
    row(6, {"kind": "*"}, {"kind": R}, "T"),
    row(7, {"kind": "**"}, {"kind": R}, "T"),
    row(8, {"kind": "*/*"}, {"kind": R}, "T"),
    row(10, {"kind": "mcp/*"}, {"kind": R}, "T"),
    row(11, {"kind": "mcp/*"}, {"kind": "mcp/a/b"}, "T"),
    row(12, {"kind": "mcp/**"}, {"kind": "mcp/a/b"}, "T"),
    row(13, {"kind": "mcp/re*"}, {"kind": R}, "T"),
    row(15, {"kind": ["chat", R]}, {"kind": R}, "T"),
    row(16, {"kind": "!chat"}, {"kind": R}, "T"),
    row(17, {"kind": "!chat"}, {"kind": "chat"}, "F"),
    row(18, {"kind": "/^mcp\\/.*$/"}, {"kind": R}, "T"),
    row(19, {"kind": R, "payload": {}}, {"kind": R}, "T"),
    row(21, {"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "tools/call"}}, "T"),
    row(22, {"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "tools/a/b"}}, "T"),
    row(23, {"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "tools/"}}, "T"),
    row(24, {"kind": R, "payload": {"method": "tools/*"}}, {"kind": R}, "F"),
    row(26, {"kind": R, "payload": {"method": "*"}}, {"kind": R, "payload": {"method": "tools/list"}}, "T"),
    row(28, {"kind": R, "payload": {"method": "!tools/call"}}, {"kind": R, "payload": {"method": "tools/list"}}, "T"),
    row(29, {"kind": R, "payload": {"method": "!tools/call"}}, {"kind": R, "payload": {"method": "tools/call"}}, "F"),
    row(30, {"kind": R, "payload": {"method": "!tools/*"}}, {"kind": R, "payload": {"method": "tools/call"}}, "F"),
    row(31, {"kind": R, "payload": {"method": "!tools/call"}}, {"kind": R, "payload": {}}, "F"),
    row(32, {"kind": R, "payload": {"method": "!tools/call"}}, {"kind": R}, "F"),
    row(
        33,
        {"kind": R, "payload": {"method": "tools/call", "params": {"name": "read_*"}}},
        {"kind": R, "payload": {"method": "tools/call", "params": {"name": "read_file"}}},
        "T",
    ),
    row(
        34,
        {"kind": R, "payload": {"method": "tools/call", "params": {"name": "read_*"}}},
        {"kind": R, "payload": {"method": "tools/call"}},
        "F",
    ),
    row(
        36,
        {"kind": R, "payload": {"method": "tools/call", "params": {"name": ["read_file", "stat"]}}},
        {"kind": R, "payload": {"method": "tools/call", "params": {"name": "stat"}}},
        "T",
    ),
    row(
        38,
        {"kind": R, "payload": {"params": {"name": "!delete_*"}}},
        {"kind": R, "payload": {"params": {"name": "delete_file"}}},
        "F",
    ),
    row(
        39,
        {"kind": R, "payload": {"params": {"arguments": {"query": "/^SELECT /"}}}},
        {"kind": R, "payload": {"params": {"arguments": {"query": "SELECT 1"}}}},
        "T",
    ),
    row(
        40,
        {"kind": R, "payload": {"params": {"uri": "/public/**"}}},
        {"kind": R, "payload": {"params": {"uri": "/public/a/b"}}},
        "T",
    ),
    row(
        42,
        {"kind": R, "payload": {"params": {"uri": "/public/*"}}},
        {"kind": R, "payload": {"params": {"uri": "/public/a/b"}}},
        "T",
    ),
    row(
        43,
        {"kind": R, "payload": {"params": {"uri": "/public/**"}}},
        {"kind": R, "payload": {"params": {"uri": "/public/.hidden"}}},
        "T",
    ),
    row(45, {"kind": R, "payload": {"**": "secret"}}, {"kind": R, "payload": {"a": {"b": {"c": "secret"}}}}, "T"),
    row(
        46,
        {"kind": R, "payload": {"$.params.name": "read_*"}},
        {"kind": R, "payload": {"params": {"name": "read_file"}}},
        "T",
    ),
    row(
        47,
        {"kind": R, "payload": {"$.params[*].name": "file_*"}},
        {"kind": R, "payload": {"params": [{"name": "x"}, {"name": "file_a"}]}},
        "T",
    ),
    row(49, {"kind": R, "payload": {"n": 5}}, {"kind": R, "payload": {"n": 5}}, "T"),
    row(50, {"kind": R, "payload": {"n": 5}}, {"kind": R, "payload": {"n": 6}}, "F"),
    row(51, {"kind": R, "payload": {"n": 5}}, {"kind": R, "payload": {"n": "5"}}, "F"),
    row(53, {"kind": R, "payload": {"n": None}}, {"kind": R, "payload": {"m": 1}}, "F"),
    row(54, {"kind": R, "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": 5}}, "F"),
    row(55, {"kind": R, "payload": {"a": ["x"]}}, {"kind": R, "payload": {"a": ["x"]}}, "T"),
    row(
        57,
        {"kind": "mcp/*", "payload": {"method": "tools/*"}},
        {"kind": "mcp/response", "payload": {"result": {}}},
        "F",
    ),
    row(58, {"kind": "*", "payload": {"method": "tools/*"}}, {"kind": R, "payload": {"method": "resources/list"}}, "F"),
    row(
        60,
        {"kind": R, "to": ["file-server"], "payload": {"method": "tools/call"}},
        {"kind": R, "to": ["other"], "payload": {"method": "tools/call"}},
        "F",
    ),
    row(61, {"kind": R, "payload": {"method": "a*c*"}}, {"kind": R, "payload": {"method": "abcd"}}, "T"),
]


@pytest.mark.parametrize(("capability", "message", "expected"), TABLE)
def test_the_matching_table_holds(
    capability: dict[str, Any],
    message: dict[str, Any],
    expected: bool,
) -> None:
    assert allows(capability, Draft.model_validate(message)) is expected


@pytest.mark.parametrize(
    ("to", "addressees", "expected"),
    [
        (["files"], ["files"], True),
        ("files", ["files"], True),
        (["files"], ["files", "other"], False),
        (["f*", "other"], ["files", "other"], True),
        (["files"], None, False),
        (["files"], [], False),
        ([], None, False),
        (None, None, True),
    ],
)
def test_a_capability_with_to_covers_every_addressee(
    to: Any,
    addressees: list[str] | None,
    expected: bool,
) -> None:
    assert allows({"kind": "chat", "to": to}, draft("chat", to=addressees)) is expected


def test_ignore_to_ignores_to() -> None:
    assert allows({"kind": "chat", "to": ["files"]}, draft("chat"), ignore_to=True)


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        (1, 1.0, True),
        (None, None, True),
        (None, False, False),
        ([1, {"a": [True]}], [1, {"a": [True]}], True),
        ([[1, 2]], [1], False),
        ("*", None, True),
        ("!x", 5, False),
        ("?at", "cat", True),
        ("?at", "/at", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "abz", False),
        ("a/*/z", "a/b/c/z", False),
        ("**/z", "x/y/z", True),
        ("**/z", "z", True),
        ("a**z", "a/b/z", True),
        ("!/^rm/", "ls", True),
        ("!/^rm/", "rm -r", False),
        ("/ab$/", "ab\n", False),
        ("/^(?:read|list)_[a-z]+$/", "list_files", True),
        ("/a[?+*]b/", "a+b", True),
        ({"x": {}}, {"x": {"more": 1}}, True),
        ({"x": {}}, {"x": "text"}, False),
        ({"na?e": "x"}, {"name": "x"}, True),
        ({"na?e": "x"}, {"name": "y"}, False),
        ({"$..id": 7}, {"a": [{"id": 1}, {"id": 7}]}, True),
        ({"$.a[1]": "y"}, {"a": ["x", "y"]}, True),
        ({"$['a b'].*": "y"}, {"a b": {"c": "y"}}, True),
        ({"$.a": "x"}, {"b": "x"}, False),
    ],
)
def test_payload_values_match_as_json(pattern: Any, value: Any, expected: bool) -> None:
    assert allows({"kind": "x", "payload": {"v": pattern}}, draft("x", {"v": value})) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "/(a+)+$/",
        "/(a|a)*b/",
        "/(a|aa){9}/",
        "/a(?=b)/",
        "/(a)\\1/",
        "/(/",
        "/)/",
        "/[/",
        "/[[a]/",
        "/*/a/",
        "/" + "a?" * 40 + "a" * 40 + "/",
        "/" + "x" * 2_000 + "/",
        "a{b,c}*",
        "/a\\/",
    ],
)
@pytest.mark.parametrize("negation", ["", "!"])
def test_an_unsafe_pattern_denies_even_when_negated(pattern: str, negation: str) -> None:
    assert not allows({"kind": "x", "payload": {"v": negation + pattern}}, draft("x", {"v": "a" * 40}))


def test_a_text_too_long_for_a_regex_is_denied_unevaluated() -> None:
    capability = {"kind": "x", "payload": {"v": "/a.*b.*c.*d/"}}
    assert allows(capability, draft("x", {"v": "abcd"}))
    assert not allows(capability, draft("x", {"v": "abc" * 100_000 + "d"}))


COSTLY = "**a*b"
"""A glob that must follow all of its positions."""


@pytest.mark.parametrize(
    ("pattern", "uri", "verdict"),
    [
        ("/public/*", "/public/a/b", True),
        ("/public/*", "/public/a\nb", False),
        ("/public/*/x", "/public/a/b/x", False),
        ("/public/**", "/public/a/b", True),
        ("/public/**", "/public", True),
        ("/public/**", "/publicity", False),
        ("!/public/**", "/public", False),
        ("/p?blic/**", "/public", True),
        ("/^/public/[^/]*$/", "/public/a", True),
        ("/^/public/[^/]*$/", "/public/a/b", False),
    ],
)
def test_a_star_crosses_folders_only_at_the_end(pattern: str, uri: str, verdict: bool) -> None:
    capability = {"kind": "x", "payload": {"uri": pattern}}
    assert allows(capability, draft("x", {"uri": uri})) is verdict
    assert allows({"kind": "x", "payload": {"m": "resources/*"}}, draft("x", {"m": "resources/templates/list"}))


def test_all_patterns_of_an_envelope_share_one_budget() -> None:
    text = "a" * 2_000 + "b"
    first, second = ({"kind": "x", "payload": {"v": [COSTLY + end]}} for end in ("c", ""))
    message = draft("x", {"v": text})
    assert CapabilitySet([second]).allows(message)
    assert not CapabilitySet([first, second]).allows(message)


def test_a_pattern_without_conditions_counts_where_the_budget_is_spent() -> None:
    hostile = [{"kind": "x", "payload": {"v": f"{COSTLY}{number}"}} for number in range(1_000)]
    message = draft("x", {"v": "a" * 2_000})
    assert not CapabilitySet(hostile).allows(message)
    assert CapabilitySet([*hostile, {"kind": "x"}]).match(message) == {"kind": "x"}


def test_kinds_spend_the_budget_too() -> None:
    hostile = [{"kind": f"**a*a{number}*b"} for number in range(1_000)]
    assert not CapabilitySet([*hostile, {"kind": "**"}]).allows(draft("a" * 250, {}))
    assert CapabilitySet([{"kind": "**"}, *hostile]).allows(draft("a" * 250, {}))


def test_a_glob_on_a_huge_text_is_denied() -> None:
    text = "a" * 2_000_000
    assert not allows({"kind": "x", "payload": {"v": "a*a*b"}}, draft("x", {"v": text}))
    assert allows({"kind": "x", "payload": {"v": "a*"}}, draft("x", {"v": text}))


def test_a_search_at_any_depth_is_bounded() -> None:
    payload = {"v": [[[i] for i in range(1_000)] for _ in range(100)]}
    assert not allows({"kind": "x", "payload": {"**": {"**": {"**": "nowhere"}}}}, draft("x", payload))
    assert not allows({"kind": "x", "payload": {"$..v..x..y": "nowhere"}}, draft("x", payload))


@pytest.mark.parametrize(
    "capability",
    [
        {},
        {"kind": None},
        {"kind": 5},
        {"kind": []},
        {"kind": [5]},
        {"kind": "x", "payload": "text"},
        {"kind": "x", "to": 5},
    ],
)
def test_a_malformed_capability_matches_nothing(capability: dict[str, Any]) -> None:
    assert not allows(capability, draft("x", {"v": 1}, ["a"]))


def test_an_envelope_without_kind_matches_nothing() -> None:
    assert not allows({"kind": "*"}, draft(None))


def test_a_path_with_a_filter_denies() -> None:
    assert not allows({"kind": "x", "payload": {"$.a[?(@.b)]": "*"}}, draft("x", {"a": [{"b": 1}]}))


def test_match_returns_the_first_matching_pattern() -> None:
    first, second = {"kind": "x", "payload": {"a": 1}}, {"id": "all", "kind": "x"}
    capabilities = CapabilitySet([first, second])
    assert capabilities.match(draft("x", {"a": 1})) == first
    assert capabilities.match(draft("x", {"a": 2})) == second
    assert capabilities.match(draft("y")) is None


def test_a_cached_decision_is_the_same() -> None:
    capabilities = CapabilitySet([{"kind": "x", "payload": {"a": 1}}, {"kind": "chat"}])
    for _ in range(2):
        assert capabilities.allows(draft("chat"))
        assert capabilities.allows(draft("x", {"a": 1}))
        assert not capabilities.allows(draft("x", {"a": 2}))
        assert not capabilities.allows(draft("z"))


def test_kinds_beyond_the_cache_are_still_decided() -> None:
    capabilities = CapabilitySet([{"kind": "a/*"}])
    assert all(capabilities.allows(draft(f"a/{number}")) for number in range(2_000))
    assert not capabilities.allows(draft("b"))


def test_normalise_drops_malformed_patterns_and_adds_the_baseline() -> None:
    patterns = [{"kind": "chat"}, "chat", {"id": "x"}, {"kind": "chat"}, {"kind": object()}, {"kind": "mcp/response"}]
    assert normalise(patterns) == ({"kind": "chat"}, {"kind": "mcp/response"}, BASELINE)
    assert normalise(normalise(patterns)) == normalise(patterns)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
wild_texts = st.text(alphabet="ab/*?!.|()[]{}+^$\\", max_size=12)


@given(pattern=json_values, value=json_values)
def test_deciding_never_raises(pattern: Any, value: Any) -> None:
    assert allows({"kind": "x", "payload": {"v": pattern}}, draft("x", {"v": value})) in (True, False)


@given(pattern=wild_texts, text=wild_texts)
def test_any_text_pattern_is_decided_in_every_place(pattern: str, text: str) -> None:
    message = draft(text, {"v": text, text: 1}, [text])
    for capability in (
        {"kind": pattern},
        {"kind": "**", "payload": {"v": pattern}},
        {"kind": "**", "payload": {pattern: 1}},
        {"kind": "**", "to": pattern},
    ):
        assert allows(capability, message) in (True, False)


@given(value=json_values)
def test_a_value_without_wildcards_matches_itself(value: Any) -> None:
    def plain(part: Any) -> bool:
        if isinstance(part, str):
            return not (set(part) & set("*?!/$"))
        if isinstance(part, dict):
            return all(plain(key) and plain(inner) for key, inner in part.items())
        return all(map(plain, part)) if isinstance(part, list) else True

    if plain(value):
        assert allows({"kind": "x", "payload": {"v": value}}, draft("x", {"v": value}))


@given(pattern=st.text(alphabet="ab/*?", min_size=1, max_size=8), text=st.text(alphabet="ab/", max_size=8))
def test_negation_inverts_a_decision(pattern: str, text: str) -> None:
    if len(pattern) > 2 and pattern[0] == "/" == pattern[-1]:
        return
    message = draft("x", {"v": text})
    plain = allows({"kind": "x", "payload": {"v": pattern}}, message)
    assert allows({"kind": "x", "payload": {"v": "!" + pattern}}, message) is not plain


@given(pattern=st.text(alphabet="ab/*", min_size=1, max_size=8), text=st.text(alphabet="ab/", min_size=1, max_size=8))
def test_a_wider_star_never_matches_less(pattern: str, text: str) -> None:
    if len(pattern) > 2 and pattern[0] == "/" == pattern[-1]:
        return
    if allows({"kind": pattern}, draft(text)):
        assert allows({"kind": pattern.replace("*", "**")}, draft(text))


def test_a_single_star_is_advertised_as_a_double_star_too() -> None:
    star, narrow = {"id": "all", "kind": "*"}, {"kind": "*", "payload": {"method": "x"}}
    assert advertised([star, {"kind": "chat"}]) == (star, {"id": "all", "kind": "**"}, {"kind": "chat"})
    assert advertised([narrow]) == (narrow, {"kind": "**", "payload": {"method": "x"}})
    assert advertised([{"kind": "*"}, {"kind": "**"}]) == ({"kind": "*"}, {"kind": "**"})
    assert advertised([{"kind": "mcp/*"}, {"kind": ["*", "chat"]}]) == ({"kind": "mcp/*"}, {"kind": ["*", "chat"]})
