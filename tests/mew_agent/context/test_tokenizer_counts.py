"""Tokenizer counts in the accounts: used for prices, reconciled with reports, never labelled exact."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.facts import PromptCounted
from mew_agent.context.history import History, Item, Pin, Summary
from mew_agent.context.item_sizes import item_size, kept_reply_tokens
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import Window
from mew_agent.model.usage import Usage
from mew_agent.parts.rehearsal.tokenizer import count
from mew_agent.tokens.projection import Calibration
from tests.support.trackers import keep_call

SYSTEM = "You are an agent in a space. " * 20
TEXTS = (
    "What does the gateway do with a frame that is larger than it accepts? ",
    '{"id": 17, "tokens": [98412, 128000], "basis": "reported"}\n' * 9,
    "窗口快满的时候代理会写摘要" * 12,
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 " * 5,
)


class CountedConversation:
    """A conversation with a model whose every token is known, and whose texts are counted before they are sent."""

    def __init__(self, overhead: int = 7, counts: bool = True, off: float = 1.0) -> None:
        self.history = History()
        self.tracker = Tracker(self.history, MEW, Window(128_000, "configured"), "m")
        self.overhead, self.counts, self.off = overhead, counts, off
        self.prompt = count(SYSTEM) + overhead

    def counted(self, item: Item) -> int | None:
        return round(count(item.text()) * self.off) if self.counts else None

    def receive(self, text: str, *, counted: bool = True) -> Item:
        self.history.begin_turn()
        item = self.history.append("user", text, id=f"u{len(self.history.items)}", at="t")
        self.tracker.item_added(item, self.counted(item) if counted else None)
        self.prompt += count(text) + self.overhead
        return item

    def call(self, reply: str = "It refuses the frame and says so.") -> Usage:
        self.tracker.describe_prefix(SYSTEM, "")
        completion = count(reply)
        usage = Usage(self.prompt, completion, self.prompt + completion)
        keep_call(self.tracker, usage)
        item = self.history.append(
            "assistant",
            reply,
            id=f"a{len(self.history.items)}",
            at="t",
            known_tokens=kept_reply_tokens(usage, thinking_seen=False),
        )
        self.tracker.item_added(item, self.counted(item))
        self.prompt += completion + self.overhead
        return usage

    @property
    def next(self) -> tuple[int | None, str | None]:
        report = self.tracker.report()
        return report.next_prompt_tokens, report.next_prompt_basis


def conversation_after(calls: int = 4, times: int = 1, **how: Any) -> CountedConversation:
    driver = CountedConversation(**how)
    for number in range(calls):
        driver.receive(TEXTS[number % len(TEXTS)] * times)
        driver.call()
    return driver


@pytest.mark.parametrize("overhead", [0, 3, 7, 20])
def test_the_next_prompt_is_exact_once_the_template_overhead_is_learnt(overhead: int) -> None:
    driver = conversation_after(overhead=overhead)
    assert driver.tracker.ledger.calibration.overhead_tokens == pytest.approx(overhead, abs=0.01)
    driver.receive(TEXTS[3] + TEXTS[2])
    assert driver.next == (driver.prompt, "tokenizer")


def test_without_counts_the_typical_overhead_is_projected() -> None:
    driver = conversation_after(counts=False)
    driver.receive(TEXTS[0])
    assert driver.next[1] == "projected"
    assert driver.tracker.ledger.calibration.overhead_tokens == 4


def test_one_uncounted_text_makes_the_next_prompt_projected_until_a_report() -> None:
    driver = conversation_after()
    driver.receive(TEXTS[1], counted=False)
    driver.receive(TEXTS[0])
    assert driver.next[1] == "projected"
    driver.call()
    driver.receive(TEXTS[0])
    assert driver.next == (driver.prompt, "tokenizer")


def test_the_basis_follows_the_best_known_count() -> None:
    driver = CountedConversation()
    driver.tracker.describe_prefix(SYSTEM, "")
    driver.receive(TEXTS[0])
    assert driver.next[1] == "heuristic"
    driver.call()
    driver.receive(TEXTS[0])
    driver.tracker.ledger.apply(PromptCounted(777))
    assert driver.next == (777, "server_counted")


def test_a_new_prefix_or_summary_makes_the_next_prompt_projected() -> None:
    driver = conversation_after()
    driver.receive(TEXTS[0])
    driver.history.pins.append(Pin("p", "Never delete a file without asking."))
    driver.tracker.describe_prefix(SYSTEM, "")
    assert driver.next[1] == "projected"
    driver.history.pins.clear()
    driver.tracker.describe_prefix(SYSTEM, "")
    assert driver.next[1] == "tokenizer"
    driver.history.evict(0, 1, Summary("Frames.", known_tokens=3))
    driver.tracker.cut(0, 1, trigger="requested", freed_messages=2)
    assert driver.next[1] == "projected"


def test_counted_items_are_never_labelled_exact() -> None:
    driver = conversation_after()
    item = driver.receive(TEXTS[0])
    assert driver.tracker.ledger.price(item.seq, item.seq).basis == "projected"
    assert {part.basis for part in driver.tracker.report().breakdown or () if part.part == "unsent"} == {"projected"}


@pytest.mark.parametrize("off", [0.4, 0.7, 1.6, 3.0])
def test_counts_of_a_wrong_tokenizer_are_not_trusted(off: float) -> None:
    driver = conversation_after(12, times=6, off=off)
    assert not driver.tracker.ledger.calibration.counts_fit
    assert driver.tracker.ledger.calibration.overhead_tokens == 4
    driver.receive(TEXTS[1] * 6)
    tokens, basis = driver.next
    assert basis == "projected"
    assert tokens == pytest.approx(driver.prompt, rel=0.03)


def test_counts_that_fit_again_are_trusted_again() -> None:
    driver = conversation_after(12, off=3.0)
    assert not driver.tracker.ledger.calibration.counts_fit
    driver.off = 1.0
    for number in range(40):
        driver.receive(TEXTS[number % 4])
        driver.call()
    driver.receive(TEXTS[1])
    assert driver.next == (driver.prompt, "tokenizer")


def test_a_count_separates_a_reply_from_unreported_reasoning() -> None:
    item = Item(0, "assistant", "word " * 40, 0, "i", "t", known_tokens=150)
    assert item_size(item).known_tokens == 150
    assert item_size(item, 40).known_tokens is None
    assert item_size(item, 40).project(Calibration()) == 44
    assert item_size(item, 43).known_tokens == 150


def test_counts_are_given_again_after_a_restart_and_for_notes() -> None:
    driver = conversation_after()
    result = driver.history.append("tool", TEXTS[1], id="t", at="t", tool_call_id="c")
    driver.tracker.item_added(result, count(TEXTS[1]))
    stubs = driver.history.stub([result.seq])
    driver.tracker.stubbed(stubs, trigger="threshold", counted={result.seq: 31})
    overhead = round(driver.tracker.ledger.calibration.overhead_tokens)
    assert driver.tracker.ledger.projection(result.seq) == 31 + overhead
    again = Tracker(driver.history, MEW, Window(128_000, "configured"), "m")
    again.restored(driver.tracker.saved(), counted={result.seq: 1000})
    assert again.ledger.projection(result.seq) == 1000 + overhead


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 20))
def test_a_learnt_overhead_is_one_that_a_template_can_have(tokens: int, counted: int, messages: int) -> None:
    learnt = Calibration().observe_counted(tokens, counted, messages, tokens)
    assert 0 <= learnt.overhead_tokens <= 48
    assert Calibration.restored(learnt.saved()) == learnt
