"""[pure] What failed and incomplete calls reveal about the window, and how far to compact before the next attempt."""

from dataclasses import replace
from typing import Final, Literal

from mew_agent.context.policy import CompactAction
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import ModelReply, Window

CutReason = Literal["context_full", "max_tokens", "content_filter"]

_FULL_PERCENT: Final = 98  # servers stop a reply at the end of the window or a few tokens before it


def is_overflow(error: ModelError, tracker: Tracker) -> bool:
    """Return whether the prompt did not fit: an overflow error, or an empty stream when the window is nearly full."""
    if isinstance(error, ContextOverflow):
        return True
    nearly_full = tracker.ledger.next_prompt_tokens * 10 >= tracker.window.max_tokens * 9
    return isinstance(error, ModelStreamCut) and error.chunks == 0 and nearly_full


def window_after(error: ModelError, window: Window) -> Window:
    """Return the window after an error that may name the real limit (see `context.window`)."""
    return learn_from_overflow(window, error.limit_tokens) if isinstance(error, ContextOverflow) else window


def overflow_compaction(tracker: Tracker) -> CompactAction:
    """Return the compaction before a refused request is repeated: to half of the window, or of the refused prompt."""
    window_tokens = tracker.window.max_tokens
    present_tokens = tracker.ledger.next_prompt_tokens
    return CompactAction("overflow_error", min(window_tokens, present_tokens) // 2)


def halved(action: CompactAction, prompt_tokens: int) -> CompactAction:
    """Return the compaction of a prompt that left no room for a reply or a result: to at most half of that prompt."""
    # The policy's target counts the reply or result too, which is not part of the prompt.
    return replace(action, target_tokens=min(action.target_tokens, prompt_tokens // 2))


def cut_reason(reply: ModelReply, tracker: Tracker) -> CutReason | None:
    """Return why a reply is incomplete; None if it is not. `length` alone does not tell whether the window is full."""
    if reply.finish_reason == "content_filter":
        return "content_filter"
    if reply.finish_reason != "length":
        return None
    total_tokens = tracker.ledger.next_prompt_tokens if reply.usage is None else reply.usage.total_tokens
    return "context_full" if total_tokens * 100 >= tracker.window.max_tokens * _FULL_PERCENT else "max_tokens"
