"""[pure] Token usage as a provider reported it for one call. Does not know which call that was."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mew_protocol.json_values import value_at

# Fifteen digits are far beyond any window and still exact as a float.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}(\.0{1,15})?", re.ASCII)
_MAX_TOKENS = 10**15
_CACHE_APART = ("cache_read_input_tokens", "cache_creation_input_tokens")  # next to the prompt's figure, not in it


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, as its provider reported them. Unknown is None and never 0."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    total_computed: bool = False  # the provider reported no total, so it is prompt + completion
    cache_added: bool = False  # its prompt count excluded cached tokens, so they were added
    is_provisional: bool = False  # more of the reply arrived after this report, so completion and total are too small

    @property
    def contradicts_itself(self) -> bool:
        """Whether no call can have these figures: an empty prompt, or a total below one of its parts."""
        prompt, total = self.prompt_tokens, self.total_tokens
        return not prompt or total < prompt or total < self.completion_tokens


def normalise(raw: Mapping[str, object] | None) -> Usage | None:
    """Read one provider's usage object; None if its figures cannot be read."""
    if raw is None:
        return None
    prompt = _figure(raw, "prompt_tokens", "input_tokens")
    completion = _figure(raw, "completion_tokens", "output_tokens")
    if prompt is None or completion is None:
        return None
    total_computed = raw.get("total_tokens") is None
    total = prompt + completion if total_computed else _whole_number(raw.get("total_tokens"))
    # Servers send zeros until they know the figures.
    if not total:
        return None
    cached = _figure(raw, "prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens")
    apart = [tokens for key in _CACHE_APART if (tokens := _whole_number(raw.get(key))) is not None]
    excluded = cached if cached is not None and cached > prompt else 0
    if cached is None and apart:
        cached, size = apart[0], sum(apart)
        # Servers with `input_tokens` count the cache apart; of the others only those whose figures show it.
        is_apart = raw.get("prompt_tokens") is None or size > prompt or total == prompt + size + completion
        excluded = size if is_apart else 0
    if excluded:
        # This server's prompt count excludes cached tokens.
        if total < prompt + excluded + completion:
            total = max(total, prompt + completion) + excluded
        prompt += excluded
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        reasoning_tokens=_figure(
            raw, "completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"
        ),
        cached_tokens=cached,
        total_computed=total_computed,
        cache_added=excluded > 0,
    )


def usage_object(chunk: Mapping[str, object]) -> object:
    """Return the usage object in a chunk of a stream or in a whole body, wherever it is; None without one."""
    choices = chunk.get("choices")
    first_choice = choices[0] if isinstance(choices, list) and choices else None
    places = (chunk, chunk.get("x_groq"), first_choice)
    found = [place.get("usage") for place in places if isinstance(place, Mapping)]
    return next((raw for raw in (*found, chunk) if isinstance(raw, Mapping) and normalise(raw)), None)


def newest_usage(before: Usage | None, raw: object) -> Usage | None:
    """Return the usage of a stream after one more chunk with this usage object, whatever its `choices` are."""
    # Providers put usage on the finish chunk, after it, before an empty last chunk, or on each chunk as a running
    # figure. So a later report replaces an earlier one and is never added to it; null and zeros replace nothing.
    new = normalise(raw) if isinstance(raw, Mapping) else None
    if new is None or (before is not None and new.contradicts_itself and not before.contradicts_itself):
        return before
    return new


def _figure(raw: Mapping[str, object], *paths: str) -> int | None:
    """Return the first of the figures at these paths that is reported."""
    found = (_whole_number(value_at(raw, *path.split("."))) for path in paths)
    return next((tokens for tokens in found if tokens is not None), None)


def positive_count(value: object) -> int | None:
    """Return the value if it is a whole number above 0, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _whole_number(value: object) -> int | None:
    """Return a count of 0 or more; None for everything else (booleans are not counts)."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < _MAX_TOKENS or value != int(value):
        return None
    return int(value)
