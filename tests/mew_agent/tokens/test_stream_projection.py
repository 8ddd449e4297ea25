"""The projected size of a running reply: independent of how the text is split, shown at every hundredth."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.rehearsal.tokenizer import count
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


def taught(kind: Callable[[Random], str]) -> Calibration:
    """A calibration that has read texts of one kind only."""
    calibration, random = Calibration(), Random(3)
    for _ in range(8):
        text = " ".join(kind(random) for _ in range(120))
        calibration = calibration.observe(count(text), features(text))
    return calibration


def word(random: Random) -> str:
    return random.choice(["station", "pier", "measured", "water", "the", "and", "nothing", "happened"])


def digest(random: Random) -> str:
    return f"{random.getrandbits(128):032x}"


def chinese(random: Random) -> str:
    return "".join(chr(random.randrange(0x4E00, 0x9FA5)) for _ in range(12))


@pytest.mark.parametrize("kind", [digest, chinese])
def test_the_likely_most_covers_texts_that_the_model_never_read(kind: Callable[[Random], str]) -> None:
    running, random, text = StreamProjection(0, None, taught(word)), Random(5), ""
    for _ in range(80):
        piece = f" {kind(random)}"
        text += piece
        running.add(piece)
    assert running.likely_most_tokens >= count(text)


def test_the_likely_most_is_close_for_texts_like_those_read() -> None:
    running = StreamProjection(0, None, taught(word))
    tokens = [running.add(f" {word(random)}") for random in [Random(7)] for _ in range(400)][-1]
    assert running.likely_most_tokens <= tokens * 11 // 10


def test_a_tokenizer_counts_a_running_reply() -> None:
    running, random, text = StreamProjection(1000, 4096, Calibration(), count), Random(9), ""
    for _ in range(80):
        piece = f" {digest(random)}"
        text += piece
        assert running.add(piece) == running.likely_most_tokens
    assert abs(running.likely_most_tokens - 1000 - count(text)) <= 2


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
