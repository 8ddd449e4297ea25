"""JSONPath in capability keys."""

from typing import Any

import pytest
from mew_protocol.jsonpath import compile_path, descendants
from mew_protocol.patterns import Steps, Undecidable

DOCUMENT: dict[str, Any] = {"a": {"b": [1, {"c": 2}]}, "c": 3, "odd name": 4}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [DOCUMENT]),
        ("$.c", [3]),
        ("$.a.b[0]", [1]),
        ("$['odd name']", [4]),
        ('$["c"]', [3]),
        ("$.a.b[*]", [1, {"c": 2}]),
        ("$.a.*", [[1, {"c": 2}]]),
        ("$..c", [3, 2]),
        ("$..b[1].c", [2]),
        ("$.missing", []),
        ("$.c.d", []),
        ("$.a.b[9]", []),
    ],
)
def test_a_path_selects_its_values(path: str, found: list[Any]) -> None:
    assert list(compile_path(path)(DOCUMENT, Steps())) == found


@pytest.mark.parametrize("path", ["$.a[?(@.b)]", "$.a[1:2]", "$.", "$[", "$['a", "$.a[-1]", "$..", "$.a()"])
def test_an_unsupported_path_is_undecidable(path: str) -> None:
    with pytest.raises(Undecidable):
        compile_path(path)


def test_a_search_is_bounded() -> None:
    with pytest.raises(Undecidable):
        list(compile_path("$..a..b")([[[]] * 50] * 50, Steps(1_000)))


def test_descendants_include_the_value_itself() -> None:
    assert list(descendants({"a": [1, 2]}, Steps())) == [{"a": [1, 2]}, [1, 2], 1, 2]
