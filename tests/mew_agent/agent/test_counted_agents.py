"""Agents that count texts with their model's tokenizer, chosen by configuration alone; the model is real HTTP."""

import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.participant import Compact

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.parts.rehearsal.tokenizer import TOKENS_PER_MESSAGE, count
from mew_agent.tokens.tokenizers import TokenizerSettings, chosen_counter
from tests.support.conversation_driver import TOOL, StartConversation, count_message
from tests.support.rehearsal_vocabulary import write_vocabulary

pytestmark = pytest.mark.part("tokenizers")

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

RESULTS = {
    "log": "\n".join(f"2026-01-01T10:00:{n:02} GET /board {200 + n} 98.{n} ms 0x{n * 7919:08x}" for n in range(40)),
    "Chinese": "窗口快满的时候代理会写摘要，然后继续工作。" * 30,
    "code": "def pump(level: int) -> int:\n    return level * 7 if level > 3 else 0\n\n" * 20,
}


def told(folder: Path) -> dict[str, Any]:
    return {"tokenizer": "llama3", "tokenizer_file": str(write_vocabulary(folder))}


class Slow:
    """The rehearsal model's tokenizer, which blocks on long texts until released."""

    name = "slow"

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def count(self, text: str) -> int:
        if len(text) > 10_000:
            self.begun.set()
            self.may_go_on.wait(20)
        return count(text)


def test_the_test_vocabulary_counts_like_the_model(tmp_path: Path) -> None:
    counter = chosen_counter("llama3", TokenizerSettings("rehearsal", write_vocabulary(tmp_path)))
    assert counter is not None
    for text in (*RESULTS.values(), "", " a  b\t\n\n c", "GetUserName ünï 98.6 % aGVsbG8gV29ybGQ="):
        assert counter.count(text) == count(text)


async def test_a_counted_next_prompt_is_right_and_labelled_tokenizer(start_agent: StartAgent, tmp_path: Path) -> None:
    async with start_agent(agent=told(tmp_path)) as s:
        assert (await s.status())["context"]["next_prompt_basis"] == "heuristic"
        for question in ("How is pump 7?", *RESULTS.values(), "And pump 8?", "And 9?"):
            await s.ask(question)
        assert {status["context"]["next_prompt_basis"] for status in s.reported} == {"tokenizer"}
        foretold = s.statuses[-1]["context"]["next_prompt_tokens"]
        question = "What now?"
        await s.ask(question)
        requested = count_message({"role": "user", "content": question, "name": "ada"})
        assert abs(foretold + requested - s.main_requests[-1].prompt_tokens) <= 4
        assert abs(s.reported[-1]["context"]["drift_tokens"]) <= 4


async def test_tokenizer_counts_are_closer_than_features(start_agent: StartAgent, tmp_path: Path) -> None:
    async def drifts(agent: dict[str, Any]) -> list[int]:
        async with start_agent(agent=agent) as s:
            for _ in range(2):
                for text in RESULTS.values():
                    await s.ask(text)
            return [abs(status["context"]["drift_tokens"]) for status in s.reported[1:]]

    counted, projected = await drifts(told(tmp_path)), await drifts({"tokenizer": "off"})
    assert max(counted) <= 8
    assert sum(counted) < sum(projected) / 10


async def test_tool_results_are_counted(start_conversation: StartConversation) -> None:
    async with start_conversation(tools=(TOOL,), counter=chosen_rehearsal()) as driver:
        await driver.turn("One.")
        await driver.turn("Two.")
        reply = await driver.turn('call look_up with {"q": "pump"}')
        await driver.conversation.state.close_open_calls("-", {reply.tool_calls[0].id: RESULTS["log"]})
        item = driver.conversation.history.items[-1]
        price = driver.conversation.tracker.ledger.projection(item.seq)
        assert abs(price - count(RESULTS["log"]) - TOKENS_PER_MESSAGE) <= 4
        context = driver.now.context
        assert context is not None
        assert context.next_prompt_basis == "tokenizer"


def chosen_rehearsal() -> Any:
    slow = Slow()
    slow.may_go_on.set()
    return slow


