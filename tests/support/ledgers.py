"""Facts for a ledger in one line, and the figures that tests compare after them."""

from collections.abc import Iterable

from mew_agent.context.facts import Appended, Cut, Described, Replaced, Reported, Summarised
from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.ledger import Ledger, Price
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Drift, Terms
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration


def taught(calibration: Calibration) -> Ledger:
    """A ledger of a model that earlier conversations taught."""
    return Ledger(calibration=calibration)


def append(ledger: Ledger, *sizes: ItemSize) -> None:
    """Items enter."""
    for size in sizes:
        ledger.apply(Appended(size))


def describe(ledger: Ledger, prefix: float, pins: float = 0.0) -> None:
    """The next request sends texts with these features before its items."""
    ledger.apply(Described(FixedTexts(prefix, pins)))


def record(
    ledger: Ledger, usage: Usage, *, served_model: str, fingerprint: str, last_seq: int, backend: str | None
) -> Drift | None:
    """A call is reported. Returns the drift of its prediction."""
    ledger.apply(Reported(usage.prompt_tokens, Terms(served_model, fingerprint, backend), last_seq))
    return ledger.evidence.drift


def cut(ledger: Ledger, first_seq: int, last_seq: int) -> Price:
    """Items leave. Returns the price they had."""
    price = ledger.price(first_seq, last_seq)
    ledger.apply(Cut(first_seq, last_seq))
    return price


def replace_items(ledger: Ledger, sizes: Iterable[ItemSize]) -> Price:
    """Stubs take the place of items. Returns what that was said to free."""
    stubs = tuple(sizes)
    price = ledger.saving(stubs)
    ledger.apply(Replaced(stubs))
    return price


def set_summary(ledger: Ledger, size: ItemSize | None, tokens: int | None = None) -> int:
    """A summary takes the place of items that left. Returns its tokens."""
    ledger.apply(Summarised(size, tokens))
    return ledger.preamble.summary_tokens
