"""[pure] Sizes of history items for the ledger, and of replies from the usage of their calls."""

from dataclasses import dataclass

from mew_agent.context.history import Item, Summary, summary_text
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration, Units, features, most_tokens

_THINKING_TAG = "</think>"
"""Marks thinking that a server left in the visible text; templates remove it from older replies."""

MOST_TOKENS_PER_UNIT = 1.6
"""The most that measured tokenizers take of a text for each unit of its features (Chinese, Llama 2)."""

MOST_TEMPLATE_TOKENS = 16
"""Upper bound of a template's tokens for each message."""

IMAGE_TOKENS = 1_000
"""The projected size of an image, until the next report. Providers count from 85 to about 1,600."""


def most_of_text(units: float) -> int:
    """Return the most tokens that measured tokenizers produce for a text with these features."""
    return round(MOST_TOKENS_PER_UNIT * units)


@dataclass(frozen=True, slots=True)
class ItemSize:
    """The sizes and traits of one history item. Token figures are without the template's overhead."""

    seq: int
    features: float
    known_tokens: int | None = None  # reported size of a text from a model (a kept reply, a summary)
    tool_result: bool = False
    thinking: bool = False  # a reply whose thinking may be sent again or removed
    tool_calls: bool = False  # a reply with tool calls
    question: bool = False  # a user message; earlier calls are then old
    counted_tokens: int | None = None  # count of a tokenizer

    @property
    def is_unsteady(self) -> bool:
        """Whether a template may change its size once it is older."""
        return self.thinking or self.tool_calls

    def sized_tokens(self, calibration: Calibration) -> int | None:
        """Return the reported or counted size of its text; None if only projected."""
        if self.known_tokens is None and calibration.counts_fit:
            return self.counted_tokens
        return self.known_tokens

    def is_counted(self, calibration: Calibration) -> bool:
        """Return whether a trusted tokenizer counted its text."""
        return self.counted_tokens is not None and calibration.counts_fit

    def project(self, calibration: Calibration) -> int:
        """Project the item's tokens in a prompt, including the template's overhead."""
        sized = self.sized_tokens(calibration)
        return calibration.project(self.features) if sized is None else calibration.wrap(sized)

    def most_tokens(self, calibration: Calibration) -> int:
        """Return an upper bound of the item's tokens from its text alone, whatever was reported."""
        counted = self.counted_tokens if calibration.counts_fit else None
        return (most_of_text(self.features) if counted is None else counted) + MOST_TEMPLATE_TOKENS


def item_size(item: Item, counted_tokens: int | None = None, units: Units | None = None) -> ItemSize:
    """Return the size of an item. `units` are its features if known.

    Ignores a reported size that the text cannot have.
    """
    units, known = features(item.text()) if units is None else units, item.known_tokens
    if item.images:  # tokenizers do not count them
        return ItemSize(item.seq, units + IMAGE_TOKENS * len(item.images), tool_result=item.role == "tool")
    # With another tokenizer or with tool calls in it, a text takes at most twice its count. A larger figure includes
    # something that is not sent again.
    most = most_tokens(units) if counted_tokens is None else 2 * counted_tokens + 64
    if known is not None and known > most:
        known = None
    return ItemSize(
        seq=item.seq,
        features=units,
        known_tokens=known,
        tool_result=item.role == "tool",
        thinking=item.thinking or (item.role == "assistant" and _THINKING_TAG in item.content),
        tool_calls=bool(item.tool_calls),
        question=item.role == "user",
        counted_tokens=counted_tokens,
    )


def summary_size(summary: Summary, calibration: Calibration, counted_tokens: int | None = None) -> ItemSize:
    """Return the size of a summary as requests contain it, under its heading.

    `counted_tokens` is a tokenizer's count of it.
    """
    units, known = features(summary_text(summary.text)), summary.known_tokens
    if counted_tokens is not None and calibration.counts_fit:
        return ItemSize(-1, units, counted_tokens=counted_tokens)
    if known is not None:
        known += calibration.project(features(summary_text("")), messages=0)
    return ItemSize(-1, units, known)


def kept_reply_tokens(usage: Usage | None, *, thinking_seen: bool) -> int | None:
    """Return the tokens of a reply in later prompts, from the usage of its call; None if unknown."""
    if usage is None or not usage.is_plain:
        return None
    # If reasoning is counted outside the completion, the completion is the reply.
    if usage.prompt_tokens + usage.completion_tokens < usage.total_tokens:
        return usage.completion_tokens
    # Uncounted visible thinking is somewhere in the completion.
    if usage.reasoning_tokens is None:
        return None if thinking_seen else usage.completion_tokens
    return max(0, usage.completion_tokens - usage.reasoning_tokens)
