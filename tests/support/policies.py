"""Small policies, one for each way in which a policy may differ from `mew`."""

from mew_agent.context.policy import Policy
from mew_agent.context.policy import definition as r
from mew_agent.context.policy.threshold import Condition, mark

KNOWN_WINDOW = Policy(
    name="known-window",
    on_missing="keep_last",
    limit_missing="error",
    rules=(r.CompactRule(phase="after_call", trigger="after_call", target="1/2", when=(mark("used", "ge", "9/10"),)),),
)
"""Needs a known window, and keeps the last size after a call without usage."""

PROMPT_ONLY = Policy(
    name="prompt-only",
    measure="prompt",
    bases=("reported",),
    limit_missing="unknown",
    levels=(r.Level(name="caution", severity=1, at=mark("used", "gt", "1/2")),),
)
"""Compares reported prompts only; shows nothing without a window."""

COUNTING = Policy(
    name="counting",
    phases=("message_added", "after_call"),
    healthy="nominal",
    levels=(
        r.Level(name="elevated", severity=1, at=mark("used", "ge", "1/2")),
        r.Level(name="full", severity=3, at=mark("used", "ge", "1/1"), needs_reset=True),
    ),
    redline="9/10",
)
"""Adds up messages as they enter."""

PROMPTING = Policy(
    name="prompting",
    levels=(
        r.Level(name="caution", severity=1, at=Condition(figure="used", op="gt", tokens=100_000)),
        r.Level(name="critical", severity=3, at=mark("used", "gt", "9/10")),
    ),
)
"""Has two levels, at which other policies prompt the model."""
