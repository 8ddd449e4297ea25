"""[pure] Words and figures for a participant's context report.

Owns only the wording: no layout, no colour codes, no clock. An unknown figure is `?`; `~` marks figures neither
reported nor counted exactly. Ages are relative to `now`; without it, texts contain times, each between two `AGE_MARK`,
from which readers compute ages.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, islice, takewhile
from typing import Any, Final, Literal

from mew_protocol.context_report import (
    COUNTED,
    ContextReport,
    PinReport,
    Progress,
    SavingSuggestion,
    SenderSpending,
    SessionContext,
    Waiting,
)
from mew_protocol.envelope import parse_time
from mew_protocol.json_values import value_at
from mew_protocol.payloads.mcp import COMPACT_CONTEXT
from mew_protocol.payloads.participant import (
    BoardEntry,
    CompactDone,
    Status,
    basis_label,
    report_of,
)
from mew_protocol.payloads.retrieval import UndoDone
from mew_protocol.status_word import StatusWord

from mew_board import figures
from mew_board.figures import (
    basis_words,
    compaction_sizes,
    figure,
    freed_words,
    known_figure,
    size_after,
    span,
    why_unknown,
    window_size,
)
from mew_board.proposal_text import ALL_SHOWN
from mew_board.quoting import clean, one_line
from mew_board.shared_words import SKIPPED, WINDOW_SOURCES
from mew_board.visible import shortened, visible

AGE_MARK: Final = "\x1f"
"""Stands before and after a time that the reader shows as its age. `clean` removes it from texts of others."""

NO_CONTEXT: Final = "reports no context"
"""Said of a participant without a context window, such as a tool or a bridge."""

Pattern = Literal["solid", "hatched", "past", "dotted"]
"""`solid`: reported or counted; `hatched`: an estimate, marked with `~` in figures; `past`: unknown, the gauge shows
the last report; `dotted`: unknown."""

_ARGUMENT_CHARS: Final = 60
_MOST_CHARS_OF_A_CELL: Final = 8
"""How many characters are shown for each column, on average: marks take no column, and a text may have millions."""
_PIN_HASHES: Final = 3
_LIMITED: Final = 3


def has_context(status: Status | None) -> bool:
    """Return True if a status contains a figure of a context window."""
    return status is not None and any(one is not None for one in (status.context, status.tokens, status.max_tokens))


def failure(status: Status | None) -> str | None:
    """Return the reason for a failed last turn; None without one."""
    return state(status.status or "") if status is not None and status.word.has("failure") else None


def chat_failure(
    answer: Mapping[str, Any], status: Status | None, *, status_id: str | None, id_before: str | None
) -> str | None:
    """Return why an agent failed to answer a chat; None if it did not fail. `answer` is the payload of its answer.

    An agent of another implementation reports the cause in its `status` before it answers. That status counts if its id
    is not that of the status before the question.
    """
    if status_id != id_before and (reported := failure(status)) is not None:
        return reported
    is_answered = answer.get("failure") is None
    return None if is_answered else str(value_at(answer, "failure", "problem") or "no reason given")


def is_quiet(status: Status | None) -> bool:
    """Return True if a status needs no action from a reader."""
    return status is None or not status.status or status.word.has("calm", "done")


def compaction(done: CompactDone, target_tokens: int | None = None, size: str = "?") -> str:
    """Format the answer to a compaction request: `freed 63,630 tokens, 12 messages`, or why it was skipped.

    `target_tokens` is the requested size; `size` is the context's size, for answers without one.
    """
    if done.skipped:
        reason = done.reason or "no reason given"
        why = SKIPPED.get(reason, words(reason))
        if reason == "already_below_target":
            target = "the target" if target_tokens is None else f"{target_tokens:,}"
            known = size if done.tokens_before is None else figure(done.tokens_before)
            why = f"already below {target}{'' if known == '?' else f' ({known})'}"
        return f"skipped, {why}"
    messages = "" if done.freed_messages is None else f", {count_of(done.freed_messages, 'message')}"
    return f"{freed_words(done.freed_tokens, done.basis)}{messages}"


def compaction_answer(done: CompactDone) -> str:
    """Format the answer to a compaction request with the size after it, for callers that wait for no status."""
    if done.skipped or done.tokens_after is None:
        return compaction(done)
    return f"{compaction(done)}; now {size_after(done.tokens_after, figure(done.max_tokens), basis_after(done.basis))}"


def basis_after(freed_basis: str | None) -> str:
    """Return the basis of the size after a change. After exactly freed tokens it is still unreported."""
    return freed_basis if freed_basis in ("reported", "server_counted") else "projected"


def undone(done: UndoDone) -> str:
    """Format the answer to an undo: `undid 3; 12 messages and ~5,000 tokens are back`, or why it was refused."""
    if done.status != "undone":
        return f"not undone: {one_line(done.reason or 'no reason given')}"
    messages = "an unknown number of messages"
    if done.restored_messages is not None:
        messages = count_of(done.restored_messages, "message")
    back = "" if done.restored_tokens is None else f" and ~{done.restored_tokens:,} tokens"
    now = (
        ""
        if done.tokens_after is None
        else f"; now {size_after(done.tokens_after, figure(done.max_tokens), 'projected')}"
    )
    return f"undid {'it' if done.number is None else done.number}; {messages}{back} are back{now}"


def cells(text: str) -> int:
    """Return the number of terminal columns of a text."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def clip(text: str, width: int, *, mark: str = "…") -> str:
    """Cut a text to at most `width` columns, with the mark where text was cut off."""
    most = _MOST_CHARS_OF_A_CELL * width
    if len(text) <= most and cells(text) <= width:
        return text
    room = width - cells(mark)
    ends = accumulate(map(_cells_of, islice(text, most)))
    kept = sum(1 for _ in takewhile(lambda end: end <= room, ends))
    return (text[:kept] + mark) if room >= 0 else ""


