"""Contradictions that are refused when a policy is created. More are in test_contradictions.py."""

from typing import Any

import pytest
from pydantic import ValidationError

from mew_agent.parts.policies.presets import DOMINDS_V3, LMSTUDIO
from mew_agent.parts.policies.written import WrittenPolicy

USED = {"figure": "used", "op": "ge", "fraction": "9/10"}
COMPACT = {"action": "compact", "phase": "after_call", "when": [USED], "trigger": "t", "target": "1/2"}
SPENT = {"figure": "used", "op": "gt", "tokens": 150_000}
REPORTED: dict[str, Any] = {"bases": ["reported"]}
LEVEL = {"name": "full", "severity": 3, "at": USED}


def inject(level: str) -> dict[str, Any]:
    return {"action": "inject", "level": level, "repeat": {"kind": "countdown", "steps": 2}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a sum of all calls compared with the window": ({"measure": "cumulative", "levels": [LEVEL]}, "cumulative"),
    "a compaction by a sum of all calls": (
        {"measure": "cumulative", "rules": [{**COMPACT, "when": [SPENT]}]},
        "does not lower a cumulative figure",
    ),
    "a compaction to a part of a sum of all calls": (
        {
            "measure": "cumulative",
            "rules": [{**COMPACT, "when": [{**SPENT, "figure": "next_prompt"}], "target_of": "used"}],
        },
        "does not lower a cumulative figure",
    ),
    "a warning by a sum of all calls": (
        {"measure": "cumulative", "rules": [{"action": "near_limit", "when": [SPENT], "rearm_below": "3/4"}]},
        "never be armed again",
    ),
    "a summary without a writer": ({"rules": [{**COMPACT, "method": "summarise"}]}, "neither a `summariser`"),
    "reports before the request": (
        {**REPORTED, "rules": [{**COMPACT, "phase": "pre_request"}]},
        "there are none in the phase 'pre_request'",
    ),
    "reports during the stream": (
        {**REPORTED, "rules": [{**COMPACT, "phase": "stream"}]},
        "there are none in the phase 'stream'",
    ),
    "a level by reports that moves with messages": ({**REPORTED, "phases": ["message_added"]}, "'message_added'"),
    "an unknown figure that is trusted": ({"bases": ["unknown"]}, "reported, projected"),
    "calls whose reports it does not trust": ({"bases": ["projected"]}, "does not trust the figures that calls report"),
    "a ceiling that nothing reaches": ({"ceiling": "2/1"}, "above the whole window"),
    "nothing that is trusted": ({"bases": []}, "reported, projected"),
    "a level that is called unknown": ({"levels": [{**LEVEL, "name": "unknown"}]}, "different names"),
    "a level that ends at its mark": ({"levels": [{**LEVEL, "at": {**USED, "op": "lt"}}]}, "`lt`"),
    "prompts at no level": ({"rules": [inject("critical")]}, "no level 'critical'"),
    "two prompts at one level": ({"levels": [LEVEL], "rules": [inject("full"), inject("full")]}, "at the same level"),
    "an alert at no level": ({"rules": [{"action": "redlined", "level": "gone"}]}, "no level 'gone'"),
    "large results at no level": ({"large_results": {"levels": ["gone"]}}, "no level 'gone'"),
    "a restart without a reply": ({"rules": [{**COMPACT, "restart": True}]}, "the phase 'after_call' has none"),
    "a compaction of nothing": ({"rules": [{**COMPACT, "target_of": "used", "target": "1/1"}]}, "nothing would shrink"),
    "a tool result after the call": (
        {"rules": [{**COMPACT, "when": [{"figure": "tool_result", "op": "gt", "fraction": "1/1"}]}]},
        "no tool result to compare",
    ),
    "a stop of nothing at the end of a task": (
        {"rules": [{"action": "abort", "phase": "task_end", "when": [USED], "reason": "full"}]},
        "nothing to stop at the end of a task",
    ),
    "a suggestion of two kinds": (
        {"rules": [{"action": "suggest", "role": "user", "impact": "low", "keep_newest": 5, "saves": "1/2"}]},
        "needs either",
    ),
    "a suggestion of no kind": ({"rules": [{"action": "suggest", "role": "user", "impact": "low"}]}, "needs either"),
    "an unknown action": ({"rules": [{"action": "explode"}]}, "explode"),
    "an unknown phase": ({"rules": [{**COMPACT, "phase": "sometimes"}]}, "sometimes|phase"),
    "a countdown of nothing": (
        {"levels": [LEVEL], "rules": [{**inject("full"), "repeat": {"kind": "countdown", "steps": 0}}]},
        "greater than or equal to 1",
    ),
}


@pytest.mark.parametrize(("values", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_contradiction_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        WrittenPolicy.model_validate({"name": "p", **values})


@pytest.mark.parametrize("values", [{"levels": [LEVEL], "rules": [COMPACT, inject("full")]}, {"rules": [COMPACT]}])
def test_the_valid_parts_of_the_refused_policies_are_accepted(values: dict[str, Any]) -> None:
    assert WrittenPolicy.model_validate({"name": "p", **values}).name == "p"


def test_a_summary_rule_needs_a_summariser_or_a_fallback() -> None:
    values = LMSTUDIO.model_dump(exclude={"name", "fallback", "summariser"})
    for given in ({"summariser": "same"}, {"fallback": "drop_oldest"}):
        assert WrittenPolicy.model_validate({**values, "name": "p", **given}).name == "p"
    with pytest.raises(ValidationError, match="neither"):
        WrittenPolicy.model_validate({**values, "name": "p"})


def test_settings_may_make_a_level_unreachable_but_a_file_may_not() -> None:
    settings = {"optimal_max_tokens": 150_000, "critical_max_tokens": 120_000}
    configured = DOMINDS_V3.configured(settings)
    assert [level.at.tokens for level in configured.levels] == [150_000, 120_000]
    with pytest.raises(ValidationError, match="'caution' can never be true"):
        WrittenPolicy.model_validate(configured.model_dump())
