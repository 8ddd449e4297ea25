"""[pure] Token usage as a provider reported it for one call: the only reader of usage objects.

Owns their keys (of providers and of libraries), the context size after a reply with several calls, and the check for
plausible usage (of calls and of programs). Does not know the call.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

from mew_protocol.json_values import object_at, objects_at, value_at

# Fifteen digits are far above any window and still exact as a float.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}(\.0{1,15})?", re.ASCII)
_MAX_TOKENS = 10**15
# In addition to the prompt's figure: Anthropic, and Bedrock.
CACHE_APART = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens")
_SERVER_TOOLS = ("server_tool_use", "server_tool_use_details", "server_side_tool_usage_details")
"""Objects that count the calls of tools that the provider's server ran; Anthropic, OpenRouter; xAI."""
_FILLING: Final = ("message", "fallback_message")
"""Types of inner calls with a reply to the conversation; Anthropic. The second is by another model, after a refusal."""
_LAST_CALL: Final = "context_details"
"""The last of the calls in a sum, which gives the context's size; xAI."""

# Keys of the figures: OpenAI's two APIs and Anthropic, then Google, Ollama, LangChain, pydantic-ai and CrewAI.
_PROMPT: Final = ("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count")
_COMPLETION: Final = (
    *("completion_tokens", "output_tokens", "candidates_token_count", "response_token_count", "eval_count"),
    "thoughts_token_count",  # Google, for a reply with thoughts only
)
_TOTAL: Final = ("total_tokens", "total_token_count")
_CACHED: Final = (
    *("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_content_token_count"),
    *("input_token_details.cache_read", "cache_read_tokens", "cached_prompt_tokens"),
)
_AUDIO: Final = "prompt_tokens_details.audio_tokens"
"""A part of the prompt, except where the total shows that it is counted apart; Mistral."""
_REASONING: Final = (
    *("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens", "thoughts_token_count"),
    *("output_tokens_details.thinking_tokens", "output_token_details.reasoning"),  # Anthropic; LangChain
    *("output_reasoning_tokens", "reasoning_tokens"),
)
_CALLS: Final = ("requests", "successful_requests")
"""How many calls an object adds up; openai-agents, pydantic-ai; CrewAI."""
_WITH_DEFAULTS: Final = (*_CALLS, "cache_read_tokens")
"""Objects with one of these keys have 0 for details that the provider did not report."""
_OF_SEVERAL: Final = frozenset(
    {*_CALLS, *_SERVER_TOOLS, "tool_use_prompt_token_count", "iterations", "request_usage_entries"}
)
"""Without any of these keys, an object is about one call of the model."""
_NESTING: Final = 4
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, as its provider reported them. Unknown is None and never 0.

    The figures are the tokens in context. `inner` has the sums of all inner calls of the server, which are all billed,
    if the provider reports each call.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    total_computed: bool = False  # the provider reported no total; it is prompt + completion
    cache_added: bool = False  # the prompt count excluded cached tokens; they were added
    is_provisional: bool = False  # the reply went on after this report, so completion and total are too small
    is_sum: bool = False  # a sum over several calls by the server, which is larger than the context
    inner: "Usage | None" = None

    @property
    def is_plain(self) -> bool:
        """True if the figures describe one whole call."""
        return not (self.is_provisional or self.is_sum)

    @property
    def billed(self) -> "Usage":
        """The billed figures."""
        return self.inner or self

    @property
    def generated_tokens(self) -> int:
        """All tokens that the model wrote; some providers count hidden reasoning only in the total."""
        return self.total_tokens - self.prompt_tokens

    @property
    def contradicts_itself(self) -> bool:
        """Whether the figures are impossible: an empty prompt, or a total below its parts."""
        return not self.prompt_tokens or self.total_tokens < self.prompt_tokens + self.completion_tokens


def read_usage(raw: object) -> Usage | None:
    """Read one provider's usage object; None if it is unreadable."""
    if not isinstance(raw, Mapping):
        return None
    if not _OF_SEVERAL.isdisjoint(raw) and (calls := _inner_calls(raw)):
        return _of_inner_calls(calls)
    usage = _of_object(raw)
    last = _of_object(object_at(raw, _LAST_CALL)) if usage is not None and usage.is_sum else None
    return usage if last is None else replace(last, inner=usage)


