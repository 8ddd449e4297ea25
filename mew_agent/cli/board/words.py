"""[pure] What the terminal says of one participant's context report, in words and figures.

Owns the wording only: no layout, no colour codes, no clock. The rule of the report holds here too: what is not
known is `?`, and whatever is neither reported nor counted exactly carries a `~`.
"""

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from mew_protocol.context_report import ContextReport, UnknownReason
from mew_protocol.payloads.participant import BoardEntry, Status

UNLABELLED: Final = "unlabelled"
"""Basis of a figure from a participant that sends no context report: nobody said how it is known."""

NO_CONTEXT: Final = "reports no context"
"""Of somebody who takes part without a context window to speak of: a tool, a bridge, a keeper of rules."""

REASONS: Final[Mapping[UnknownReason, str]] = {
    "no_call_yet": "no call yet",
    "usage_unavailable": "no usage reported",
    "limit_unavailable": "window not known",
    "cleared": "cleared",
    "restarted": "restarted",
    "model_changed": "model changed",
}

_SKIPPED: Final[Mapping[str, str]] = {
    "no_history": "nothing to compact yet",
    "compaction_in_progress": "a compaction is running already",
}

_QUIET: Final = frozenset({"", "active", "idle", "ready", "joined", "compacted"})
"""Statuses that say nothing a reader has to act on."""

_EXACT_NEXT: Final = frozenset({"exact", "server_counted"})


def clean(text: str) -> str:
    """Text from the wire without control characters, so that nobody's name can drive the terminal."""
    if text.isprintable():
        return text
    return "".join(one for one in text if unicodedata.category(one) not in {"Cc", "Cf", "Cs", "Zl", "Zp"})


def has_context(status: Status | None) -> bool:
    """Whether a participant says anything of a context window."""
    return status is not None and (
        status.context is not None or status.tokens is not None or status.max_tokens is not None
    )


def skipped(reason: str) -> str:
    """Why a compaction was skipped."""
    return _SKIPPED.get(reason, words(reason))


def cells(text: str) -> int:
    """How many terminal columns a text takes."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def clip(text: str, width: int, *, mark: str = "…") -> str:
    """The text in at most `width` columns; what was cut off shows as the mark."""
    if cells(text) <= width:
        return text
    kept = ""
    for one in text:
        if cells(kept + one) > width - cells(mark):
            break
        kept += one
    return (kept + mark) if cells(mark) <= width else ""


def words(name: str) -> str:
    """A name of the wire as people read it: `near_limit` as `near limit`."""
    return clean(re.sub(r"[_\s]+", " ", name)).strip()


def state(status: str) -> str:
    """A status as people read it. Behind its colon stand names and messages, which stay as they are."""
    word, colon, detail = status.partition(":")
    told = clean(" ".join(detail.split()))
    return f"{words(word)}: {told}" if colon and told else words(word)


def ago(at: str | None, now: datetime) -> str | None:
    """How long ago a wire time was, or None when it cannot be read."""
    then = parse_time(at)
    return None if then is None else f"{_span((now - then).total_seconds())} ago"


def parse_time(at: str | None) -> datetime | None:
    """A time of the wire; one without a zone is UTC."""
    try:
        then = datetime.fromisoformat(at or "")
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def severity(status: Status | None) -> int | None:
    """0 to 3, or None when it cannot be told."""
    report = status.context if status else None
    return report.severity if report is not None and isinstance(report.severity, int) else None


def basis(status: Status | None) -> str:
    """How the figure is known; never empty."""
    if status is None:
        return "unknown"
    if status.context is None:
        return UNLABELLED if status.tokens is not None else "unknown"
    return status.context.basis


def tokens(status: Status | None) -> str:
    """The figure in use, `~` before anything that was not reported."""
    if status is None or status.tokens is None:
        return "?"
    return f"{'' if basis(status) == 'reported' else '~'}{status.tokens:,}"


def level(status: Status | None) -> str:
    """The policy's own word for how full it is."""
    return words(status.context.level) if status is not None and status.context is not None else "unknown"


