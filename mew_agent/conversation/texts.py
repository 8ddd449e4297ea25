"""[pure] What an agent tells its own model about its context, and the notices people see while it is compacted.

Each text for a model says that it is no request from anybody. Figures are the policy's measure at that moment; what is
not known is said to be unknown.
"""

from dataclasses import dataclass

from mew_agent.context.policy import AbortAction, ErrorAction, Policy

NOTICE = "[System notice about your context; nobody said this, and it is no new request.]"

TIDY = (
    "Call update_reminder (or add_reminder) at least once, so that a reminder holds a continuation package: the first"
    " step to take, where to look (files, names, search words), how to run and check, details that are easily lost."
)
NO_BARE_ANSWER = "An acknowledgement alone helps nobody."

NEW_COURSE = (
    f"{NOTICE} A new course begins: {{reason}}. What was said before is gone from your context; your reminders are"
    " kept. Go on from them."
)

CLEARED_RESULT = "Your mind is cleared: a new course begins with your reminders."
REFUSED_CLEAR = (
    "nothing was cleared, because {siblings} failed beside it. Look at the failure first, then call clear_mind"
    " by itself."
)

COMPACTING = "⚙️ Compacting conversation history..."
COMPACTED = "✅ Context compacted, continuing..."
NOT_COMPACTED = "⚠️ The context could not be compacted: {problem}"
CLEARED_ITSELF = "the agent cleared its mind"


@dataclass(frozen=True, slots=True)
class Fullness:
    """What texts say of a context, in tokens by the policy's measure; None where it is not known."""

    used_tokens: int | None
    limit_tokens: int | None

    def sentence(self) -> str:
        """How full it is."""
        if self.used_tokens is None:
            return "How much your context holds now is not known: your last call reported no usage."
        if self.limit_tokens is None:
            return f"Your context holds {self.used_tokens:,} tokens; how much fits is not known."
        percent = self.used_tokens * 100 // self.limit_tokens
        return f"Your context holds {self.used_tokens:,} of {self.limit_tokens:,} tokens ({percent} %)."


def prompt_text(policy: Policy, level: str, remaining: int | None, fullness: Fullness) -> str:
    """The prompt that goes before a generation at a level; in a countdown it says how many follow."""
    mark = _mark(policy, level, fullness.limit_tokens)
    above = f" Its level is {level}{f', from {mark:,} tokens on' if mark else ''}."
    if remaining is None:
        then = "As soon as that can be read at a glance, call clear_mind to go on with a fresh context."
    elif remaining:
        more = "1 more notice follows" if remaining == 1 else f"{remaining} more notices follow"
        then = f"Then call clear_mind. {more}; after that your context is cleared without asking."
    else:
        then = "Then call clear_mind. This is the last notice: next, your context is cleared without asking."
    return f"{NOTICE} {fullness.sentence()}{above} {TIDY} {then} {NO_BARE_ANSWER}"


def injection_line(level: str, remaining: int | None) -> str:
    """The same in one line, for people."""
    if remaining is None:
        return f"at {level} the agent is asked to put its reminders in order and to clear its mind"
    return f"at {level} its context is cleared after {remaining} more prompt{'' if remaining == 1 else 's'}"


REMINDED = "every request reminds the agent that its context is large"


def health_reminder(fullness: Fullness) -> str:
    """The policy's own reminder, rendered from the newest figures."""
    return (
        f"Context health: {fullness.sentence()} Distil what matters into your reminders, then call clear_mind; large"
        " contexts make answers worse."
    )


def problem_of(stop: AbortAction | ErrorAction) -> str:
    """Why a policy stops something."""
    return stop.problem if isinstance(stop, ErrorAction) else stop.reason


def of_window(used_tokens: int | None, limit_tokens: int | None, basis: str) -> str:
    """So many of so many tokens, and how that is known."""
    if used_tokens is None:
        return "how many tokens is not known"
    of = f" of {limit_tokens:,}" if limit_tokens else ""
    return f"{used_tokens:,}{of} tokens, {basis}"


def aborted(used_tokens: int | None, limit_tokens: int | None, basis: str) -> str:
    """The notice of a reply that ends because the window is full."""
    return f"⚠️ The context window is full: {of_window(used_tokens, limit_tokens, basis)}"


def withheld_result(size_bytes: int, level: str, *, failed: bool) -> str:
    """What stands in place of a tool result that is too large for a context at this level."""
    outcome = "the call failed" if failed else "The call succeeded"
    return (
        f"{outcome}, but its result of {size_bytes:,} bytes was withheld, because your context is at level {level}."
        " Put your reminders in order and call clear_mind, or ask for less at once."
    )


def oversized_result(tokens: int, limit_tokens: int) -> str:
    """What stands in place of a tool result that cannot be sent."""
    return f"a result of about {tokens:,} tokens does not fit a window of {limit_tokens:,}; it was left out."


def _mark(policy: Policy, level: str, limit_tokens: int | None) -> int | None:
    found = policy.level_named(level)
    return None if found is None else found.at.first_tokens(limit_tokens)