def usage_from(raw: object) -> Usage | None:
    """Read the usage object of a provider or a library as it is: a mapping, a model, a dataclass; None if unreadable.

    `is_sum`: the object sums several calls. If it also lists each call, the last one gives the context size.
    """
    return raw if isinstance(raw, Usage) else read_usage(_plain(raw, _NESTING))


def _plain(value: object, levels: int) -> Any:
    """Return an object as a mapping with snake-case keys, and the same for its parts."""
    if value is None or isinstance(value, str | int | float | type) or not levels:
        return value
    if isinstance(value, list | tuple):
        return [_plain(one, levels - 1) for one in value]
    return {
        _CAPITAL.sub("_", name).lower(): _plain(one, levels - 1)
        for name, one in _attributes(value).items()
        if isinstance(name, str) and not name.startswith("_")
    }


def _attributes(value: object) -> Mapping[Any, object]:
    if isinstance(value, Mapping):
        return value
    slots = {one.name: getattr(value, one.name, None) for one in fields(value)} if is_dataclass(value) else {}
    extra = getattr(value, "model_extra", None)  # of a pydantic model
    return {**slots, **getattr(value, "__dict__", {}), **(extra if isinstance(extra, Mapping) else {})}


def _of_object(raw: Mapping[str, object]) -> Usage | None:
    """Read the figures of an object without its inner calls."""
    prompt, completion = _figure(raw, *_PROMPT), _figure(raw, *_COMPLETION)
    if prompt is None or completion is None:
        return None
    total_computed = all(raw.get(key) is None for key in _TOTAL)
    total = prompt + completion if total_computed else _figure(raw, *_TOTAL)
    # Servers send zeros until they know the figures.
    if not total:
        return None
    cached, excluded = _cache(raw, prompt, completion, None if total_computed else total)
    audio = _figure(raw, _AUDIO) or 0
    prompt += excluded + (audio if total == prompt + audio + completion else 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(total, prompt + completion) if excluded else total,
        reasoning_tokens=_detail(raw, *_REASONING),
        cached_tokens=cached,
        total_computed=total_computed,
        cache_added=excluded > 0,
        is_sum=not _OF_SEVERAL.isdisjoint(raw) and _is_sum(raw),
    )


def _cache(raw: Mapping[str, object], prompt: int, completion: int, total: int | None) -> tuple[int | None, int]:
    """Return the cached tokens, and how many of them the prompt's figure excludes."""
    cached = _detail(raw, *_CACHED)
    if cached is None:
        return _cache_apart(raw, prompt, completion, total)
    # Figures that add up stay unchanged, cached or not; others exclude the cache if they add up with it.
    return cached, cached if cached > prompt and total == prompt + cached + completion else 0


def _cache_apart(raw: Mapping[str, object], prompt: int, completion: int, total: int | None) -> tuple[int | None, int]:
    """Return the same for an object with separate keys for the cache."""
    apart = [tokens for key in CACHE_APART if (tokens := _whole_number(raw.get(key))) is not None]
    if not apart:
        return None, 0
    size = sum(apart)
    # Without a total, servers with `input_tokens` count the cache separately; for others, the figures decide.
    is_apart = total is None and (raw.get("prompt_tokens") is None or size > prompt)
    return apart[0], size if is_apart or total == prompt + size + completion else 0


def _detail(raw: Mapping[str, object], *paths: str) -> int | None:
    """Return a detailed figure; None for the default 0 of a library's object."""
    found = _figure(raw, *paths)
    return found or None if any(key in raw for key in _WITH_DEFAULTS) else found


def _is_sum(raw: Mapping[str, object]) -> bool:
    """Return whether the figures sum several calls, including the server's own calls."""
    return (
        (_figure(raw, *_CALLS) or 0) > 1
        or bool(_whole_number(raw.get("tool_use_prompt_token_count")))  # Google
        or any(_whole_number(one) for key in _SERVER_TOOLS for one in object_at(raw, key).values())
    )


