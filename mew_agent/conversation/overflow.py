"""[pure] What a call that failed or ended early tells of the window: what was too large, and what follows from that."""

from typing import Final, Literal

from mew_agent.context.policy import CompactAction
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import ModelReply

Cut = Literal["context_full", "max_tokens", "content_filter"]

_FULL_PERCENT: Final = 98
"""Servers stop a reply at the end of the window or a few tokens before it."""


def is_overflow(error: ModelError, tracker: Tracker) -> bool:
    """A named overflow, or a server that ends the stream before it began when the window is nearly full."""
    if isinstance(error, ContextOverflow):
        return True
    nearly_full = tracker.ledger.next_prompt_tokens * 10 >= tracker.window.max_tokens * 9
    return isinstance(error, ModelStreamCut) and error.chunks == 0 and nearly_full


def learn_window(error: ModelError, tracker: Tracker) -> None:
    """Believe an error that names the limit (see `context.window`)."""
    if isinstance(error, ContextOverflow):
        tracker.window_changed(learn_from_overflow(tracker.window, error.limit_tokens))


def overflow_compaction(tracker: Tracker) -> CompactAction:
    """The compaction before a refused request is sent once more: to half of the window, or of what was refused."""
    window_tokens = tracker.window.max_tokens
    present_tokens = tracker.ledger.next_prompt_tokens
    return CompactAction("overflow_error", min(window_tokens, present_tokens) // 2)


def why_cut(reply: ModelReply, tracker: Tracker) -> Cut | None:
    """Why a reply is not whole; None when it is. `length` alone does not say whether the window ended it."""
    if reply.finish_reason == "content_filter":
        return "content_filter"
    if reply.finish_reason != "length":
        return None
    total_tokens = tracker.ledger.next_prompt_tokens if reply.usage is None else reply.usage.total_tokens
    return "context_full" if total_tokens * 100 >= tracker.window.max_tokens * _FULL_PERCENT else "max_tokens"
