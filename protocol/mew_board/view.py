"""[pure] The view model of the board: a participant in words and figures, for every surface.

Table, full-screen application, line chat, demo and JSON render these views. Owns which words belong to which
participant; `words` holds the wording, and each surface its layout.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mew_protocol.context_report import ContextReport
from mew_protocol.payloads.participant import Board, BoardEntry, Status

from mew_board import words


@dataclass(frozen=True, slots=True)
class ParticipantView:
    """One participant at a time. `ended` is how its program ended, `trouble` how severe its worst attention item is.

    `trouble` is 1 to 3, as levels of a policy are; 0 without an item. `now` carries the time zone to show.
    """

    entry: BoardEntry
    now: datetime
    ended: str | None = None
    expects_context: bool = False
    trouble: int = 0

    @property
    def name(self) -> str:
        """Its id, without control characters."""
        return words.clean(self.entry.id)

    @property
    def status(self) -> Status | None:
        """Its last status."""
        return self.entry.status

    @property
    def report(self) -> ContextReport | None:
        """Its last context report."""
        return self.status.context if self.status is not None else None

    @property
    def has_context(self) -> bool:
        """True if it reports anything about a context window."""
        return words.has_context(self.status)

    @property
    def is_quiet(self) -> bool:
        """True if it reports no context and is not expected to: a tool or a bridge."""
        return not self.has_context and not self.expects_context

    @property
    def severity(self) -> int | None:
        """The severity of its level, or of its worst attention item if that is higher."""
        own = words.severity(self.status)
        return max(own or 0, self.trouble) if self.trouble else own

    @property
    def tokens(self) -> str:
        """The tokens in use; `~` marks an estimate, `?` an unknown figure."""
        return words.tokens(self.status)

    @property
    def figure(self) -> str:
        """The tokens in use and the size of the window."""
        return f"{self.tokens} of {words.window(self.status)}"

    @property
    def percent(self) -> int | None:
        """The fill in whole percent; None if it is unknown."""
        return words.percent(self.status)

    @property
    def share(self) -> str:
        """The fill, with `~` if it is an estimate."""
        return "?" if self.percent is None else f"{'' if self.is_counted else '~'}{self.percent}%"

    @property
    def is_counted(self) -> bool:
        """True if the figure was reported or counted."""
        return words.basis(self.status) in words.COUNTED

    @property
    def source(self) -> str:
        """How the figure is known."""
        return words.source(self.status)

    @property
    def reason(self) -> str:
        """The reason for a missing figure."""
        return words.reason(self.status, self.now)

    @property
    def known(self) -> str:
        """How the figure is known, with the reason if there is none."""
        return self.source if self.percent is not None else f"{self.source}: {self.reason}"

    @property
    def old(self) -> str:
        """The age of an old figure; empty for one of the last turn."""
        return words.old_figure(self.entry, self.now)

    @property
    def level(self) -> str:
        """The level of its policy."""
        return words.words(self.report.level) if self.report is not None else "unknown"

    @property
    def messages(self) -> str:
        """The number of history items in its context."""
        return words.messages(self.status)

    @property
    def next_call(self) -> str:
        """The tokens of its next request."""
        return words.next_call(self.report)

    @property
    def compacts_in(self) -> str:
        """Turns and time until its next compaction."""
        return words.compacts_in(self.entry)

    @property
    def last_compaction(self) -> str:
        """The age of its last compaction and the tokens it freed."""
        return words.last_compaction(self.report, self.now)

    @property
    def doing(self) -> str:
        """Its status and progress; empty if it needs no action from a reader."""
        work = self.report.progress if self.report is not None else None
        state = words.state(self.status.status or "") if self.status is not None else ""
        if work is not None:
            return f"{state}, {words.progress(work)}"
        return "" if words.is_quiet(self.status) else state

    @property
    def remarks(self) -> list[str]:
        """Remarks in addition to the figures; empty if all is well."""
        return words.remarks(self.entry, now=self.now, ended=self.ended)

    @property
    def sentence(self) -> str:
        """The participant as one line, for output that is not redrawn."""
        more = ", ".join(self.remarks)
        shown = f"{self.name}  {words.NO_CONTEXT}"
        if self.has_context:
            fill = f"{self.percent}% " if self.percent is not None else ""
            shown = f"{self.name}  {self.figure}  {fill}{self.known}"
        return f"{shown}{f'  ({more})' if more else ''}"

    def as_json(self) -> dict[str, Any]:
        """The entry as the gateway sends it, with its basis in the word that other surfaces show."""
        entry = self.entry.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {**entry, "basis": words.basis(self.status)}


def views_of(
    board: Board,
    *,
    now: datetime,
    agents: Collection[str] = (),
    ended: Mapping[str, str] | None = None,
    trouble: Mapping[str, int] | None = None,
) -> Iterable[ParticipantView]:
    """Yield the view of each participant. `agents` have a context even before they report it."""
    ended, trouble = ended or {}, trouble or {}
    for entry in board.participants:
        yield ParticipantView(
            entry, now, ended.get(entry.id), expects_context=entry.id in agents, trouble=trouble.get(entry.id, 0)
        )