def _cells_of(character: str) -> int:
    return 0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")


def words(name: str) -> str:
    """Format a name of the wire as words: `near_limit` as `near limit`."""
    return clean(re.sub(r"[_\s]+", " ", name)).strip()


def state(status: str) -> str:
    """Format a status as words. Keeps names and messages after a colon unchanged."""
    read = StatusWord.read(status)
    detail = one_line(read.detail)
    return f"{words(read.word)}: {detail}" if detail else words(read.word)


def ago(at: str | None, now: datetime | None) -> str | None:
    """Format the age of a wire time; None if unreadable."""
    then = parse_time(at)
    if then is None:
        return None
    age = f"{AGE_MARK}{then.isoformat()}{AGE_MARK}" if now is None else span((now - then).total_seconds())
    return f"{age} ago"


def with_age(text: str, at: str | None, now: datetime | None, joint: str = " ") -> str:
    """Append the age of a wire time to a text; return only the text if the time is unreadable."""
    age = ago(at, now)
    return f"{text}{joint}{age}" if age else text


def clock(at: str | None, now: datetime, *, today: str = "%H:%M") -> str:
    """Format a wire time in the zone of `now`, with its date unless it is today; `?` if unreadable."""
    then = parse_time(at)
    if then is None:
        return "?"
    then = then.astimezone(now.tzinfo)
    return then.strftime(today if then.date() == now.date() else "%Y-%m-%d %H:%M")


def severity(status: Status | None) -> int | None:
    """Return the severity, 0 to 3; None if unknown."""
    report = status.context if status else None
    return report.severity if report is not None and isinstance(report.severity, int) else None


def basis(status: Status | None) -> str:
    """Return the basis of the figure; never empty."""
    return "unknown" if status is None else basis_label(status.tokens, status.context)


def source(status: Status | None) -> str:
    """Return the basis in words: `server counted`."""
    return basis_words(basis(status))


