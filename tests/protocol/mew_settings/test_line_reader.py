"""Lines from bytes that arrive in pieces."""

from hypothesis import given
from hypothesis import strategies as st
from mew_settings.line_reader import LineReader


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"a\n", b"\n\n"])))
def test_lines_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    reader = LineReader()
    lines = [line for piece in pieces for line in reader.feed(piece)]
    *expected, rest = b"".join(pieces).split(b"\n")
    assert lines == expected
    assert len(reader) == len(rest)
    assert reader.take_rest() == rest
    assert reader.take_rest() == b""


def test_a_line_beyond_the_limit_is_returned_in_parts() -> None:
    reader = LineReader(4)
    assert [reader.feed(piece) for piece in (b"abc", b"def", b"g\nh")] == [[], [b"abcdef"], [b"g"]]
    assert reader.take_rest() == b"h"
