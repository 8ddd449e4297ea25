"""`mew gateway start`: what it refuses, and several spaces served by one process."""

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import create_server
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.streams.text import TextReceiveStream
from websockets.asyncio.client import ClientConnection, connect

from tests.support.cli import Outcome, mew
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW


async def start_in_process(*options: str) -> Outcome:
    """Run `mew gateway start` as a process: it follows signals, which only a main thread can."""
    command = [*MEW, "gateway", "start", *options]
    done = await anyio.run_process(command, check=False)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


async def test_missing_file_is_named() -> None:
    outcome = await mew("gateway", "start", "--space-config", "nowhere.yaml")
    assert outcome.err == "mew: nowhere.yaml: no such file\n"
    assert outcome.code == 2


async def test_gateway_finds_the_space_that_init_created(tmp_path: Path) -> None:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").write_text("space: {id: s}\nparticipant: {}\n")
    assert (await mew("gateway", "start")).err.startswith("mew: .mew/space.yaml:2:1: unknown key 'participant'")
    (tmp_path / ".mew" / "space.yaml").unlink()
    assert "no space.yaml here; `mew init` creates one" in (await mew("gateway", "start")).err


async def test_mistake_is_reported_with_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\nparticipant: {}\n")
    outcome = await mew("gateway", "start")
    assert outcome.err.startswith("mew: space.yaml:2:1: unknown key 'participant' (did you mean 'participants'?)")
    assert outcome.code == 2


async def test_taken_port_is_reported(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\n")
    with create_server(("127.0.0.1", 0)) as taken:
        outcome = await start_in_process("--port", str(taken.getsockname()[1]), "--auto-start")
    warning, refusal = outcome.err.splitlines()
    assert "`mew up` starts those with auto_start" in warning
    assert "is in use by another program" in refusal
    assert outcome.code == 2


async def test_spaces_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"space: {{id: {name}}}\n")
    outcome = await mew("gateway", "start", "-s", "one.yaml", "-s", "two.yaml")
    assert outcome.err == "mew: two.yaml: is in the same folder as one.yaml; give each space its own folder\n"
    assert outcome.code == 1


async def test_two_spaces_with_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "space.yaml").write_text("space: {id: same}\n")
    outcome = await start_in_process("-p", "0", "-s", "here/space.yaml", "-s", "there/space.yaml")
    assert "each with its own name (given: same, same)" in outcome.err
    assert outcome.code == 1


def folder_of(path: Path, name: str) -> Path:
    """A space with an Ada of its own."""
    folder = path / name
    folder.mkdir()
    people = {"ada": {"capabilities": [{"kind": "*"}]}, f"only-{name}": {"capabilities": [{"kind": "chat"}]}}
    (folder / "space.yaml").write_text(json.dumps({"space": {"id": name}, "participants": people}))
    return folder


@asynccontextmanager
async def gateway_of(*folders: Path) -> AsyncIterator[int]:
    """A gateway process for some spaces, and its port."""
    flags = [part for folder in folders for part in ("--space-config", str(folder / "space.yaml"))]
    command = (*MEW, "gateway", "start", "--port", "0", *flags)
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        assert process.stdout is not None
        try:
            said, found = "", None
            with anyio.fail_after(PATIENCE_SECONDS):
                async for chunk in TextReceiveStream(process.stdout):
                    said += chunk
                    if found := re.search(r"http://[^:]+:(\d+)", said):
                        break
            assert all(f"'{folder.name}'" in said for folder in folders)
            assert found is not None
            yield int(found[1])
        finally:
            process.terminate()


@asynccontextmanager
async def ada_in(folder: Path, port: int) -> AsyncIterator[ClientConnection]:
    """Ada, in the space that her token is of."""
    token = (folder / ".mew" / "tokens" / "ada.token").read_text().strip()
    async with connect(f"ws://127.0.0.1:{port}", proxy=None) as socket:
        await socket.send(json.dumps({"type": "join", "space": folder.name, "participantId": "ada", "token": token}))
        yield socket


async def read(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next envelope of a kind."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (message := json.loads(await socket.recv()))["kind"] != kind:
            pass
    return dict(message)


@pytest.mark.skipif(sys.platform == "win32", reason="ending a process cleanly needs a POSIX system")
async def test_one_process_serves_separate_spaces(tmp_path: Path) -> None:
    red, blue = folder_of(tmp_path, "red"), folder_of(tmp_path, "blue")
    async with gateway_of(red, blue) as port, ada_in(red, port) as here, ada_in(blue, port) as there:
        for socket, name in ((here, "red"), (there, "blue")):
            welcome = await read(socket, "system/welcome")
            assert welcome["to"] == ["ada"]
            assert welcome["payload"]["participants"] == []
            await socket.send(json.dumps({"kind": "chat", "payload": {"text": name}}))
            assert (await read(socket, "chat"))["payload"]["text"] == name
        await here.send(json.dumps({"kind": "space/kick", "payload": {"participant_id": "only-blue"}}))
        assert (await read(here, "system/error"))["payload"]["error"] == "participant_not_found"
        async with connect(f"ws://127.0.0.1:{port}", proxy=None) as stranger:
            token = (red / ".mew" / "tokens" / "only-red.token").read_text().strip()
            await stranger.send(json.dumps({"type": "join", "space": "blue", "token": token}))
            assert (await read(stranger, "system/error"))["payload"]["error"] == "unauthorized"
    for folder in (red, blue):
        lines = (folder / ".mew" / "logs" / "envelope-history.jsonl").read_text().splitlines()
        assert {json.loads(line)["space_id"] for line in lines} == {folder.name}
