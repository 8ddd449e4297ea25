"""[pure] The board as the gateway serves it to pages: each participant as a `ParticipantView` shows it, and totals.

Owns the shape of the JSON. Texts that contain ages have the times instead, each between two U+001F: a page shows how
long ago that was. Figures are also there as numbers, for gauges and charts.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from mew_protocol.context_report import LastCompaction, PinReport
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.context_history import ContextHistory, RecordedCompaction

from mew_board import changes, words
from mew_board.composition import Share, composition
from mew_board.grouping import GROUPINGS, GroupSize, about
from mew_board.view import Grouping, ParticipantView, Role, Tone

MOST_CHARS: Final = 400
"""How long a text of a participant is shown. Where it belongs to a decision, the whole text is shown elsewhere."""

_MOST_ROWS: Final = 100
"""How many parts, pins, facts and suggestions of a report are shown."""


class ShownPart(Payload):
    """A part of a context window; `share` is of the window, and empty if that is unknown."""

    part: str
    name: str
    tokens: int
    amount: str
    share: str
    basis: str


class ShownGauge(Payload):
    """How full a window is, 0 to 1, and where the agent compacts; absent if they are unknown.

    `past` is the share that was reported last, if the present one is unknown.
    """

    pattern: words.Pattern
    tone: Tone
    fill: float | None = None
    past: float | None = None
    mark: float | None = None
    is_compacting: bool = False


class ShownProgress(Payload):
    """How far a long piece of work is. `text` says it in words."""

    text: str
    done: int
    total: int


class ShownCompaction(LastCompaction):
    """The last compaction: `text` as it is announced, `line` as in the list of changes, and the `known` facts."""

    text: str
    line: str
    known: tuple[tuple[str, str], ...] = ()


class ShownParticipant(Payload):
    """One participant of the board. `order` is a text to sort by, `says` its `status` in words."""

    id: str
    connected: bool
    order: str
    tone: Tone
    word: str
    role: Role
    groups: dict[Grouping, str]
    searched: str
    is_quiet: bool
    status: str = ""
    says: str = ""
    detail: str = ""
    received_at: str | None = None
    figure_at: str | None = None
    tokens: int | None = None
    max_tokens: int | None = None
    basis: str = "unknown"
    compact_at_tokens: int | None = None
    model: str = ""
    amount: str = "?"
    window: str = "?"
    share: str = "?"
    known: str = ""
    origin: str = ""
    old: str = ""
    due: str = ""
    level: str = ""
    messages: str = "?"
    gauge: ShownGauge | None = None
    remarks: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    parts: tuple[ShownPart, ...] = ()
    savings: tuple[str, ...] = ()
    progress: ShownProgress | None = None
    compaction: ShownCompaction | None = None
    pins: tuple[PinReport, ...] = ()


class ShownTotals(Payload):
    """The space in figures. `tokens` and `max_tokens` add up contexts of known size; `unknown` agents have none.

    They are absent if no size is known.
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
    """The title of a group: its name, and what there is to say about it."""

    by: Grouping
    name: str
    about: str


class ShownBoard(Payload):
    """`GET /spaces/{id}/view`: the board for pages. As an event it may hold only what changed since the last one."""

    space: str
    name: str | None = None
    at: str
    is_whole: bool = True
    participants: tuple[ShownParticipant, ...] = ()
    removed: tuple[str, ...] = ()
    totals: ShownTotals = ShownTotals()
    groups: tuple[ShownGroup, ...] = ()


def shown(view: ParticipantView) -> ShownParticipant:
    """Return a participant for pages. The view has no `now`: pages count ages on."""
    entry, status = view.entry, view.status
    base: dict[str, Any] = {
        "id": entry.id,
        "connected": entry.connected,
        "order": view.order,
        "tone": view.tone,
        "word": short(view.word),
        "role": view.role,
        "groups": {by: short(name) for by, name in view.groups.items()},
        "searched": short(view.searched),
        "is_quiet": not view.has_context,
        "remarks": tuple(map(short, view.remarks[:_MOST_ROWS])),
    }
    if status is None:
        return ShownParticipant.model_construct(**base)
    base |= {
        "status": short(status.status or ""),
        "says": short(words.state(status.status or "")),
        "detail": short(words.clean(status.word.reason)),
        "received_at": entry.received_at,
        "figure_at": entry.figure_at,
    }
    return ShownParticipant.model_construct(**base, **(_figures(view) if view.has_context else {}))


def _figures(view: ParticipantView) -> dict[str, Any]:
    status, report = view.status, view.report
    assert status is not None
    found: dict[str, Any] = {
        "tokens": status.tokens,
        "max_tokens": status.max_tokens,
        "basis": words.basis(status),
        "amount": view.tokens,
        "window": words.window(status),
        "share": view.share,
        "known": short(view.known),
        "origin": short(view.origin),
        "old": view.old,
        "due": short(view.due),
        "level": short(view.level),
        "messages": view.messages,
        "gauge": gauge(view),
        "facts": tuple((name, short(value)) for name, value in view.facts[:_MOST_ROWS]),
        "parts": tuple(_parts(view)),
    }
    if report is None:
        return found
    best = sorted(report.suggestions or (), key=lambda one: -one.tokens_saved)[:3]
    return found | {
        "compact_at_tokens": report.compact_at_tokens,
        "model": short(words.clean(report.model or "")),
        "savings": tuple(short(words.saving(one)) for one in best),
        "progress": _progress(view),
        "compaction": _compaction(report.last_compaction),
        "pins": (report.pins or ())[:_MOST_ROWS],
    }


