"""`mew context simulate`, from the log to the lines and the exit code."""

import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Outcome, mew
from tests.support.context_logs import CLEAR, NO_USAGE, Line, prompt, total, user


async def simulate(
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    *steps: Line | str,
    limit: int | None = 128_000,
    more: tuple[str, ...] = (),
) -> Outcome:
    """Run the command with these lines on standard input."""
    log = "\n".join(step if isinstance(step, str) else json.dumps(step) for step in steps)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.encode())))
    bound = () if limit is None else ("--limit", str(limit))
    return await mew("context", "simulate", "--policy", policy, *bound, *more)


async def actions(monkeypatch: pytest.MonkeyPatch, policy: str, *steps: Line, **options: Any) -> list[list[Line]]:
    outcome = await simulate(monkeypatch, policy, *steps, more=("--json", *options.pop("more", ())), **options)
    assert (outcome.code, outcome.err) == (0, "")
    return [json.loads(line)["actions"] for line in outcome.out.splitlines()]


async def level_and_types(monkeypatch: pytest.MonkeyPatch, policy: str, step: Line) -> tuple[str, str]:
    outcome = await simulate(monkeypatch, policy, step, more=("--json",))
    line = json.loads(outcome.out)
    return line["level"], " ".join(action["type"] for action in line["actions"])


ROWS = [
    # id, prompt + completion; v1; v3; tachikoma; mew-reference; lmstudio after the call and before the next one
    ("X1", 60_000, 3_999, "", ("healthy", ""), "nominal", "", "", ""),
    ("X2", 63_000, 1_000, "", ("healthy", ""), "elevated", "", "", ""),
    ("X3", 64_001, 10, "remind", ("healthy", ""), "elevated", "", "", ""),
    ("X7", 110_000, 5_200, "remind", ("caution", "inject"), "critical", "near_limit", "compact", "compact"),
    ("X10", 120_000, 8_000, "remind", ("critical", "inject"), "redlined", "near_limit compact", "abort", "compact"),
]


@pytest.mark.parametrize(
    ("prompted", "completed", "v1", "v3", "state", "reference", "after", "before"),
    [pytest.param(*row[1:], id=row[0]) for row in ROWS],
)
async def test_presets_judge_the_same_call_differently(
    monkeypatch: pytest.MonkeyPatch,
    prompted: int,
    completed: int,
    v1: str,
    v3: tuple[str, str],
    state: str,
    reference: str,
    after: str,
    before: str,
) -> None:
    call = {"usage": {"prompt_tokens": prompted, "completion_tokens": completed, "total_tokens": prompted + completed}}
    asking = {"pre_request_tokens": prompted + completed}
    assert (await level_and_types(monkeypatch, "dominds-v1", call))[1] == v1
    assert await level_and_types(monkeypatch, "dominds-v3", call) == v3
    assert (await level_and_types(monkeypatch, "tachikoma", call))[0] == state
    assert (await level_and_types(monkeypatch, "mew-reference", call))[1] == reference
    assert (await level_and_types(monkeypatch, "lmstudio", call))[1] == after
    assert (await level_and_types(monkeypatch, "lmstudio", asking))[1] == before


@pytest.mark.parametrize(
    ("preset", "level"),
    [
        ("dominds-v1", "unknown"),
        ("dominds-v3", "unknown"),
        ("mew", "unknown"),
        ("mew-reference", "unknown"),
        ("lmstudio", "unknown"),
        ("tachikoma", "nominal"),
    ],
)
async def test_x11_call_without_usage_causes_no_action(
    monkeypatch: pytest.MonkeyPatch, preset: str, level: str
) -> None:
    assert await level_and_types(monkeypatch, preset, NO_USAGE) == (level, "")


async def test_every_kind_of_step_prints_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Line] = [
        total(5_000, user_prompt=True, at_seconds=1),
        NO_USAGE,
        {"pre_request_tokens": 6_000, "queue_busy": True},
        {"current_tokens": 6_000, "tool_result_tokens": 100, "user_chain": True},
        {"stream_tokens": 6_500},
        user(10),
        {"set_limit": 7_000},
        CLEAR,
    ]
    outcome = await simulate(monkeypatch, "lmstudio", *steps, limit=8_192, more=("--json",))
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [" ".join(a["type"] for a in line["actions"]) for line in lines] == [
        "",
        "",
        "compact",
        "",
        "",
        "",
        "compact",
        "",
    ]
    assert [line.get("used_tokens") for line in lines] == [5_000, 5_000, 6_000, 6_100, 6_500, 6_500, 6_500, None]


