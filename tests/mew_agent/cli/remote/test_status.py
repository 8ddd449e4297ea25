"""The board as `mew status` shows it: once, as JSON, and as it changes."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.cli.app import terminal
from mew_agent.parts.mcp.space_offers import board_text
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import REPORT, Outcome, Output, board_shows, mew, seat, status
from tests.support.command_space import SPACE
from tests.support.gateway_client import Message, joined
from tests.support.waiting import until

FULL: Message = {"tokens": 98_412, "max_tokens": 128_000, "context": REPORT}


async def reported(gateway: RunningGateway) -> None:
    await board_shows(gateway, lambda board: board["coder"].status is not None)


@pytest.mark.parametrize("basis", ["reported", "agent_reported", "provisional"])
async def test_every_surface_shows_the_figure_and_how_it_is_known(gateway: RunningGateway, basis: str) -> None:
    async with joined(gateway, "coder") as client:
        await status(client, **{**FULL, "context": {**REPORT, "basis": basis}})
        await reported(gateway)
        outcome, as_json = await mew("status", *seat(gateway)), await mew("status", "--json", *seat(gateway))
    lines, board = outcome.out.splitlines(), gateway.board()
    assert lines[0].startswith("review · 1 of 3 members · ")
    assert f"{'' if basis == 'reported' else '~'}98,412 of 128,000" in lines[2]
    assert "77%" in lines[2]
    assert f" {basis.replace('_', ' ')} " in lines[2]
    assert (outcome.code, outcome.err) == (0, "")
    entry = next(one for one in json.loads(as_json.out) if one["id"] == "coder")
    over_http = next(one for one in json.loads(board.model_dump_json())["participants"] if one["id"] == "coder")
    for shown in (entry, over_http):
        assert (shown["status"]["tokens"], shown["status"]["context"]["basis"]) == (98_412, basis)
    # What `read_board` of `mew serve mcp` returns.
    assert basis.replace("_", " ") in next(
        line for line in board_text(board, datetime.now(UTC)).splitlines() if "coder" in line
    )


async def test_ages_are_those_of_the_gateway(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine may differ by hours."""
    async with joined(gateway, "coder") as client:
        await status(client, **FULL)
        await reported(gateway)
    await board_shows(gateway, lambda board: not board["coder"].connected)
    real = terminal.now
    monkeypatch.setattr(terminal, "now", lambda: real() + timedelta(hours=2))
    outcome = await mew("status", *seat(gateway))
    assert "not connected, last report " in outcome.out
    assert "2 h ago" not in outcome.out


async def test_any_participant_reads_the_board_with_its_token(gateway: RunningGateway) -> None:
    assert (await mew("status", *seat(gateway, "guest"))).code == 0


async def test_a_history_without_reports_says_so(gateway: RunningGateway) -> None:
    outcome = await mew("status", "--history", "60", *seat(gateway))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "mew: no participant has reported a context window in this time\n"


