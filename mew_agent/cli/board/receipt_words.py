"""[pure] Read receipts as text: one line, and the story of a message.

Owns the words for what a context still holds of a message. What a receipt says is `mew_protocol.payloads.receipts`.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from mew_board import words
from mew_protocol.payloads.receipts import InContext, ReadReceipt

FORMS: Final = {
    "whole": "in its context word for word",
    "shortened": "in its context, shortened",
    "reference": "in its context as a reference to the stored text",
    "summary": "only in the summary",
    "recoverable": "no longer in its context; `mew recall {participant} WORDS` finds it",
    "gone": "no longer in its context",
    "no": "not in its context",
    "unknown": "unknown whether it is in its context",
}

_CHANGED: Final[dict[InContext, str]] = {
    "shortened": "shortened",
    "reference": "as a reference",
    "summary": "now in its summary",
    "recoverable": "found by recall",
    "gone": "no longer in its context",
    "unknown": "unknown what is left of it",
}
"""What a mark adds if the context no longer holds the whole message."""


def mark(receipt: ReadReceipt) -> str:
    """Return a receipt in a few words: `✓ read by coder in call 14, now in its summary`, `coder: queued, place 2`."""
    changed = _CHANGED.get(receipt.in_context) if receipt.is_read else None
    return words.clean(f"{'✓ ' if receipt.is_read else ''}{receipt}{f', {changed}' if changed else ''}")


def line(receipt: ReadReceipt) -> str:
    """Return a receipt with what the context holds of the message."""
    return words.clean(f"{receipt}; {_form(receipt)}" if receipt.state != "stored" else str(receipt))


def story(receipt: ReadReceipt, now: datetime) -> Iterator[str]:
    """Yield each step in the life of a message at one participant, oldest first."""
    for step in receipt.history:
        at = words.clock(step.at, now) if step.at is not None else "?"
        what = words.words(step.what)
        call = f" {step.call}" if step.call is not None else ""
        change = f" ({step.trigger} {step.compaction})" if step.compaction is not None else ""
        yield words.clean(f"{at}  {what}{call}{change}")


def _form(one: ReadReceipt) -> str:
    form = FORMS[one.in_context].format(participant=one.participant)
    if one.in_context == "summary":
        form += f" of compaction {one.compaction}, {one.summary}" if one.compaction is not None else f", {one.summary}"
    reason = f" ({one.reason})" if one.in_context == "unknown" and one.is_read and one.reason else ""
    return form + reason
