"""[pure] What a provider reported for one call, in one shape.

Owns the rules that turn the usage object of any OpenAI-compatible server into a `Usage`, and that choose
between several usage objects of one stream (architecture section 5). It does not know which call it was.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Fifteen digits are far beyond any window and still exact as a float.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}(\.0{1,15})?", re.ASCII)
_MOST_TOKENS = 10**15


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, as its provider reported them.

    All counts are tokens. `reasoning_tokens` and `cached_tokens` are None when the provider did not report
    them: unknown is never 0. `total_computed` says that the provider gave no total and it is prompt +
    completion. `cache_added` says that the provider's prompt count excluded cached tokens, so they were added.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    total_computed: bool = False
    cache_added: bool = False


def normalise(raw: Mapping[str, object] | None) -> Usage | None:
    """Turn one provider's usage object into a `Usage`, or None where it reports nothing that can be trusted.

    `raw` is the decoded JSON object as it came. Counts may be whole numbers in any spelling (`12`, `12.0`,
    `"12"`). None is returned for null, a missing or unusable prompt or completion count, an unusable total and
    a total of 0 (servers send zeros until the figure is known). A missing total is prompt + completion.
    """
    if raw is None:
        return None
    prompt = _whole_number(raw.get("prompt_tokens"))
    completion = _whole_number(raw.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    total_computed = raw.get("total_tokens") is None
    total = prompt + completion if total_computed else _whole_number(raw.get("total_tokens"))
    if not total:
        return None
    cached = _detail(raw, "prompt_tokens_details", "cached_tokens")
    cache_added = cached is not None and cached > prompt
    if cached is not None and cache_added:
        # More cached than sent: this server counts only what it did not find in its cache.
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


class StreamUsage:
    """Chooses the usage of one streamed call: the last one reported with a positive total.

    Feed it the raw usage of every chunk, whatever the chunk's `choices` are: providers put it on the finish
    chunk, after it, before an empty last chunk, or a running figure on each chunk. A later report replaces an
    earlier one and is never added to it; null and zero reports are passed over.
    """

    __slots__ = ("_usage",)

    def __init__(self) -> None:
        self._usage: Usage | None = None

    @property
    def usage(self) -> Usage | None:
        """The usage of the call so far, None while nothing usable was reported."""
        return self._usage

    def feed(self, raw: object) -> None:
        """Take the `usage` value of one chunk: an object, null, or whatever a server put there."""
        reported = normalise(raw) if isinstance(raw, Mapping) else None
        if reported is not None:
            self._usage = reported


def _detail(raw: Mapping[str, object], group: str, key: str) -> int | None:
    details = raw.get(group)
    return _whole_number(details.get(key)) if isinstance(details, Mapping) else None


def _whole_number(value: object) -> int | None:
    """A count of 0 or more; None for anything that is not a whole number (booleans are not counts)."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < _MOST_TOKENS or value != int(value):
        return None
    return int(value)
