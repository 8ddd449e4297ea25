"""[pure] The words an agent says by itself: its default system prompt, and what it tells people when things fail."""

from collections.abc import Mapping
from typing import Final

from mew_protocol.context_report import ContextReport
from mew_protocol.payloads.participant import Status

from mew_agent.conversation.overflow import Cut

DEFAULT_SYSTEM_PROMPT = (
    "You are {name}, a participant in a shared workspace with people and other agents. Messages carry the name of"
    " their sender. Answer what is asked, briefly and truthfully; use the tools you are offered when they help."
)

EMPTY_ANSWER = "(My model returned an empty answer.)"
TOO_MANY_STEPS = "I stopped after {count} steps without reaching an answer. What I did so far is in my reasoning."
TOO_LONG = "I stopped after {seconds:g} seconds without reaching an answer. What I did so far is in my reasoning."
CANCELLED_RESULT = "[cancelled before it finished]"

_WHY_CUT: Final[Mapping[Cut, str]] = {
    "context_full": "my context window is full",
    "max_tokens": "my model may not write more at a time",
    "content_filter": "my model's provider withheld the rest",
}


def context_sentence(status: Status) -> str:
    """The agent's own context in one sentence, from the same report that everybody reads."""
    report: ContextReport | None = status.context
    if status.tokens is None or report is None:
        reason = (report.reason or "unknown").replace("_", " ") if report else "unknown"
        last = report.last_reported if report else None
        known = f"; last reported {last.tokens:,} tokens" if last else ""
        return f"The size of my context is not known ({reason}{known})."
    of = f" of {status.max_tokens:,}" if status.max_tokens else ""
    return f"My context is unchanged at {status.tokens:,}{of} tokens ({report.basis})."


def failure_text(error: Exception, status: Status) -> str:
    """What the asker reads when a model call failed."""
    return f"{_sentence(error)} {context_sentence(status)}"


def cut_short_text(text: str, why: Cut) -> str:
    """What there is of an answer, and that it is not all of it."""
    return f"{text.rstrip()}\n\n[My answer ends here: {_WHY_CUT[why]}.]".lstrip()


def does_not_fit_text(error: Exception, limit_tokens: int, *, result_tokens: int = 0) -> str:
    """What the asker reads when a turn alone is larger than the window.

    `result_tokens` is what tools returned in it, as projected; with 0 it is the message itself that is too large.
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
