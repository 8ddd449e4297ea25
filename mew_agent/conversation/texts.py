"""[pure] The texts of an agent: its default system prompt, prompts about its own context, and reports of failures.

Figures are the policy's measure at that moment, or "unknown".
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from mew_board.figures import context_size, why_unknown
from mew_protocol.context_report import ContextReport, Injection
from mew_protocol.payloads.participant import Status

from mew_agent.context.policy import Policy

DEFAULT_SYSTEM_PROMPT = (
    "You are {name}, a participant in a shared workspace with people and other agents. Messages carry the name of"
    " their sender. Answer what is asked, briefly and truthfully; use the tools you are offered when they help."
)

# -- prompts about the context, for the model --------------------------------------------------------------

NOTICE = "[System notice about your context. It is not a message from a participant and not a new request.]"

CONTINUATION_PACKAGE = (
    "Call update_reminder (or add_reminder) at least once, so that a reminder holds a continuation package: the first"
    " step to take, where to look (files, names, search words), how to run and check, details that are easily lost."
)
NO_BARE_ANSWER = "Do not answer with an acknowledgement alone."

CONTEXT_CLEARED = (
    f"{NOTICE} A new course begins: {{reason}}. The earlier messages are gone from your context; your reminders are"
    " kept. Continue from them."
)

CLEARED_RESULT = "Your mind is cleared: a new course begins with your reminders."
CLEAR_REFUSED = (
    "nothing was cleared, because {siblings} failed in the same reply. Handle the failure first, then call"
    " clear_mind by itself."
)
CLEARED_BY_AGENT = "the agent cleared its mind"


class ContextUsage(NamedTuple):
    """How full a context is, in tokens by the policy's measure; None if not known."""

    used_tokens: int | None
    limit_tokens: int | None

    def sentence(self) -> str:
        """Return the usage in one sentence for the model."""
        if self.used_tokens is None:
            return "The size of your context is unknown: your last call reported no usage."
        if self.limit_tokens is None:
            return f"Your context holds {self.used_tokens:,} tokens; its limit is unknown."
        percent = self.used_tokens * 100 // self.limit_tokens
        return f"Your context holds {self.used_tokens:,} of {self.limit_tokens:,} tokens ({percent} %)."


def prompt_text(policy: Policy, level: str, remaining: int | None, usage: ContextUsage) -> str:
    """Return the prompt before a call at a level. In a countdown, it states the number of remaining prompts."""
    found = policy.level_named(level)
    mark = None if found is None else found.at.first_tokens(usage.limit_tokens)
    above = f" Its level is {level}{f', which starts at {mark:,} tokens' if mark else ''}."
    if remaining is None:
        then = "When the package is complete, call clear_mind to continue with a fresh context."
    elif remaining:
        more = "1 more notice follows" if remaining == 1 else f"{remaining} more notices follow"
        then = f"Then call clear_mind. {more}; after that your context is cleared without asking."
    else:
        then = "Then call clear_mind. This is the last notice: next, your context is cleared without asking."
    return f"{NOTICE} {usage.sentence()}{above} {CONTINUATION_PACKAGE} {then} {NO_BARE_ANSWER}"


def health_reminder(usage: ContextUsage) -> str:
    """Return the policy's own reminder, with the newest figures."""
    return (
        f"Context health: {usage.sentence()} Distil what matters into your reminders, then call clear_mind; large"
        " contexts make answers worse."
    )


def withheld_result(size_bytes: int, level: str, *, failed: bool) -> str:
    """Return the notice that replaces a tool result too large for this level."""
    outcome = "the call failed" if failed else "The call succeeded"
    return (
        f"{outcome}, but its result of {size_bytes:,} bytes was withheld, because your context is at level {level}."
        " Update your reminders and call clear_mind, or request less at once."
    )


def oversized_result(tokens: int, limit_tokens: int) -> str:
    """Return the notice that replaces a tool result that cannot be sent."""
    return f"a result of about {tokens:,} tokens does not fit a window of {limit_tokens:,}; it was left out."


# -- notices about the context, for people -----------------------------------------------------------------

