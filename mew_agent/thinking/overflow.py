"""[pure] What a failed call tells of the window: whether the request was too large, and what follows from that."""

from mew_agent.context.policy import Compact
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut


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


def overflow_compaction(tracker: Tracker) -> Compact:
    """The compaction before a refused request is sent once more: to half of the window, or of what was refused."""
    window_tokens = tracker.window.max_tokens
    present_tokens = tracker.ledger.next_prompt_tokens
    return Compact("overflow_error", min(window_tokens, present_tokens) // 2, window_tokens * 7 // 10)
