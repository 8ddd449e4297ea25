"""The four context-health systems, row by row. Ids name the rows of their reference tables."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import ContextSnapshot, level_of
from mew_agent.parts.policies.written import WrittenPolicy
from tests.support.context_logs import CLEAR, NO_USAGE, Line, levels, lines, prompt, said, total, user

K = 1000

# -- one owned reminder ---------------------------------------------------------------------------------------

REMINDERS = [
    pytest.param(200 * K, {}, [100_000, 100_001, 150_000, 100_000, 99_999, 100_001], "-,A,-,-,D,A", id="D1"),
    pytest.param(200 * K, {"optimal_max_tokens": 60_000}, [60_000, 60_001, 60_000, 59_999], "-,A,-,D", id="D2"),
    pytest.param(200 * K, {}, [120_000, None, 120_000, 99_999], "A,-,-,D", id="D3"),
    pytest.param(
        200 * K, {"optimal_max_tokens": 150_000}, [120_000, 150_001, 150_000, 149_999], "AD,A,-,D", id="D4 as it was"
    ),
    pytest.param(65_537, {}, [32_768, 32_769, 32_768, 32_767], "-,A,-,D", id="D5"),
    pytest.param(200 * K, {}, [None, None], "-,-", id="D6"),
    pytest.param(128 * K, {}, [64_000, 64_001], "-,A", id="D7"),
    pytest.param(None, {}, [190_000], "-", id="D8"),
    pytest.param(None, {"optimal_max_tokens": 60_000}, [190_000], "-", id="D8 with an optimal size"),
]


@pytest.mark.parametrize(("limit", "settings", "prompts", "expected"), REMINDERS)
def test_dominds_v1_removes_its_reminder_below_the_optimal_size(
    limit: int | None, settings: dict[str, int], prompts: list[int | None], expected: str
) -> None:
    steps = [NO_USAGE if tokens is None else prompt(tokens) for tokens in prompts]
    words = {"-": "", "A": "remind", "D": "unremind", "AD": "remind unremind"}
    assert said("dominds-v1", limit, *steps, **settings) == [words[word] for word in expected.split(",")]


def test_dominds_v1_shows_caution_above_the_optimal_size() -> None:
    steps = (prompt(60_000), prompt(60_001), NO_USAGE)
    assert levels("dominds-v1", 200 * K, *steps, optimal_max_tokens=60_000) == ["healthy", "caution", "unknown"]


def test_a_dominds_reminder_survives_a_clear_until_the_next_small_call() -> None:
    steps = (prompt(120_000), CLEAR, prompt(120_000), CLEAR, prompt(5_000))
    assert said("dominds-v1", 200 * K, *steps) == ["remind", "", "", "", "unremind"]


@pytest.mark.parametrize("preset", ["dominds-v1", "dominds-v3"])
def test_dominds_shows_no_figure_where_none_was_reported(preset: str) -> None:
    assert lines(preset, 200 * K, NO_USAGE, total(0), prompt(190_000), NO_USAGE)[-1] == {
        "step": 4,
        "level": "unknown",
        "basis": "unknown",
        "limit_tokens": 200 * K,
        "actions": [],
    }


@pytest.mark.parametrize("preset", ["dominds-v1", "dominds-v3"])
@pytest.mark.parametrize(
    "step",
    [
        {"pre_request_tokens": 199_000},
        {"current_tokens": 0, "tool_result_tokens": 300_000},
        {"stream_tokens": 199_999},
        {"message_tokens": 199_999, "role": "user"},
    ],
    ids=lambda step: next(iter(step)),
)
def test_dominds_decides_by_reported_figures_only(preset: str, step: Line) -> None:
    before, after = lines(preset, 200 * K, prompt(50_000), step)
    assert after == {**before, "step": 2}


# -- prompts on a cadence, and counting down ------------------------------------------------------------------

INJECTIONS = [
    pytest.param(
        200 * K,
        {},
        [prompt(100_000), prompt(100_001), prompt(180_000), prompt(180_001)],
        ["", "inject", "", "inject 4"],
        id="D9",
    ),
    pytest.param(200 * K, {}, [prompt(150_000)] * 12, ["inject", *[""] * 9, "inject", ""], id="D10"),
    pytest.param(
        200 * K,
        {"caution_remediation_cadence_generations": 1},
        [prompt(150_000)] * 3,
        ["inject"] * 3,
        id="every generation",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(190_000)] * 8,
        ["inject 4", "inject 3", "inject 2", "inject 1", "inject 0", "clear", "inject 4", "inject 3"],
        id="D12",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(190_000)] * 2 + [prompt(150_000), prompt(190_000), prompt(5_000), prompt(190_000)],
        ["inject 4", "inject 3", "inject", "inject 4", "", "inject 4"],
        id="a milder level in between",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(190_000), prompt(190_000), NO_USAGE, prompt(190_000)],
        ["inject 4", "inject 3", "", "inject 4"],
        id="D14",
    ),
    pytest.param(
        200 * K,
        {"caution_remediation_cadence_generations": 4},
        [prompt(150_000, user_prompt=True), *[prompt(150_000)] * 6],
        ["", "inject", "", "", "", "inject", ""],
        id="D15",
    ),
    pytest.param(
        200 * K,
        {"caution_cadence_generations": 2},
        [prompt(150_000), prompt(150_000), *[prompt(150_000, queue_busy=True)] * 3, *[prompt(150_000)] * 3],
        ["inject", "", "", "", "", "inject", "", "inject"],
        id="due while others wait, the counter stands",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(150_000), prompt(50_000), prompt(150_000), NO_USAGE, prompt(150_000), prompt(190_000), prompt(150_000)],
        ["inject", "", "inject", "", "inject", "inject 4", "inject"],
        id="back in caution is a fresh entry",
    ),
    pytest.param(64 * K, {}, [prompt(57_600), prompt(57_601)], ["", "inject 4"], id="D18"),
    pytest.param(
        128 * K,
        {},
        [prompt(100_000), prompt(100_001), prompt(115_200), prompt(115_201)],
        ["", "inject", "", "inject 4"],
        id="D19",
    ),
    pytest.param(
        200 * K,
        {"optimal_max_tokens": 150_000, "critical_max_tokens": 120_000},
        [prompt(120_000), prompt(120_001), prompt(150_001)],
        ["", "inject 4", "inject 3"],
        id="critical below optimal wins",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(190_000, user_prompt=True), prompt(190_000, user_chain=True), prompt(190_000), prompt(190_000)],
        ["inject 4", "", "inject 3", "inject 2"],
        id="D21",
    ),
    pytest.param(
        200 * K,
        {},
        [prompt(190_000, user_prompt=True), prompt(190_000, user_chain=True, user_prompt=True)],
        ["inject 4", "inject 3"],
        id="D21 another message in the middle of the tools of an answer is wrapped, too",
    ),
]


@pytest.mark.parametrize(("limit", "settings", "steps", "expected"), INJECTIONS)
def test_dominds_v3_prompts_by_cadence_and_counts_down(
    limit: int, settings: dict[str, int], steps: list[Line], expected: list[str]
) -> None:
    assert said("dominds-v3", limit, *steps, **settings) == expected


@pytest.mark.parametrize(
    ("limit", "prompts", "expected"),
    [
        pytest.param(200 * K, [100_000, 100_001, 180_000, 180_001], "healthy caution caution critical", id="D9"),
        pytest.param(64 * K, [57_600, 57_601], "healthy critical", id="D18"),
        pytest.param(128 * K, [100_000, 100_001, 115_200, 115_201], "healthy caution caution critical", id="D19"),
        pytest.param(111_112, [100_000, 100_001], "healthy critical", id="no caution yet"),
        pytest.param(
            111_113, [100_000, 100_001, 100_002], "healthy caution critical", id="the first window with caution"
        ),
        pytest.param(1, [1, 2], "healthy critical", id="the smallest window"),
    ],
)
def test_dominds_v3_levels_are_strictly_above_their_marks(limit: int, prompts: list[int], expected: str) -> None:
    assert levels("dominds-v3", limit, *(prompt(tokens) for tokens in prompts)) == expected.split()


@pytest.mark.parametrize(
    ("value", "generations"),
    [(0, 10), (-3, 10), (0.5, 10), (float("nan"), 10), (float("inf"), 10), (3.9, 3), (1, 1), (12, 12)],
)
def test_an_invalid_cadence_keeps_the_default_of_ten(value: float, generations: int) -> None:
    steps = [prompt(150_000)] * 14
    found = said("dominds-v3", 200 * K, *steps, caution_remediation_cadence_generations=value)
    assert [at for at, words in enumerate(found) if words] == list(range(0, 14, generations))


def test_a_critical_prompt_waits_while_another_prompt_is_queued() -> None:
    steps = (prompt(190_000), prompt(190_000, queue_busy=True), prompt(190_000), prompt(190_000))
    assert said("dominds-v3", 200 * K, *steps) == ["inject 4", "", "inject 3", "inject 2"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param({"queue_busy": True}, ["clear", "inject 4"], id="a waiting prompt does not stop the clear"),
        pytest.param({"user_prompt": True}, ["clear", "inject 4"], id="a person's message goes into the new course"),
        pytest.param({"user_chain": True}, ["", "clear"], id="an answer to a person is finished first"),
    ],
)
def test_at_zero_the_next_generation_is_a_new_course(flags: dict[str, bool], expected: list[str]) -> None:
    steps = [prompt(190_000)] * 5 + [prompt(190_000, **flags), prompt(190_000)]
    assert said("dominds-v3", 200 * K, *steps)[5:] == expected


def test_a_clear_forgets_countdown_and_cadence() -> None:
    steps = (prompt(190_000), prompt(190_000), CLEAR, prompt(190_000), CLEAR, prompt(150_000), CLEAR, prompt(150_000))
    assert said("dominds-v3", 200 * K, *steps) == ["inject 4", "inject 3", "", "inject 4", "", "inject", "", "inject"]


def test_a_changed_window_does_not_count_as_a_generation() -> None:
    steps = [prompt(190_000), *[{"set_limit": 200 * K}] * 4, prompt(190_000), {"set_limit": 400 * K}, prompt(190_000)]
    assert said("dominds-v3", 200 * K, *steps) == ["inject 4", "", "", "", "", "inject 3", "", "inject"]


# -- summarised while it runs ---------------------------------------------------------------------------------


def stream(tokens: int) -> Line:
    return {"stream_tokens": tokens}


def asking(tokens: int) -> Line:
    return {"pre_request_tokens": tokens}


def tool(current: int, result: int) -> Line:
    return {"current_tokens": current, "tool_result_tokens": result}


STREAMED = [
    pytest.param(8192, [asking(5553)], [""], id="O1"),
    pytest.param(8192, [asking(5554)], ["compact"], id="O2"),
    pytest.param(200 * K, [asking(150_000), asking(150_001)], ["", "compact"], id="O4"),
    pytest.param(1000, [asking(0)], ["error"], id="O5"),
    pytest.param(1249, [asking(0)], ["error"], id="O5 just too small"),
    pytest.param(1250, [asking(0), asking(1)], ["", "compact"], id="O5 just large enough"),
    pytest.param(32_768, [stream(29_491), stream(29_492)], ["", "compact restart"], id="O6"),
    pytest.param(
        32_768, [stream(32_767), stream(32_768)], ["compact restart", "abort"], id="full at once after a restart"
    ),
    pytest.param(32_768, [stream(29_000), stream(33_000)], ["", "abort"], id="O8"),
    pytest.param(8192, [tool(6000, 2192), tool(6000, 2193)], ["", "compact restart"], id="a result that would not fit"),
    pytest.param(8192, [tool(0, 8192), tool(0, 8193)], ["", "error"], id="O10"),
    pytest.param(8192, [stream(7400)] * 4, ["compact restart"] * 3 + ["error"], id="O11"),
    pytest.param(
        8192,
        [asking(100), *[stream(7400), asking(100)] * 3, stream(7400)],
        ["", *["compact restart", ""] * 3, "error"],
        id="O11 asked again after each restart",
    ),
    pytest.param(
        8192,
        [stream(7400), stream(7400), tool(8000, 200), tool(8000, 200)],
        ["compact restart"] * 3 + ["error"],
        id="O11 restarts of all phases count together",
    ),
    pytest.param(
        8192,
        [*[stream(7400)] * 3, total(4000), asking(4000), stream(7400)],
        ["compact restart"] * 3 + ["", "", "compact restart"],
        id="O11 the next request may restart again",
    ),
    pytest.param(
        8192,
        [*[stream(7400)] * 3, NO_USAGE, asking(4000), stream(7400)],
        ["compact restart"] * 3 + ["", "", "compact restart"],
        id="O11 the next request may restart again where no call reports its usage",
    ),
    pytest.param(
        8192,
        [*[stream(7400)] * 3, {"usage": None, "user_prompt": True}, stream(7400)],
        ["compact restart"] * 3 + ["", "compact restart"],
        id="O11 a person's next message may, too",
    ),
    pytest.param(8192, [stream(5000), NO_USAGE, stream(7373)], ["", "", "compact restart"], id="O16"),
    pytest.param(
        8192, [total(7372), total(7373), total(8191), total(8192)], ["", "compact", "compact", "abort"], id="X"
    ),
]


@pytest.mark.parametrize(("limit", "steps", "expected"), STREAMED)
def test_lmstudio_compacts_before_during_and_after_a_reply(limit: int, steps: list[Line], expected: list[str]) -> None:
    assert said("lmstudio", limit, *steps) == expected


def test_lmstudio_keeps_the_last_figure_as_projected_without_usage() -> None:
    before, after = lines("lmstudio", 8192, total(5000), NO_USAGE)
    assert (before["used_tokens"], before["basis"]) == (5000, "reported")
    assert (after["used_tokens"], after["basis"]) == (5000, "projected")


def test_lmstudio_compacts_to_half_of_the_present_size() -> None:
    found = lines("lmstudio", 8192, asking(6000), tool(8000, 500), stream(7400), total(7400))
    assert [line["actions"][0]["target_tokens"] for line in found] == [3000, 4250, 3700, 3700]


def test_lmstudio_without_a_known_window_is_an_error_at_every_step() -> None:
    assert said("lmstudio", None, asking(1), stream(1), total(1)) == ["error"] * 3


def test_o14_lmstudio_refuses_other_providers_unless_the_scope_is_any() -> None:
    policy = presets()["lmstudio"]
    assert policy.refuses_provider("LMStudio") is None
    assert policy.refuses_provider("openai", "any") is None
    assert "not for openai" in (policy.refuses_provider("openai") or "")
    assert all(p.refuses_provider("openai") is None for name, p in presets().items() if name != "lmstudio")


# -- announced, then compacted --------------------------------------------------------------------------------

ANNOUNCED = [
    pytest.param(128 * K, [total(115_199), total(115_200)], ["", "near_limit"], id="M4"),
    pytest.param(128 * K, [total(121_600), total(121_601)], ["near_limit", "compact"], id="above 19/20"),
    pytest.param(
        128 * K,
        [
            total(115_200, at_seconds=0),
            total(95_999, at_seconds=10),
            total(115_200, at_seconds=60),
            total(115_200, at_seconds=60.5),
        ],
        ["near_limit", "", "", "near_limit"],
        id="postponed, not dropped",
    ),
    pytest.param(
        128 * K,
        [total(115_200, at_seconds=0), total(96_000, at_seconds=100), total(115_200, at_seconds=200)],
        ["near_limit", "", ""],
        id="armed again below three quarters only",
    ),
    pytest.param(
        128 * K,
        [
            total(121_601, at_seconds=0),
            total(121_601, at_seconds=50),
            total(60_000, at_seconds=55),
            total(115_200, at_seconds=100),
            total(115_200, at_seconds=111),
        ],
        ["near_limit compact", "compact", "", "", "near_limit"],
        id="the cooldown counts from a compaction, too",
    ),
    pytest.param(128 * K, [total(18_500), {"set_limit": 20_000}], ["", "near_limit"], id="M7"),
    pytest.param(128 * K, [total(60), NO_USAGE, total(0)], ["", "", ""], id="M3"),
]


@pytest.mark.parametrize(("limit", "steps", "expected"), ANNOUNCED)
def test_mew_reference_announces_at_nine_tenths_and_compacts_above_nineteen_twentieths(
    limit: int, steps: list[Line], expected: list[str]
) -> None:
    assert said("mew-reference", limit, *steps) == expected


def test_m1_a_report_replaces_the_one_before() -> None:
    first = {"usage": {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}}
    second = {"usage": {"prompt_tokens": 70, "completion_tokens": 12}}
    assert [line["used_tokens"] for line in lines("mew-reference", 128 * K, first, second)] == [60, 82]


@pytest.mark.parametrize("step", [NO_USAGE, total(0)], ids=["M2", "M3"])
@pytest.mark.parametrize("preset", ["mew", "mew-reference"])
def test_without_usage_the_size_is_unknown_and_never_the_old_one(preset: str, step: Line) -> None:
    line = lines(preset, 128 * K, total(82), step)[-1]
    assert (line["level"], line["basis"], line["actions"]) == ("unknown", "unknown", [])
    assert "used_tokens" not in line


def test_mew_reference_aims_at_seven_tenths() -> None:
    for limit, target in ((128 * K, 89_600), (90, 63), (170, 119), (180, 126)):
        (action,) = lines("mew-reference", limit, total(limit))[0]["actions"][1:]
        assert action == {"type": "compact", "target_tokens": target}


def test_mew_compacts_before_a_request_that_would_not_fit() -> None:
    steps = [asking(123_904), asking(123_905), total(115_200), asking(115_200), NO_USAGE]
    assert said("mew", 128 * K, *steps) == ["", "compact", "near_limit compact", "", "compact"]


def test_mew_does_not_compact_for_hidden_reasoning() -> None:
    usage = {
        "prompt_tokens": 100_000,
        "completion_tokens": 20_000,
        "total_tokens": 120_000,
        "completion_tokens_details": {"reasoning_tokens": 19_000},
    }
    assert said("mew", 128 * K, {"usage": usage}) == ["near_limit"]


# -- five states ----------------------------------------------------------------------------------------------


def test_t6_twenty_small_messages_go_through_all_states() -> None:
    found = said("tachikoma", 100, *[user(7)] * 20)
    assert {number: words for number, words in enumerate(found, 1) if words} == {
        8: "state_changed nominal elevated",
        11: "state_changed elevated warning suggest",
        13: "state_changed warning critical approaching_redline",
        15: "state_changed critical redlined redlined",
    }
    assert lines("tachikoma", 100, *[user(7)] * 20)[-1]["used_tokens"] == 140


@pytest.mark.parametrize(
    ("used", "level"),
    [
        pytest.param(99_999, "nominal", id="T1 below half"),
        pytest.param(100_000, "elevated", id="T1"),
        pytest.param(149_999, "elevated", id="T2 below three quarters"),
        pytest.param(150_000, "warning", id="T2"),
        pytest.param(169_999, "warning", id="below 85 %"),
        pytest.param(170_000, "critical", id="85 %"),
        pytest.param(180_000, "critical", id="T4"),
        pytest.param(199_999, "critical", id="T5 below"),
        pytest.param(200_000, "redlined", id="T5"),
        pytest.param(250_000, "redlined", id="T5 above"),
    ],
)
def test_tachikoma_states_begin_at_their_marks(used: int, level: str) -> None:
    assert levels("tachikoma", 200 * K, user(used)) == levels("tachikoma", 200 * K, total(used)) == [level]


def test_the_first_known_state_is_not_a_change_but_raises_alerts() -> None:
    assert said("tachikoma", 100, user(60)) == [""]
    assert said("tachikoma", 100, user(86)) == ["approaching_redline"]
    assert said("tachikoma", 100, user(100)) == ["redlined"]


def test_tachikoma_goes_on_counting_where_usage_is_missing() -> None:
    assert levels("tachikoma", 100, NO_USAGE, user(50), NO_USAGE, user(25)) == [
        "nominal",
        "elevated",
        "elevated",
        "warning",
    ]


def test_messages_are_added_to_a_reported_total() -> None:
    reported, added = lines("tachikoma", 100, total(40), user(10))
    assert (reported["used_tokens"], reported["basis"]) == (40, "reported")
    assert (added["used_tokens"], added["basis"], added["level"]) == (50, "projected", "elevated")


def test_t14_a_clear_leaves_nothing_and_changes_the_state() -> None:
    line = lines("tachikoma", 100, user(140), CLEAR)[-1]
    assert (line["used_tokens"], line["level"]) == (0, "nominal")
    assert line["actions"] == [{"type": "state_changed", "from": "redlined", "to": "nominal"}]


def test_approaching_the_redline_is_announced_once_until_a_clear() -> None:
    steps = [user(86), {"set_limit": 200}, {"set_limit": 100}, CLEAR, user(86)]
    assert ["approaching_redline" in words for words in said("tachikoma", 100, *steps)] == [
        True,
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("messages", "expected"), [(10, []), (11, [600])], ids=["T10 ten", "T10 eleven"])
def test_more_than_ten_messages_of_a_person_are_worth_a_suggestion(messages: int, expected: list[int]) -> None:
    found = lines("tachikoma", 10 * K, *[user(100)] * messages)
    suggested = [action for line in found for action in line["actions"]]
    assert [action["tokens_saved"] for action in suggested] == expected
    assert all((action["type"], action["impact"]) == ("suggest", "low") for action in suggested)


def test_long_answers_are_worth_a_summary() -> None:
    answers = [{"message_tokens": tokens, "role": "assistant"} for tokens in (33, 1)]
    first, second = lines("tachikoma", 100, *answers)
    assert first["actions"] == []
    (action,) = second["actions"]
    assert (action["type"], action["impact"], action["tokens_saved"]) == ("suggest", "medium", 17)


# -- a sum of all calls ---------------------------------------------------------------------------------------

SPENDING = WrittenPolicy.model_validate(
    {
        "name": "ralph-loop",
        "measure": "cumulative",
        "rules": [
            {
                "action": "clear",
                "phase": "after_call",
                "when": [{"figure": "used", "op": "gt", "tokens": 150_000}],
                "reason": "redline",
            }
        ],
    }
)


def test_t15_a_spent_budget_stops_although_the_window_has_room() -> None:
    calls: list[Line] = [
        {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": K}}
        for prompt_tokens in range(20 * K, 41 * K, 5 * K)
    ]
    found = lines(SPENDING, 200 * K, *calls)
    assert [line["used_tokens"] for line in found] == [21 * K, 47 * K, 78 * K, 114 * K, 155 * K]
    assert [len(line["actions"]) for line in found] == [0, 0, 0, 0, 1]
    assert said(SPENDING, 200 * K, total(150_000), total(1), CLEAR, total(150_000)) == ["", "clear", "", ""]


# -- all of them ----------------------------------------------------------------------------------------------

EQUALITY: list[Any] = [
    # preset, limit, step at the mark, step one token on the other side, which of both does something
    ("mew", 128 * K, total(115_199), total(115_200)),
    ("mew", 128 * K, asking(123_904), asking(123_905)),
    ("mew-reference", 128 * K, total(115_199), total(115_200)),
    ("mew-reference", 128 * K, total(121_600), total(121_601)),
    ("dominds-v1", 128 * K, prompt(64_000), prompt(64_001)),
    ("dominds-v3", 128 * K, prompt(100_000), prompt(100_001)),
    ("dominds-v3", 128 * K, prompt(115_200), prompt(115_201)),
    ("lmstudio", 128 * K, asking(96_000), asking(96_001)),
    ("lmstudio", 128 * K, tool(64_000, 64_000), tool(64_000, 64_001)),
    ("lmstudio", 128 * K, tool(0, 128_000), tool(0, 128_001)),
    ("lmstudio", 128 * K, stream(115_199), stream(115_200)),
    ("lmstudio", 128 * K, stream(127_999), stream(128_000)),
    ("lmstudio", 128 * K, total(115_199), total(115_200)),
    ("lmstudio", 128 * K, total(127_999), total(128_000)),
    ("tachikoma", 128 * K, user(108_799), user(108_800)),
    ("tachikoma", 128 * K, user(127_999), user(128_000)),
]


def answer(tokens: int) -> Line:
    """A message of the agent itself."""
    return {"message_tokens": tokens, "role": "assistant"}


SECOND_STEPS: list[Any] = [
    # preset, what came before, step at the mark, step one token on the other side
    ("dominds-v1", prompt(70_000), prompt(64_000), prompt(63_999)),
    ("mew", total(115_200), total(96_000), total(95_999)),
    ("mew-reference", total(115_200), total(96_000), total(95_999)),
    ("tachikoma", user(1), user(63_998), user(63_999)),
    ("tachikoma", user(64_000), user(31_999), user(32_000)),
    ("tachikoma", user(1), answer(42_666), answer(42_667)),
]


@pytest.mark.parametrize(("preset", "first", "before", "at"), SECOND_STEPS)
def test_every_mark_that_looks_back_is_exact_to_the_token(preset: str, first: Line, before: Line, at: Line) -> None:
    """The last step shows whether an alert was armed again."""
    again = [total(115_200, at_seconds=1000)] if preset.startswith("mew") else []
    milder, harder = (said(preset, 128 * K, {**first, "at_seconds": 0}, step, *again) for step in (before, at))
    assert milder != harder


@pytest.mark.parametrize(("preset", "limit", "before", "at"), EQUALITY)
def test_every_mark_is_exact_to_the_token(preset: str, limit: int, before: Line, at: Line) -> None:
    milder, harder = said(preset, limit, before), said(preset, limit, at)
    assert milder != harder
    assert harder != [""]


@pytest.mark.parametrize(
    ("preset", "limit", "marks"),
    [
        ("mew", 128 * K, {115_200: "near_limit"}),
        ("mew-reference", 128 * K, {115_200: "near_limit"}),
        ("dominds-v1", 128 * K, {64_001: "caution"}),
        ("dominds-v3", 128 * K, {100_001: "caution", 115_201: "critical"}),
        ("lmstudio", 128 * K, {115_200: "near_limit", 128_000: "full"}),
        (
            "tachikoma",
            128 * K,
            {64_000: "elevated", 96_000: "warning", 108_800: "critical", 128_000: "redlined"},
        ),
    ],
)
def test_every_level_begins_at_its_mark_and_not_one_token_below(preset: str, limit: int, marks: dict[int, str]) -> None:
    policy, before = presets()[preset], presets()[preset].healthy
    for tokens, level in marks.items():
        assert level_of(policy, ContextSnapshot(tokens - 1, "reported", limit))[0] == before
        assert level_of(policy, ContextSnapshot(tokens, "reported", limit))[0] == level
        before = level


@pytest.mark.parametrize("preset", presets())
@given(limit=st.integers(1, 2_100_000), one=st.integers(0, 2_500_000), other=st.integers(0, 2_500_000), data=st.data())
def test_more_tokens_are_never_a_milder_level(
    preset: str, limit: int, one: int, other: int, data: st.DataObject
) -> None:
    names = presets()[preset].setting_names()
    settings = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, limit))) if names else {}
    policy = presets()[preset].configured(settings)
    low, high = (level_of(policy, ContextSnapshot(tokens, "reported", limit))[1] for tokens in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low <= high


HARSHER = {"": 0, "compact": 1, "compact restart": 2, "abort": 3}


@given(limit=st.integers(1250, 2_100_000), one=st.integers(0, 2_500_000), other=st.integers(0, 2_500_000))
@pytest.mark.parametrize("step", [asking, stream, total], ids=["pre_request", "stream", "after_call"])
def test_more_tokens_are_never_a_milder_remedy_of_lmstudio(step: Any, limit: int, one: int, other: int) -> None:
    low, high = (HARSHER[said("lmstudio", limit, step(tokens))[0]] for tokens in sorted((one, other)))
    assert low <= high


def test_six_policies_are_shipped_under_their_names() -> None:
    assert set(presets()) == {"mew", "mew-reference", "dominds-v1", "dominds-v3", "lmstudio", "tachikoma"}
    assert {name: policy.name for name, policy in presets().items()} == {name: name for name in presets()}


@pytest.mark.parametrize("preset", presets())
def test_a_preset_is_data_and_can_be_read_back(preset: str) -> None:
    policy = presets()[preset]
    assert WrittenPolicy.model_validate_json(policy.model_dump_json()).model_dump() == policy.model_dump()
