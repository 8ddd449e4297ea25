"""[pure] The JSON of the board for web pages: attributes of `ParticipantView`, and totals.

Texts contain times instead of ages, each between two U+001F, and a page computes the ages. Figures also appear as
numbers, for gauges and charts. Long texts of participants are cut.
"""

from typing import Annotated, Final, Literal

from mew_protocol.context_report import COUNTED
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.context_history import ContextHistory, FigureSample, ParticipantFigures, RecordedCompaction
from pydantic import AfterValidator

from mew_board import changes, words
from mew_board.visible import short

Tone = Literal["blocking", "warning", "notice", "fine", "unknown", "none", "away"]
"""How urgent a participant is; the most urgent first. `none` has no context to report, `away` is not connected."""

Role = Literal["agent", "person", "tool"]

Grouping = Literal["role", "model", "state"]
"""How participants may be grouped. The group of the most urgent one comes first."""

Filter = Literal["all", "attention", "agents", "others"]
"""Which participants a list may show; `words.json` has the labels."""

MOST_ROWS: Final = 100
"""How many parts, pins, facts and suggestions of a report are shown."""


ShortText = Annotated[str, AfterValidator(short)]
Rows = AfterValidator(lambda rows: rows[:MOST_ROWS])
ShortFacts = Annotated[tuple[tuple[str, ShortText], ...], Rows]


class ShownPart(Payload):
    """A part of a context window; `share` is its share of the window; empty if unknown."""

    part: str
    name: ShortText
    tokens: int
    amount: str
    share: str
    basis: str


class ShownGauge(Payload):
    """How full a window is, from 0 to 1, and where the agent compacts; absent if unknown.

    `past` is the last reported share, if the current one is unknown.
    """

    pattern: words.Pattern
    tone: Tone
    fill: float | None = None
    past: float | None = None
    mark: float | None = None
    is_compacting: bool = False


class ShownProgress(Payload):
    """The progress of a long task; `text` has it in words."""

    text: ShortText
    done: int
    total: int


class ShownCompaction(Payload):
    """The last compaction: its `line`, as in the list of changes, and the `known` facts."""

    at: str
    trigger: str
    freed_tokens: int | None = None
    line: ShortText
    known: ShortFacts = ()


class ShownPin(Payload):
    """A pinned text, or its id and hash if the text is unknown. Pins of settings cannot be removed."""

    id: str
    text: str
    about: ShortText
    is_removable: bool


class ShownParticipant(Payload, extra="ignore", from_attributes=True):
    """One participant of the board: attributes of its `ParticipantView`."""

    id: str
    connected: bool
    order: str
    tone: Tone
    word: ShortText
    role: Role
    groups: dict[Grouping, ShortText]
    filters: tuple[Filter, ...]
    searched: ShortText
    has_context: bool
    about: ShortText
    remarks: Annotated[tuple[ShortText, ...], Rows]
    says: ShortText = ""
    is_paused: bool = False
    received_at: str | None = None
    tokens: int | None = None
    max_tokens: int | None = None
    compact_at_tokens: int | None = None
    amount: str
    window: str
    figure: str
    reading: ShortText
    share: str
    fullness: ShortText
    known: ShortText
    origin: ShortText
    old: str = ""
    due: ShortText = ""
    gauge: ShownGauge | None = None
    facts: ShortFacts
    parts: Annotated[tuple[ShownPart, ...], Rows] = ()
    savings: tuple[ShortText, ...] = ()
    progress: ShownProgress | None = None
    compaction: ShownCompaction | None = None
    pins: Annotated[tuple[ShownPin, ...], Rows] = ()


class ShownTotals(Payload):
    """The space in figures. `tokens` and `max_tokens` sum the contexts of known size; `unknown` counts the other
    agents.

    The sums are absent if no size is known.
    """

    agents: int = 0
    tokens: int | None = None
    max_tokens: int | None = None
    is_estimate: bool = False
    unknown: int = 0
    spent_tokens: int | None = None
    waiting: int = 0
    compacting: int = 0
    text: str = ""


class ShownGroup(Payload):
    """The title of a group: its name and its state. Without `about`, the group is empty."""

    by: Grouping
    name: str
    about: str


class ShownBoard(Payload):
    """`GET /spaces/{id}/view`: the board for pages. As an event, it may contain only the changes since the last one."""

    space: str
    name: str | None = None
    at: str
    is_whole: bool
    participants: tuple[ShownParticipant, ...] = ()
    removed: tuple[str, ...] = ()
    totals: ShownTotals = ShownTotals()
    groups: tuple[ShownGroup, ...] = ()


class ShownSample(FigureSample):
    """A sample with its figure in words, and the share of the window."""

    reading: str
    share: str


def worded(history: ContextHistory) -> ContextHistory:
    """Describe figures over time in words: samples as `ShownSample`, compactions with their `line` and `known`
    facts.
    """

    def sample(one: FigureSample) -> FigureSample:
        return one.model_copy(
            update={
                "reading": words.reading(one.tokens, one.max_tokens, one.basis),
                "share": words.fill(one.tokens, one.max_tokens, is_estimate=one.basis not in COUNTED),
            }
        )

    def compaction(one: RecordedCompaction) -> RecordedCompaction:
        return one.model_copy(update={"line": short(changes.line(one)), "known": known_facts(one)})

    def figures(one: ParticipantFigures) -> ParticipantFigures:
        told = {"samples": tuple(map(sample, one.samples)), "compactions": tuple(map(compaction, one.compactions))}
        return one.model_copy(update=told)

    return history.model_copy(update={"participants": tuple(map(figures, history.participants))})


def known_facts(change: changes.Change) -> tuple[tuple[str, str], ...]:
    """Return the known facts of a change for web pages."""
    return tuple((name, short(value)) for name, value in changes.facts(change))
