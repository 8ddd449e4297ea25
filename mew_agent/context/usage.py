"""[pure] What a provider reported for one call, in one shape.

Owns the rules that turn the usage object of any OpenAI-compatible server into a `Usage`, and that choose
between several usage objects of one stream (architecture section 5). It does not know which call it was.
"""

from dataclasses import dataclass


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
