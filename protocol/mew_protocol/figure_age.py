"""[pure] Decides when a figure is old: the size of a context that may have changed since its participant reported it.

Owns the rule and its words. A new status ends it. Does not know when anything happened.
"""

from typing import Literal

from mew_protocol.board_words import OUTDATED_WORDS
from mew_protocol.context_report import ContextReport

Outdated = Literal["before_join", "messages_since"]
"""Why a figure may not be true any more: its participant joined again since, or it sent or got chats since and reports
only when it is asked."""


def reports_only_when_asked(tokens: int | None, report: ContextReport | None) -> bool:
    """Return True if a figure is from a participant that does not report each change by itself."""
    return tokens is not None and report is None


def outdated_by(
    event: Literal["join", "chat"],
    tokens: int | None,
    report: ContextReport | None,
    before: Outdated | None = None,
) -> Outdated | None:
    """Return why a figure is old after its participant joined, or after a chat from or to it; None if it is not.

    `before` is why it was old already.
    """
    if tokens is None:
        return None
    if event == "join":
        return "before_join"
    return "messages_since" if before is None and reports_only_when_asked(tokens, report) else before


def span(seconds: float) -> str:
    """Return a duration in its largest unit: `12 min`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def old_figure(outdated: Outdated, age: str | None) -> str:
    """Say for people that a figure is old: `figure 12 min old, messages since`. `age` is without "ago"."""
    return f"figure {age or 'of unknown age'}{' old' if age else ''}, {OUTDATED_WORDS[outdated]}"
