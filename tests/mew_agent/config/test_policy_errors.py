"""Errors in a policy use the keys of its file."""

from typing import Any

import pytest
from pydantic import ValidationError

from mew_agent.config.policy_choice import policy_problem
from mew_agent.parts.policies.written import WrittenPolicy

USED = {"figure": "used", "op": "ge", "fraction": "9/10"}
COMPACT = {"action": "compact", "phase": "after_call", "when": [USED], "trigger": "t", "target": "1/2"}
LEVEL = {"name": "full", "severity": 3, "at": USED}
PROMPT = {"action": "inject", "level": "full"}


def reported(**values: Any) -> tuple[str | None, str]:
    with pytest.raises(ValidationError) as refused:
        WrittenPolicy.model_validate({"name": "x", **values})
    return policy_problem(refused.value.errors(include_url=False))


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        ({"name": 5}, "name", "name: must be a string"),
        ({"levls": []}, "levls", "unknown key 'levls' (did you mean 'levels'?)"),
        ({"basedon": "mew"}, "basedon", "unknown key 'basedon' (did you mean 'based_on'?)"),
        ({"zzz": 1}, "zzz", "unknown key 'zzz'"),
        ({"rules": 5}, "rules", "rules: must be a list"),
        ({"rules": [5]}, "rules", "rules[0]: must be a mapping"),
        ({"levels": ["full"]}, "levels", "levels[0]: must be a mapping"),
        ({"rules": [{"phase": "stream"}]}, "rules", "rules[0]: needs the key `action`"),
        ({"rules": [{**COMPACT, "when": []}]}, "rules", "rules[0].when: must not be empty"),
        ({"rules": [{**COMPACT, "when": [{**USED, "op": ">="}]}]}, "rules", "rules[0].when[0].op: must be 'ge'"),
        ({"levels": [{**LEVEL, "at": {**USED, "op": None}}]}, "levels", "levels[0].at.op: must be 'ge'"),
        ({"levels": [{"name": "full", "severity": 3}]}, "levels", "'levels[0].at' is missing"),
        ({"levels": [{**LEVEL, "at": {**USED, "fraction": 0.9}}]}, "levels", "0.9 is not a fraction; write 9/10"),
        (
            {"levels": [LEVEL], "rules": [{**PROMPT, "repeat": {"kind": "nap"}}]},
            "rules",
            "rules[0].repeat: unknown kind 'nap'; use 'cadence', 'countdown'",
        ),
        (
            {"levels": [LEVEL], "rules": [{**PROMPT, "repeat": {"kind": "cadence", "generations": 0}}]},
            "rules",
            "rules[0].repeat.generations: must be at least 1, not 0",
        ),
        ({"ceiling": "1/4", "rules": [COMPACT]}, None, "rule 't' has a target above the policy's ceiling"),
    ],
)
def test_an_invalid_policy_is_reported_with_key_and_problem(values: dict[str, Any], key: str | None, said: str) -> None:
    found_key, found = reported(**values)
    assert (found_key, said in found) == (key, True), found
    assert "Input" not in found


def test_an_unknown_kind_of_rule_lists_the_known_kinds() -> None:
    _, said = reported(rules=[{"action": "nap"}])
    assert said.startswith("rules[0]: unknown action 'nap'; use 'near_limit', ")
    _, said = reported(rules=[{"action": "nearlimit"}])
    assert said.startswith("rules[0]: unknown action 'nearlimit' (did you mean 'near_limit'?); use ")
    assert reported(measure="totl")[1].endswith(" (did you mean 'total'?)")


def test_a_misspelt_key_is_reported_before_a_missing_one() -> None:
    at = {"figure": "used", "op": "ge", "fraktion": "9/10"}
    key, said = reported(levels=[{**LEVEL, "at": at}], zzz=1)
    assert (key, said) == ("levels", "unknown key 'fraktion' in levels[0].at (did you mean 'fraction'?)")
