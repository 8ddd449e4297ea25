"""[pure] The view model of the board: a participant in words and figures, for every surface.

Table, full-screen application, line chat and demo render these views; the dashboard renders the attributes in
`board_json.ShownParticipant`. Owns the choice of words, the urgency and the order of participants. `words` has the
wording, and each surface has its layout.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, get_args

from mew_protocol.context_report import COUNTED, ContextReport, PinReport
from mew_protocol.payloads.attention_items import AttentionItem, AttentionLevel
from mew_protocol.payloads.participant import Board, BoardEntry, PinnedText, Status, report_of
from mew_protocol.status_word import Mark

from mew_board import changes, words
from mew_board.board_json import (
    Filter,
    Grouping,
    Role,
    ShownCompaction,
    ShownGauge,
    ShownPart,
    ShownPin,
    ShownProgress,
    Tone,
    known_facts,
)
from mew_board.composition import composition
from mew_board.quoting import clean
from mew_board.shared_words import ATTENTION_WORDS, STATE_WORDS

TONES: Final[tuple[Tone, ...]] = get_args(Tone)
"""The most urgent first."""

SEVERITIES: Final[Mapping[AttentionLevel, int]] = {"blocking": 3, "warning": 2, "notice": 1}
"""The severity of an attention item, on the scale of the levels of a policy."""


@dataclass(frozen=True, slots=True)
class ParticipantView:
    """One participant at one moment.

    `ended` says how its program ended; `items` are its attention items, most urgent first. `now` has the time zone to
    show; without it, texts contain times instead of ages (`words.AGE_MARK`).
    """

    entry: BoardEntry
    now: datetime | None
    ended: str | None = None
    expects_context: bool = False
    items: tuple[AttentionItem, ...] = ()
    is_person: bool = False

    @property
    def name(self) -> str:
        """Its id, without control characters."""
        return clean(self.entry.id)

    @property
    def id(self) -> str:
        """Its id, as on the wire."""
        return self.entry.id

    @property
    def connected(self) -> bool:
        """True while it is connected."""
        return self.entry.connected

    @property
    def received_at(self) -> str | None:
        """When its last status arrived."""
        return self.entry.received_at

    @property
    def status(self) -> Status | None:
        """Its last status."""
        return self.entry.status

    @property
    def report(self) -> ContextReport | None:
        """Its last context report."""
        return self.status.context if self.status is not None else None

    @property
    def says(self) -> str:
        """Its status in words."""
        return "" if self.status is None else words.state(self.status.status or "")

    @property
    def is_paused(self) -> bool:
        """True if its last status says that it is paused."""
        return self.status is not None and self.status.word.word == "paused"

    @property
    def has_context(self) -> bool:
        """True if it reports anything about a context window."""
        return words.has_context(self.status)

    @property
    def is_quiet(self) -> bool:
        """True if it reports no context and is not expected to: a tool or a bridge."""
        return not self.has_context and not self.expects_context

    @property
    def role(self) -> Role:
        """Its kind: an agent has a context or should report one; a tool has none."""
        return "agent" if not self.is_quiet else "person" if self.is_person else "tool"

    @property
    def limit_word(self) -> str:
        """A word about its limit if its next turn compacts or it is nearly full; else empty."""
        if self.status is None:
            return ""
        is_next, is_full = words.compacts_next(self.status), words.is_nearly_full(self.status)
        return ATTENTION_WORDS["about_to_compact"] if is_next else ATTENTION_WORDS["nearly_full"] if is_full else ""

    @property
    def fill_tone(self) -> Tone:
        """The tone of its fill alone, regardless of other needs."""
        severity = words.severity(self.status) or 0
        if severity >= 2:
            return "warning" if severity == 2 else "blocking"
        if severity == 1 or self.limit_word:
            return "notice"
        return "unknown" if words.basis(self.status) == "unknown" else "fine"

    @property
    def tone(self) -> Tone:
        """Its urgency as a tone. Problems never look calm."""
        levels, is_connected = {one.level for one in self.items}, self.entry.connected
        fill: Tone = "away" if not is_connected else self.fill_tone if self.has_context else "none"
        for level in ("blocking", "warning"):
            if level in levels or fill == level or self._says(level):
                return level
        return "notice" if levels and is_connected else fill

    def _says(self, mark: Mark) -> bool:
        """Return True if it is connected and its status word has this mark."""
        return self.entry.connected and self.status is not None and self.status.word.has(mark)

    @property
    def order(self) -> str:
        """The sort key among participants: most urgent first, then fullest in tenths, then by name."""
        full = -1 if self.percent is None else min(self.percent, 999) // 10
        return f"{TONES.index(self.tone)}{int(self.is_quiet)}{99 - full:03} {self.entry.id}"

    @property
    def word(self) -> str:
        """The most important word about it."""
        # The absence already explains unread messages.
        said = (one for one in self.items if self.entry.connected or one.kind != "unread")
        urgent = next(said, None)
        if urgent is not None and (urgent.level != "notice" or self._says("calm")):
            return ATTENTION_WORDS[urgent.kind]
        if self.status is None:
            return "connected" if self.entry.connected else "not connected"
        return self._status_word(self.status) if self.entry.connected else "disconnected"

    def _status_word(self, status: Status) -> str:
        word = words.words(status.word.word)
        work = report_of(status).progress
        if word == "compacting" and work is not None:
            return f"{word} {min(work.done, work.total):,}/{work.total:,}"
        if word and not status.word.has("calm"):
            return word
        if not self.has_context:
            return word or "connected"
        if self.limit_word:
            return self.limit_word
        if words.basis(status) == "unknown":
            return "unknown"
        return "level unknown" if words.severity(status) is None else self.level

    @property
    def is_blocked(self) -> bool:
        """True while it waits for a person."""
        return any(one.level == "blocking" for one in self.items)

    @property
    def is_compacting(self) -> bool:
        """True while it compacts."""
        return self.entry.connected and self.status is not None and self.status.word.word == "compacting"

    @property
    def groups(self) -> Mapping[Grouping, str]:
        """The group that it belongs to, in words; a running compaction is a group of its own."""
        state = "compacting" if self.is_compacting and self.tone not in SEVERITIES else self.tone
        roles = {"agent": "agents", "person": "people", "tool": "tools"}
        return {"role": roles[self.role], "model": self.model or "no model reported", "state": STATE_WORDS[state]}

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters that show it."""
        urgent: tuple[Filter, ...] = ("attention",) if self.tone in SEVERITIES else ()
        return ("all", *urgent, "agents" if self.role == "agent" else "others")

    @property
    def searched(self) -> str:
        """The lower-case text that a search looks through."""
        return " ".join((self.name, self.word, self.model)).lower()

    @property
    def model(self) -> str:
        """The model that it reports; empty without one."""
        return clean(report_of(self.status).model or "")

    @property
    def about(self) -> str:
        """Its model and the number of history items in its context."""
        if self.status is None or not self.has_context:
            return words.NO_CONTEXT
        count = words.count_of(self.status.messages_in_context, "message")
        return f"{self.model} · {count}" if self.model else count

    @property
    def severity(self) -> int | None:
        """The severity of its level, or of its worst attention item if that is higher."""
        own, needs = words.severity(self.status), [SEVERITIES[one.level] for one in self.items]
        return max(own or 0, *needs) if needs else own

    @property
    def tokens(self) -> int | None:
        """The tokens in use, as a number."""
        return None if self.status is None else self.status.tokens

    @property
    def max_tokens(self) -> int | None:
        """The size of the window, as a number."""
        return None if self.status is None else self.status.max_tokens

    @property
    def compact_at_tokens(self) -> int | None:
        """The size at which it compacts on its own."""
        return report_of(self.status).compact_at_tokens

    @property
    def amount(self) -> str:
        """The tokens in use; `~` marks an estimate, `?` an unknown figure."""
        return words.tokens(self.status)

    @property
    def window(self) -> str:
        """The size of the window; `~` marks an assumed one."""
        return words.window(self.status)

    @property
    def figure(self) -> str:
        """The tokens in use and the size of the window."""
        return f"{self.amount} of {self.window}"

    @property
    def reading(self) -> str:
        """The figure with its basis, in the form of a history."""
        return words.reading(self.tokens, self.max_tokens, words.basis(self.status))

    @property
    def percent(self) -> int | None:
        """The fill in whole percent; None if it is unknown."""
        return words.percent_of(self.tokens, self.max_tokens)

    @property
    def last_percent(self) -> int | None:
        """The last reported fill, if the current one is unknown."""
        return words.percent_of(words.last_tokens(self.status), self.max_tokens)

    @property
    def share(self) -> str:
        """The fill, with `~` if it is an estimate."""
        return words.fill(self.tokens, self.max_tokens, is_estimate=not self.is_counted)

    @property
    def drawn_share(self) -> str:
        """The fill for a gauge: the current one, or the last one with `?`; empty if unknown."""
        if self.last_percent is not None:
            return f"{self.last_percent}%?"
        return "" if self.percent is None else self.share

    @property
    def fullness(self) -> str:
        """The level of its policy, and the fill if that is known."""
        return self.level if self.percent is None else f"{self.level} · {self.share}"

    @property
    def is_counted(self) -> bool:
        """True if the figure was reported or counted."""
        return words.basis(self.status) in COUNTED

    @property
    def source(self) -> str:
        """The basis of the figure."""
        return words.source(self.status)

    @property
    def reason(self) -> str:
        """The reason for a missing figure."""
        return words.reason(self.status, self.now)

    @property
    def known(self) -> str:
        """The basis of the figure, or the reason why there is none."""
        return self.source if self.percent is not None else f"{self.source}: {self.reason}"

    @property
    def old(self) -> str:
        """The age of an old figure; empty for a figure of the last turn."""
        return words.old_figure(self.entry, self.now)

    @property
    def origin(self) -> str:
        """The basis of the figure, with its age or the last reported figure."""
        if self.percent is None or self.status is None:
            return self.known
        report, at = self.report, self.entry.received_at
        if report is None:
            return words.with_age(self.source, at, self.now, ", received ")
        if report.basis in ("reported", "agent_reported"):
            return words.with_age(self.source, report.measured_at or at, self.now)
        may_change = ", may still change" if report.basis == "provisional" else ""
        last = report.last_reported
        if last is None:
            return f"{self.source}{may_change}"
        text = f"{self.source}{may_change}, last reported {last.tokens:,}"
        return words.with_age(text, last.measured_at, self.now)

    @property
    def due(self) -> str:
        """When it compacts on its own or is full; empty if unknown."""
        report = report_of(self.status)
        limit = "" if report.compact_at_tokens is None else f"{report.compact_at_tokens:,}"
        place = f" (at {limit})" if limit else ""
        if report.turns_to_compaction == 0 and not self.is_compacting:
            return f"compacts in its next turn{place}"
        match words.compacts_in(self.entry):
            case "-":
                return f"compacts at {limit}" if limit and self.entry.outdated is None else ""
            case "now":
                return "compacting now"
            case when if when.startswith("full in"):
                return when
            case when:
                return f"compacts in {when}{place}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Its further figures as pairs of name and value; unknown ones are left out."""
        return words.facts(self.entry, self.now)

    @property
    def level(self) -> str:
        """The level of its policy."""
        return words.words(self.report.level) if self.report is not None else "unknown"

    @property
    def unread(self) -> str:
        """The number of unread messages, and how long the oldest has waited; empty without any."""
        return words.unread(self.entry, self.now)

    @property
    def doing(self) -> str:
        """Its status and progress; empty if it needs no action from a reader, or is over."""
        return words.doing(self.entry)

    @property
    def remarks(self) -> list[str]:
        """Remarks in addition to the figures; empty if all is well."""
        return words.remarks(self.entry, now=self.now, ended=self.ended)

    @property
    def parts(self) -> tuple[ShownPart, ...]:
        """The parts of its window."""
        return () if self.status is None else tuple(composition(self.status))

    @property
    def savings(self) -> tuple[str, ...]:
        """The three changes that would save the most tokens."""
        found = report_of(self.status).suggestions or ()
        return tuple(map(words.saving, sorted(found, key=lambda one: -one.tokens_saved)[:3]))

    @property
    def pins(self) -> tuple[ShownPin, ...]:
        """Its pins, without their texts."""
        return tuple(map(pin_row, report_of(self.status).pins or ()))

    @property
    def gauge(self) -> ShownGauge | None:
        """Its gauge; None without a context."""
        limit = self.compact_at_tokens
        if not self.has_context:
            return None
        return ShownGauge(
            pattern=words.pattern(self.status),
            tone=self.fill_tone,
            fill=self._share(self.tokens),
            past=self._share(words.last_tokens(self.status)),
            mark=self._share(limit) if limit is not None and limit <= (self.max_tokens or 0) else None,
            is_compacting=self.is_compacting,
        )

    def _share(self, tokens: int | None) -> float | None:
        size = self.max_tokens
        return None if tokens is None or size is None else round(min(1.0, tokens / size), 4)

    @property
    def progress(self) -> ShownProgress | None:
        """The progress of a long task, while it is connected."""
        work = report_of(self.status).progress
        if work is None or not self.connected:
            return None
        age = (words.ago(work.since, self.now) or "").removesuffix(" ago")
        text = f"{words.words(work.kind)}: {words.progress(work)}{f', {age}' if age else ''}"
        return ShownProgress(text=text, done=min(work.done, work.total), total=work.total)

    @property
    def compaction(self) -> ShownCompaction | None:
        """Its last compaction."""
        last = report_of(self.status).last_compaction
        if last is None:
            return None
        return ShownCompaction(
            at=last.at,
            trigger=last.trigger,
            freed_tokens=last.freed_tokens,
            line=changes.line(last),
            known=known_facts(last),
        )

    @property
    def sentence(self) -> str:
        """The participant as one line, for output that is not redrawn."""
        more = ", ".join(self.remarks)
        shown = f"{self.name}  {words.NO_CONTEXT}"
        if self.has_context:
            fill = f"{self.share} " if self.percent is not None else ""
            shown = f"{self.name}  {self.figure}  {fill}{self.known}"
        return f"{shown}{f'  ({more})' if more else ''}"

    def as_json(self) -> dict[str, Any]:
        """Return the entry in the gateway's form, with the basis word of the other surfaces."""
        entry = self.entry.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {**entry, "basis": words.basis(self.status)}


