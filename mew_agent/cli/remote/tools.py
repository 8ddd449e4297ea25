"""`mew tools`: the tools that the participants of a space offer.

Owns which participants are asked, and how their answers are printed. Each participant answers `tools/list` itself.
"""

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.payloads.participant import Board

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import (
    ConnectionOptions,
    TimeoutOption,
    option,
    participant_argument,
    with_option_groups,
)
from mew_agent.cli.board import words
from mew_agent.cli.remote.http_api import SpaceEvents
from mew_agent.cli.remote.request import check_member, new_envelope
from mew_agent.cli.remote.session import ApiSession, configuration_at, open_session
from mew_agent.errors import PeerTimeout

LIST_SECONDS = 5.0


@with_option_groups
def show_tools(
    target: Annotated[str | None, participant_argument("Id of the participant (default: all).")] = None,
    timeout: TimeoutOption = LIST_SECONDS,
    *,
    as_json: Annotated[bool, option("--json", "Print JSON Lines, one object per tool.")] = False,
    connection: ConnectionOptions,
) -> int:
    """List the tools that participants offer.

    Your participant needs the capability `mcp/request` for `tools/list`.
    """
    session = open_session(connection)
    names = [target] if target is not None else _may_offer_tools(session)
    with session.api.events() as events:
        while (event := events.next()).name != "board":
            pass
        board = Board.model_validate(event.body)
        if target is not None:
            check_member(session, board, target)
        found = _ask(session, events, names, time.monotonic() + timeout)
    for name, tools in sorted(found.items()):
        _print(name, tools, as_json=as_json)
    silent = [name for name in names if name not in found]
    if target is not None and silent:
        raise PeerTimeout(target, "tools/list", timeout)
    if silent:
        terminal.warn(f"no answer in {timeout:g} s from {', '.join(silent)}")
    if not as_json and not any(found.values()):
        terminal.print_line("no participant offers a tool" if target is None else f"{target}: no tools")
    return ExitCode.DONE


def _may_offer_tools(session: ApiSession) -> list[str]:
    """The connected participants that may answer requests, without people, whose clients usually answer none."""
    config = configuration_at(session.run_path)
    people = {name for name in config.participants if config.is_person(name)} if config is not None else set()
    return [
        str(one["id"])
        for one in session.api.participants()
        if one.get("connected")
        and one.get("id") not in (session.api.participant, *people)
        and CapabilitySet(one.get("capabilities") or ()).allows(Draft(kind=kinds.MCP_RESPONSE))
    ]


def _ask(
    session: ApiSession, events: SpaceEvents, names: list[str], deadline: float
) -> dict[str, list[Mapping[str, Any]]]:
    """The tools of those that answer in time, page by page. One that knows no tools has none."""
    open_requests: dict[str, str] = {}

    def send(name: str, **parameters: str) -> None:
        payload = {"method": "tools/list", "params": parameters}
        request = new_envelope(session, kinds.MCP_REQUEST, payload, name)
        open_requests[request.id] = name
        session.api.send(request.as_dict())

    for name in names:
        send(name)
    pages: dict[str, list[Mapping[str, Any]]] = {}
    found: dict[str, list[Mapping[str, Any]]] = {}
    while open_requests:
        try:
            body = events.next(deadline=deadline).body
        except TimeoutError:
            break
        if not isinstance(body, Mapping) or body.get("kind") != kinds.MCP_RESPONSE:
            continue
        request = next((one for one in body.get("correlation_id") or () if one in open_requests), None)
        if request is None or body.get("from") != open_requests[request]:
            continue
        name, result = open_requests.pop(request), (body.get("payload") or {}).get("result")
        result = result if isinstance(result, Mapping) else {}
        pages.setdefault(name, []).extend(one for one in result.get("tools") or () if isinstance(one, Mapping))
        if result.get("nextCursor"):
            send(name, cursor=str(result["nextCursor"]))
        else:
            found[name] = pages[name]
    return found


def _print(name: str, tools: list[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for tool in tools:
            terminal.print_json({"participant": name, **tool})
        return
    if not tools:
        return
    terminal.print_line(name)
    width, space = max(words.cells(str(tool.get("name"))) for tool in tools), terminal.style_of(sys.stdout).width
    for tool in tools:
        summary = str(tool.get("description") or "").strip().partition("\n")[0]
        line = words.clean(f"  {tool.get('name')!s:<{width}}  {summary}".rstrip())
        terminal.print_line(words.clip(line, space))
