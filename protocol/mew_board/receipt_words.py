"""[pure] Read receipts as text: one line, and the story of a message.

The words for forms are in `mew_board.shared_words`. `mew_protocol.payloads.read_receipts` defines receipts.
"""

from collections.abc import Iterator
from datetime import datetime

from mew_protocol.payloads.read_receipts import ReadReceipt

from mew_board import words
from mew_board.quoting import clean
from mew_board.shared_words import RECEIPT_CHANGES, RECEIPT_FORMS


def mark(receipt: ReadReceipt) -> str:
    """Return a receipt in a few words: `✓ read by coder in call 14, now in its summary`, `coder: queued, place 2`."""
    changed = RECEIPT_CHANGES.get(receipt.in_context) if receipt.is_read else None
    return clean(f"{'✓ ' if receipt.is_read else ''}{receipt}{f', {changed}' if changed else ''}")


def line(receipt: ReadReceipt) -> str:
    """Return a receipt with the form of the message in the context."""
    return clean(f"{receipt}; {_form(receipt)}" if receipt.state != "stored" else str(receipt))


def steps(receipt: ReadReceipt) -> list[tuple[str | None, str]]:
    """Return the steps of a message at one participant, each with time and words, oldest first."""
    found = []
    for step in receipt.history:
        call = f" {step.call}" if step.call is not None else ""
        change = f" ({step.trigger} {step.compaction})" if step.compaction is not None else ""
        found.append((step.at, clean(f"{words.words(step.what)}{call}{change}")))
    return found


def story(receipt: ReadReceipt, now: datetime) -> Iterator[str]:
    """Yield each step as a line with its time of day."""
    return (f"{words.clock(at, now)}  {step}" for at, step in steps(receipt))


def _form(one: ReadReceipt) -> str:
    form = RECEIPT_FORMS[one.in_context].format(participant=one.participant)
    if one.in_context == "summary":
        form += f" of compaction {one.compaction}, {one.summary}" if one.compaction is not None else f", {one.summary}"
    reason = f" ({one.reason})" if one.in_context == "unknown" and one.is_read and one.reason else ""
    return form + reason