COMPACTING = "⚙️ Compacting conversation history..."
COMPACTED = "✅ Context compacted, continuing..."
NOT_COMPACTED = "⚠️ The context could not be compacted: {problem}"

REMINDER_INJECTION: Final = Injection(kind="reminder", text="every request reminds the agent that its context is large")


def prompt_injection(level: str, remaining: int | None) -> Injection:
    """Return the injection in reports while the prompts of a level are in force."""
    if remaining is None:
        text = f"at {level} the agent is asked to update its reminders and to clear its mind"
        return Injection(kind="prompt", text=text)
    text = f"at {level} its context is cleared after {remaining} more prompt{'' if remaining == 1 else 's'}"
    return Injection(kind="countdown", remaining=remaining, text=text)


def tokens_of_limit(used_tokens: int | None, limit_tokens: int | None, basis: str) -> str:
    """Return the used tokens, the limit if there is one, and how the figure is known."""
    if used_tokens is None:
        return "unknown number of tokens"
    of = f" of {limit_tokens:,}" if limit_tokens else ""
    return f"{used_tokens:,}{of} tokens, {basis}"


def aborted(used_tokens: int | None, limit_tokens: int | None, basis: str) -> str:
    """Return the notice for a reply that ends because the window is full."""
    return f"⚠️ The context window is full: {tokens_of_limit(used_tokens, limit_tokens, basis)}"


# -- answers that are not the model's ----------------------------------------------------------------------

EMPTY_ANSWER = "(My model returned an empty answer.)"
INTERNAL_FAILURE = "An internal error occurred ({name}). Please ask again; my log has the details."
TOO_MANY_STEPS = "I stopped after {count} steps without reaching an answer. My steps so far are in my reasoning."
TOO_LONG = "I stopped after {seconds:g} seconds without reaching an answer. My steps so far are in my reasoning."
CANCELLED_RESULT = "[cancelled before it finished]"
TOO_OLD = "Your message reached me too late ({age} after you sent it), so I did not work on it. Please ask again."
TOO_LARGE = "My answer was not sent: {problem}. Please ask for a shorter one."
REFUSED_CALL = "[My call of {name} was refused: {problem}.]"
GAVE_UP = "I was restarted {count} times while I worked on your message, so I stopped. Please ask in another way."

CutReason = Literal["context_full", "max_tokens", "content_filter"]

_CUT_REASONS: Final[Mapping[CutReason, str]] = {
    "context_full": "my context window is full",
    "max_tokens": "my model reached the limit of one reply",
    "content_filter": "my model's provider withheld the rest",
}


def context_sentence(status: Status) -> str:
    """Return the agent's own context in one sentence, from the report that everyone reads."""
    report: ContextReport | None = status.context
    if status.tokens is None or report is None:
        last = report.last_reported if report else None
        known = f"; last reported {last.tokens:,} tokens" if last else ""
        return f"The size of my context is not known ({why_unknown(report)}{known})."
    return f"My context is unchanged at {context_size(status.tokens, status.max_tokens, report)}."


def failed_call_text(error: Exception, status: Status) -> str:
    """Return the answer after a failed model call."""
    return f"{_sentence(error)} {context_sentence(status)}"


def cut_short_text(text: str, reason: CutReason) -> str:
    """Return an incomplete answer with a mark."""
    return f"{text.rstrip()}\n\n[My answer ends here: {_CUT_REASONS[reason]}.]".lstrip()


def does_not_fit_text(error: Exception, limit_tokens: int, *, result_tokens: int = 0) -> str:
    """Return the answer for a turn that exceeds the window; without `result_tokens`, the message itself is too
    large.
    """
    window = f"my window of {limit_tokens:,} tokens, even with everything else compacted"
    if result_tokens:
        return (
            f"{_sentence(error)} What my tools returned for your message (about {result_tokens:,} tokens, projected)"
            f" does not fit {window}; I left both out of my context. Please ask for less at a time."
        )
    return (
        f"{_sentence(error)} Your message alone does not fit {window}; I left it out of my context. Please send it in"
        " smaller parts."
    )


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('. ')}."
