"""`mew tools`: asks participants for their tools and prints the answers."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

from mew_board import words
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.json_values import object_at, value_at

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import people_of
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, TimeoutOption, participant_argument
from mew_agent.cli.remote.http_api import GatewayApi, SpaceEvents
from mew_agent.cli.remote.identity import configuration_at, find_gateway
from mew_agent.cli.remote.sent_request import check_member, first_board, new_envelope
from mew_agent.errors import PeerTimeout, listed
from mew_agent.tools.peer_offers import InvalidList, PeerList

LIST_SECONDS: Final = 5.0
"""How long participants may take to list their tools."""


def tools(
    target: Annotated[str | None, participant_argument("Id of the participant (default: all).")] = None,
    timeout: TimeoutOption = LIST_SECONDS,
    *,
    connection: ConnectionOptions,
) -> None:
    """List the tools that participants offer.

    Your participant needs the capability `mcp/request` for `tools/list`.
    """
    api = find_gateway(connection)
    names = [target] if target is not None else _may_offer(api)
    with api.events() as events:
        board = first_board(events)
        if target is not None:
            check_member(api, board, target)
        with terminal.ProgressLine() as progress:
            found = _ask(api, events, names, time.monotonic() + timeout, progress)
    _print(found)
    silent = [name for name in names if name not in found]
    if silent:
        if target is not None:
            raise PeerTimeout(target, "tools/list", timeout)
        terminal.warn(f"no answer in {timeout:g} s from {', '.join(silent)}")
    if not OUTPUT.is_json and not any(found.values()):
        terminal.print_line("no participant offers a tool" if target is None else f"{target}: no tools")


def _may_offer(api: GatewayApi) -> list[str]:
    """Return the connected participants that may answer requests, except people, whose clients answer none."""
    config = configuration_at(api.run_path)
    people = people_of(config) if config is not None else []
    return [
        str(one["id"])
        for one in api.participants()
        if one.get("connected")
        and one.get("id") not in (api.participant, *people)
        and CapabilitySet(one.get("capabilities") or ()).allows(Draft(kind=kinds.MCP_RESPONSE))
    ]


def _ask(
    api: GatewayApi, events: SpaceEvents, names: list[str], deadline: float, progress: terminal.ProgressLine
) -> dict[str, list[Mapping[str, Any]]]:
    """Collect the tools of participants that answer in time, page by page."""
    open_requests: dict[str, str] = {}

    def send(name: str, **parameters: str) -> None:
        payload = {"method": "tools/list", "params": parameters}
        request = new_envelope(api, kinds.MCP_REQUEST, payload, name)
        open_requests[request.id] = name
        api.send(request.as_dict())

    for name in names:
        send(name)
    pages = {name: PeerList(name, "tools") for name in names}
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
        with suppress(InvalidList):
            pages[name].add(result)
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


def _print(found: Mapping[str, list[Mapping[str, Any]]]) -> None:
    listed = sorted(found.items())
    if OUTPUT.is_json:
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
        line = clean(f"  {tool.get('name')!s:<{width}}  {summary}".rstrip())
        terminal.print_line(words.clip(line, space))
