"""Carrying out a plan: requests fit, failures change nothing, and the next call confirms the prediction."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from mew_agent.compaction.compactor import (
    MAX_HALVINGS,
    THINKING_TOKENS,
    CompactionResult,
    SummaryCall,
    apply_plan,
    cache_lost_tokens,
    write_summary,
)
from mew_agent.compaction.planner import CompactionPlan, NothingToDo
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.history import History
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.errors import ContextOverflow, ModelUnreachable
from mew_agent.model.interface import Message, ModelReply, ModelRequest, ToolCall, Window
from mew_agent.model.usage import Usage
from mew_agent.parts.rehearsal.tokenizer import count
from tests.support.texts import paragraphs
from tests.support.trackers import keep_call, planned

SYSTEM = "You are an agent in a shared space. Answer briefly and truthfully. " * 6
PARAGRAPHS = paragraphs()


@dataclass
class Server:
    """A model server that counts with a real tokenizer, writes messages its own way, and has a window."""

    overhead: int = 5
    opening: int = 3
    window: int = 10**6
    names_limit: bool = False
    summary: Callable[[str], str] = lambda material: "## Goal and request\n" + material[40:400]
    reports_usage: bool = True
    requests: list[ModelRequest] = field(default_factory=list)
    refused: int = 0

    def prompt(self, messages: tuple[Message, ...]) -> int:
        texts = [m.content + "".join(f"{c.name}{c.arguments}" for c in m.tool_calls) for m in messages]
        return self.opening + sum(count(text) + self.overhead for text in texts)

    async def __call__(self, request: ModelRequest) -> ModelReply:
        """Answer a request for a summary."""
        self.requests.append(request)
        prompt = self.prompt(request.messages)
        if prompt + (request.max_output_tokens or 0) > self.window:
            self.refused += 1
            raise ContextOverflow("http://m", "m", limit_tokens=self.window if self.names_limit else None)
        text = self.summary(request.messages[-1].content)
        size = count(text)
        usage = Usage(prompt, size, prompt + size) if self.reports_usage else None
        return ModelReply(text, (), "stop", usage, "m")


@dataclass
class CompactorDriver:
    """An agent's conversation with that server."""

    server: Server = field(default_factory=Server)
    window: int = 128_000
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.history, MEW, Window(self.window, "configured"), "m")

    def turn(self, question: str, *, tools: tuple[str, ...] = (), reply: str = "Yes, as it says there.") -> None:
        self.history.begin_turn()
        self.enter("user", question)
        if tools:
            calls = tuple(ToolCall(f"c{self.history.next_seq}-{n}", "read", '{"n": 1}') for n in range(len(tools)))
            self.call("", calls)
            for call, output in zip(calls, tools, strict=True):
                self.enter("tool", output, call.id)
        self.call(reply)

    def enter(self, role: str, text: str, call_id: str | None = None) -> None:
        item = self.history.append(
            "tool" if role == "tool" else "user", text, id=f"i{self.history.next_seq}", at="t", tool_call_id=call_id
        )
        self.tracker.item_added(item)

    def call(self, reply: str, calls: tuple[ToolCall, ...] = ()) -> int:
        """A main call; returns the prompt that the server reported."""
        self.tracker.describe_prefix(SYSTEM, "")
        prompt = self.server.prompt(self.history.request_messages(SYSTEM))
        size = count(reply + "".join(f"{c.name}{c.arguments}" for c in calls))
        usage = Usage(prompt, size, prompt + size)
        keep_call(self.tracker, usage)
        item = self.history.append(
            "assistant",
            reply,
            id=f"i{self.history.next_seq}",
            at="t",
            tool_calls=calls,
            known_tokens=kept_reply_tokens(usage, thinking_seen=False),
        )
        self.tracker.item_added(item)
        return prompt

    def planned(self, target: int | None = None) -> CompactionPlan:
        found = planned(self.tracker, self.window, target)
        assert not isinstance(found, NothingToDo)
        return found

    async def compact(self, target: int | None = None) -> CompactionResult:
        return await carry_out(self.planned(target), self.tracker, self.server, trigger="requested")