def gauge(view: ParticipantView) -> ShownGauge:
    """Return the gauge of a participant with a context."""
    status, report = view.status, view.report
    size = status.max_tokens if status is not None else None
    tokens = status.tokens if status is not None else None
    limit = report.compact_at_tokens if report is not None else None
    return ShownGauge(
        pattern=words.pattern(status),
        tone=view.fill_tone,
        fill=_share(tokens, size),
        past=_share(words.last_tokens(status), size),
        mark=_share(limit, size) if limit is not None and size is not None and limit <= size else None,
        is_compacting=view.is_compacting,
    )


def _share(part: int | None, whole: int | None) -> float | None:
    return None if part is None or whole is None else round(min(1.0, part / whole), 4)


def _parts(view: ParticipantView) -> Iterable[ShownPart]:
    assert view.status is not None
    parts = composition(view.status)[:_MOST_ROWS]
    whole = view.status.max_tokens or sum(one.tokens for one in parts)
    for one in parts:
        yield shown_part(one, whole, name=one.name)


def shown_part(one: Share, whole: int | None, *, name: str) -> ShownPart:
    """Return a part of a window for pages, with its share of the whole."""
    known, share = words.words(one.basis), one.share(whole)
    return ShownPart(part=one.part, name=short(name), tokens=one.tokens, amount=one.amount, share=share, basis=known)


def _progress(view: ParticipantView) -> ShownProgress | None:
    work = view.report.progress if view.report is not None else None
    if work is None:
        return None
    age = (words.ago(work.since, view.now) or "").removesuffix(" ago")
    text = f"{words.words(work.kind)}: {words.progress(work)}{f', {age}' if age else ''}"
    return ShownProgress(text=short(text), done=min(work.done, work.total), total=work.total)


def _compaction(last: LastCompaction | None) -> ShownCompaction | None:
    if last is None:
        return None
    told: dict[str, Any] = {
        "reason": short(last.reason or ""),
        "trigger": short(last.trigger),
        "text": short(words.compacted(last)),
    }
    told |= {"line": short(changes.line(last)), "known": known_facts(last)}
    return ShownCompaction.model_construct(**{**{name: getattr(last, name) for name in _TOLD}, **told})


def known_facts(change: changes.Change) -> tuple[tuple[str, str], ...]:
    """Return the facts of a change for pages."""
    return tuple((name, short(value)) for name, value in changes.facts(change))


def worded(history: ContextHistory) -> ContextHistory:
    """Return figures over time with a `line` and the `known` facts of each compaction."""

    def told(one: RecordedCompaction) -> RecordedCompaction:
        return one.model_copy(update={"line": short(changes.line(one)), "known": known_facts(one)})

    found = (one.model_copy(update={"compactions": tuple(map(told, one.compactions))}) for one in history.participants)
    return history.model_copy(update={"participants": tuple(found)})


_TOLD: Final = tuple(LastCompaction.model_fields)


def _sum(figures: Iterable[int | None]) -> int | None:
    """Add up the known figures; None if none is known."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def totals(views: Iterable[ParticipantView]) -> ShownTotals:
    """Add up a space: contexts, tokens spent, and how many are blocked until a person acts, or compact."""
    agents = [one for one in views if one.has_context]
    known = [one.status for one in agents if one.status is not None and one.status.tokens is not None]
    found = ShownTotals(
        agents=len(agents),
        tokens=_sum(status.tokens for status in known),
        max_tokens=_sum(status.max_tokens for status in known),
        is_estimate=not all(words.basis(status) in words.COUNTED for status in known),
        unknown=len(agents) - len(known),
        spent_tokens=_sum(map(_spent_tokens, agents)),
        waiting=sum(map(_is_blocked, agents)),
        compacting=sum(one.is_compacting for one in agents),
    )
    return found.model_copy(update={"text": totals_text(found)})


def shown_groups(lines: Iterable[ShownParticipant]) -> tuple[ShownGroup, ...]:
    """Return the titles of the groups of a space, at most `_MOST_ROWS` of each kind. Computes no view again."""
    groups: dict[Grouping, dict[str, list[GroupSize]]] = {by: {} for by in GROUPINGS}
    for line in sorted(lines, key=lambda one: one.order):
        size = GroupSize(line.tokens, line.max_tokens, line.basis in words.COUNTED)
        for by in GROUPINGS:
            groups[by].setdefault(line.groups[by], []).append(size)
    return tuple(
        ShownGroup(by=by, name=name, about=about(sizes))
        for by in GROUPINGS
        for name, sizes in islice(groups[by].items(), _MOST_ROWS)
    )


def _spent_tokens(view: ParticipantView) -> int | None:
    spending = words.report_of(view.status).spending
    return spending.spent_tokens if spending is not None else None


def _is_blocked(view: ParticipantView) -> bool:
    return any(item.level == "blocking" for item in view.items)


def totals_text(found: ShownTotals) -> str:
    """Format totals: `12 agents · 482,110 of 1,536,000 tokens · 3 blocked until you act · 1 compacting`."""
    if not found.agents:
        return "No agent has reported a context yet."
    size = f" of {found.max_tokens:,}" if found.max_tokens else ""
    pieces = [
        words.count_of(found.agents, "agent"),
        f"{words.figure(found.tokens, is_estimate=found.is_estimate)}{size} tokens in use",
        f"{found.unknown:,} unknown" if found.unknown else "",
        f"{found.spent_tokens:,} spent" if found.spent_tokens is not None else "",
        f"{found.waiting:,} blocked until you act" if found.waiting else "",
        f"{found.compacting:,} compacting" if found.compacting else "",
    ]
    return " · ".join(one for one in pieces if one)


def short(text: str) -> str:
    """Return the beginning of a text of a participant."""
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