async def test_settings_replace_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("--set", "optimal_max_tokens=60000", "--set", "caution_cadence_generations=2")
    found = await actions(monkeypatch, "dominds-v3", *[prompt(60_001)] * 3, prompt(60_000), more=settings)
    assert found == [[{"type": "inject"}], [], [{"type": "inject"}], []]


async def test_invalid_setting_keeps_the_default_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await simulate(
        monkeypatch, "dominds-v3", prompt(100_000), prompt(100_001), more=("--json", "--set", "optimal_max_tokens=0")
    )
    assert [json.loads(line)["level"] for line in outcome.out.splitlines()] == ["healthy", "caution"]
    assert outcome.err == "mew: --set: optimal_max_tokens=0 is not a whole number of 1 or more; using the default\n"


async def test_d7_window_comes_from_the_models_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await actions(
        monkeypatch, "dominds-v1", prompt(64_000), prompt(64_001), limit=None, more=("--set", "input_length=128000")
    )
    assert found == [[], [{"type": "remind"}]]


async def test_d8_dominds_has_no_level_without_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await simulate(monkeypatch, "dominds-v1", prompt(190_000), limit=None, more=("--json",))
    assert json.loads(outcome.out) == {
        "step": 1,
        "level": "unknown",
        "basis": "reported",
        "used_tokens": 190_000,
        "actions": [],
    }


async def test_mew_assumes_a_window_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await simulate(monkeypatch, "mew", total(115_200), limit=None, more=("--json",))
    assert json.loads(outcome.out)["limit_tokens"] == 128_000
    assert outcome.err == "mew: no --limit; assuming a context window of 128,000 tokens\n"


@pytest.mark.parametrize("preset", ["lmstudio", "tachikoma"])
async def test_o14_policy_that_needs_a_window_refuses_to_start(monkeypatch: pytest.MonkeyPatch, preset: str) -> None:
    outcome = await simulate(monkeypatch, preset, total(1), limit=None)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("mew: --limit: is missing")
    assert preset in outcome.err


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (("provider=openai",), 2),
        (("provider=openai", "scope=any"), 0),
        (("provider=lmstudio",), 0),
        (("scope=all",), 2),
    ],
)
async def test_lmstudio_is_refused_for_other_providers_unless_scope_is_any(
    monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], code: int
) -> None:
    flags = tuple(word for setting in settings for word in ("--set", setting))
    assert (await simulate(monkeypatch, "lmstudio", total(1), more=flags)).code == code


BAD_FLAGS: list[tuple[tuple[str, ...], str]] = [
    (("--set", "optimal"), "has no value"),
    (("--set", "=5"), "has no value"),
    (("--set", "optimal_max_tokens=lots"), "(expected a number)"),
    (("--set", "optimal_tokens=5"), "unknown setting 'optimal_tokens' (did you mean 'optimal_max_tokens'?)"),
    (("--set", "size=5"), "unknown setting 'size' (expected one of optimal_max_tokens"),
    (
        ("--set", "caution_cadence_generations=3", "--set", "caution_remediation_cadence_generations=4"),
        "two names of one setting (expected one of them)",
    ),
    (("--input", "missing.jsonl"), "missing.jsonl cannot be read: No such file"),
    (("--limit", "0"), "--limit"),
    (("--set", "provider=openai"), "unknown setting 'provider'"),
]


