"""`mew context history`, `show`, `undo` and `recall`.

Prints the answers. The participant decides what can be undone.
"""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer
from mew_board import changes, words
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.payloads.context_history import ParticipantFigures
from mew_protocol.payloads.participant import RequestStatus
from mew_protocol.payloads.retrieval import (
    MAX_RECALLED,
    ArchivedItem,
    CompactionEntry,
    CompactionHistory,
    Recall,
    RecallDone,
    RequestHistory,
    Undo,
    UndoDone,
)
from pydantic import BaseModel

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, ReasonOption, option
from mew_agent.cli.remote.http_api import MAX_MINUTES, MAX_REPORTS
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import (
    ParticipantOffline,
    RequestRefused,
    SlowRequest,
    TargetedRequest,
    check_known,
    typed_payload,
)
from mew_agent.parts.archive.csv_export import csv_lines
from mew_agent.parts.shared.composition_lines import composition_lines


def history(
    *,
    as_csv: Annotated[bool, option("--csv", "Print the figures over time as CSV.")] = False,
    minutes: Annotated[
        int | None, option("--minutes N", "Minutes of figures to print (default: 60).", min=1, max=MAX_MINUTES)
    ] = None,
    request: TargetedRequest,
) -> None:
    """List a participant's compactions.

    Lists time, cause, tokens before and after, requester or approver, and cost of each, oldest first. A
    `forget`, a `clear` and an undo are listed too. Uses the gateway's records with `--csv`, or if the participant is
    away or keeps no list.
    """
    if as_csv:
        terminal.print_lines(csv_lines(_recorded(request, minutes or 60)))
    elif minutes is not None:
        _print_recorded(request, _recorded(request, minutes))
    else:
        _print_compactions(request)


def _print_compactions(request: TargetedRequest) -> None:
    try:
        found = request.ask(RequestHistory(), kinds.PARTICIPANT_REQUEST_HISTORY, CompactionHistory)
    except (ParticipantOffline, RequestRefused) as problem:
        recorded = _recorded(request, MAX_MINUTES)
        if not recorded.compactions:
            raise
        terminal.warn(f"{problem}; this is what the gateway recorded")
        _print_recorded(request, recorded)
        return
    if OUTPUT.is_json or not found.entries:
        request.print("nothing has left the context yet", _json_of(found))
    else:
        _print_entries(found)
    if found.dropped and not OUTPUT.is_json:
        terminal.warn(f"{words.count_of(found.dropped, 'older entry', 'older entries')} no longer kept")


def show(
    request: TargetedRequest,
    number: Annotated[
        int | None, typer.Argument(metavar="N", help="Number of a compaction (default: the context now).", min=1)
    ] = None,
) -> None:
    """Print the parts of a context, or the text before a compaction.

    Without N, lists the parts of the context and each tool with its tokens; `~` marks an estimate. With N, prints the
    compaction's summary and the messages that it replaced.
    """
    if number is None:
        _show_composition(request)
        return
    kind = kinds.PARTICIPANT_REQUEST_HISTORY
    shown = page = request.ask(RequestHistory(number=number), kind, CompactionHistory)
    items = list(shown.items)
    while page.next is not None:
        page = request.ask(RequestHistory(number=number, after=page.next), kind, CompactionHistory)
        items += page.items
    if OUTPUT.is_json:
        whole = shown.model_copy(update={"items": tuple(items), "next": None})
        terminal.print_json({"participant": request.target, **_json_of(whole)})
    else:
        _print_entries(shown)
        terminal.print_lines(_texts(shown, items, terminal.now()))


def _show_composition(request: TargetedRequest) -> None:
    fields = RequestStatus(fields=("tokens", "max_tokens", "context", "prefix"))
    status = request.ask_status(kinds.PARTICIPANT_REQUEST_STATUS, fields)
    if not OUTPUT.is_json and not words.has_context(status):
        raise RequestRefused(request.target, "reports no context")
    known = words.source(status) if status.tokens is not None else words.reason(status, terminal.now())
    request.print(f"{words.tokens(status)} of {words.window(status)} tokens, {known}", _json_of(status))
    if not OUTPUT.is_json:
        width = terminal.style_of(sys.stdout).width
        terminal.print_lines(composition_lines(status, status.prefix or (), width=width))