async def test_json_lists_each_participant(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as client:
        await status(client, **FULL, own_metric=7)
        await reported(gateway)
        outcome = await mew("status", "--json", *seat(gateway))
    entries = {entry["id"]: entry for entry in json.loads(outcome.out)}
    assert set(entries) == {"ada", "guest", "coder"}
    assert entries["coder"]["status"]["tokens"] == 98_412
    assert entries["coder"]["status"]["context"]["basis"] == "reported"
    assert entries["coder"]["status"]["own_metric"] == 7
    assert "status" not in entries["ada"]


async def test_a_named_participant_is_shown_alone(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as client:
        await status(client, **FULL)
        await reported(gateway)
        table, as_json, person, wrong = [
            await mew("status", *arguments, *seat(gateway))
            for arguments in (["coder"], ["coder", "--json"], ["ada"], ["codr"])
        ]
    heading, _, *rows = table.out.splitlines()
    assert heading.startswith("review · 1 of 3 members · ")
    assert [row.split()[0] for row in rows] == ["coder"]
    assert [entry["id"] for entry in json.loads(as_json.out)] == ["coder"]
    assert person.out.splitlines()[2].split()[:2] == ["ada", "-"]
    assert (wrong.code, wrong.err) == (2, "mew: no participant 'codr' in space 'review' (did you mean 'coder'?)\n")


async def test_rows_are_grouped_by_model(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as client:
        await status(client, **FULL)
        await reported(gateway)
        outcome = await mew("status", "--by", "model", *seat(gateway))
        wrong = await mew("status", "--by", "size", *seat(gateway))
    assert "no model reported (3, " in outcome.out
    assert (wrong.code, "'role'" in wrong.err) == (2, True)


async def test_killed_supervisor_gives_a_warning(gateway: RunningGateway, tmp_path: Path) -> None:
    pids = {"supervisor": 2**22 + 7, "gateway": os.getpid()}
    running_space(tmp_path, gateway=gateway.url, ws=gateway.ws_url, pids=pids)
    outcome = await mew("status", seat(gateway)[-1])
    assert outcome.err.startswith("mew: `mew up` of this space was killed")
    assert outcome.out.startswith("review · ")


async def printed(output: Output, *wanted: str) -> None:
    """Wait until a running command has printed one of these."""
    await until(lambda: any(text in output.text(output.out) for text in wanted))


async def watched(*flags: str) -> Outcome:
    """Watch a gateway while a participant reports twice and leaves, and the gateway stops."""
    output, outcomes = Output.empty(), list[Outcome]()

    async def watch(gateway: RunningGateway) -> None:
        outcomes.append(await mew("status", "--watch", *flags, *seat(gateway), output=output))

    async with anyio.create_task_group() as tasks, serve_gateway(parse_space(SPACE)) as gateway:
        async with joined(gateway, "coder") as client:
            await status(client, **FULL)
            await reported(gateway)
            tasks.start_soon(watch, gateway)
            await printed(output, "98,412", "98412")
            await status(client, "near_limit", **{**FULL, "tokens": 120_000})
            await printed(output, "120,000", "120000")
        await printed(output, "not connected", '"id":"coder","connected":false')
    return outcomes[0]


async def test_watch_prints_a_line_per_change_without_a_terminal() -> None:
    outcome = await watched()
    lines = [line.partition("  ")[2] for line in outcome.out.splitlines()]
    assert lines[0] == "coder  98,412 of 128,000  77% reported"
    assert lines[1] == "coder  120,000 of 128,000  94% reported  (near limit)"
    assert lines[2].endswith("(not connected, last report 0 s ago, near limit)")


async def test_watch_ends_with_the_gateway_in_one_line() -> None:
    outcome = await watched()
    assert outcome.err.startswith("mew: not connected to the gateway at http://127.0.0.1:")
    assert outcome.err.count("\n") == 1
    assert outcome.code == 4


async def test_watch_as_json_prints_an_entry_per_change() -> None:
    outcome = await watched("--json")
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    figures = [entry["status"]["tokens"] for entry in entries if entry["id"] == "coder"]
    assert figures[:2] == [98_412, 120_000]
    assert entries[-1]["connected"] is False


async def test_watch_of_one_participant_prints_its_entries_only() -> None:
    outcome = await watched("coder", "--json")
    assert {json.loads(line)["id"] for line in outcome.out.splitlines()} == {"coder"}


async def test_watch_as_json_prints_every_entry_when_the_space_needs_a_person() -> None:
    board = {"space": "s", "at": "2026-01-01T00:00:00Z", "participants": [{"id": "coder", "connected": True}]}
    item = {"id": "not_stored", "kind": "not_stored", "level": "blocking", "reason": "the disk is full"}
    needs = {"space": "s", "at": board["at"], "items": [item]}
    health = json.dumps({"protocol": "mew/v0.4"})
    events = f"event: board\ndata: {json.dumps(board)}\n\nevent: attention\ndata: {json.dumps(needs)}\n\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = health if head.startswith(b"GET /health") else events
        kind = "application/json" if body == health else "text/event-stream"
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {kind}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = ("--gateway", url, "--space", "s", "--participant", "ada", "MEW_TOKEN=t")
        outcome = await mew("status", "--watch", "--json", *options)
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    assert [[one["id"] for one in entry["attention"]] for entry in entries] == [[], ["not_stored"]]


async def test_wrong_token_is_refused_in_one_line(gateway: RunningGateway) -> None:
    for flags in ((), ("--watch",)):
        outcome = await mew("status", *flags, *seat(gateway, token="wrong"))
        assert outcome.err.startswith("mew: the gateway refused this token for 'ada' (unauthorized)")
        assert "`mew token ada`" in outcome.err
        assert outcome.code == 2


async def test_unknown_space_is_named(gateway: RunningGateway) -> None:
    outcome = await mew("status", *seat(gateway)[:2], "--space", "elsewhere", *seat(gateway)[4:])
    assert "no space 'elsewhere' on this gateway" in outcome.err
    assert outcome.code == 1


async def test_unreachable_gateway_is_named() -> None:
    flags = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--participant", "p", "MEW_TOKEN=t")
    outcome = await mew("status", *flags)
    assert outcome.err == "mew: not connected to the gateway at http://127.0.0.1:1 (connection refused)\n"
    assert outcome.code == 4


DOWN: Message = {
    "max_tokens": 128_000,
    "context": {
        "basis": "unknown",
        "reason": "no_call_yet",
        "waiting": [{"kind": "model", "what": "http://localhost:1/v1 (refused)", "since": "2026-01-01T00:00:00Z"}],
    },
}


async def test_attention_items_are_above_the_board(gateway: RunningGateway) -> None:
    output = Output.empty()

    async def watch() -> None:
        await mew("status", "--watch", "--bell", *seat(gateway), output=output)

    async with joined(gateway, "coder") as client, anyio.create_task_group() as tasks:
        await status(client, "model_unreachable", **DOWN)
        await reported(gateway)
        shown, as_json = await mew("status", *seat(gateway)), await mew("status", "--json", *seat(gateway))
        tasks.start_soon(watch)
        await printed(output, "NEEDS YOU: coder cannot reach its model")
        await until(lambda: "\a" in output.text(output.err))
        gateway.registry.stop()
    words = "coder cannot reach its model at http://localhost:1/v1 (refused), "
    assert shown.out.splitlines()[1].startswith(f"NEEDS YOU   {words}")
    assert "mew restart coder" in shown.out
    (needed,) = next(one for one in json.loads(as_json.out) if one["id"] == "coder")["attention"]
    assert (needed["kind"], needed["level"]) == ("model_unreachable", "blocking")


async def test_bell_without_watch_is_refused() -> None:
    assert (await mew("status", "--bell")).code == 2