def messages(status: Status | None) -> str:
    """How many items of history are in the context."""
    return "?" if status is None else f"{status.messages_in_context:,}"


def window(status: Status | None) -> str:
    """The size of the window; an assumed one is an estimate like any other."""
    if status is None or status.max_tokens is None:
        return "?"
    assumed = status.context is None or status.context.max_tokens_basis == "assumed"
    return f"{'~' if assumed else ''}{status.max_tokens:,}"


def percent(status: Status | None) -> int | None:
    """The fill in whole percent, rounded half up; None when either figure is not known."""
    if status is None or status.tokens is None or status.max_tokens is None:
        return None
    return (200 * status.tokens + status.max_tokens) // (2 * status.max_tokens)


def reason(status: Status | None) -> str:
    """Why there is no figure, with the newest reported one where there is one."""
    report = status.context if status else None
    if report is None:
        return "nothing reported"
    said = REASONS[report.reason] if report.reason else "window not known"
    return f"{said}, was {report.last_reported.tokens:,}" if report.last_reported else said


def next_call(report: ContextReport | None) -> str:
    """What the next request will hold."""
    if report is None or report.next_prompt_tokens is None:
        return "-"
    return f"{'' if report.next_prompt_basis in _EXACT_NEXT else '~'}{report.next_prompt_tokens:,}"


def compacts_in(status: Status | None) -> str:
    """How far away the next compaction is, by the trend of the recent turns."""
    if status is not None and status.status == "compacting":
        return "now"
    turns = status.context.turns_to_compaction if status and status.context else None
    return "-" if turns is None else f"~{turns} turn{'' if turns == 1 else 's'}"


def last_compaction(report: ContextReport | None, now: datetime) -> str:
    """When the newest compaction was and what it freed, net."""
    last = report.last_compaction if report else None
    if last is None:
        return "-"
    freed = f"freed {'~' if last.basis == 'projected' else ''}{last.freed_tokens:,}"
    when = ago(last.at, now)
    return f"{when}, {freed}" if when else freed


def remarks(entry: BoardEntry, *, now: datetime, fault: str | None = None) -> list[str]:
    """Everything a reader should know beyond the figures; empty when all is well."""
    said = [clean(fault)] if fault else []
    status = entry.status
    if not entry.connected:
        when = ago(entry.received_at, now) if status else None
        said.append(f"not connected, last report {when}" if when else "not connected")
    if status is not None:
        said += _status_words(status)
    return list(dict.fromkeys(said))


def _status_words(status: Status) -> list[str]:
    report = status.context
    said = [] if (status.status or "") in _QUIET else [state(status.status or "")]
    if report is None:
        return said
    if report.reason and status.tokens is None:
        # The window column already says this; twice is noise.
        said = [one for one in said if one != REASONS[report.reason]]
    if isinstance(report.severity, int) and report.severity > 0:
        said.append(words(report.level))
    if report.stale_messages:
        said.append(f"+{report.stale_messages} item{'' if report.stale_messages == 1 else 's'} since")
    if report.spent_tokens is not None:
        budget = "" if report.budget_tokens is None else f" of {report.budget_tokens:,}"
        said.append(f"spent {report.spent_tokens:,}{budget}")
    if report.injection:
        left = "" if report.injection.remaining is None else f" ({report.injection.remaining} left)"
        said.append(f"{words(report.injection.kind)}{left}")
    if report.suggestions:
        said.append(f"could save ~{max(one.tokens_saved for one in report.suggestions):,}")
    return [one for one in said if one]


def sentence(entry: BoardEntry, *, now: datetime, fault: str | None = None) -> str:
    """One participant in one line, for output that is not redrawn."""
    status = entry.status
    more = ", ".join(remarks(entry, now=now, fault=fault))
    if not has_context(status):
        return f"{clean(entry.id)}  {NO_CONTEXT}{f'  ({more})' if more else ''}"
    fill = percent(status)
    figure = f"{tokens(status)} of {window(status)}"
    known = f"{fill}% {basis(status)}" if fill is not None else f"{basis(status)}: {reason(status)}"
    return f"{clean(entry.id)}  {figure}  {known}{f'  ({more})' if more else ''}"
