"""[pure] From an item of the history, and from the usage of a call, to what the ledger books."""

from dataclasses import dataclass

from mew_agent.context.history import Item
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration, Units, features, most_tokens

_THINKING_TAG = "</think>"
"""Thinking that a server left in the visible text; templates strip it from older replies."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the ledger knows of one history item. `seq` grows through the history.

    `known_tokens` is the reported size of a text a model wrote (a kept reply, a summary), `counted_tokens` what a
    tokenizer counted in its text; both without the template's overhead. `thinking` marks a reply whose thinking may be
    sent again or stripped, `tool_calls` one that asked for tools: templates write either another way once it is old,
    which moves prompts that it is long part of.
    """

    seq: int
    features: float
    known_tokens: int | None = None
    tool_result: bool = False
    thinking: bool = False
    tool_calls: bool = False
    counted_tokens: int | None = None

    @property
    def is_unsteady(self) -> bool:
        """Whether a template may give it another price later."""
        return self.thinking or self.tool_calls

    def sized_tokens(self, calibration: Calibration) -> int | None:
        """The size of its text where that was reported, or counted by the model's tokenizer; else it is projected."""
        if self.known_tokens is None and calibration.counts_fit:
            return self.counted_tokens
        return self.known_tokens

    def project(self, calibration: Calibration) -> int:
        """Tokens this item will probably take in a prompt, template overhead included."""
        sized = self.sized_tokens(calibration)
        return calibration.project(self.features) if sized is None else calibration.wrap(sized)


def measure_of(item: Item, counted_tokens: int | None = None, units: Units | None = None) -> Measure:
    """What the ledger needs to know of an item. `counted_tokens` is what a tokenizer counted in `item.text()`.

    `units` are the features of that text where somebody weighed it already.

    A reported size that its text cannot have counted something that is not sent again; it is then not known.
    """
    units, known = features(item.text()) if units is None else units, item.known_tokens
    if known is not None and known > (most_tokens(units) if counted_tokens is None else _most_counted(counted_tokens)):
        known = None
    return Measure(
        seq=item.seq,
        features=units,
        known_tokens=known,
        tool_result=item.role == "tool",
        thinking=item.thinking or (item.role == "assistant" and _THINKING_TAG in item.content),
        tool_calls=bool(item.tool_calls),
        counted_tokens=counted_tokens,
    )


def _most_counted(counted_tokens: int) -> int:
    """No provider reports more for a text of so many tokens, not even of another tokenizer's or with tool calls."""
    return 2 * counted_tokens + 64


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
