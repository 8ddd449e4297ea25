"""Two spaces of one gateway share a port and nothing else."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import HostedSpace, RunningGateway, serve_gateway

from tests.conformance.rules import rule
from tests.support.gateway_client import Client, opened
from tests.support.waiting import PATIENCE_SECONDS


def space(name: str) -> SpaceConfig:
    return parse_space(
        f"space: {{id: {name}}}\n"
        "participants:\n"
        '  ada: {capabilities: [{kind: "*"}]}\n'
        "  bob: {capabilities: [{kind: chat}]}\n"
        "  log: {output_log: ./logs/heard.log, auto_connect: true, capabilities: []}\n"
    )


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    blue = HostedSpace(space("blue"), tmp_path / "blue" / ".mew")
    async with serve_gateway(space("red"), state=tmp_path / "red" / ".mew", others=[blue]) as running:
        yield running


def token(gateway: RunningGateway, space: str, name: str) -> str:
    board = gateway.registry.find(space)
    assert board is not None
    found = board.tokens.token_of(name)
    assert found is not None
    return found


async def come_in(client: Client, gateway: RunningGateway, space: str, name: str, *, ask_for: str | None) -> None:
    await client.send({"type": "join", "space": ask_for, "token": token(gateway, space, name)})
    welcome = await client.until("system/welcome")
    assert welcome["payload"]["you"]["id"] == name


@rule("spaces.apart")
async def test_two_spaces_do_not_affect_each_other(gateway: RunningGateway) -> None:
    async with opened(gateway) as red, opened(gateway) as blue, opened(gateway) as other:
        await come_in(red, gateway, "red", "ada", ask_for="red")
        await come_in(blue, gateway, "blue", "ada", ask_for=None)
        await come_in(other, gateway, "blue", "bob", ask_for="blue")
        await red.send_envelope("participant/status", {"messages_in_context": 1, "tokens": 5, "max_tokens": 10})
        await red.send_envelope("stream/request", {"direction": "upload"})
        await red.until("stream/request")
        await red.send_envelope("participant/pause", to=["bob"])
        await red.send_envelope("space/kick", {"participant_id": "bob"})
        await red.until("space/kick")
        await blue.send("#stream-1#mine")
        assert (await blue.error())["error"] == "unauthorized_stream_write"
        await other.chat("still here")
        assert (await blue.until("chat"))["payload"]["text"] == "still here"
        assert [one["kind"] for one in await other.seen_so_far()] == ["chat"]
    async with opened(gateway) as late:
        await late.send({"type": "join", "space": "blue", "token": token(gateway, "blue", "bob")})
        reported = (await late.until("system/welcome"))["payload"]
        assert (reported["active_streams"], reported["board"]) == ([], [])


@rule("spaces.apart", "http.virtual")
async def test_output_logs_are_in_the_folder_of_their_space(gateway: RunningGateway, tmp_path: Path) -> None:
    for name in ("red", "blue"):
        async with opened(gateway) as one:
            await come_in(one, gateway, name, "ada", ask_for=name)
            await one.chat(f"only {name}")
            await one.until("chat")
    for name in ("red", "blue"):
        log = tmp_path / name / "logs" / "heard.log"
        with anyio.fail_after(PATIENCE_SECONDS):
            while "only" not in log.read_text():
                await anyio.sleep(0.01)
        said = [json.loads(line)["payload"] for line in log.read_text().splitlines() if '"kind":"chat"' in line]
        assert said == [{"text": f"only {name}"}]


@rule("spaces.apart")
async def test_a_token_is_valid_in_one_space_only(gateway: RunningGateway) -> None:
    async with opened(gateway) as stranger:
        await stranger.send({"type": "join", "space": "blue", "token": token(gateway, "red", "ada")})
        assert (await stranger.error())["error"] == "unauthorized"
        assert (await stranger.closing())[0] == 4401
