"""What a rule compares, and what it is made of."""

from mew_agent.context.policy import PRESETS
from mew_agent.context.policy.rules import Cadence, InjectRule, conditions_of


def test_every_rule_tells_what_it_compares() -> None:
    told = {name: sum(len(conditions_of(rule)) for rule in policy.rules) for name, policy in PRESETS.items()}
    assert told == {
        "mew": 5,
        "mew-reference": 2,
        "dominds-v1": 3,
        "dominds-v3": 0,
        "lmstudio": 7,
        "tachikoma": 0,
    }


def test_a_cadence_takes_its_setting_by_either_name() -> None:
    cadence = Cadence(generations=10, override="long", aliases=("short",))
    assert cadence.configured({}).generations == 10
    assert cadence.configured({"short": 2}).generations == 2
    assert cadence.configured({"short": 2, "long": 3}).generations == 3
    assert cadence.configured({"long": 0, "short": 2}).generations == 2


def test_prompts_belong_to_ended_calls() -> None:
    rules = [rule for policy in PRESETS.values() for rule in policy.rules if isinstance(rule, InjectRule)]
    assert rules
    assert {rule.phase for rule in rules} == {"after_call"}
