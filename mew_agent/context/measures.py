"""[pure] From an item of the history, and from the usage of a call, to what the ledger books."""

from mew_agent.context.ledger import Measure
from mew_agent.context.projection import features, most_tokens
from mew_agent.context.usage import Usage
from mew_agent.history import Item

_THINKING_TAG = "</think>"
"""Thinking that a server left in the visible text; templates strip it from older replies."""


def measure_of(item: Item) -> Measure:
    """What the ledger needs to know of an item.

    A reported size that its text cannot have counted something that is not sent again; it is then not known.
    """
    units = features(item.text())
    known = item.known_tokens
    return Measure(
        seq=item.seq,
        features=units,
        known_tokens=None if known is not None and known > most_tokens(units) else known,
        tool_result=item.role == "tool",
        thinking=item.thinking or (item.role == "assistant" and _THINKING_TAG in item.content),
        tool_calls=bool(item.tool_calls),
    )


def kept_reply_tokens(usage: Usage | None, *, thinking_seen: bool) -> int | None:
    """What a reply takes when it is sent again, from the usage of the call that wrote it; None: not known.

    Reasoning inside the completion is not sent again; where it lies outside (completion < total - prompt) the
    completion is the reply. Thinking that was seen but not counted leaves the size unknown.
    """
    if usage is None:
        return None
    if usage.prompt_tokens + usage.completion_tokens < usage.total_tokens:
        return usage.completion_tokens
    if usage.reasoning_tokens is None:
        return None if thinking_seen else usage.completion_tokens
    return max(0, usage.completion_tokens - usage.reasoning_tokens)
