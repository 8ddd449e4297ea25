"""`mew client connect`: lines in, lines out; the last tests run it as a process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from mew_protocol.codec import StreamFrame
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.errors import GatewayError, Unauthorized
from mew_agent.participant.client import Client, Credentials
from mew_agent.parts.terminal.json_lines import _line_of, exchange_lines
from tests.support.cli import mew
from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW


class Kept:
    """Lines that were written, and waiting for one."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = anyio.Event()

    def write(self, line: str) -> None:
        self.lines.append(json.loads(line))
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not any(found(line) for line in self.lines):
                await self._changed.wait()
        return next(line for line in self.lines if found(line))


def client_of(gateway: RunningGateway, name: str, token: str | None = None) -> Client:
    return Client(Credentials(gateway.ws_url, "review", name, token or gateway.token_of(name)))


async def test_lines_are_sent_and_messages_printed(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    typed: Queue[str] = Queue()
    source = iter(typed.get, "")
    output = Kept()

    async with joined(gateway, "guest") as guest, anyio.create_task_group() as tasks:
        tasks.start_soon(exchange_lines, client_of(gateway, "ada"), source, output.write)
        await output.until(lambda line: line["kind"] == "system/welcome")
        for line in ("oops\n", "[1]\n", "\n", '{"kind":"chat","payload":{"text":"grüezi"}}\n'):
            typed.put(line)
        received = await guest.until("chat")
        assert (received["from"], received["payload"]["text"]) == ("ada", "grüezi")
        await guest.chat("hi")
        came = await output.until(lambda line: line.get("from") == "guest" and line["kind"] == "chat")
        assert came["payload"] == {"text": "hi"}
        typed.put("quit\n")
    reported = capsys.readouterr().err.splitlines()
    assert reported[0].startswith("mew: not sent, not JSON")
    assert reported[1] == "mew: not sent, not a JSON object: [1]"


async def test_end_of_input_keeps_the_connection_open(gateway: RunningGateway) -> None:
    output = Kept()
    client = client_of(gateway, "ada")
    async with joined(gateway, "guest") as guest, anyio.create_task_group() as tasks:
        tasks.start_soon(exchange_lines, client, (), output.write)
        await output.until(lambda line: line["kind"] == "system/welcome")
        await guest.chat("still there?")
        await output.until(lambda line: line["kind"] == "chat")
        await client.aclose()


async def test_refused_token_raises_unauthorized(gateway: RunningGateway) -> None:
    with pytest.raises(Unauthorized):
        await exchange_lines(client_of(gateway, "ada", "wrong"), (), Kept().write)


async def test_frame_is_printed_with_its_stream() -> None:
    line = _line_of(StreamFrame("stream-1", b"#stream-1#caf\xc3\xa9 #2"))
    assert json.loads(line) == {"type": "frame", "stream_id": "stream-1", "data": "café #2"}


async def test_missing_options_are_reported_before_connecting() -> None:
    outcome = await mew("client", "connect")
    assert "no space is running here" in outcome.err
    assert outcome.code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
async def test_client_process_uses_files_and_ends_on_quit(gateway: RunningGateway, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    command = [*MEW, "client", "connect", "--gateway", gateway.ws_url, "--space", gateway.config.space.id]
    command += ["--participant-id", "ada", "--token", gateway.token_of("ada")]
    command += ["--output-file", str(output)]
    async with joined(gateway, "guest") as guest, await anyio.open_process(command, stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(b'{"kind":"chat","payload":{"text":"from a script"}}\n')
        assert (await guest.until("chat"))["payload"]["text"] == "from a script"
        await process.stdin.send(b"quit\n")
        with anyio.fail_after(PATIENCE_SECONDS):
            printed = "".join([part async for part in TextReceiveStream(process.stdout)])
            assert await process.wait() == 0
    assert printed == ""
    kinds = [json.loads(line)["kind"] for line in output.read_text().splitlines()]
    assert kinds[0] == "system/welcome"
    assert "chat" in kinds


async def test_superseding_connection_ends_the_client(gateway: RunningGateway) -> None:
    output = Kept()
    failures: list[GatewayError] = []

    async def listen() -> None:
        try:
            await exchange_lines(client_of(gateway, "coder"), (), output.write)
        except GatewayError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await output.until(lambda line: line["kind"] == "system/welcome")
        async with joined(gateway, "coder"):
            await until(lambda: failures)
    assert "another connection joined as 'coder'" in str(failures[0])