async def test_a_clear_during_counting_keeps_the_accounts_right(start_conversation: StartConversation) -> None:
    """The text enters after the clear, with its price; removed items have none."""
    counter = Slow()
    async with start_conversation(counter=counter, window_tokens=60_000) as driver:
        await driver.turn("One.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, "word and word " * 1000)
            await anyio.to_thread.run_sync(counter.begun.wait)
            assert len(driver.conversation.history.items) == 2
            waiting = anyio.Event()

            async def in_line() -> None:
                waiting.set()

            tasks.start_soon(partial(driver.conversation.clear, begun=in_line))
            await waiting.wait()
            counter.may_go_on.set()
        assert driver.now.context is not None
        assert [item.role for item in driver.conversation.history.items] == ["user", "assistant"]
        reported = driver.server.requests[-1].reported
        assert reported is not None
        assert driver.now.tokens == reported["total_tokens"]
        assert sum(driver.conversation.tracker.ledger.item_prices().values()) < (reported["total_tokens"] or 0)


async def test_a_result_does_not_enter_after_its_call_was_cleared(start_conversation: StartConversation) -> None:
    counter = Slow()
    async with start_conversation(tools=(TOOL,), counter=counter, window_tokens=60_000) as driver:
        reply = await driver.turn('call look_up with {"q": "pump"}')
        results = {reply.tool_calls[0].id: "word and word " * 1000}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.conversation.state.close_open_calls, "-", results)
            await anyio.to_thread.run_sync(counter.begun.wait)
            await driver.conversation.clear()
            counter.may_go_on.set()
        assert len(driver.conversation.history.items) == 0
        assert driver.conversation.tracker.ledger.item_prices() == {}


async def test_after_a_restart_the_stored_items_are_counted_again(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    async with start_agent(agent=told(tmp_path), store=SqliteStore(path)) as s:
        for text in RESULTS.values():
            await s.ask(text)
        foretold = s.agent.conversation.tracker.ledger.next_prompt_tokens
    async with start_agent(agent=told(tmp_path), store=SqliteStore(path)) as s:
        tracker = s.agent.conversation.tracker
        texts = {item.seq: count(item.text()) for item in tracker.history.items if item.role == "user"}
        counted = {measure.seq: measure.counted_tokens for measure in tracker.ledger.items.sizes}
        assert {seq: counted[seq] for seq in texts} == texts
        assert tracker.ledger.next_prompt_tokens == foretold


async def test_notes_in_place_of_old_results_are_counted(start_conversation: StartConversation) -> None:
    async with start_conversation(tools=(TOOL,), counter=chosen_rehearsal(), window_tokens=16_000) as driver:
        for number in range(5):
            reply = await driver.turn(f'call look_up with {{"q": "pump {number}"}}')
            await driver.conversation.state.close_open_calls("-", {reply.tool_calls[0].id: RESULTS["log"]})
            await driver.turn(f"And pump {number}?")
        tracker = driver.conversation.tracker
        present = tracker.ledger.next_prompt_tokens
        await driver.conversation.compact(Compact(target_tokens=present - 600))
        stubs = [item for item in tracker.history.items if item.stubbed]
        assert stubs
        counted = {measure.seq: measure.counted_tokens for measure in tracker.ledger.items.sizes}
        assert [counted[stub.seq] for stub in stubs] == [count(stub.text()) for stub in stubs]


async def test_the_mistral_vocabulary_prices_new_items(start_conversation: StartConversation) -> None:
    pytest.importorskip("mistral_common")
    counter = chosen_counter("auto", TokenizerSettings("mistral-7b"))
    assert counter is not None
    async with start_conversation(counter=counter) as driver:
        await driver.turn("One.")
        item = await driver.conversation.state.add_user_message(RESULTS["Chinese"], sender="ada", envelope_id="q")
        ledger = driver.conversation.tracker.ledger
        assert ledger.projection(item.seq) == counter.count(item.text()) + round(ledger.calibration.overhead_tokens)


async def test_the_vocabulary_of_another_model_is_soon_ignored(start_agent: StartAgent) -> None:
    pytest.importorskip("mistral_common")
    async with start_agent(agent={"tokenizer": "mistral", "model": "mistral-7b"}) as s:
        for _ in range(4):
            for text in RESULTS.values():
                await s.ask(text)
        context = s.statuses[-1]["context"]
        assert context["next_prompt_basis"] == "projected"


async def test_without_a_tokenizer_texts_are_projected_and_the_log_says_so(
    start_agent: StartAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mew_agent.tokens.tokenizers")
    async with start_agent(agent={"model": "gpt-4o"}) as s:
        await s.ask("One.")
        await s.ask("Two.")
        assert s.statuses[-1]["context"]["next_prompt_basis"] == "projected"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "mew_agent.tokens.tokenizers"]
    assert line.startswith("no tokenizer for 'gpt-4o' (")
    assert line.endswith("projecting texts from features instead")


async def test_counting_never_uses_the_network(
    start_conversation: StartConversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mistral_common")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tokenizer asked for the network")

    counter = chosen_counter("auto", TokenizerSettings("mistral-7b"))
    monkeypatch.setattr(socket, "create_connection", refuse)
    async with start_conversation(counter=counter) as driver:
        await driver.conversation.state.add_user_message("word " * 10_000, sender="ada", envelope_id="q")
        assert driver.now.messages_in_context == 1
