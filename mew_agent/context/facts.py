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


class ContextFact:
    """An event of a context."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Appended(ContextFact):
    """An item entered."""

    measure: Measure


@dataclass(frozen=True, slots=True)
class Described(ContextFact):
    """The next request sends these texts before its items."""

    texts: FixedTexts


@dataclass(frozen=True, slots=True)
class PrefixCounted(ContextFact):
    """A server counted by how many tokens the prefix is larger than the one that the last reported call sent."""

    growth_tokens: int


@dataclass(frozen=True, slots=True)
class PromptCounted(ContextFact):
    """A server counted the next request as it is now."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Reported(ContextFact):
    """A kept main call sent all items up to `last_seq`, and its provider reported the size of its prompt."""

    prompt_tokens: int
    terms: Terms
    last_seq: int


@dataclass(frozen=True, slots=True)
class Cut(ContextFact):
    """The items first_seq..last_seq left."""

    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Replaced(ContextFact):
    """Shorter items (stubs) took the place of those with the same seqs."""

    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class Summarised(ContextFact):
    """This summary replaces items that left; None: there is no summary any more. `tokens` is its size if known."""

    measure: Measure | None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CutCounted(ContextFact):
    """A server counted the effect of a cut: the accounts have `excess_tokens` too many."""

    excess_tokens: int
    summary_tokens: int | None = None  # of the new summary, if the server counted it


@dataclass(frozen=True, slots=True)
class PutBack(ContextFact):
    """An undo returned items that a cut removed, and texts in place of their stubs, at the prices (by seq) they had.

    Before a report, and after `sent_until` and the newest reported item, they were not sent and are not now.
    """

    returned: tuple[Measure, ...]
    replaced: tuple[Measure, ...]
    prices: Mapping[int, int]
    sent_until: int


@dataclass(frozen=True, slots=True)
class Cleared(ContextFact):
    """All items and the summary left."""


@dataclass(frozen=True, slots=True)
class Learnt(ContextFact):
    """An earlier process learnt these calibrations by served model, and `served_model` answered last."""

    calibrations: Mapping[str, Calibration]
    served_model: str | None


@dataclass(frozen=True, slots=True)
class Resumed(ContextFact):
    """An earlier process recorded this prompt of a served model."""

    anchor: PromptAnchor
    served_model: str | None


Facts = Iterable[ContextFact]
