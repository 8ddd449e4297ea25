"""Replays: the meaning of each kind of step; actions do not change later steps."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import MEW, compacting_early
from mew_agent.context.policy.definition import MessageSums
from mew_agent.model.interface import Role
from mew_agent.parts.policies.log_steps import read_step
from mew_agent.parts.policies.simulation import Simulation
from tests.support.accounted import restored_state
from tests.support.context_logs import CLEAR, NO_USAGE, Line, levels, lines, prompt, said, total, user


def test_a_line_of_output_has_its_keys_in_order() -> None:
    (line,) = lines("dominds-v3", 200_000, prompt(190_000))
    assert json.dumps(line) == (
        '{"step": 1, "level": "critical", "basis": "reported", "used_tokens": 190000, "limit_tokens": 200000,'
        ' "actions": [{"type": "inject", "remaining": 4}]}'
    )


def test_a_long_log_is_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[float] = []
    add = MessageSums.add

    def counting(sums: MessageSums, size: float, role: Role | None) -> None:
        summed.append(size)
        add(sums, size, role)

    monkeypatch.setattr(MessageSums, "add", counting)
    lines("tachikoma", 10**9, *[user(9)] * 100)
    assert len(summed) == 100


@pytest.mark.parametrize(("forgetting", "kept"), [({"compact_to_tokens": 63}, 7), (CLEAR, 0)])
def test_suggestions_are_about_the_messages_that_are_left(forgetting: Line, kept: int) -> None:
    after = lines("tachikoma", 10**6, *[user(9)] * 20, forgetting, *[user(9)] * 20)[21:]
    alone = lines("tachikoma", 10**6, *[user(9)] * (kept + 20))[kept:]
    suggested = [one["actions"] for one in after]
    assert suggested == [one["actions"] for one in alone]
    assert [len(one) for one in suggested].index(1) == 10 - kept


def test_unknown_figures_are_left_out() -> None:
    assert lines("dominds-v1", None, NO_USAGE) == [{"step": 1, "level": "unknown", "basis": "unknown", "actions": []}]
    (line,) = lines("dominds-v1", None, prompt(9))
    assert (line["used_tokens"], line["level"], "limit_tokens" in line) == (9, "unknown", False)


def test_a_policy_can_compact_after_a_task() -> None:
    steps = total(95_000), {"usual_task_tokens": 31_000}
    (action,) = lines(compacting_early(MEW), 128_000, *steps)[-1]["actions"]
    assert (action["type"], action["reason"][:36]) == ("compact", "the next task of the usual size, 31,")
    assert lines("mew-reference", 128_000, *steps)[-1]["actions"] == []


@pytest.mark.parametrize(
    ("preset", "used"),
    [("mew", 150), ("mew-reference", 150), ("lmstudio", 150), ("tachikoma", 150), ("dominds-v1", 100)],
)
def test_used_tokens_follow_the_measure_of_the_policy(preset: str, used: int) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    assert lines(preset, 1000, {"usage": usage})[0]["used_tokens"] == used


@pytest.mark.parametrize(
    ("step", "used"),
    [
        ({"pre_request_tokens": 300}, 300),
        ({"current_tokens": 300, "tool_result_tokens": 40}, 340),
        ({"stream_tokens": 300}, 300),
        ({"message_tokens": 300}, 500),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_unreported_figure_is_shown_as_projected(step: Line, used: int) -> None:
    preset = "tachikoma" if "message_tokens" in step else "lmstudio"
    line = lines(preset, 8192, total(200), step)[-1]
    assert (line["used_tokens"], line["basis"]) == (used, "projected")


@pytest.mark.parametrize("preset", ["mew", "mew-reference", "dominds-v3", "lmstudio"])
def test_only_message_counting_policies_add_messages_to_the_report(preset: str) -> None:
    before, after = lines(preset, 1000, total(500), user(400))
    assert after == {**before, "step": 2}


def test_a_clear_makes_a_reported_size_unknown() -> None:
    line = lines("mew", 1000, total(500), CLEAR)[-1]
    assert (line["level"], line["basis"], "used_tokens" in line) == ("unknown", "unknown", False)


def test_another_window_changes_the_level_but_not_the_size() -> None:
    first, second = lines("mew", 1000, total(500), {"set_limit": 555})
    assert (first["level"], second["level"], second["used_tokens"]) == ("healthy", "near_limit", 500)
    assert (second["basis"], second["limit_tokens"]) == ("reported", 555)


def test_no_action_changes_a_later_step() -> None:
    assert said("mew", 1000, *[total(950)] * 3) == ["near_limit compact", "compact", "compact"]
    assert [line["used_tokens"] for line in lines("mew", 1000, *[total(950)] * 3)] == [950] * 3


def message(tokens: int, role: str) -> Line:
    return {"message_tokens": tokens, "role": role}


@pytest.mark.parametrize(
    ("sizes", "step", "freed", "left"),
    [
        pytest.param("S100 S200 U300 A400", {"compact_to_percent": 50}, (500, 2), 500, id="T7"),
        pytest.param("U900", {"compact_to_percent": 50}, (0, 0), 900, id="T9"),
        pytest.param("S600 U500", {"compact_to_percent": 50}, (0, 0), 1100, id="T8, with the newest message kept"),
        pytest.param("U300 A400 U100", {"compact_to_tokens": 500}, (300, 1), 500, id="a target in tokens"),
    ],
)
def test_a_compaction_in_the_log_drops_the_oldest_messages(
    sizes: str, step: Line, freed: tuple[int, int], left: int
) -> None:
    roles = {"S": "system", "U": "user", "A": "assistant"}
    added = [message(int(size[1:]), roles[size[0]]) for size in sizes.split()]
    last = lines("tachikoma", 1000, *added, step)[-1]
    assert (last["freed_tokens"], last["freed_messages"], last["used_tokens"]) == (*freed, left)


def test_m10_a_requested_compaction_changes_level_and_basis() -> None:
    entries = [user(2000)] * 60
    before, after = lines("mew-reference", 128_000, *entries, total(121_000), {"compact_to_percent": 70})[-2:]
    assert (before["level"], before["basis"]) == ("near_limit", "reported")
    assert (after["level"], after["basis"], after["used_tokens"]) == ("healthy", "projected", 89_000)
    assert (after["freed_tokens"], after["freed_messages"]) == (32_000, 16)
    (*_, unchanged) = lines("dominds-v1", None, *entries, {"compact_to_percent": 70})
    assert unchanged["freed_messages"] == 0, "a percentage of an unknown window"


FAILED = {"summary_failed": True}


def test_o13_without_a_summary_the_oldest_messages_are_dropped() -> None:
    added = [message(300, "system"), *[message(1000, "user")] * 6]
    before, after, sent = lines(
        "lmstudio", 8192, *added, {"pre_request_tokens": 6300}, FAILED, {"pre_request_tokens": 2300}
    )[-3:]
    target = before["actions"][0]["target_tokens"]
    assert (after["freed_tokens"], after["freed_messages"], after["used_tokens"]) == (4000, 4, 2300)
    assert after["used_tokens"] <= target
    assert sent["actions"] == []


def test_a_failed_summary_without_a_fallback_is_no_progress() -> None:
    used = total(950)
    assert said("mew", 1000, used, FAILED, used, FAILED, used) == ["near_limit compact", "", "compact", "", ""]
    assert said("mew", 1000, used, FAILED, used, used) == ["near_limit compact", "", "compact", "compact"]
    assert lines("mew", 1000, FAILED)[0]["actions"] == [], "nothing was decided"


def test_a_day_of_full_calls_compacts_at_most_once_a_minute() -> None:
    steps = [total(950, at_seconds=25 * number) for number in range(58)]
    assert sum("compact" in words for words in said("mew", 1000, *steps)) <= 24


def test_a_compaction_announces_the_lower_state_and_ends_suggestions() -> None:
    steps = [message(80, "user")] * 11
    assert said("tachikoma", 1000, *steps, {"compact_to_tokens": 400})[-1] == "state_changed critical nominal"


def test_without_times_a_cooldown_counts_as_over() -> None:
    steps = (total(900), total(700), total(900))
    assert said("mew-reference", 1000, *steps) == ["near_limit", "", "near_limit"]
    timed = [{**step, "at_seconds": at} for at, step in enumerate(steps)]
    assert said("mew-reference", 1000, *timed) == ["near_limit", "", ""]


def test_a_time_holds_until_the_next_one() -> None:
    steps = (total(900, at_seconds=100), total(700), total(900), total(900, at_seconds=161))
    assert said("mew-reference", 1000, *steps) == ["near_limit", "", "", "near_limit"]


def test_messages_after_a_request_make_the_next_one_longer() -> None:
    steps = ({"pre_request_tokens": 800}, NO_USAGE, user(100), NO_USAGE)
    assert said("mew", 1000, *steps) == ["", "", "", "compact"]


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"prompt_tokens": None},
        {"prompt_tokens": 5},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    ],
)
def test_an_empty_usage_object_counts_as_missing_usage(usage: dict[str, Any]) -> None:
    assert levels("mew", 1000, {"usage": usage}) == ["unknown"]


STEPS: st.SearchStrategy[Line] = st.one_of(
    st.integers(0, 150).map(total),
    st.just(NO_USAGE),
    st.just(CLEAR),
    st.integers(0, 150).map(lambda tokens: {"pre_request_tokens": tokens}),
    st.integers(0, 150).map(lambda tokens: {"stream_tokens": tokens}),
    st.tuples(st.integers(0, 150), st.integers(0, 150)).map(
        lambda pair: {"current_tokens": pair[0], "tool_result_tokens": pair[1]}
    ),
    st.integers(0, 30).map(user),
    st.integers(1, 200).map(lambda tokens: {"set_limit": tokens}),
)


@pytest.mark.parametrize("preset", presets())
@given(steps=st.lists(STEPS, max_size=25))
def test_a_state_stored_after_each_step_decides_the_same(preset: str, steps: list[Line]) -> None:
    through, kept = (Simulation(presets()[preset], 100) for _ in range(2))
    for step in steps:
        read = read_step(json.dumps(step))
        kept.state = restored_state(kept.state)
        assert through.play(read) == kept.play(read)


@pytest.mark.parametrize("preset", presets())
@given(steps=st.lists(STEPS, max_size=25))
def test_every_line_says_how_its_figure_is_known(preset: str, steps: list[Line]) -> None:
    for line in lines(preset, 100, *steps):
        assert ("used_tokens" in line) is (line["basis"] != "unknown")
        assert (line["level"] == "unknown") is ("used_tokens" not in line)
        changes = [action for action in line["actions"] if action["type"] == "state_changed"]
        assert all(change["to"] == line["level"] != change["from"] for change in changes)
