"""The running size of a reply: grows with every piece, however the text is cut, and is shown at every hundredth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.conversation.stream_projection import StreamWatch
from mew_agent.tokens.projection import Calibration, features

TEXT = "The station at the north pier measured 12 units of water, and nothing else happened that day. " * 20


def watch(prompt_tokens: int = 1000, limit_tokens: int | None = 4096) -> StreamWatch:
    return StreamWatch(prompt_tokens, limit_tokens, Calibration())


@pytest.mark.parametrize("size", [1, 7, 60, 399, 401, 5000])
def test_the_figure_is_the_prompt_and_all_that_came_however_it_was_cut(size: int) -> None:
    one = watch()
    tokens = [one.arrived(TEXT[at : at + size]) for at in range(0, len(TEXT), size)]
    whole = 1000 + round(Calibration().tokens(features(TEXT)))
    assert abs(tokens[-1] - whole) <= 3


@given(st.lists(st.text(max_size=30), max_size=60))
def test_it_never_falls_below_the_prompt(pieces: list[str]) -> None:
    one = watch()
    assert all(one.arrived(piece) >= 1000 for piece in pieces)


def test_it_is_shown_once_for_each_hundredth_of_the_window() -> None:
    one = watch()
    assert one.is_worth_showing(1000)
    assert not one.is_worth_showing(1010)
    assert one.is_worth_showing(1025)
    assert not watch(limit_tokens=None).is_worth_showing(1000)


def test_looking_at_a_piece_costs_the_same_however_much_came_before() -> None:
    one = watch()
    for _ in range(2000):
        one.arrived("word ")
    assert len(one._open_text) <= 406
