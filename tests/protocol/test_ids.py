"""Which ids are valid."""

import pytest
from mew_protocol.ids import GATEWAY, MAX_ID_LENGTH, STREAM_GATEWAY, id_problem


@pytest.mark.parametrize("text", ["ada", "a", "file-server", "Käthe", "a.b", "x" * MAX_ID_LENGTH, "é" * 100])
def test_an_ordinary_id_is_valid(text: str) -> None:
    assert id_problem(text) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a/b", "invalid characters"),
        ("a\\b", "invalid characters"),
        ("..", "invalid characters"),
        ("a\nb", "invalid characters"),
        ("ada ", "invalid characters"),
        ("ad\u200ba", "invalid characters"),
        ("\u202eada", "invalid characters"),
        ("x" * (MAX_ID_LENGTH + 1), "at most"),
        ("é" * 101, "at most 200 bytes"),
        (GATEWAY, "reserved"),
        ("system:anything", "reserved"),
        (STREAM_GATEWAY, "reserved"),
    ],
)
def test_a_harmful_id_is_refused_with_the_reason(text: str, word: str) -> None:
    problem = id_problem(text)
    assert problem is not None
    assert word in problem
