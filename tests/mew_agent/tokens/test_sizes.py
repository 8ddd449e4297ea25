"""Sizes of texts: long ones in a thread, counted if there is a counter, never interrupted halfway."""

import logging
import threading

import anyio
import pytest

from mew_agent.errors import ConfigError
from mew_agent.parts.rehearsal.tokenizer import count
from mew_agent.tokens.projection import Calibration, features
from mew_agent.tokens.sizes import INLINE_CHARS, Size, Sizes
from mew_agent.tokens.tokenizers import TextCounter
from tests.support.waiting import PATIENCE_SECONDS

SHORT, LONG = "A short text.", "word and word " * INLINE_CHARS


class Counting:
    """The rehearsal model's tokenizer, which notes where it ran; it can be made to wait, or to fail."""

    name = "rehearsal"

    def __init__(self, *, fails: bool = False) -> None:
        self.threads: list[threading.Thread] = []
        self.fails = fails
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def count(self, text: str) -> int:
        self.threads.append(threading.current_thread())
        self.begun.set()
        self.may_go_on.wait(10)
        if self.fails:
            raise ValueError("this text is too odd")
        return count(text)


async def test_only_long_texts_are_measured_in_a_thread() -> None:
    counter = Counting()
    sizes = Sizes(lambda: counter)
    assert await sizes.measure(SHORT) == Size(features(SHORT), count(SHORT))
    assert await sizes.measure(LONG) == Size(features(LONG), count(LONG))
    assert counter.threads[0] is threading.main_thread()
    assert counter.threads[1] is not threading.main_thread()


async def test_measuring_a_long_text_does_not_block_other_tasks() -> None:
    counter = Counting()
    counter.may_go_on.clear()
    sizes = Sizes(lambda: counter)
    weighed: list[Size] = []

    async def weigh() -> None:
        weighed.append(await sizes.measure(LONG))

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(weigh)
            await anyio.to_thread.run_sync(counter.begun.wait)
            tasks.cancel_scope.cancel()
            counter.may_go_on.set()
    assert weighed == [Size(features(LONG), count(LONG))]


async def test_without_a_counter_nothing_is_counted() -> None:
    sizes = Sizes()
    assert (await sizes.measure(LONG)).counted_tokens is None
    assert await sizes.counts({1: SHORT}) == {}
    assert sizes.count(SHORT) is None


async def test_a_counter_is_loaded_once_in_a_thread() -> None:
    loaded: list[threading.Thread] = []

    def load() -> TextCounter:
        loaded.append(threading.current_thread())
        return Counting()

    sizes = Sizes(load)
    async with anyio.create_task_group() as tasks:
        for text in (SHORT, LONG, SHORT):
            tasks.start_soon(sizes.measure, text)
        tasks.start_soon(sizes.load)
    assert await sizes.counts({3: SHORT, 7: LONG}) == {3: count(SHORT), 7: count(LONG)}
    assert len(loaded) == 1
    assert loaded[0] is not threading.main_thread()


async def test_loading_a_missing_counter_raises_its_error() -> None:
    def load() -> TextCounter:
        raise ConfigError("tokenizer_file", "file not found: /nowhere")

    with pytest.raises(ConfigError, match="file not found: /nowhere"):
        await Sizes(load).load()


async def test_a_counter_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counting(fails=True)
    sizes = Sizes(lambda: counter)
    with caplog.at_level(logging.ERROR):
        assert await sizes.measure(SHORT) == Size(features(SHORT))
        assert await sizes.measure(LONG) == Size(features(LONG))
    assert len(counter.threads) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "tokenizer 'rehearsal' failed; projecting texts from features"
    ]


def test_a_count_is_used_only_while_counts_fit_the_model() -> None:
    size = Size(features(LONG), 17)
    assert size.tokens(Calibration()) == 17
    assert size.tokens(Calibration(counts_fit=False)) == round(features(LONG))
    assert Size(features(LONG)).tokens(Calibration()) == round(features(LONG))