def _inner_calls(raw: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the calls that an object lists; none if the last one, which gives the context size, is missing."""
    inner = objects_at(raw, "iterations")
    if any(one.get("type") in _FILLING for one in inner):
        return inner
    inner = objects_at(raw, "request_usage_entries")  # without an entry for a call that reported no usage
    is_each = len(inner) == _figure(raw, *_CALLS)
    return [{"type": _FILLING[0], "requests": 1, **one} for one in inner] if is_each else ()


def _of_inner_calls(calls: Sequence[Mapping[str, object]]) -> Usage | None:
    """Read the usage of a reply with listed inner calls; the last one gives the context size."""
    each = [(call.get("type"), _of_object(call)) for call in calls]
    known = [one for _, one in each if one is not None]
    filling = next(one for kind, one in reversed(each) if kind in _FILLING)
    return filling if filling is None or len(known) < 2 else replace(filling, inner=_sum_of(known))


def _sum_of(calls: Sequence[Usage]) -> Usage:
    cached = [one.cached_tokens for one in calls]
    return Usage(
        prompt_tokens=sum(one.prompt_tokens for one in calls),
        completion_tokens=sum(one.completion_tokens for one in calls),
        total_tokens=sum(one.total_tokens for one in calls),
        cached_tokens=None if None in cached else sum(filter(None, cached)),
        is_sum=True,
    )


def usage_in(chunk: Mapping[str, object]) -> Usage | None:
    """Return the usage in a chunk of a stream or in a whole body, wherever it is; None if there is none."""
    choices = chunk.get("choices")
    first_choice = choices[0] if isinstance(choices, list) and choices else None
    places = (chunk, chunk.get("x_groq"), first_choice)
    found = [place.get("usage") for place in places if isinstance(place, Mapping)]
    return next(filter(None, map(read_usage, (*found, chunk))), None)


def _figure(raw: Mapping[str, object], *paths: str) -> int | None:
    """Return the first reported figure at these paths."""
    found = (_whole_number(value_at(raw, *path.split("."))) for path in paths)
    return next((tokens for tokens in found if tokens is not None), None)


def positive_count(value: object) -> int | None:
    """Return the value if it is a whole number above 0, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _whole_number(value: object) -> int | None:
    """Return a count of 0 or more; None for anything else, including booleans."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < _MAX_TOKENS or value != int(value):
        return None
    return int(value)


LARGEST_WINDOW: Final = 100_000_000
"""Stands for a window that is not known. The largest ones have a tenth of it."""

TEXT_FACTOR: Final = 2
"""A prompt that is this many times as long as its text is not explained by it. A smaller one beyond the window is: the
window is wrong."""

JUMP_FACTOR: Final = 1000
JUMP_LEAST_TOKENS: Final = 128  # minimum for shorter prompts, so that a first large text is not a jump


def implausibility(
    usage: Usage,
    *,
    window_tokens: int | None = None,
    before: int | None = None,
    project: Callable[[], int] | None = None,
) -> str | None:
    """Return why a usage is implausible; None if it is plausible.

    `before` is the last reported prompt, or None. `project` returns a projection or an upper bound of the prompt from
    its text; it is rarely called. Pass only a known window.
    """
    prompt, generated = usage.prompt_tokens, usage.generated_tokens
    if usage.contradicts_itself:
        return f"prompt {prompt:,}, completion {usage.completion_tokens:,}, total {usage.total_tokens:,}"
    most = LARGEST_WINDOW if window_tokens is None else window_tokens
    if generated > most:
        return f"a reply of {generated:,} tokens in a window of {most:,}"
    if usage.total_tokens > most and not _explains(most if project is None else project(), prompt):
        return f"a prompt of {prompt:,} tokens and a reply of {generated:,} in a window of {most:,}"
    if before is not None and project is not None and _has_jumped(prompt, before):
        text = project()
        if not (_explains(text, prompt) and _explains(prompt, text)):
            return f"a prompt of {prompt:,} tokens after one of {before:,}"
    return None


def _has_jumped(prompt: int, before: int) -> bool:
    """Return whether one of two prompts is so much larger that the text must explain it."""
    low, high = min(prompt, before), max(prompt, before)
    return high >= JUMP_FACTOR * max(low, JUMP_LEAST_TOKENS)


def _explains(text_tokens: int, prompt_tokens: int) -> bool:
    return prompt_tokens <= TEXT_FACTOR * text_tokens
