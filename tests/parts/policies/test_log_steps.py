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
        ('{"usage": {"prompt_tokens": 5, "x": 1}}', Step("usage", usage={"prompt_tokens": 5, "x": 1})),
        ('{"usage": null}', Step("usage")),
        ('{"pre_request_tokens": 0}', Step("pre_request_tokens", 0)),
        ('{"current_tokens": 3, "tool_result_tokens": 4}', Step("tool_result_tokens", 4, current_tokens=3)),
        ('{"stream_tokens": 9}', Step("stream_tokens", 9)),
        ('{"message_tokens": 7, "role": "user"}', Step("message_tokens", 7, role="user")),
        ('{"message_tokens": 7}', Step("message_tokens", 7)),
        ('{"clear": true}', Step("clear")),
        ('{"set_limit": 1}', Step("set_limit", 1)),
        (
            ' {"clear": true, "user_prompt": true, "queue_busy": false, "user_chain": true, "at_seconds": 1.5} \n',
            Step("clear", flags=GenerationFlags(user_prompt=True, user_chain=True), at_seconds=1.5),
        ),
    ],
)
def test_a_line_is_one_step(line: str, step: Step) -> None:
    assert read_step(line) == step


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("usage", "malformed JSON"),
        ('{"usage": null', "malformed JSON"),
        ("[" * 100_000, "malformed JSON"),
        ("5", "expected a JSON object, got 5"),
        ("{}", "expected one of usage, pre_request_tokens"),
        ('{"usages": null}', "expected one of usage"),
        ('{"usage": null, "clear": true}', "'usage' and 'clear' are two steps"),
        ('{"clear": true, "role": "user"}', "unknown key 'role' next to 'clear'"),
        ('{"usage": null, "user_promt": true}', "unknown key 'user_promt' next to 'usage'"),
        ('{"tool_result_tokens": 4}', "'current_tokens' must be a whole number of tokens, 0 or more, got null"),
        ('{"stream_tokens": -1}', "'stream_tokens' must be a whole number of tokens, 0 or more, got -1"),
        ('{"stream_tokens": 1.5}', "got 1.5"),
        ('{"stream_tokens": true}', "got true"),
        ('{"stream_tokens": "9"}', 'got "9"'),
        ('{"stream_tokens": 1000000000000000}', "got 1000000000000000"),
        ('{"stream_tokens": NaN}', "NaN is not a JSON number"),
        ('{"stream_tokens": 1, "stream_tokens": 2}', "'stream_tokens' is given twice"),
        ('{"set_limit": 0}', "'set_limit' must be a whole number of tokens, 1 or more, got 0"),
        ('{"set_limit": null}', "got null"),
        ('{"clear": false}', "'clear' must be true, got false"),
        ('{"usage": 5}', "'usage' must be the provider's object"),
        ('{"usage": {"prompt_tokens": "a"}}', "'usage.prompt_tokens' must be a number of tokens or null, got \"a\""),
        ('{"usage": {"total_tokens": true}}', "'usage.total_tokens' must be a number"),
        ('{"message_tokens": 1, "role": "robot"}', 'one of system, user, assistant, tool, got "robot"'),
        ('{"message_tokens": 1, "role": ["user"]}', "'role' must be one of"),
        ('{"clear": true, "user_prompt": 1}', "'user_prompt' must be true or false, got 1"),
        ('{"clear": true, "at_seconds": "noon"}', "'at_seconds' must be a number"),
        ('{"clear": true, "at_seconds": Infinity}', "Infinity is not a JSON number"),
        ('{"usage": "' + "x" * 1000 + '"}', "xxx..."),
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