def undo(
    request: SlowRequest,
    number: Annotated[
        int | None, typer.Argument(metavar="N", help="Number of the compaction (default: the newest).", min=1)
    ] = None,
    reason: ReasonOption = None,
) -> int:
    """Undo a compaction and restore the removed messages.

    Waits until a running model call has ended. Exits with code 3 if the participant refuses, for instance because the
    context would not fit the window, or because a later compaction has to be undone first.
    """
    done = request.ask(Undo(number=number, reason=reason), kinds.PARTICIPANT_UNDO, UndoDone)
    request.print(words.undone(done), _json_of(done))
    return ExitCode.DONE if done.status == "undone" else ExitCode.SKIPPED


def recall(
    request: TargetedRequest,
    searched: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words to search for; quotes keep a phrase.")],
    limit: Annotated[int, option("--limit N", "Number of matches to print.", min=1, max=MAX_RECALLED)] = 10,
) -> int:
    """Search removed messages of a participant's context.

    Prints extracts of the messages with all the words, best match first. If no message has all, prints those with any.
    Exits with code 3 if nothing matches.
    """
    wanted = typed_payload(Recall, "WORDS", words=" ".join(searched), limit=limit)
    done = request.ask(wanted, kinds.PARTICIPANT_RECALL, RecallDone)
    if OUTPUT.is_json or not done.found:
        request.print("no match among the messages that left the context", _json_of(done))
    else:
        for item in done.found:
            terminal.print_lines(_item_lines(item, terminal.now()))
    return ExitCode.DONE if done.found else ExitCode.SKIPPED


def _recorded(request: TargetedRequest, minutes: int) -> ParticipantFigures:
    """Return the gateway's record of a participant. Raises `NoSuchParticipant`."""
    api = find_gateway(request.connection)
    check_known(api, api.board(), request.target)
    found = api.context_history(minutes * 60, request.target)
    if found.more:
        terminal.warn(f"only the newest {MAX_REPORTS:,} are shown; choose fewer minutes")
    return next(iter(found.participants), ParticipantFigures(id=request.target))


def _print_recorded(request: TargetedRequest, recorded: ParticipantFigures) -> None:
    if OUTPUT.is_json or not recorded.compactions:
        request.print("the gateway recorded no compaction in this time", _json_of(recorded))
        return
    for done in recorded.compactions:
        terminal.print_line(f"{words.clock(done.at, terminal.now())}  {changes.recorded_line(done)}")
        if done.summary is not None:
            terminal.print_lines(_indented(done.summary))


def _print_entries(found: CompactionHistory) -> None:
    for entry in found.entries:
        terminal.print_lines(_lines(entry, terminal.now()))


def _figures_of(entry: CompactionEntry, now: datetime) -> Iterator[str]:
    yield f"{entry.number:>3}"
    yield words.clock(entry.at, now)
    yield changes.trigger(entry)
    yield changes.sizes(entry)
    yield changes.gain(entry)
    if entry.summary_tokens:
        yield f"summary {changes.summary(entry)}"
    if entry.undone_by is not None:
        yield f"undone by {entry.undone_by}"
    if entry.problem is not None:
        yield entry.problem


def _lines(entry: CompactionEntry, now: datetime) -> Iterator[str]:
    """Yield one entry, `3  14:01  threshold  115,940 -> 52,310  freed 63,630 (projected)`, and its details."""
    yield "  ".join(filter(None, _figures_of(entry, now)))
    asked = f"asked by {entry.asked_by}" if entry.asked_by else ""
    cost = f"cost {entry.cost}" if entry.cost is not None and str(entry.cost) else ""
    for detail in (": ".join(filter(None, (asked, entry.reason))), entry.approval, cost):
        if detail:
            yield f"     {clean(detail)}"


def _texts(shown: CompactionHistory, items: list[ArchivedItem], now: datetime) -> Iterator[str]:
    if shown.summary is not None:
        yield from ("", "Summary", *_indented(shown.summary))
    if shown.previous_summary is not None:
        yield from ("", "Earlier summary", *_indented(shown.previous_summary))
    if items:
        yield from ("", f"Replaced, {words.count_of(len(items), 'item')}")
    for item in items:
        yield from _item_lines(item, now)


def _item_lines(item: ArchivedItem, now: datetime) -> Iterator[str]:
    yield f"{words.clock(item.at, now)}  {clean(item.sender or item.role)}  {clean(item.id)}"
    yield from _indented(item.text)
    if item.clipped_chars and not item.text.startswith("...") and not item.text.endswith("..."):
        yield f"    ({item.clipped_chars:,} more characters)"


def _indented(text: str) -> Iterator[str]:
    return (f"    {clean(line)}".rstrip() for line in text.splitlines())


def _json_of(answer: BaseModel) -> dict[str, object]:
    return answer.model_dump(mode="json", exclude_none=True)