@pytest.mark.parametrize(("flags", "said"), BAD_FLAGS)
async def test_wrong_option_is_reported_before_any_output(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], said: str
) -> None:
    outcome = await simulate(monkeypatch, "dominds-v3", total(1), more=flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


BAD_LINES = [
    "nonsense",
    '{"tokens": 5}',
    '{"stream_tokens": -1}',
    '{"usage": 5}',
    "[]",
    f'{{"stream_tokens": {"9" * 5000}}}',
    f'{{"usage": {{"prompt_tokens": {"9" * 5000}}}}}',
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:30])
async def test_bad_line_is_reported_by_number_and_ends_the_replay(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    outcome = await simulate(monkeypatch, "mew", total(1), "", line, total(1), more=("--json",))
    assert outcome.code == 2
    assert [json.loads(shown)["step"] for shown in outcome.out.splitlines()] == [1]
    assert outcome.err.startswith("mew: standard input, line 3: ")
    assert outcome.err.count("\n") == 1


async def test_log_is_read_from_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('\ufeff{"usage": null}\n\n{"usage": nil}\n', encoding="utf-8")
    outcome = await mew("context", "simulate", "--policy", "mew", "--limit", "9", "--json", "--input", str(log))
    assert (outcome.code, outcome.out.count("\n")) == (2, 1)
    assert f"{log}, line 3: Invalid JSON" in outcome.err


async def test_log_may_start_with_a_byte_order_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"usage": null}\r\n{"usage": null}\r\n'))
    )
    outcome = await mew("context", "simulate", "--policy", "mew", "--limit", "9", "--json")
    assert (outcome.code, outcome.out.count("\n"), outcome.err) == (0, 2, "")


async def test_limit_option_overrides_the_setting_and_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = ("--json", "--set", "context_length=100")
    outcome = await simulate(monkeypatch, "dominds-v3", total(1), limit=200, more=more)
    assert json.loads(outcome.out)["limit_tokens"] == 200
    assert outcome.err == "mew: --limit 200 overrides the 100 of --set\n"


async def test_policy_without_a_window_warns_that_it_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = await simulate(monkeypatch, "dominds-v1", total(1), limit=None, more=("--json",))
    assert json.loads(outcome.out)["level"] == "unknown"
    assert outcome.err == "mew: no --limit; without a context window dominds-v1 has no levels and does nothing\n"


async def test_binary_log_is_bad_input(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"usage": null}\n\xff\xfe\n')
    outcome = await mew("context", "simulate", "--policy", "mew", "--limit", "9", "--json", "--input", str(log))
    assert outcome.code == 2
    assert "is not UTF-8 text" in outcome.err


async def test_empty_log_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await simulate(monkeypatch, "mew", more=("--json",)) == Outcome(0, "", "")


async def test_simulate_prints_a_table_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await simulate(monkeypatch, "dominds-v3", prompt(190_000), NO_USAGE, limit=200_000)
    head, first, second = outcome.out.splitlines()
    assert head.split() == ["STEP", "LEVEL", "BASIS", "USED", "OF", "FULL", "ACTIONS"]
    assert first.split(maxsplit=6) == [
        "1",
        "critical",
        "reported",
        "190,000",
        "200,000",
        "95%",
        "inject critical prompt (4 left)",
    ]
    assert second.split() == ["2", "unknown", "unknown", "?", "200,000"]
    assert head.index("LEVEL") == first.index("critical") == second.index("unknown")
    assert head.index("ACTIONS") == first.index("inject")


async def test_narrow_terminal_shows_actions_below_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    outcome = await simulate(monkeypatch, "lmstudio", {"stream_tokens": 1_900_000}, total(1), limit=2_000_000)
    head, actions, first, said, second = outcome.out.splitlines()
    assert (head.split()[-1], actions.strip()) == ("FULL", "ACTIONS")
    assert first.split() == ["1", "near_limit", "projected", "1,900,000", "2,000,000", "95%"]
    assert said == " " * actions.index("ACTIONS") + "compact to 950,000, restart (1 of 3)"
    assert second.split() == ["2", "healthy", "reported", "1", "2,000,000", "0%"]
    assert all(len(line) <= 60 for line in outcome.out.splitlines())