async def carry_out(plan: CompactionPlan, tracker: Tracker, call: SummaryCall, *, trigger: str) -> CompactionResult:
    return apply_plan(plan, await write_summary(plan, tracker, call), tracker, trigger=trigger)


def long_talk(
    server: Server | None = None, *, turns: int = 8, window: int = 128_000, seed: int = 1, longer: int = 1
) -> CompactorDriver:
    rng = random.Random(seed)
    driver = CompactorDriver(server or Server(), window)
    for number in range(turns):
        tools = tuple(rng.choice(PARAGRAPHS) * 2 * longer for _ in range(number % 3))
        driver.turn(rng.choice(PARAGRAPHS) * longer, tools=tools, reply=rng.choice(PARAGRAPHS))
    return driver


# -- announced and reported figures agree ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("overhead", "longer"), [(4, 1), (2, 4), (5, 4), (6, 4)])
@pytest.mark.parametrize("target", [None, "half"])
async def test_the_next_prompt_is_within_3_percent_or_16_tokens(
    seed: int, overhead: int, longer: int, target: str | None
) -> None:
    driver = long_talk(Server(overhead=overhead), seed=seed, turns=12, longer=longer)
    before = driver.tracker.measurement.tokens
    assert before is not None
    done = await driver.compact(None if target is None else before // 2)
    assert done.outcome.freed_tokens == before - (driver.tracker.measurement.tokens or 0) > 0
    predicted = driver.tracker.ledger.next_prompt_tokens
    true = driver.server.prompt(driver.history.request_messages(SYSTEM))
    assert abs(predicted - true) <= max(16, true * 3 // 100), "what the extract added is projected"


async def test_the_announced_freed_tokens_equal_the_reported_drop() -> None:
    driver = long_talk(turns=10)
    before = driver.tracker.measurement.tokens or 0
    done = await driver.compact()
    driver.history.begin_turn()
    driver.enter("user", "And now?")
    reported = driver.call("Now too.")
    drop = before - (reported - count("And now?") - 2 * driver.server.overhead)
    assert abs(done.outcome.freed_tokens - drop) <= max(16, drop * 3 // 100), "what the extract added is projected"


async def test_outcome_report_and_status_contain_the_same_integer() -> None:
    driver = long_talk()
    done = await driver.compact()
    driver.tracker.compacted(done.outcome, at="t", at_seconds=1.0, progressed=True)
    last = driver.tracker.report().last_compaction
    assert last is not None
    assert last.freed_tokens == done.outcome.freed_tokens
    assert last.tokens_after == done.outcome.tokens_after == driver.tracker.status("compacted").tokens
    assert last.summary_tokens == driver.tracker.ledger.preamble.summary_tokens > 0
    assert last.freed_messages == len(done.evicted)


async def test_a_summary_without_reported_usage_is_projected_and_close() -> None:
    driver = long_talk(Server(reports_usage=False))
    await driver.compact()
    assert driver.history.summary is not None
    assert driver.history.summary.known_tokens is None
    true = driver.server.prompt(driver.history.request_messages(SYSTEM))
    assert driver.tracker.ledger.next_prompt_tokens == pytest.approx(true, rel=0.1)


async def test_removed_parts_of_a_summary_do_not_count_in_its_size() -> None:
    body = "## Goal and request\n" + PARAGRAPHS[0]
    noisy = f"<think>{PARAGRAPHS[1]}</think>\n{body}"
    plain = long_talk(Server(summary=lambda _: body))
    await plain.compact()
    thinking = long_talk(Server(summary=lambda _: noisy))
    await thinking.compact()
    assert plain.history.summary is not None
    assert thinking.history.summary is not None
    assert thinking.history.summary.text == plain.history.summary.text


async def test_hidden_reasoning_does_not_count_in_a_summarys_size() -> None:
    driver = long_talk()
    text = "## Goal and request\nFrames of decide_3, decide_22, decide_17 and item.seq."

    async def call(request: ModelRequest) -> ModelReply:
        return ModelReply(text, (), "stop", Usage(10, 5_000, 5_010), "m")

    await carry_out(driver.planned(), driver.tracker, call, trigger="requested")
    assert driver.history.summary is not None
    assert driver.history.summary.known_tokens is None
    assert driver.history.summary.written_by == "model"
    assert driver.tracker.ledger.preamble.summary_tokens < 2_000


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_model_that_thinks_has_room_for_it_in_the_limit(is_known: bool) -> None:
    """Most providers count the thoughts in `max_tokens`: without room, nothing of the summary is left."""
    driver, limits = long_talk(), list[int]()
    text = "## Goal and request\nFrames of decide_3, decide_22, decide_17 and item.seq."

    async def call(request: ModelRequest) -> ModelReply:
        limits.append(request.max_output_tokens or 0)
        thought = min(3_000, limits[-1])
        usage = Usage(10, thought, thought + 10, reasoning_tokens=thought)
        is_cut = thought < 3_000
        return ModelReply("" if is_cut else text, (), "length" if is_cut else "stop", usage, "m")

    if is_known:
        keep_call(driver.tracker, Usage(10_000, 50, 10_050, reasoning_tokens=40))
    await carry_out(driver.planned(), driver.tracker, call, trigger="requested")
    assert driver.history.summary is not None
    assert driver.history.summary.written_by == "model"
    assert len(limits) == (1 if is_known else 2)
    assert limits[-1] > THINKING_TOKENS


# -- stubs and summaries -----------------------------------------------------------------------------------


async def test_clearing_outputs_needs_no_model_call() -> None:
    driver = CompactorDriver()
    for _ in range(5):
        driver.turn("Read it.", tools=(PARAGRAPHS[0] * 4,))
    before = driver.tracker.measurement.tokens or 0
    done = await driver.compact(before - 10)
    assert driver.server.requests == []
    assert [item.tool_call_id for item in done.stubs] == [driver.history.items[2].tool_call_id]
    assert (done.evicted, driver.history.summary, done.outcome.freed_messages) == ((), None, 0)
    assert driver.history.items[2].stubbed
    true = driver.server.prompt(driver.history.request_messages(SYSTEM))
    assert abs(driver.tracker.ledger.next_prompt_tokens - true) <= max(16, true // 100)


async def test_cleared_outputs_and_a_summary_are_one_outcome() -> None:
    driver = CompactorDriver()
    for number in range(12):
        driver.turn(PARAGRAPHS[number], tools=(PARAGRAPHS[0] * 3,) if number > 6 else ())
    before = driver.tracker.measurement.tokens or 0
    done = await driver.compact(before * 55 // 100)
    assert done.stubs
    assert done.evicted
    assert done.outcome.tokens_before == before
    assert done.outcome.tokens_after == driver.tracker.measurement.tokens == before - done.outcome.freed_tokens
    assert done.outcome.freed_gross_tokens == done.outcome.freed_tokens + done.outcome.summary_tokens


async def test_the_next_summary_includes_and_replaces_the_previous_one() -> None:
    driver = long_talk()
    await driver.compact()
    first = driver.history.summary
    assert first is not None
    for number in range(3):
        driver.turn(PARAGRAPHS[number], reply=PARAGRAPHS[number + 1])
    await driver.compact()
    assert first.text.splitlines()[-1] in driver.server.requests[-1].messages[-1].content
    assert "<earlier_summary>" in driver.server.requests[-1].messages[-1].content
    assert driver.history.summary is not None
    assert driver.history.summary != first
    assert sum("Summary of the conversation" in m.content for m in driver.history.request_messages(SYSTEM)) == 1


async def test_turns_too_small_for_a_summary_leave_without_a_call() -> None:
    driver = CompactorDriver()
    for _ in range(3):
        driver.turn("Well?", reply="Yes.")
    done = await driver.compact()
    assert driver.server.requests == []
    assert (len(done.evicted), driver.history.summary) == (2, None)


# -- requests that fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1_500, 3_000, 8_000])
async def test_every_summary_request_fits_the_window(window: int) -> None:
    server = Server(window=window)
    driver = long_talk(server, turns=14, window=window)
    await driver.compact()
    assert server.refused == 0
    assert len(server.requests) > (1 if window == 1_500 else 0)
    assert all(
        server.prompt(request.messages) + (request.max_output_tokens or 0) <= window for request in server.requests
    )


@pytest.mark.parametrize("role", ["message", "arguments", "dense ends"])
async def test_one_item_larger_than_the_window_is_clipped(role: str) -> None:
    server = Server(window=2_000)
    driver = CompactorDriver(server, window=2_000)
    match role:
        case "message":
            driver.turn("word " * 20_000)
        case "arguments":
            driver.history.begin_turn()
            driver.enter("user", "Write it.")
            driver.call("", (ToolCall("c", "write", "word " * 20_000),))
            driver.enter("tool", "done", "c")
            driver.call("Written.")
        case _:
            driver.turn("中" * 3_000 + "word " * 20_000 + "中" * 3_000)
    for number in range(2):
        driver.turn(f"Question {number}?")
    await driver.compact()
    assert server.refused == 0
    assert sum("characters left out" in request.messages[-1].content for request in server.requests) == 1
    assert driver.history.summary is not None


@pytest.mark.parametrize("names_limit", [False, True])
async def test_a_smaller_window_than_expected_gets_smaller_parts(names_limit: bool) -> None:
    server = Server(window=1_500, names_limit=names_limit)
    driver = long_talk(server, turns=12, window=128_000)
    plan_ = driver.planned()
    small = CompactionPlan(plan_.stub_seqs, plan_.evict, plan_.evicted_tokens, 200)
    done = await carry_out(small, driver.tracker, server, trigger="requested")
    assert 0 < server.refused <= (1 if names_limit else MAX_HALVINGS)
    assert done.evicted
    assert driver.history.summary is not None


async def test_refused_summary_requests_are_bounded() -> None:
    server = Server(window=1)
    driver = long_talk(server)
    await driver.compact()
    assert "context" in problem_of_summary(driver)
    assert len(server.requests) == MAX_HALVINGS + 1


async def test_a_window_too_small_to_summarise_is_refused_without_a_call() -> None:
    driver = long_talk(window=300)
    await driver.compact()
    assert "too small to summarise in" in problem_of_summary(driver)
    assert driver.server.requests == []


async def test_a_summary_that_ignores_its_budget_ends_the_attempt() -> None:
    server = Server(summary=lambda material: "## Goal and request\n" + material[:9_000])
    driver = long_talk(server, turns=30, window=3_000)
    done = await driver.compact()
    assert 0 < done.outcome.summary_tokens <= 400


async def test_a_closing_request_that_does_not_fit_is_followed_by_a_transcript() -> None:
    driver = long_talk(Server(summary=lambda material: "## Goal and request\n" + material[40:150]), turns=3)
    plan, refused = driver.planned(), list[ModelRequest]()

    async def call(request: ModelRequest) -> ModelReply:
        if len(request.messages) > 2:
            refused.append(request)
            raise ContextOverflow("http://m", "m")
        return await driver.server(request)

    conversation = ModelRequest(driver.history.request_messages(SYSTEM))
    summary = await write_summary(plan, driver.tracker, call, conversation=conversation)
    assert summary is not None
    assert (summary.written_by, len(refused), len(driver.server.requests)) == ("model", 1, 1)


@pytest.mark.parametrize("has_summary", [False, True], ids=["without a summary", "with one"])
async def test_cleared_outputs_invalidate_the_cache_from_the_first_one_on(*, has_summary: bool) -> None:
    driver = long_talk()
    if has_summary:
        await driver.compact()
        for number in range(3):
            driver.turn(PARAGRAPHS[number], tools=(PARAGRAPHS[0] * 3,))
    tracker, output = driver.tracker, next(item for item in driver.history.items if item.role == "tool")
    parts, prices = tracker.ledger.parts, tracker.ledger.item_prices()
    kept = parts.prefix + parts.pins + parts.summary + sum(size for seq, size in prices.items() if seq < output.seq)
    assert (parts.summary > 0) is has_summary
    tracker.measurement.usage = replace(tracker.measurement.usage or Usage(0, 0, 0), cached_tokens=kept + 1000)
    assert cache_lost_tokens(CompactionPlan((output.seq,), None, 0, 0), tracker) == 1000


async def test_a_summary_as_large_as_its_messages_is_refused() -> None:
    driver = long_talk(Server(summary=lambda material: "## Goal and request\n" + material[40:240]), turns=3)

    async def reports_thrice_the_size(request: ModelRequest) -> ModelReply:
        reply = await driver.server(request)
        size = 3 * count(reply.text)
        return replace(reply, usage=Usage(10, size, 10 + size))

    plan = driver.planned()
    apply_plan(plan, await write_summary(plan, driver.tracker, reports_thrice_the_size), driver.tracker, trigger="t")
    assert "is no smaller than its messages" in problem_of_summary(driver)


# -- nothing changes on failure ----------------------------------------------------------------------------


async def refuses(request: ModelRequest) -> ModelReply:
    raise ModelUnreachable("http://m", "m")


async def is_silent(request: ModelRequest) -> ModelReply:
    return ModelReply("  ", (), "stop", Usage(10, 1, 11), "m")


def problem_of_summary(driver: CompactorDriver) -> str:
    summary = driver.history.summary
    assert summary is not None
    assert summary.written_by == "extract"
    return summary.problem or ""


async def talks_too_much(request: ModelRequest) -> ModelReply:
    text = "## Goal\n" + "All of it again. " * 20_000
    return ModelReply(text, (), "stop", None, "m")


async def says_it_wrote_too_much(request: ModelRequest) -> ModelReply:
    return ModelReply("## Goal\n" + PARAGRAPHS[0] * 40, (), "stop", Usage(10, 9_000, 9_010), "m")


@pytest.mark.parametrize("call", [refuses, is_silent, talks_too_much, says_it_wrote_too_much])
async def test_a_failed_or_rejected_summary_changes_nothing(call: Callable[[ModelRequest], object]) -> None:
    driver = CompactorDriver()
    for number in range(12):
        driver.turn(PARAGRAPHS[number], tools=(PARAGRAPHS[0] * 3,) if number > 6 else ())
    history, tracker = driver.history, driver.tracker
    found = driver.planned((tracker.measurement.tokens or 0) * 55 // 100)
    assert found.stub_seqs
    assert found.evict is not None
    before = (list(history.items), history.summary, history.revision, tracker.status("active"))
    with pytest.raises((RejectedSummary, ModelUnreachable)):
        await write_summary(found, tracker, call, may_extract=False)  # type: ignore[arg-type]
    assert (list(history.items), history.summary, history.revision, tracker.status("active")) == before


async def test_a_history_that_changed_during_the_call_stays_unchanged() -> None:
    driver = long_talk()

    async def call(request: ModelRequest) -> ModelReply:
        driver.history.clear()
        driver.tracker.cleared()
        return await Server()(request)

    with pytest.raises(RejectedSummary, match="changed while"):
        await carry_out(driver.planned(), driver.tracker, call, trigger="requested")
    assert len(driver.history.items) == 0


async def test_items_that_arrive_during_the_call_stay() -> None:
    driver = long_talk()

    async def call(request: ModelRequest) -> ModelReply:
        driver.enter("user", "Meanwhile.")
        return await Server()(request)

    await carry_out(driver.planned(), driver.tracker, call, trigger="requested")
    assert driver.history.items[-1].content == "Meanwhile."
    assert driver.tracker.report().stale_messages > 0
