"""The projected size of a running reply: independent of how the text is split, shown at every hundredth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.tokens.projection import Calibration, StreamProjection, features

TEXT = "The station at the north pier measured 12 units of water, and nothing else happened that day. " * 20


def projection(prompt_tokens: int = 1000, limit_tokens: int | None = 4096) -> StreamProjection:
    return StreamProjection(prompt_tokens, limit_tokens, Calibration())


@pytest.mark.parametrize("size", [1, 7, 60, 399, 401, 5000])
def test_the_figure_does_not_depend_on_how_the_text_is_split(size: int) -> None:
    running = projection()
    tokens = [running.add(TEXT[at : at + size]) for at in range(0, len(TEXT), size)]
    whole = 1000 + round(Calibration().tokens(features(TEXT)))
    assert abs(tokens[-1] - whole) <= 3


@given(st.lists(st.text(max_size=30), max_size=60))
def test_the_figure_is_never_below_the_prompt(pieces: list[str]) -> None:
    running = projection()
    assert all(running.add(piece) >= 1000 for piece in pieces)


def test_each_hundredth_of_the_window_is_crossed_once() -> None:
    running = projection()
    assert running.crosses_step(1000)
    assert not running.crosses_step(1010)
    assert running.crosses_step(1025)
    assert not projection(limit_tokens=None).crosses_step(1000)


def test_only_the_newest_text_is_kept_open() -> None:
    running = projection()
    for _ in range(2000):
        running.add("word ")
    assert len(running._open_text) <= 406