@pytest.mark.parametrize(
    ("policy", "steps", "words"),
    [
        ("mew", [total(950)], "announce near_limit, compact to 500"),
        ("dominds-v1", [prompt(501)], "remind"),
        ("dominds-v1", [prompt(501), prompt(499)], "unremind"),
        ("dominds-v3", [prompt(950)] * 6, "clear (countdown at critical ended)"),
        ("lmstudio", [{"pre_request_tokens": 5}], "error: a window of 1000 tokens has no room"),
        ("lmstudio", [{"stream_tokens": 900}], "compact to 450, restart (1 of 3)"),
        ("lmstudio", [{"stream_tokens": 1000}], "abort (the context window is full)"),
        ("tachikoma", [user(1), user(899)], "nominal -> critical, approaching redline"),
        ("tachikoma", [user(1000)], "redlined"),
        ("tachikoma", [user(9)] * 11, "suggest: remove the 6 oldest user messages (saves 54, low impact)"),
    ],
)
async def test_table_shows_actions_in_words(
    monkeypatch: pytest.MonkeyPatch, policy: str, steps: list[Line], words: str
) -> None:
    outcome = await simulate(monkeypatch, policy, *steps, limit=1000)
    assert words in outcome.out.splitlines()[-1]


OWN_POLICY = """
name: team
based_on: dominds-v3
settings: {optimal_max_tokens: 60000, caution_remediation_cadence_generations: 2}
"""


async def test_file_defines_a_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(OWN_POLICY, encoding="utf-8")
    found = await actions(monkeypatch, "team.yaml", *[prompt(60_001)] * 3)
    assert [[action["type"] for action in line] for line in found] == [["inject"], [], ["inject"]]
    changed = await actions(monkeypatch, "team.yaml", prompt(70_000), more=("--set", "optimal_max_tokens=70000"))
    assert changed == [[]]


async def test_json_file_defines_a_complete_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used = {"figure": "used", "op": "ge", "fraction": "3/5"}
    policy = {
        "name": "early",
        "levels": [{"name": "filling", "severity": 1, "at": used}],
        "rules": [{"action": "compact", "phase": "after_call", "when": [used], "trigger": "early", "target": "30%"}],
    }
    (tmp_path / "early.json").write_text(json.dumps(policy), encoding="utf-8")
    found = await actions(monkeypatch, "early.json", total(599), total(600), limit=1000)
    assert found == [[], [{"type": "compact", "target_tokens": 300}]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mew\n", "bad.yaml:1:1: 'mew' is the name of a preset"),
        ("based_on: mew\n", "'name' is missing"),
        ("name: x\nbased_on: dominds-v2\n", "bad.yaml:2:1: unknown preset 'dominds-v2'"),
        ("name: x\nlevles: []\n", "bad.yaml:2:1: unknown key 'levles' (did you mean 'levels'?)"),
        ("name: x\nbased_on: dominds-v3\nsettings: {optimal: 5}\n", "bad.yaml:3:1: unknown setting 'optimal'"),
        ("name: x\nbased_on: mew\nsettings: {context_token_limit: lots}\n", "context_token_limit is 'lots'"),
        ("name: x\nbased_on: mew\nceiling: 1/4\n", "a target above the policy's ceiling"),
        ("name: x\nrules: [{action: nap}]\n", "rules[0]"),
        (
            "name: x\nlevels: [{name: full, severity: 3, at: {figure: used, op: ge, fraction: most}}]\n",
            "write 9/10 or 90%",
        ),
        ("- a list\n", "must be a mapping of settings"),
        ("name: [\n", "invalid YAML"),
    ],
)
async def test_invalid_policy_file_is_refused_with_its_position(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    outcome = await simulate(monkeypatch, "bad.yaml", total(1))
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


async def test_unknown_policy_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await simulate(monkeypatch, "unheard", total(1))
    assert outcome.code == 2
    assert "unknown policy 'unheard' (expected one of " in outcome.err
    assert "dominds-v3" in outcome.err
    misspelled = await simulate(monkeypatch, "tachicoma", total(1))
    assert misspelled.err.endswith("unknown policy 'tachicoma' (did you mean 'tachikoma'?)\n")


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "policies.md"


async def test_documented_output_of_simulate_is_what_it_prints(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    log, shown = re.findall(r"^```json(?: title=\S+)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "log.jsonl").write_text(log, encoding="utf-8")
    command = re.findall(r"^mew (context simulate .*--json.*)$", text, re.MULTILINE)[-1]
    assert await mew(*shlex.split(command)) == Outcome(0, shown, "")
