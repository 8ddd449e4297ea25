"""Valid lines of each kind, and errors for invalid ones."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.policy import GenerationFlags
from mew_agent.parts.policies.log_steps import BadStep, Step, read_step


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ('{"usage": {"prompt_tokens": 5, "x": 1}}', Step.model_validate({"usage": {"prompt_tokens": 5, "x": 1}})),
        ('{"usage": null}', Step(usage=None)),
        ('{"pre_request_tokens": 0}', Step(pre_request_tokens=0)),
        ('{"current_tokens": 3, "tool_result_tokens": 4}', Step(tool_result_tokens=4, current_tokens=3)),
        ('{"stream_tokens": 9}', Step(stream_tokens=9)),
        ('{"message_tokens": 7, "role": "user"}', Step(message_tokens=7, role="user")),
        ('{"message_tokens": 7}', Step(message_tokens=7)),
        ('{"clear": true}', Step(clear=True)),
        ('{"set_limit": 1}', Step(set_limit=1)),
        (
            ' {"clear": true, "user_prompt": true, "at_seconds": 1.5} \n',
            Step(clear=True, user_prompt=True, at_seconds=1.5),
        ),
    ],
)
def test_a_line_is_one_step(line: str, step: Step) -> None:
    assert read_step(line) == step
    assert read_step(line).model_fields_set == step.model_fields_set


def test_a_step_has_its_kind_number_and_flags() -> None:
    step = read_step('{"stream_tokens": 9, "user_prompt": true, "queue_busy": false, "user_chain": true}')
    assert (step.kind, step.tokens) == ("stream_tokens", 9)
    assert step.flags == GenerationFlags(user_prompt=True, user_chain=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("usage", "Invalid JSON: expected value"),
        ('{"usage": null', "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("5", "expected a JSON object"),
        ("{}", "expected one of usage, pre_request_tokens"),
        ('{"usages": null}', "unknown key 'usages'"),
        ('{"usage": null, "clear": true}', "'usage' and 'clear' are two steps"),
        ('{"clear": true, "role": "user"}', "unknown key 'role' next to 'clear'"),
        ('{"usage": null, "user_promt": true}', "unknown key 'user_promt'"),
        ('{"tool_result_tokens": 4}', "'current_tokens' is missing"),
        ('{"stream_tokens": -1}', "stream_tokens: must be at least 0, not -1"),
        ('{"stream_tokens": 1.5}', "must be a whole number, not 1.5"),
        ('{"stream_tokens": true}', "must be a whole number, not true"),
        ('{"stream_tokens": "9"}', "must be a whole number, not '9'"),
        ('{"stream_tokens": 1000000000000000}', "must be less than 1000000000000000"),
        ('{"stream_tokens": NaN}', "must be a whole number"),
        ('{"stream_tokens": 1, "stream_tokens": 2}', "'stream_tokens' is given twice"),
        ('{"usage": {"x": 1, "x": 1}}', "'x' is given twice"),
        ('{"set_limit": 0}', "set_limit: must be at least 1, not 0"),
        ('{"set_limit": null}', "'set_limit' must not be null"),
        ('{"clear": false}', "clear: must be true, not false"),
        ('{"clear": 1}', "clear: must be true, not 1"),
        ('{"summary_failed": false}', "summary_failed: must be true, not false"),
        ('{"usage": 5}', "usage: expected a JSON object"),
        ('{"usage": {"prompt_tokens": "a"}}', "usage.prompt_tokens: must be a number, not 'a'"),
        ('{"usage": {"completion_tokens": [1]}}', "usage.completion_tokens: must be a number"),
        ('{"usage": {"total_tokens": true}}', "usage.total_tokens: must be a number, not true"),
        ('{"usage": {"total_tokens": NaN}}', "usage.total_tokens: must be a finite number"),
        ('{"message_tokens": 1, "role": null}', "'role' must not be null"),
        ('{"clear": true, "at_seconds": null}', "'at_seconds' must not be null"),
        ('{"message_tokens": 1, "role": "robot"}', "role: must be 'system', 'user', 'assistant' or 'tool'"),
        ('{"message_tokens": 1, "role": ["user"]}', "role: must be"),
        ('{"clear": true, "user_prompt": 1}', "user_prompt: must be true or false, not 1"),
        ('{"clear": true, "at_seconds": "noon"}', "at_seconds: must be a number"),
        ('{"clear": true, "at_seconds": Infinity}', "at_seconds: must be a finite number"),
        ('{"usage": "' + "x" * 1000 + '"}', "usage: expected a JSON object"),
    ],
)
def test_an_invalid_line_is_refused_with_the_reason(line: str, said: str) -> None:
    with pytest.raises(BadStep) as refused:
        read_step(line)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["usage", "stream_tokens", "clear", "role", "at_seconds", "user_chain", "set_limit", "other"])


@given(st.text() | st.dictionaries(KEYS, JSON, max_size=3).map(json.dumps))
def test_any_line_is_a_step_or_refused(line: str) -> None:
    with suppress(BadStep):
        assert isinstance(read_step(line), Step)
