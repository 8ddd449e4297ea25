"""`mew history`, `mew tools` and `mew fit`.

Owns which envelopes are shown, which participants are asked for tools, and how the answers are printed. The gateway
decides how long it keeps envelopes; whether a text fits is computed in `mew_protocol.payloads.fit`.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mew_board import words
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.ids import Position
from mew_protocol.json_values import object_at, objects_at, value_at
from mew_protocol.payloads.fit import Fit
from mew_protocol.quoting import indented, markdown_block, markdown_line

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import people_of
from mew_agent.cli.app.options import (
    ConnectionOptions,
    JsonOption,
    TargetArgument,
    TimeoutOption,
    option,
    participant_argument,
    with_option_groups,
)
from mew_agent.cli.remote.http_api import GatewayApi, SpaceEvents
from mew_agent.cli.remote.permissions import warn_of_unknown_kinds
from mew_agent.cli.remote.request import (
    ParticipantOffline,
    check_known,
    check_member,
    check_name,
    first_board,
    new_envelope,
    send_request,
)
from mew_agent.cli.remote.session import configuration_at, find_gateway
from mew_agent.errors import ConfigError, NotPermitted, PeerError, PeerTimeout, listed
from mew_agent.participant.fit_requests import FitRequest
from mew_agent.participant.peer_controls import FIT_SECONDS
from mew_agent.tools.peer_offers import BoundedEntries, ListPage

Message = dict[str, Any]
"""An envelope as JSON."""

LIST_SECONDS: Final = 5.0
"""How long participants may take to list their tools."""

VERDICTS: Final = {True: "fits", False: "does not fit", None: "not known"}

_EXIT_CODES: Final = {True: ExitCode.DONE, False: ExitCode.SKIPPED, None: ExitCode.FAILED}

_MAX_CHARS: Final = 4_000
"""Of one chat, so that a pasted file does not push all others off the screen."""


@with_option_groups
def show_history(
    target: Annotated[str | None, participant_argument("Show only what it sent, or what is addressed to it.")] = None,
    *,
    last: Annotated[int, option("--last, -n N", "Number of newest envelopes to print.", min=1)] = 20,
    kind: Annotated[
        list[str] | None, option("--kind KIND", "Show this kind, such as 'mcp/*'; repeatable (default: chat).")
    ] = None,
    everything: Annotated[bool, option("--all", "Show every kind.")] = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, option("--markdown", "Print a Markdown document.")] = False,
    connection: ConnectionOptions,
) -> None:
    """Print recent chats of a space, or envelopes of other kinds.

    Reads what the gateway still keeps, oldest first.
    """
    if as_json and as_markdown:
        raise ConfigError("--markdown", "cannot be combined with --json")
    patterns = ["*"] if everything else kind or [kinds.CHAT]
    api = find_gateway(connection)
    newest = _newest_messages(api, patterns, target, last)
    if as_json:
        terminal.print_json([*newest])
    else:
        _print_messages(newest, as_markdown=as_markdown)
    if newest:
        return
    if target is not None:
        check_name(api, target)
    if not as_json:
        terminal.print_line("the gateway keeps no matching envelopes")
        warn_of_unknown_kinds({"kind": pattern} for pattern in patterns)


def share_read(first: Position, at: Position | None, newest: Position) -> str:
    """Return the share of a log from `first` to `newest` that was read up to `at`; empty if it is not known."""
    if at is None or not first.epoch == at.epoch == newest.epoch:
        return ""
    return f", {words.share_of(at.sequence - first.sequence + 1, newest.sequence - first.sequence + 1)}"


def _is_wanted(message: Message, patterns: list[str], target: str | None) -> bool:
    """Return True for an envelope of one of these kinds, from or to `target` if that is given."""
    is_of_kind = any(fnmatchcase(str(message.get("kind")), pattern) for pattern in patterns)
    return is_of_kind and (target is None or target in (message.get("from"), *(message.get("to") or ())))


def _markdown(message: Message) -> str:
    """One envelope as a section: the text of a chat, others as JSON. No text leaves its code block."""
    who, payload, kind = _who(message), message.get("payload") or {}, message.get("kind")
    at = message.get("ts")
    if kind == kinds.CHAT:
        block = markdown_block(str(payload.get("text")), "markdown")
        return f"## {markdown_line(f'{who}, {at}')}\n\n{block}\n"
    block = markdown_block(json.dumps(payload, ensure_ascii=False, indent=2), "json")
    return f"## {markdown_line(f'{who}, {kind}, {at}')}\n\n{block}\n"


def _newest_messages(api: GatewayApi, patterns: list[str], participant: str | None, last: int) -> deque[Message]:
    """Read what the gateway keeps, and return the newest messages of these kinds."""
    newest: deque[Message] = deque(maxlen=last)
    with terminal.ProgressLine() as progress:
        read, share = 0, ""
        first = newest_at = None
        for page in api.pages():
            read += len(page["messages"])
            if first is None and page.get("more"):
                first, newest_at = Position.parse(page["positions"][0]), api.newest_position()
            if first is not None and newest_at is not None:
                share = share_read(first, Position.parse(str(page["next"])), newest_at)
            newest.extend(one for one in page["messages"] if _is_wanted(one, patterns, participant))
            progress.show(f"{api.space}: read {words.count_of(read, 'envelope')}{share}")
    return newest


def _print_messages(messages: Iterable[Message], *, as_markdown: bool) -> None:
    for message in messages:
        terminal.print_line(_markdown(message) if as_markdown else _message_line(message, terminal.now()))


def _message_line(message: Message, now: datetime) -> str:
    """One envelope as text: a chat up to a limit, the rest as one line."""
    at = words.clock(str(message.get("ts")), now, today="%H:%M:%S")
    who, payload = _who(message), message.get("payload") or {}
    if message.get("kind") == kinds.CHAT:
        # Indented: no line of a text may look like an envelope of another sender.
        text = str(payload.get("text"))
        if (rest := len(text) - _MAX_CHARS) > 0:
            text = f"{text[:_MAX_CHARS]}\n... {rest:,} more characters; --markdown prints all"
        return f"{at}  {words.clean(who)}: {indented(text, ' ' * (len(at) + 2))}"
    line = f"{at}  {who}  {message.get('kind')} {json.dumps(payload, ensure_ascii=False)}"
    return words.clip(words.clean(line), terminal.style_of(sys.stdout).width)


def _who(message: Message) -> str:
    return " to ".join(filter(None, (str(message.get("from")), ", ".join(message.get("to") or ()))))


@with_option_groups
def show_tools(
    target: Annotated[str | None, participant_argument("Id of the participant (default: all).")] = None,
    timeout: TimeoutOption = LIST_SECONDS,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> None:
    """List the tools that participants offer.

    Your participant needs the capability `mcp/request` for `tools/list`.
    """
    api = find_gateway(connection)
    names = [target] if target is not None else _may_offer_tools(api)
    with api.events() as events:
        board = first_board(events)
        if target is not None:
            check_member(api, board, target)
        with terminal.ProgressLine() as progress:
            found = _ask_for_tools(api, events, names, time.monotonic() + timeout, progress)
    _print_all_tools(found, as_json=as_json)
    silent = [name for name in names if name not in found]
    if silent:
        if target is not None:
            raise PeerTimeout(target, "tools/list", timeout)
        terminal.warn(f"no answer in {timeout:g} s from {', '.join(silent)}")
    if not as_json and not any(found.values()):
        terminal.print_line("no participant offers a tool" if target is None else f"{target}: no tools")


def _may_offer_tools(api: GatewayApi) -> list[str]:
    """Return the connected participants that may answer requests, without people: their clients answer none."""
    config = configuration_at(api.run_path)
    people = people_of(config) if config is not None else []
    return [
        str(one["id"])
        for one in api.participants()
        if one.get("connected")
        and one.get("id") not in (api.participant, *people)
        and CapabilitySet(one.get("capabilities") or ()).allows(Draft(kind=kinds.MCP_RESPONSE))
    ]


def _ask_for_tools(
    api: GatewayApi, events: SpaceEvents, names: list[str], deadline: float, progress: terminal.ProgressLine
) -> dict[str, list[Mapping[str, Any]]]:
    """The tools of those that answer in time, page by page. One that knows no tools has none."""
    open_requests: dict[str, str] = {}

    def send(name: str, **parameters: str) -> None:
        payload = {"method": "tools/list", "params": parameters}
        request = new_envelope(api, kinds.MCP_REQUEST, payload, name)
        open_requests[request.id] = name
        api.send(request.as_dict())

    for name in names:
        send(name)
    pages = {name: BoundedEntries() for name in names}
    found: dict[str, list[Mapping[str, Any]]] = {}
    while open_requests:
        waiting = listed(sorted({*open_requests.values()}))
        progress.show(f"{len(found)} of {len(names)} listed their tools, waiting for {waiting}")
        try:
            body = events.next(deadline=deadline).body
        except TimeoutError:
            break
        request = _answered(body, open_requests)
        if request is None:
            continue
        name, result = open_requests.pop(request), object_at(body, "payload", "result")
        pages[name].add(ListPage(tuple(objects_at(result, "tools"))))
        if result.get("nextCursor") and not pages[name].is_full:
            send(name, cursor=str(result["nextCursor"]))
        else:
            found[name] = pages[name].entries
            if pages[name].left_out:
                terminal.warn(f"{name} lists more tools; showing {len(found[name]):,}")
    return found


def _answered(body: Any, open_requests: Mapping[str, str]) -> str | None:
    """Return the id of the open request that an event answers; None if it answers none."""
    if value_at(body, "kind") != kinds.MCP_RESPONSE:
        return None
    sender = body.get("from")
    return next((one for one in body.get("correlation_id") or () if open_requests.get(one) == sender), None)


def _print_all_tools(found: Mapping[str, list[Mapping[str, Any]]], *, as_json: bool) -> None:
    listed = sorted(found.items())
    if as_json:
        terminal.print_json([{"participant": name, **tool} for name, tools in listed for tool in tools])
        return
    for name, tools in listed:
        _print_tools(name, tools)


def _print_tools(name: str, tools: list[Mapping[str, Any]]) -> None:
    if not tools:
        return
    terminal.print_line(name)
    width, space = max(words.cells(str(tool.get("name"))) for tool in tools), terminal.style_of(sys.stdout).width
    for tool in tools:
        summary = str(tool.get("description") or "").strip().partition("\n")[0]
        line = words.clean(f"  {tool.get('name')!s:<{width}}  {summary}".rstrip())
        terminal.print_line(words.clip(line, space))


def _own_answer(connection: ConnectionOptions, target: str, question: FitRequest) -> Fit | None:
    """Ask an agent whether a text fits; None if it does not answer soon, or does not say."""
    kind = kinds.PARTICIPANT_REQUEST_STATUS
    try:
        with send_request(connection, target, kind, question.payload, FIT_SECONDS) as sent:
            return question.answer_in(sent.next_status())
    except (ParticipantOffline, PeerError, NotPermitted):
        return None


@with_option_groups
def fit(
    target: TargetArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with the text (default: standard input).")
    ] = None,
    tokens: Annotated[int | None, option("--tokens N", "Ask about N tokens instead of a text.", min=0)] = None,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Check whether a text fits into an agent's context.

    Asks the agent, which knows the tokens of its model. If it does not answer, compares an estimate with its last
    report. Exits with code 3 if it does not fit, and with code 1 if that is not known.
    """
    api = find_gateway(connection)
    question = FitRequest.of(terminal.read_text(file, "FILE") if tokens is None else tokens)
    outcome = _own_answer(connection, target, question)
    if outcome is None:
        entry = check_known(api, api.board(), target)
        outcome = question.by_report(entry.status, as_of=entry.received_at, outdated=entry.outdated)
    is_own = not outcome.by_report
    known = {"participant": target, "asked": is_own, **outcome.model_dump(mode="json", exclude_none=True)}
    by = "" if is_own else "; by its last report"
    terminal.print_outcome(f"{target}: {_verdict(outcome)}; {outcome}{by}", known, as_json=as_json)
    return _EXIT_CODES[outcome.fits]


def _verdict(fit: Fit) -> str:
    verdict = VERDICTS[fit.fits]
    if fit.fits is False and fit.fits_after_compaction is not None:
        verdict += " now, but after a compaction" if fit.fits_after_compaction else ", not even after a compaction"
    return verdict
