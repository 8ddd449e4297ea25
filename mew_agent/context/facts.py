"""[pure] Facts: the events of a context. The ledger folds them into the accounts.

Sizes are in tokens. A fact says what happened, never what it costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mew_agent.context.measures import Measure
from mew_agent.context.persisted_state import PromptAnchor
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Terms
from mew_agent.tokens.projection import Calibration


@dataclass(frozen=True, slots=True)
class Appended:
    """An item entered."""

    measure: Measure


@dataclass(frozen=True, slots=True)
class Described:
    """The next request sends these texts before its items."""

    texts: FixedTexts


@dataclass(frozen=True, slots=True)
class PrefixCounted:
    """A server counted by how many tokens the prefix is larger than the one that the last reported call sent."""

    growth_tokens: int


@dataclass(frozen=True, slots=True)
class PromptCounted:
    """A server counted the next request as it is now."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A kept main call sent all items up to `last_seq`, and its provider reported the size of its prompt."""

    prompt_tokens: int
    terms: Terms
    last_seq: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The items first_seq..last_seq left."""

    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """Shorter items (stubs) took the place of those with the same seqs."""

    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class Summarised:
    """This summary replaces items that left; None: there is no summary any more. `tokens` is its size if known."""

    measure: Measure | None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CutCounted:
    """A server counted the effect of a cut: the accounts have `excess_tokens` too many."""

    excess_tokens: int
    summary_tokens: int | None = None  # of the new summary, if the server counted it


@dataclass(frozen=True, slots=True)
class PutBack:
    """An undo returned items that a cut removed, and texts in place of their stubs, at the prices (by seq) they had.

    Before a report, and after `sent_until` and the newest reported item, they were not sent and are not now.
    """

    returned: tuple[Measure, ...]
    replaced: tuple[Measure, ...]
    prices: Mapping[int, int]
    sent_until: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """All items and the summary left."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """An earlier process learnt these calibrations by served model, and `served_model` answered last."""

    calibrations: Mapping[str, Calibration]
    served_model: str | None


@dataclass(frozen=True, slots=True)
class Resumed:
    """An earlier process recorded this prompt of a served model."""

    anchor: PromptAnchor
    served_model: str | None


Fact = (
    Appended
    | Described
    | PrefixCounted
    | PromptCounted
    | Reported
    | Cut
    | Replaced
    | Summarised
    | CutCounted
    | PutBack
    | Cleared
    | Learnt
    | Resumed
)
Facts = Iterable[Fact]