def pin_row(one: PinReport) -> ShownPin:
    """Return a pin for pages: its text if the participant sent it, otherwise its id and the beginning of its hash."""
    text = one.text if isinstance(one, PinnedText) else clean(f"{one.id}, {one.hash[:8]}")
    return ShownPin(id=one.id, text=text, about=words.pin(one), is_removable=not one.origin.endswith("settings"))


def views_of(
    board: Board,
    *,
    now: datetime,
    agents: Collection[str] = (),
    people: Collection[str] = (),
    ended: Mapping[str, str] | None = None,
    items: Iterable[AttentionItem] = (),
) -> list[ParticipantView]:
    """Return the view of each participant, in order.

    `agents` count as agents even before their first report; `people` are the persons.
    """
    ended, needs = ended or {}, items_of(items)
    views = [
        ParticipantView(one, now, ended.get(one.id), one.id in agents, needs.get(one.id, ()), one.id in people)
        for one in board.participants
    ]
    return sorted(views, key=lambda one: one.order)


def items_of(items: Iterable[AttentionItem]) -> dict[str, tuple[AttentionItem, ...]]:
    """Return the attention items of each participant, with the members of groups instead of the groups."""
    found: dict[str, list[AttentionItem]] = {}
    for one in (inner for group in items for inner in (group.items or (group,))):
        if one.participant is not None:
            found.setdefault(one.participant, []).append(one)
    return {name: tuple(own) for name, own in found.items()}
