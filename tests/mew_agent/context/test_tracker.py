"""The report after each kind of event: calls, cuts, restarts and changes of model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import ContextReport

from mew_agent.context.history import History, Item, Pin, Summary
from mew_agent.context.item_sizes import item_size, kept_reply_tokens
from mew_agent.context.policy import MEW, CompactAction, Policy, Suggestion
from mew_agent.context.policy.definition import NearLimitRule
from mew_agent.context.policy.threshold import Condition
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.model.interface import ToolCall, Window
from mew_agent.model.usage import Usage
from tests.support.accounted import QUESTION, SYSTEM, Agent, breakdown_sum, used
from tests.support.policies import COUNTING, KNOWN_WINDOW, PROMPT_ONLY
from tests.support.trackers import keep_call

# -- the table, row by row ------------------------------------------------------------------------------------


def test_before_the_first_call_tokens_are_absent_and_never_zero() -> None:
    agent = Agent()
    assert agent.shown() == (None, "unknown", "no_call_yet", 0)
    said = agent.tracker.status("active").model_dump(exclude_none=True)
    assert "tokens" not in said
    assert said["messages_in_context"] == 0
    for absent in ("last_reported", "prompt_tokens", "breakdown", "next_prompt_tokens", "measured_at", "drift_tokens"):
        assert absent not in said["context"]
    assert said["context"]["level"] == said["context"]["severity"] == "unknown"
    assert said["context"]["compact_at_tokens"] == 115_200


def test_a_kept_call_shows_exactly_the_reported_usage() -> None:
    agent = Agent()
    agent.ask()
    agent.call(Usage(900, 100, 1_000, reasoning_tokens=30, cached_tokens=512))
    assert agent.shown() == (1_000, "reported", None, 2)
    report = agent.report()
    assert (report.prompt_tokens, report.completion_tokens) == (900, 100)
    assert (report.reasoning_tokens, report.cached_tokens) == (30, 512)
    assert (report.call_id, report.measured_at) == ("call-1", "2026-01-01T00:00:01Z")
    assert report.last_reported is None
    assert report.stale_messages == 0
    assert breakdown_sum(report) == 1_000


def test_details_that_were_not_reported_stay_absent() -> None:
    agent = Agent()
    agent.turn(1_000)
    assert agent.report().reasoning_tokens is None
    assert agent.report().cached_tokens is None


def test_items_added_since_leave_the_figure_and_grow_stale_messages() -> None:
    agent = Agent()
    agent.turn(1_000)
    before = agent.report().next_prompt_tokens or 0
    for count in (1, 2, 3):
        agent.receive()
        assert agent.shown() == (1_000, "reported", None, 2 + count)
        assert agent.report().stale_messages == count
        assert breakdown_sum(agent.report()) == 1_000
    assert (agent.report().next_prompt_tokens or 0) > before + 30


def test_an_item_added_during_a_call_is_stale() -> None:
    agent = Agent()
    agent.ask()
    sent = agent.history.last_seq
    agent.receive()
    keep_call(agent.tracker, used(1_000), last_seq=sent, served="gpt")
    agent.tracker.item_added(agent.history.append("assistant", "yes", id="a", at="t", known_tokens=10))
    assert agent.report().stale_messages == 1


def test_a_call_without_usage_makes_the_size_unknown() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.ask()
    agent.call(None)
    assert agent.shown() == (None, "unknown", "usage_unavailable", 4)
    report = agent.report()
    assert report.last_reported is not None
    assert (report.last_reported.tokens, report.last_reported.call_id) == (1_000, "call-1")
    assert report.prompt_tokens is None
    assert report.breakdown is None
    assert report.stale_messages == 2
    assert (report.level, report.severity) == ("unknown", "unknown")


def test_a_report_after_missing_ones_is_plain_again() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.ask()
    agent.call(None)
    agent.turn(1_300)
    assert agent.shown() == (1_300, "reported", None, 6)
    assert agent.report().last_reported is None
    assert agent.report().stale_messages == 0


def test_compacting_changes_no_figure() -> None:
    agent = Agent()
    agent.turn(1_000)
    active, compacting = agent.tracker.status("active"), agent.tracker.status("compacting")
    assert compacting == active.model_copy(update={"status": "compacting"})


def test_a_cut_subtracts_the_net_freed_tokens_as_projected() -> None:
    agent = Agent()
    for total in (1_000, 1_400, 1_800):
        agent.turn(total)
    outcome = agent.summarise(0, 1, Summary("## Goal\nFrames.", known_tokens=12))
    agent.tracker.compacted(outcome, at="t", at_seconds=1.0, progressed=True)
    assert outcome.tokens_before == 1_800
    assert outcome.tokens_after == 1_800 - outcome.freed_tokens
    assert agent.shown() == (outcome.tokens_after, "projected", None, 4)
    report = agent.report()
    assert report.last_compaction is not None
    assert report.last_compaction.freed_tokens == outcome.freed_tokens
    assert report.last_compaction.tokens_after == agent.tracker.status("compacted").tokens
    assert report.last_reported is not None
    assert report.last_reported.tokens == 1_800
    assert report.compactions == 1
    assert breakdown_sum(report) == outcome.tokens_after
    agent.turn(1_500)
    assert agent.shown() == (1_500, "reported", None, 6)


def test_gross_freed_tokens_are_the_net_ones_and_the_summary() -> None:
    agent = Agent()
    for total in (1_000, 1_400, 1_800):
        agent.turn(total)
    first = agent.summarise(0, 1, Summary("One.", known_tokens=40))
    assert first.summary_tokens > 40
    assert first.freed_gross_tokens - first.summary_tokens == first.freed_tokens
    second = agent.summarise(2, 3, Summary("One and two.", known_tokens=60))
    assert second.freed_gross_tokens - second.summary_tokens == second.freed_tokens
    third = agent.forget(4, 4)
    assert third.summary_tokens == 0
    assert third.freed_gross_tokens == third.freed_tokens


def test_cleared_is_unknown_with_no_messages_and_the_last_report_kept() -> None:
    agent = Agent()
    agent.turn(120_000)
    agent.history.clear()
    agent.tracker.cleared()
    assert agent.shown() == (None, "unknown", "cleared", 0)
    last = agent.report().last_reported
    assert last is not None
    assert last.tokens == 120_000
    assert agent.report().stale_messages == 0
    assert agent.report().breakdown is None
    assert agent.tracker.decide("pre_request", 1.0).actions == ()
    agent.turn(900)
    assert agent.shown() == (900, "reported", None, 2)


@pytest.mark.parametrize(("window", "level", "at"), [(1_000, "near_limit", 900), (2_000, "healthy", 1_800)])
def test_a_changed_window_changes_level_and_threshold_only(window: int, level: str, at: int) -> None:
    agent = Agent(1_500)
    agent.turn(1_000)
    agent.tracker.window_changed(Window(window, "loaded"))
    status = agent.tracker.status("active")
    assert (status.tokens, status.max_tokens) == (1_000, window)
    report = agent.report()
    assert (report.basis, report.level, report.compact_at_tokens, report.max_tokens_basis) == (
        "reported",
        level,
        at,
        "loaded",
    )


@pytest.mark.parametrize("policy", [MEW, KNOWN_WINDOW], ids=lambda policy: policy.on_missing)
def test_another_model_without_usage_makes_the_size_unknown(policy: Policy) -> None:
    agent = Agent()
    agent.tracker.policy = policy
    agent.tracker.window_changed(agent.tracker.window)
    agent.turn(1_000)
    agent.ask()
    agent.call(None, served="other")
    assert agent.shown()[:3] == (None, "unknown", "model_changed")
    report = agent.report()
    assert report.last_reported is not None
    assert report.last_reported.tokens == 1_000
    assert report.tokens_per_turn is None


def test_another_model_with_usage_is_reported_at_once() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.ask()
    agent.call(used(1_400), served="other")
    assert agent.shown()[:3] == (1_400, "reported", None)


def test_a_first_call_without_usage_does_not_change_the_model() -> None:
    agent = Agent()
    agent.ask()
    agent.call(None, served="other")
    assert agent.shown()[:3] == (None, "unknown", "usage_unavailable")


def test_usage_of_an_older_revision_moves_nothing() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.ask()
    before = agent.tracker.status("active")
    books = agent.tracker.ledger.prompt_tokens
    agent.call(used(5_000), revision=7)
    after = agent.tracker.status("active")
    assert after.tokens == before.tokens == 1_000
    assert agent.report().call_id == "call-1"
    assert agent.report().basis == "reported"
    assert agent.tracker.ledger.prompt_tokens == books
    assert agent.report().stale_messages == 2
    assert breakdown_sum(agent.report()) == 1_000


# -- what a reply takes when it is sent again -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "thinking", "kept"),
    [
        pytest.param(Usage(100, 50, 150), False, 50, id="no reasoning"),
        pytest.param(Usage(100, 50, 150, reasoning_tokens=20), False, 30, id="reasoning inside the completion"),
        pytest.param(Usage(100, 50, 150, reasoning_tokens=20), True, 30, id="seen and counted"),
        pytest.param(Usage(100, 50, 150), True, None, id="seen, not counted"),
        pytest.param(Usage(100, 50, 200, reasoning_tokens=50), True, 50, id="outside, xAI"),
        pytest.param(Usage(100, 50, 200), False, 50, id="outside, Gemini"),
        pytest.param(Usage(100, 50, 150, reasoning_tokens=90), False, 0, id="more reasoning than completion"),
        pytest.param(None, False, None, id="no usage"),
    ],
)
def test_the_kept_reply_is_the_completion_without_reasoning(
    usage: Usage | None, thinking: bool, kept: int | None
) -> None:
    assert kept_reply_tokens(usage, thinking_seen=thinking) == kept


@pytest.mark.parametrize(
    ("usage", "hidden"),
    [
        (Usage(880, 120, 1_000, reasoning_tokens=110), 110),
        (Usage(880, 10, 1_000, reasoning_tokens=110), 110),
        (Usage(880, 10, 1_000), 110),
    ],
    ids=["OpenAI", "xAI", "Gemini"],
)
def test_reasoning_that_is_not_sent_again_counts_as_hidden(usage: Usage, hidden: int) -> None:
    agent = Agent(1_000)
    agent.ask()
    agent.call(usage)
    assert agent.tracker.snapshot().hidden_tokens == hidden
    assert agent.report().level == "near_limit"
    assert not any(isinstance(action, CompactAction) for action in agent.tracker.decide("after_call", 1.0).actions)


def test_an_impossible_completion_count_is_hidden_reasoning() -> None:
    agent = Agent(1_000)
    agent.ask()
    agent.call(Usage(400, 550, 950), reply="Yes.")
    assert agent.tracker.snapshot().hidden_tokens > 500
    assert (agent.report().next_prompt_tokens or 0) < 450
    assert not any(isinstance(action, CompactAction) for action in agent.tracker.decide("after_call", 1.0).actions)


def test_thinking_left_in_the_text_marks_the_reply_as_unsteady() -> None:
    plain = Item(0, "assistant", "yes", 0, "i", "t")
    assert not item_size(plain).is_unsteady
    assert item_size(Item(0, "assistant", "<think>hm</think>yes", 0, "i", "t")).thinking
    assert item_size(Item(0, "assistant", "yes", 0, "i", "t", thinking=True)).thinking
    assert item_size(Item(0, "assistant", "", 0, "i", "t", tool_calls=(ToolCall("c", "f", "{}"),))).tool_calls
    assert not item_size(Item(0, "user", "what is </think>?", 0, "i", "t")).is_unsteady


# -- cuts -----------------------------------------------------------------------------------------------------


def test_forgetting_the_newest_entry_takes_the_reply_out_of_the_figure() -> None:
    agent = Agent()
    agent.turn(1_000)
    reply = agent.turn(1_400, completion=60)
    outcome = agent.forget(reply.seq, reply.seq)
    assert outcome.freed_tokens == 60
    assert agent.shown() == (1_340, "projected", None, 3)
    assert breakdown_sum(agent.report()) == 1_340
    assert "reply" not in {part.part for part in agent.report().breakdown or ()}
    assert agent.tracker.snapshot().hidden_tokens == 0


def test_forgetting_unsent_items_shrinks_only_the_next_prompt() -> None:
    agent = Agent()
    agent.turn(1_000)
    item = agent.receive()
    before = agent.report().next_prompt_tokens or 0
    outcome = agent.forget(item.seq, item.seq)
    assert (outcome.freed_tokens, agent.shown()[0]) == (0, 1_000)
    assert agent.report().stale_messages == 0
    assert (agent.report().next_prompt_tokens or 0) < before
    assert breakdown_sum(agent.report()) == 1_000


def test_a_cut_of_unknown_size_lowers_the_next_prompt() -> None:
    agent = Agent()
    agent.ask(QUESTION * 20)
    agent.call(None)
    agent.ask()
    agent.call(None)
    before = agent.report().next_prompt_tokens or 0
    outcome = agent.forget(0, 1)
    assert (outcome.tokens_before, outcome.tokens_after) == (None, None)
    assert outcome.freed_tokens == before - (agent.report().next_prompt_tokens or 0) > 200
    assert agent.shown() == (None, "unknown", "usage_unavailable", 2)


def test_whole_intervals_are_freed_exactly_and_say_so() -> None:
    agent = Agent()
    for total in (175, 205, 238, 265):
        agent.turn(total)
    outcome = agent.forget(1, 4)  # from after the first call to the third
    assert (outcome.freed_tokens, outcome.basis) == (63, "exact")


def test_a_forget_leaves_the_size_of_the_summary_unchanged() -> None:
    agent = Agent()
    for total in (1_000, 1_100, 1_200):
        agent.turn(total)
    agent.summarise(0, 1, Summary("Frames are refused when they are too large.", known_tokens=12))
    agent.turn(1_500)
    summary = agent.tracker.ledger.preamble.summary_tokens
    outcome = agent.forget(2, 2)
    assert agent.tracker.ledger.preamble.summary_tokens == summary
    assert outcome.summary_tokens == 0
    assert outcome.freed_gross_tokens == outcome.freed_tokens


def test_two_cuts_before_a_report_add_up() -> None:
    agent = Agent()
    for total in (1_000, 1_100, 1_200, 1_300):
        agent.turn(total)
    one, two = agent.forget(0, 1), agent.forget(2, 3)
    assert one.tokens_after == two.tokens_before
    assert agent.shown()[0] == 1_300 - one.freed_tokens - two.freed_tokens
    agent.turn(1_000)
    assert breakdown_sum(agent.report()) == 1_000


def test_accounts_sum_after_a_cut_with_new_tools() -> None:
    agent = Agent()
    for total in (1_000, 1_100, 1_200):
        agent.turn(total)
    agent.forget(0, 1)
    agent.tracker.describe_prefix(SYSTEM, "a tool with many parameters " * 40)
    agent.ask()
    agent.call(used(1_350), fingerprint="more tools")
    assert breakdown_sum(agent.report()) == 1_350


def test_notes_in_place_of_results_free_their_difference() -> None:
    agent = Agent()
    agent.ask()
    agent.call(used(500), calls=("c",))
    result = agent.observe("line of a log file with a number 17\n" * 60)
    agent.call(used(1_500))
    outcome = agent.stub(result.seq)
    assert outcome.freed_messages == 0
    assert outcome.basis == "projected"
    assert outcome.freed_tokens == 1_500 - (outcome.tokens_after or 0) > 700
    assert agent.shown() == (outcome.tokens_after, "projected", None, 4)
    assert breakdown_sum(agent.report()) == outcome.tokens_after


def test_stubbing_an_unsent_result_shrinks_only_the_next_prompt() -> None:
    agent = Agent()
    agent.ask()
    agent.call(used(500), calls=("c",))
    result = agent.observe("line of a log file with a number 17\n" * 60)
    before = agent.report().next_prompt_tokens or 0
    outcome = agent.stub(result.seq)
    assert (outcome.freed_tokens, agent.shown()[0]) == (0, 500)
    assert (agent.report().next_prompt_tokens or 0) < before - 500


@pytest.mark.parametrize(
    "usage", [Usage(1_000, 10, 1_005), Usage(0, 10, 10), Usage(1_249_000, 10, 1_249_010), Usage(7, 10**9, 10**9 + 7)]
)
def test_implausible_usage_leaves_the_size_unknown_and_the_old_figure_apart(usage: Usage) -> None:
    agent = Agent()
    agent.ask(QUESTION * 10)
    agent.call(used(500))
    spent = agent.tracker.measurement.spent_since_clear
    agent.ask(QUESTION)
    agent.call(usage)
    report = agent.report()
    assert (agent.shown()[0], report.basis, report.reason) == (None, "unknown", "usage_implausible")
    assert report.last_reported is not None
    assert report.last_reported.tokens == 500
    assert agent.tracker.measurement.spent_since_clear == spent
    agent.ask(QUESTION)
    agent.call(used(700))
    assert agent.report().basis == "reported"


def test_usage_from_before_the_last_text_is_provisional() -> None:
    agent = Agent()
    agent.ask(QUESTION * 10)
    agent.call(used(500))
    agent.ask(QUESTION)
    agent.call(replace(used(600), is_provisional=True))
    report = agent.report()
    assert (agent.shown()[0], report.basis, report.prompt_tokens, report.completion_tokens) == (
        600,
        "provisional",
        590,
        None,
    )
    assert report.last_reported is not None
    assert report.last_reported.tokens == 500


def test_a_sum_over_inner_calls_is_provisional_and_teaches_no_price() -> None:
    agent = Agent()
    agent.ask(QUESTION * 10)
    agent.call(used(500))
    prompt, prefix = agent.tracker.ledger.prompt_tokens, agent.tracker.ledger.parts.prefix
    agent.ask(QUESTION)
    agent.call(replace(used(17_709), is_sum=True, inner=used(20_000)))
    report = agent.report()
    assert (agent.shown()[0], report.basis, report.breakdown) == (17_709, "provisional", None)
    assert (agent.tracker.ledger.prompt_tokens, agent.tracker.ledger.parts.prefix) == (prompt, prefix)
    assert agent.tracker.measurement.spent_since_clear == 20_500
    agent.ask(QUESTION)
    agent.call(used(574))
    assert (agent.report().basis, agent.tracker.truncation) == ("reported", None)


STEPS = st.lists(
    st.sampled_from(
        ["turn", "silent", "tools", "hear", "forget oldest", "forget newest", "summarise", "stub", "model"]
    ),
    max_size=14,
)


@given(STEPS, st.integers(0, 40), st.sampled_from(["openai", "outside", "plain"]))
def test_the_breakdown_always_sums_without_negative_parts(steps: list[str], hidden: int, style: str) -> None:
    agent = Agent(8_000)
    prompt = 400
    for number, step in enumerate(["turn", *steps]):
        prompt += 37 * (number % 3)
        usage = {
            "openai": Usage(prompt, 20 + hidden, prompt + 20 + hidden, reasoning_tokens=hidden),
            "outside": Usage(prompt, 20, prompt + 20 + hidden),
            "plain": Usage(prompt, 20 + hidden, prompt + 20 + hidden),
        }[style]
        items = agent.history.items
        match step:
            case "turn" | "model":
                agent.ask()
                agent.call(usage, served="gpt" if step == "turn" else f"model-{number}")
            case "silent":
                agent.ask()
                agent.call(None)
            case "tools":
                agent.ask()
                agent.call(usage, calls=(f"c{number}",))
                agent.observe("17 lines of output\n" * 30, f"c{number}")
            case "hear":
                agent.receive()
            case "forget oldest" if items:
                prompt = max(50, prompt - 60)
                agent.forget(items[0].seq, items[len(items) // 2].seq)
            case "forget newest" if items:
                agent.forget(items[-1].seq, items[-1].seq)
            case "summarise" if items:
                agent.summarise(items[0].seq, items[0].seq, Summary(f"Summary {number}.", 30))
            case "stub":
                agent.stub(*(item.seq for item in items if item.role == "tool"))
            case _:
                pass
        status = agent.tracker.status("active")
        assert status.messages_in_context == len(agent.history.items)
        report = agent.report()
        assert (status.tokens is None) is (report.basis == "unknown")
        assert (report.next_prompt_tokens or 1) > 0
        assert ContextReport.model_validate(report.model_dump()) == report  # it was built without validation
        assert report.model_copy().model_fields_set == report.model_fields_set
        assert 0 <= agent.report().stale_messages <= len(agent.history.items)
        if status.tokens is not None:
            assert breakdown_sum(agent.report()) == status.tokens
            assert agent.report().severity in (0, 2)
        prices = agent.tracker.ledger.item_prices()
        assert set(prices) == {item.seq for item in agent.history.items}
        assert min(prices.values(), default=0) >= 0


# -- pins, prefix, next prompt --------------------------------------------------------------------------------


def test_a_pin_enters_the_next_prompt_when_the_prefix_is_described() -> None:
    agent = Agent()
    agent.turn(1_000)
    before = agent.report().next_prompt_tokens or 0
    agent.history.pins.append(Pin("p", "Never delete a file without asking. " * 10))
    agent.tracker.describe_prefix(SYSTEM, "")
    assert (agent.report().next_prompt_tokens or 0) > before + 50


def test_the_next_prompt_is_projected_after_the_first_call() -> None:
    agent = Agent()
    agent.tracker.describe_prefix(SYSTEM, "")
    agent.ask()
    assert agent.report().next_prompt_basis == "heuristic"
    assert (agent.report().next_prompt_tokens or 0) > 100
    agent.call(used(1_000))
    assert agent.report().next_prompt_basis == "projected"


def test_a_cooldown_applies_while_a_reply_streams() -> None:
    at = Condition(figure="used", op="ge", tokens=900)
    rule = NearLimitRule(phase="stream", when=(at,), rearm_below="1/2", cooldown_seconds=60.0)
    tracker = Tracker(History(), Policy(name="p", rules=(rule,)), Window(1_000, "configured"), "m")
    sizes = [(100.0, 900), (105.0, 100), (110.0, 900), (161.0, 900)]
    decided = [tracker.decide("stream", now, used_tokens=tokens).actions for now, tokens in sizes]
    assert [bool(actions) for actions in decided] == [True, False, False, True]


def test_drift_of_the_newest_call_is_published() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.ask()
    predicted = agent.report().next_prompt_tokens or 0
    agent.call(used(1_200))
    assert agent.report().drift_tokens == predicted - 1_190


# -- trend ----------------------------------------------------------------------------------------------------


def test_the_trend_counts_turns_and_needs_two_calls() -> None:
    agent = Agent(10_000)
    agent.turn(1_000)
    assert agent.report().tokens_per_turn is None
    agent.turn(1_400)
    assert (agent.report().tokens_per_turn, agent.report().turns_to_compaction) == (400.0, 19)
    agent.call(used(1_500))  # a second call of the same turn
    assert agent.report().tokens_per_turn == 500.0
    agent.turn(1_800)
    assert agent.report().tokens_per_turn == 400.0


def test_a_cut_is_not_negative_growth() -> None:
    agent = Agent(10_000)
    for total in (1_000, 1_400, 1_800):
        agent.turn(total)
    agent.forget(0, 3)
    agent.turn(900)
    assert agent.report().tokens_per_turn == 400.0
    for total in (500, 100):
        agent.turn(total)
    assert agent.report().tokens_per_turn == 0.0
    assert agent.report().turns_to_compaction is None


def test_above_the_threshold_no_turns_are_left() -> None:
    agent = Agent(1_000)
    agent.turn(400)
    agent.turn(950)
    assert agent.report().turns_to_compaction == 0


# -- what survives --------------------------------------------------------------------------------------------


def test_a_larger_window_lets_a_stalled_agent_try_again() -> None:
    agent = Agent(1_000)
    for _ in range(2):
        agent.tracker.compaction_ended(progressed=False, at_seconds=1.0)
    agent.tracker.window_changed(Window(900, "loaded"))
    assert agent.tracker.is_stalled
    agent.tracker.window_changed(Window(2_000, "loaded"))
    assert not agent.tracker.is_stalled


def test_alternating_models_keep_a_calibration_each() -> None:
    agent = Agent()
    total = 1_000
    for number in range(8):
        total += 100
        agent.ask()
        agent.call(used(total), served="ab"[number % 2])
    assert set(agent.tracker.saved().calibrations) == {"a", "b"}
    assert all(sums[0] > 0 for sums in agent.tracker.saved().calibrations.values())
    assert breakdown_sum(agent.report()) == total


def test_clearing_lets_a_stalled_agent_try_again_without_forgetting_the_cooldown() -> None:
    agent = Agent(1_000)
    for _ in range(2):
        agent.tracker.compaction_ended(progressed=False, at_seconds=5.0)
    agent.history.clear()
    agent.tracker.cleared()
    assert not agent.tracker.is_stalled
    assert agent.tracker.policy_state.announced_at_seconds == 5.0


def test_the_report_has_the_revision_that_was_measured() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.turn(1_200)
    agent.forget(0, 1)
    assert (agent.history.revision, agent.report().revision) == (1, 0)
    agent.turn(1_100)
    assert agent.report().revision == 1


def test_a_policy_that_assumes_no_window_knows_nothing_without_one() -> None:
    tracker = Tracker(History(), PROMPT_ONLY, resolve_window(), "model")
    keep_call(tracker, Usage(190_000, 10, 190_010))
    status = tracker.status("active")
    assert (status.tokens, status.max_tokens) == (None, None)
    assert status.context is not None
    assert (status.context.reason, status.context.level) == ("limit_unavailable", "unknown")
    assert status.context.last_reported is not None
    assert status.context.last_reported.tokens == 190_010
    tracker.window_changed(resolve_window(200_000))
    assert (tracker.status("active").tokens, tracker.report().level) == (190_010, "caution")


def test_a_kept_last_figure_is_labelled_projected() -> None:
    tracker = Tracker(History(), KNOWN_WINDOW, resolve_window(8192), "model")
    keep_call(tracker, None)
    assert tracker.report().reason == "usage_unavailable"
    keep_call(tracker, Usage(100, 20, 120))
    keep_call(tracker, None)
    assert (tracker.measurement.tokens, tracker.report().basis) == (120, "projected")


def test_messages_that_entered_since_count_for_a_policy_that_adds_them() -> None:
    tracker = Tracker(History(), COUNTING, resolve_window(1000), "model")
    keep_call(tracker, Usage(480, 10, 490))
    assert tracker.report().level == "nominal"
    tracker.history.begin_turn()
    tracker.item_added(tracker.history.append("user", "word " * 40, id="u", at="t"))
    report = tracker.report()
    assert (report.level, report.basis, report.stale_messages) == ("elevated", "reported", 1)


def test_o16_a_call_without_usage_decides_nothing() -> None:
    agent = Agent(1_000)
    agent.tracker.policy = KNOWN_WINDOW
    agent.tracker.window_changed(agent.tracker.window)
    agent.turn(950)
    assert [type(action) for action in agent.tracker.decide("after_call", 1.0).actions] == [CompactAction]
    agent.ask()
    agent.call(None)
    assert agent.shown()[:3] == (950, "projected", None)
    assert agent.tracker.decide("after_call", 2.0).actions == ()
    agent.tracker.window_changed(Window(1_001, "loaded"))
    assert [type(action) for action in agent.tracker.decide("after_call", 3.0).actions] == [CompactAction]


@pytest.mark.parametrize("leaving", ["cut", "stubbed", "cleared"])
def test_suggestions_end_when_their_messages_leave(leaving: str) -> None:
    agent = Agent()
    agent.turn(1_000)
    result = agent.observe("a line of a log " * 40)
    agent.tracker.suggestions = (Suggestion("k", "remove the 6 oldest user messages", 600, "low"),)
    assert agent.report().suggestions
    if leaving == "cut":
        agent.forget(0, 1)
    elif leaving == "stubbed":
        agent.stub(result.seq)
    else:
        agent.history.clear()
        agent.tracker.cleared()
    assert agent.report().suggestions is None
