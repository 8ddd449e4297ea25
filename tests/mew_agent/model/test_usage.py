"""Usage objects of providers, read into a `Usage`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.event_stream import Event
from mew_agent.model.reply_events import ReplyEvents
from mew_agent.model.usage import Usage, read_usage, usage_in

COUNTS = st.integers(min_value=0, max_value=2_000_000)


def usage(prompt: object, completion: object, total: object = None, **details: Any) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **details}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(usage(10, 5, 15), Usage(10, 5, 15), id="OpenAI"),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 5, 15, total_computed=True), id="no total"
        ),
        pytest.param(usage(10, 5, None), Usage(10, 5, 15, total_computed=True), id="null total"),
        pytest.param(usage("10", "5", "15"), Usage(10, 5, 15), id="strings"),
        pytest.param(usage(10.0, 5.0, 15.0), Usage(10, 5, 15), id="whole floats"),
        pytest.param(usage(" 10.0", "5.", "15"), None, id="a dot without digits is no number"),
        pytest.param(usage(10, 0, 10), Usage(10, 0, 10), id="empty completion"),
        pytest.param(usage(10, 5, 40), Usage(10, 5, 40), id="reasoning outside the completion"),
        pytest.param(
            usage(
                10, 5, 15, prompt_tokens_details={"cached_tokens": 8}, completion_tokens_details={"reasoning_tokens": 3}
            ),
            Usage(10, 5, 15, reasoning_tokens=3, cached_tokens=8),
            id="details",
        ),
        pytest.param(
            usage(10, 5, 15, prompt_tokens_details=None, completion_tokens_details={"reasoning_tokens": None}),
            Usage(10, 5, 15),
            id="details without figures stay unknown",
        ),
        pytest.param(
            usage(10, 5, 15, completion_tokens_details={"reasoning_tokens": 0}),
            Usage(10, 5, 15, reasoning_tokens=0),
            id="a reported 0 is a figure",
        ),
        pytest.param(
            usage(10, 5, 15, completion_tokens_details={"reasoning_tokens": -1}),
            Usage(10, 5, 15),
            id="a bad detail does not spoil the rest",
        ),
        pytest.param(
            usage(10, 5, 15, prompt_tokens_details={"cached_tokens": 100}),
            Usage(10, 5, 15, cached_tokens=100),
            id="figures that add up stand, whatever is cached",
        ),
        pytest.param(
            usage(10, 5, 115, prompt_tokens_details={"cached_tokens": 100}),
            Usage(110, 5, 115, cached_tokens=100, cache_added=True),
            id="cache outside the prompt, inside the total",
        ),
        pytest.param(
            usage(10, 5, 35, prompt_tokens_details={"cached_tokens": 100}),
            Usage(10, 5, 35, cached_tokens=100),
            id="cache beyond the prompt explains no total",
        ),
        pytest.param(
            usage(10, 5, prompt_tokens_details={"cached_tokens": 100}),
            Usage(10, 5, 15, cached_tokens=100, total_computed=True),
            id="cache beyond the prompt, no total",
        ),
        pytest.param({"input_tokens": 10, "output_tokens": 5}, Usage(10, 5, 15, total_computed=True), id="input"),
        pytest.param(
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 8},
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(10, 5, 15, reasoning_tokens=3, cached_tokens=8),
            id="input with details",
        ),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}},
            Usage(10, 5, 15, reasoning_tokens=3, total_computed=True),
            id="thinking",
        ),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7},
            Usage(107, 5, 112, cached_tokens=90, total_computed=True, cache_added=True),
            id="cache next to the input",
        ),
        pytest.param(
            usage(100, 5, 105, cache_read_input_tokens=90),
            Usage(100, 5, 105, cached_tokens=90),
            id="cache next to the prompt, inside it",
        ),
        pytest.param(
            usage(100, 5, 195, cache_read_input_tokens=90),
            Usage(190, 5, 195, cached_tokens=90, cache_added=True),
            id="cache next to the prompt, outside it",
        ),
        pytest.param(None, None, id="null"),
        pytest.param({}, None, id="empty"),
        pytest.param(usage(0, 0, 0), None, id="zeros until the last chunk"),
        pytest.param(usage(None, 5, 5), None, id="no prompt"),
        pytest.param(usage(10, None, 10), None, id="no completion"),
        pytest.param(usage(-1, 5, 4), None, id="negative"),
        pytest.param(usage(10, 5, -15), None, id="negative total"),
        pytest.param(usage(float("nan"), 5, 5), None, id="NaN"),
        pytest.param(usage(10, float("inf"), 5), None, id="infinite"),
        pytest.param(usage(10.5, 5, 15), None, id="a fraction"),
        pytest.param(usage("many", 5, 15), None, id="a word"),
        pytest.param(usage("1e3", 5, 15), None, id="an exponent"),
        pytest.param(usage("１０", 5, 15), None, id="digits of another script"),
        pytest.param(usage("9" * 5000, 5, 15), None, id="an endless number"),
        pytest.param(usage(True, 5, 15), None, id="a boolean is no count"),
        pytest.param(usage([10], 5, 15), None, id="a list"),
    ],
)
def test_every_provider_shape_is_normalised(raw: dict[str, object] | None, expected: Usage | None) -> None:
    assert read_usage(raw) == expected


@given(COUNTS, COUNTS)
def test_a_missing_total_is_prompt_plus_completion(prompt: int, completion: int) -> None:
    found = read_usage({"prompt_tokens": prompt, "completion_tokens": completion})
    if prompt + completion == 0:
        assert found is None
    else:
        assert found == Usage(prompt, completion, prompt + completion, total_computed=True)


@given(COUNTS, COUNTS, st.integers(min_value=1, max_value=2_000_000), COUNTS)
def test_a_reported_total_is_kept_unless_it_excludes_cache(
    prompt: int, completion: int, total: int, cached: int
) -> None:
    found = read_usage(usage(prompt, completion, total, prompt_tokens_details={"cached_tokens": cached}))
    assert found is not None
    assert found.cache_added == (cached > prompt and total == prompt + cached + completion)
    assert found.prompt_tokens == prompt + (cached if found.cache_added else 0)
    assert found.total_tokens == total


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WIRE_USAGES = st.dictionaries(
    st.sampled_from(
        ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"]
    ),
    JSON_VALUES | COUNTS | st.fixed_dictionaries({"cached_tokens": JSON_VALUES, "reasoning_tokens": JSON_VALUES}),
)


@given(WIRE_USAGES)
def test_no_count_is_negative_and_no_total_is_zero(raw: dict[str, object]) -> None:
    found = read_usage(raw)
    if found is not None:
        assert found.total_tokens > 0
        assert min(found.prompt_tokens, found.completion_tokens) >= 0
        assert found.reasoning_tokens is None or found.reasoning_tokens >= 0
        assert found.cached_tokens is None or found.cached_tokens >= 0


def usage_after(*reports: object) -> Usage | None:
    """Return the usage of a stream whose chunks have these usage objects."""
    events = ReplyEvents()
    for report in reports:
        events.read(Event({"usage": report}))
    return events.usage


@given(st.lists(st.none() | WIRE_USAGES | JSON_VALUES))
def test_the_last_usable_report_of_a_stream_is_its_usage(reports: list[object]) -> None:
    found = usage_after(*reports)
    usable = [one for report in reports if isinstance(report, dict) and (one := read_usage(report))]
    consistent = [one for one in usable if not one.contradicts_itself]
    found_in = consistent or usable
    assert found == (found_in[-1] if found_in else None)


@pytest.mark.parametrize(
    "chunk",
    [
        {"usage": usage(7, 3, 10)},
        {"usage": None, "x_groq": {"id": "r", "usage": usage(7, 3, 10)}},
        {"usage": usage(0, 0, 0), "choices": [{"index": 0, "usage": usage(7, 3, 10)}]},
        {"choices": [], "input_tokens": 7, "output_tokens": 3},
    ],
)
def test_usage_is_found_wherever_a_server_puts_it(chunk: dict[str, Any]) -> None:
    found = usage_in(chunk)
    assert found is not None
    assert (found.prompt_tokens, found.total_tokens) == (7, 10)


def test_running_usage_is_replaced_and_never_added() -> None:
    assert usage_after(*(usage(100, generated, 100 + generated) for generated in range(1, 6))) == Usage(100, 5, 105)


def test_zeros_and_nulls_after_the_usage_do_not_erase_it() -> None:
    assert usage_after(usage(0, 0, 0)) is None
    assert usage_after(usage(0, 0, 0), usage(7, 3, 10), None, usage(0, 0, 0)) == Usage(7, 3, 10)
