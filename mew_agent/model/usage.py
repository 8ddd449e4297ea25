"""[pure] Token usage as a provider reported it for one call. Does not know which call that was."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Fifteen digits are far beyond any window and still exact as a float.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}(\.0{1,15})?", re.ASCII)
_MAX_TOKENS = 10**15


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


def normalise(raw: Mapping[str, object] | None) -> Usage | None:
    """Read one provider's usage object; None if its figures cannot be trusted."""
    if raw is None:
        return None
    prompt = _whole_number(raw.get("prompt_tokens"))
    completion = _whole_number(raw.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    total_computed = raw.get("total_tokens") is None
    total = prompt + completion if total_computed else _whole_number(raw.get("total_tokens"))
    # Servers send zeros until they know the figures.
    if not total:
        return None
    cached = _detail(raw, "prompt_tokens_details", "cached_tokens")
    cache_added = cached is not None and cached > prompt
    if cached is not None and cache_added:
        # More cached than sent: this server's prompt count excludes cached tokens.
        if total < prompt + cached + completion:
            total = max(total, prompt + completion) + cached
        prompt += cached
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        reasoning_tokens=_detail(raw, "completion_tokens_details", "reasoning_tokens"),
        cached_tokens=cached,
        total_computed=total_computed,
        cache_added=cache_added,
    )


def newest_usage(before: Usage | None, raw: object) -> Usage | None:
    """The usage of a stream after one more chunk with this `usage` value, whatever its `choices` are."""
    # Providers put usage on the finish chunk, after it, before an empty last chunk, or on each chunk as a running
    # figure. So a later report replaces an earlier one and is never added to it; null and zeros replace nothing.
    return (normalise(raw) if isinstance(raw, Mapping) else None) or before


def _detail(raw: Mapping[str, object], group: str, key: str) -> int | None:
    details = raw.get(group)
    return _whole_number(details.get(key)) if isinstance(details, Mapping) else None


def _whole_number(value: object) -> int | None:
    """A count of 0 or more; None for everything else (booleans are not counts)."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < _MAX_TOKENS or value != int(value):
        return None
    return int(value)
