"""[pure] Facts: the events of a context. The ledger folds them into the accounts.

Sizes are in tokens. A fact states an event, never its cost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.persisted_state import PromptAnchor
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Terms
from mew_agent.tokens.projection import Calibration


class ContextFact:
    """An event of a context."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Appended(ContextFact):
    """An item was added."""

    size: ItemSize


@dataclass(frozen=True, slots=True)
class Described(ContextFact):
    """The texts that the next request sends before its items."""

    texts: FixedTexts


@dataclass(frozen=True, slots=True)
class PrefixCounted(ContextFact):
    """A server's count of how much larger the prefix is than in the last reported call."""

    growth_tokens: int


@dataclass(frozen=True, slots=True)
class PromptCounted(ContextFact):
    """A server's count of the next request in its current form."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Reported(ContextFact):
    """A kept main call sent all items up to `last_seq`, and the provider reported the prompt's size."""

    prompt_tokens: int
    terms: Terms
    last_seq: int


@dataclass(frozen=True, slots=True)
class Cut(ContextFact):
    """The items first_seq..last_seq were removed."""

    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Replaced(ContextFact):
    """Shorter items (stubs) replaced the items with the same seqs."""

    sizes: tuple[ItemSize, ...]


@dataclass(frozen=True, slots=True)
class Summarised(ContextFact):
    """This summary replaces removed items (None: no summary any more). `tokens` is its size, if known."""

    size: ItemSize | None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CutCounted(ContextFact):
    """A server's count of a cut: the accounts have `excess_tokens` too many."""

    excess_tokens: int
    summary_tokens: int | None = None  # size of the new summary, if the server counted it


@dataclass(frozen=True, slots=True)
class PutBack(ContextFact):
    """An undo restored removed items, and texts for their stubs, at their earlier prices (by seq).

    Before a report, and after `sent_until` and the newest reported item, they count as unsent, as before.
    """

    returned: tuple[ItemSize, ...]
    replaced: tuple[ItemSize, ...]
    prices: Mapping[int, int]
    sent_until: int


@dataclass(frozen=True, slots=True)
class Cleared(ContextFact):
    """All items and the summary were removed."""


@dataclass(frozen=True, slots=True)
class Learnt(ContextFact):
    """An earlier process learnt these calibrations per served model; `served_model` answered last."""

    calibrations: Mapping[str, Calibration]
    served_model: str | None


@dataclass(frozen=True, slots=True)
class Resumed(ContextFact):
    """An earlier process recorded this prompt for a served model."""

    anchor: PromptAnchor
    served_model: str | None


Facts = Iterable[ContextFact]