def tokens(status: Status | None) -> str:
    """Format the tokens in use, with `~` unless they were reported or counted."""
    return known_figure(None if status is None else status.tokens, basis(status))


def reading(number: int | None, max_tokens: int | None, known_by: str) -> str:
    """Format a figure with its basis, for a history: `~98,412 of 128,000 (projected)`; `unknown` if absent."""
    if number is None:
        return "unknown"
    size = "" if max_tokens is None else f" of {max_tokens:,}"
    return f"{known_figure(number, known_by)}{size} ({basis_words(known_by)})"


def window(status: Status | None) -> str:
    """Format the size of the window, with `~` if it is assumed."""
    return "?" if status is None else window_size(status.max_tokens, status.context)


def compacts_next(status: Status) -> bool:
    """Return True if the next turn compacts."""
    report = report_of(status)
    limit, turns = report.compact_at_tokens, report.turns_to_compaction
    sizes = (status.tokens, report.next_prompt_tokens)
    is_at_limit = limit is not None and any(one is not None and one >= limit for one in sizes)
    return is_at_limit or (turns is not None and turns <= 1)


def is_nearly_full(status: Status) -> bool:
    """Return True if it never compacts on its own and is nearly full: by its level, else above nine tenths of its
    window.
    """
    if report_of(status).compact_at_tokens is not None:
        return False
    level, used, size = severity(status), status.tokens, status.max_tokens
    if level is not None:
        return level > 1
    return used is not None and size is not None and 10 * used >= 9 * size


def pattern(status: Status | None) -> Pattern:
    """Return a gauge's pattern, by the basis of its figure."""
    known = basis(status)
    if known == "unknown":
        return "dotted" if last_tokens(status) is None else "past"
    return "solid" if known in COUNTED else "hatched"


def percent_of(tokens: int | None, max_tokens: int | None) -> int | None:
    """Return the fill in whole percent, rounded half up; None if either figure is unknown."""
    return None if tokens is None or max_tokens is None else (200 * tokens + max_tokens) // (2 * max_tokens)


def fill(tokens: int | None, max_tokens: int | None, *, is_estimate: bool) -> str:
    """Format how full a window is: `77%`, with `~` if it is an estimate; `?` if it is unknown."""
    share = percent_of(tokens, max_tokens)
    return "?" if share is None else f"{'~' if is_estimate else ''}{share}%"


def last_tokens(status: Status | None) -> int | None:
    """Return the last reported tokens if the current figure is unknown, for instance after a restart.

    Return None after a clear, when the context is empty.
    """
    report = None if status is None or status.tokens is not None else status.context
    if report is None or report.last_reported is None or report.reason == "cleared":
        return None
    return report.last_reported.tokens


def old_figure(entry: BoardEntry, now: datetime | None) -> str:
    """Describe the age of an old figure; empty for a figure of the last turn."""
    age = ago(entry.figure_at or entry.received_at, now)
    return "" if entry.outdated is None else figures.old_figure(entry.outdated, age and age.removesuffix(" ago"))


def reason(status: Status | None, now: datetime | None) -> str:
    """Return the reason for a missing figure, with the last reported figure and its age."""
    report = status.context if status else None
    why = why_unknown(report)
    if report is None or report.last_reported is None:
        return why
    return with_age(f"{why}, was {report.last_reported.tokens:,}", report.last_reported.measured_at, now)


