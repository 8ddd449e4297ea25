"""[pure] Whether a provider's usage can be true: the only rule for it, for agents, meters and reports of programs.

Knows nothing of where the figures come from, or of what is done with those that cannot be true.
"""

from collections.abc import Callable
from typing import Final

from mew_agent.model.usage import Usage

LARGEST_WINDOW: Final = 100_000_000
"""Stands for a window that is not known. The largest ones have a tenth of it."""

TEXT_FACTOR: Final = 2
"""A prompt that is this many times as long as its text is not explained by it. A smaller one beyond the window is: the
window is wrong."""

JUMP_FACTOR: Final = 1000
JUMP_LEAST_TOKENS: Final = 128  # a shorter prompt counts as this long, so that a first large text is no jump


def implausibility(
    usage: Usage,
    *,
    window_tokens: int | None = None,
    before: int | None = None,
    project: Callable[[], int] | None = None,
) -> str | None:
    """Return why no call can have had this usage; None if it is plausible.

    `before` is the last reported prompt, None without; `project` returns a projection or an upper bound of the prompt
    by the text that was sent, which is rarely needed. Pass a window only if it is known.
    """
    prompt, generated = usage.prompt_tokens, usage.generated_tokens
    if usage.contradicts_itself:
        return f"prompt {prompt:,}, completion {usage.completion_tokens:,}, total {usage.total_tokens:,}"
    most = LARGEST_WINDOW if window_tokens is None else window_tokens
    if generated > most:
        return f"a reply of {generated:,} tokens in a window of {most:,}"
    if usage.total_tokens > most and not _explains(most if project is None else project(), prompt):
        return f"a prompt of {prompt:,} tokens and a reply of {generated:,} in a window of {most:,}"
    if before is None:
        return None
    low, high = (prompt, before) if prompt < before else (before, prompt)
    if high >= JUMP_FACTOR * low and high >= JUMP_FACTOR * JUMP_LEAST_TOKENS and project is not None:
        text = project()
        if not (_explains(text, prompt) and _explains(prompt, text)):
            return f"a prompt of {prompt:,} tokens after one of {before:,}"
    return None


def _explains(text_tokens: int, prompt_tokens: int) -> bool:
    return prompt_tokens <= TEXT_FACTOR * text_tokens