def next_call(report: ContextReport | None) -> str:
    """Format the tokens of the next request."""
    if report is None or report.next_prompt_tokens is None:
        return "-"
    return known_figure(report.next_prompt_tokens, report.next_prompt_basis)


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things: `1 message`, `1,234 messages`. `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def share_of(part: int, total: int) -> str:
    """Format a part of a total in whole percent, rounded down, and at most 100: `40%`."""
    return f"{min(100, max(0, part * 100 // max(1, total)))}%"


def compacts_in(entry: BoardEntry) -> str:
    """Format the turns and time until the next compaction, or until a window without compactions is full.

    Projected from recent turns and the last hour.
    """
    status, report = entry.status, report_of(entry.status)
    if status is not None and status.status == "compacting" and entry.connected:
        return "now"
    if entry.outdated is not None:
        return "-"
    turns = report.turns_to_compaction
    found = [] if turns is None else [f"~{count_of(turns, 'turn')}"]
    found += [] if entry.seconds_to_compaction is None else [f"~{span(entry.seconds_to_compaction)}"]
    is_full = bool(found) and turns is None and report.compact_at_tokens is None
    return f"{'full in ' if is_full else ''}{', '.join(found)}" or "-"


def last_compaction(report: ContextReport | None, now: datetime | None) -> str:
    """Format the age of the last compaction and the net tokens it freed."""
    last = report.last_compaction if report else None
    if last is None:
        return "-"
    gain, when = freed_words(last.freed_tokens, last.basis).removesuffix(" tokens"), ago(last.at, now)
    return f"{when}, {gain}" if when else gain


def saving(one: SavingSuggestion) -> str:
    """Format a suggestion that saves tokens. The saving is always an estimate."""
    return f"{clean(one.text).strip().removesuffix('.')} (saves ~{one.tokens_saved:,} tokens, {one.impact} impact)"


def remarks(entry: BoardEntry, *, now: datetime | None, ended: str | None = None) -> list[str]:
    """Return remarks in addition to the figures; empty if all is well. `ended` is how its program ended."""
    found = [clean(ended)] if ended else []
    status = entry.status
    if not entry.connected:
        found.append(with_age("not connected", entry.received_at if status else None, now, ", last report "))
    else:
        found.append(old_figure(entry, now))
    if status is not None:
        found.append(doing(entry))
        found += _report_remarks(entry, report_of(status), now)
    return [one for one in dict.fromkeys(found) if one]


def doing(entry: BoardEntry) -> str:
    """Return the state of an agent and its progress; empty if it has ended or is shown elsewhere."""
    status = entry.status
    if status is None:
        return ""
    report, now = report_of(status), state(status.status or "")
    # A program that joins again without a status keeps its last one.
    is_over = status.word.word == ("shutting_down" if entry.connected else "waiting_for_approval")
    is_over |= not entry.connected and status.word.has("begun")
    # The WINDOW column already shows the reason for a missing figure.
    why = why_unknown(report) if report.reason and status.tokens is None else None
    if is_over or is_quiet(status) or now == why:
        return ""
    return now if report.progress is None else f"{now}, {progress(report.progress)}"


def progress(work: Progress) -> str:
    """Format the progress of a long piece of work: `piece 2 of 5`."""
    return f"{work.unit.removesuffix('s')} {min(work.done + 1, work.total):,} of {work.total:,}"


def report_line(entry: BoardEntry, now: datetime) -> str:
    """Format a report for a model: its size, level, next and last compaction, and state, in one line."""
    status, report = entry.status, report_of(entry.status)
    why = f": {reason(status, now)}" if status is None or status.tokens is None else ""
    when = compacts_in(entry)
    found = [f"{tokens(status)} of {window(status)} tokens ({source(status)}{why})", old_figure(entry, now)]
    if report.stale_messages and entry.outdated is None:
        found.append(with_age(f"{count_of(report.stale_messages, 'more item')} since", report.measured_at, now))
    found.append("" if report.level == "unknown" else words(report.level))
    found.append("" if report.compact_at_tokens is None else f"compacts at {report.compact_at_tokens:,}")
    found.append(f"in {when}" if when.startswith("~") else when if when.startswith("full") else "")
    found.append("" if report.last_compaction is None else f"last compaction {last_compaction(report, now)}")
    found.append("" if status is None or status.word.word in ("", "active") else words(status.word.word))
    return one_line(", ".join(filter(None, found)))  # so that a peer's level or status is not a second line


def approvals(status: Status | None) -> tuple[Waiting, ...]:
    """Return the proposals of a participant that need a decision."""
    return tuple(one for one in report_of(status).waiting or () if one.kind == "approval")


def approval(wait: Waiting) -> str:
    """Format a wait for an approval, as reported by its participant: `approval of write on files {"path": "a"}`.

    The proposal itself may differ, and people decide on that.
    """
    given = wait.arguments or {}
    if wait.tool == COMPACT_CONTEXT:
        return f"approval of a compaction{compaction_sizes(given)}"
    text = visible(json.dumps(given, ensure_ascii=False)) if given else ""
    return f"{visible(wait.what)}{text and ' '}{shortened(text, _ARGUMENT_CHARS, ALL_SHOWN)}"


def unread(entry: BoardEntry, now: datetime | None) -> str:
    """Format the number of unread messages and the oldest one's age: `3, 9 min ago`. Empty without any.

    Includes messages waiting at the gateway; `3+` if it may not know all.
    """
    found = entry.unread
    if found is None or not found.messages:
        return ""
    shown = str(found.messages) if found.is_complete else f"{found.messages}+"
    return with_age(shown, found.oldest_at, now, ", ")


def _report_remarks(entry: BoardEntry, report: ContextReport, now: datetime | None) -> Iterator[str]:
    for wait in approvals(entry.status) if entry.connected else ():  # a proposal ends when its proposer leaves
        yield with_age(approval(wait), wait.since, now, ", asked ")
    if report.queued is not None and report.queued.messages:
        size = figure(report.queued.tokens, is_estimate=report.queued.basis != "tokenizer")
        yield f"{count_of(report.queued.messages, 'message')} queued ({size} tokens)"
    yield from _limits(report.waiting or ())
    yield from _figure_remarks(report, now)
    if report.sessions:
        yield sessions(report.sessions)
    if report.pins:
        yield pins(report.pins)
    if report.suggestions:
        yield f"could save ~{max(one.tokens_saved for one in report.suggestions):,}"


def _figure_remarks(report: ContextReport, now: datetime | None) -> Iterator[str]:
    if isinstance(report.severity, int) and report.severity > 0:
        yield words(report.level)
    if report.stale_messages:
        yield with_age(f"+{count_of(report.stale_messages, 'item')} since", report.measured_at, now)
    if report.spent_tokens is not None:
        budget = "" if report.budget_tokens is None else f" of {report.budget_tokens:,}"
        yield f"spent {report.spent_tokens:,}{budget}"
    if report.injection:
        left = "" if report.injection.remaining is None else f" ({report.injection.remaining} left)"
        yield f"{words(report.injection.kind)}{left}"


def _limits(waits: Sequence[Waiting]) -> Iterator[str]:
    if held := sum(wait.kind == "room" for wait in waits):
        yield f"{count_of(held, 'message')} held for lack of room"
    for kind, says in (("tools", "not all tools of"), ("budget", "budget spent for")):
        if limited := [wait.peer for wait in waits if wait.kind == kind and wait.peer]:
            more = f" and {len(limited) - _LIMITED} more" if len(limited) > _LIMITED else ""
            yield f"{says} {', '.join(limited[:_LIMITED])}{more}"


def spent_for(one: SenderSpending) -> str:
    """Format the tokens spent for a sender: `ada: 12,400 of 50,000,000 tokens per hour, 2 calls not reported`."""
    tokens = "?" if one.tokens is None else f"{one.tokens:,}"
    unknown = f", {count_of(one.unreported_calls, 'call')} not reported" if one.unreported_calls else ""
    return clean(f"{one.participant}: {tokens} of {one.budget_tokens:,} tokens per hour{unknown}")


def pins(pinned: Sequence[PinReport]) -> str:
    """Format the number of pins and the beginning of each hash: `2 pins 3f2a19c1 99b0ab12`."""
    hashes = " ".join(clean(one.hash[:8]) for one in pinned[:_PIN_HASHES])
    more = "" if len(pinned) <= _PIN_HASHES else " ..."
    return f"{count_of(len(pinned), 'pin')} {hashes}{more}"


def pin(one: PinReport) -> str:
    """Format the size and the origin of a pin: `~40 tokens from ada`."""
    return clean(f"~{one.tokens:,} tokens from {one.origin}")


def sessions(contexts: Sequence[SessionContext]) -> str:
    """Format the number of sessions, and the fullest one: `3 sessions, fullest 4,120 of 8,192`."""
    count = count_of(len(contexts), "session")
    known = [(one.tokens / one.max_tokens, one) for one in contexts if one.tokens is not None and one.max_tokens]
    if not known:
        return count
    fullest = max(known, key=lambda pair: pair[0])[1]
    size = known_figure(fullest.tokens, fullest.context.basis)
    return f"{count}, fullest {size} of {fullest.max_tokens:,}"


def facts(entry: BoardEntry, now: datetime | None) -> list[tuple[str, str]]:
    """Return the figures of a status as pairs of name and value; unknown ones are left out."""
    status = entry.status
    if status is None:
        return []
    report = status.context
    found = [("messages", f"{status.messages_in_context:,}")]
    if status.latency_ms is not None:
        found.append(("latency", f"{status.latency_ms:,} ms"))
    if report is None:
        return found
    rows = [
        ("next call", _next_call_with_basis(report)),
        ("compacts in", compacts_in(entry)),
        ("compacts at", figure_or_dash(report.compact_at_tokens)),
        *found,
        *_compaction_facts(report, now),
        *_call_facts(report),
        *_spending_facts(report),
        *_source_facts(report, now),
    ]
    return [(name, value) for name, value in rows if value not in ("-", "")]


def figure_or_dash(number: int | None) -> str:
    """Format a figure; `-` if it is absent."""
    return "-" if number is None else f"{number:,}"


def _next_call_with_basis(report: ContextReport) -> str:
    shown = next_call(report)
    known = report.next_prompt_basis
    return shown if known is None or shown == "-" else f"{shown} ({words(known)})"


def _compaction_facts(report: ContextReport, now: datetime | None) -> Iterator[tuple[str, str]]:
    cut = report.last_compaction
    yield "last compaction", last_compaction(report, now)
    if cut is not None:
        yield "reason", clean(cut.reason or "-")
        yield "cost", str(cut.cost) if cut.cost else "-"
    yield "compactions", f"{report.compactions:,}" if report.compactions else "-"


def _call_facts(report: ContextReport) -> Iterator[tuple[str, str]]:
    prompt, cached = report.prompt_tokens, report.cached_tokens
    share = f" ({100 * cached // prompt}%)" if cached is not None and prompt and cached <= prompt else ""
    yield "prompt", figure_or_dash(prompt)
    yield "from cache", f"{figure_or_dash(cached)}{share}"
    yield "completion", figure_or_dash(report.completion_tokens)
    yield "reasoning", figure_or_dash(report.reasoning_tokens)
    yield "per turn", "-" if report.tokens_per_turn is None else f"~{report.tokens_per_turn:,.0f}"
    yield "drift", figure_or_dash(report.drift_tokens)


def _spending_facts(report: ContextReport) -> Iterator[tuple[str, str]]:
    yield "spent", clean(str(report.spending or "-"))
    yield from (("spent for", spent_for(one)) for one in report.spent_for or ())


def _source_facts(report: ContextReport, now: datetime | None) -> Iterator[tuple[str, str]]:
    yield "window", WINDOW_SOURCES[report.max_tokens_basis] if report.max_tokens_basis else "-"
    yield "model", clean(report.model or "-")
    yield "policy", words(report.policy or "-")
    yield "reported", ago(report.measured_at, now) or "-"
