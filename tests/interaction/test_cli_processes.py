"""`mew` as people run it: real processes, from `up` to `down`, and nothing left behind."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process
from mew_spaces.launch.run_file import read_run_file

from tests.parts.mcp.conftest import workshop_over_http
from tests.support.certificates import certified
from tests.support.space_folder import Folder, environment, nothing_left
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

SPACE = """
space: {id: review, name: Review room}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder:
    agent: {base_url: rehearsal}
    auto_start: true
    capabilities: [{kind: chat}, {kind: participant/status}, {kind: participant/compact-done}]
  adder: {command: mew, args: [agent, start, --type, calculator], auto_start: false}
"""

GATEWAY_ONLY = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
"""
"""For tests that need a running space, and no agent: it starts in a third of the time."""

CALCULATOR = "{command: mew, args: [agent, start, --type, calculator], auto_start: true, capabilities: [{kind: '*'}]}"


async def ended(process: Process) -> int:
    with anyio.fail_after(PATIENCE_SECONDS):
        return await process.wait()


async def read_screen(screen: int, shown: bytearray, text: bytes) -> None:
    """Read what a program writes to its terminal until it has written this text."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while text not in shown:
            await anyio.wait_readable(screen)
            shown.extend(os.read(screen, 65_536))


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    place = Folder(tmp_path / "room", SPACE)
    yield place
    await place.stop()


@pytest.fixture
def light(folder: Folder) -> Folder:
    (folder.path / "space.yaml").write_text(GATEWAY_ONLY)
    return folder


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Folder]:
    """A running space for tests that leave its programs running. Some add to it, and one restarts it."""
    place = Folder(tmp_path_factory.mktemp("shared") / "room", SPACE)
    await place.mew_process("up", "--detach", "--port", "0")
    yield place
    await place.stop()


@pytest.mark.parametrize(
    ("names", "days", "problem"),
    [
        (("mew.example.org",), 1, "is for mew.example.org, but programs on this machine connect to 127.0.0.1"),
        (("127.0.0.1",), -1, "has expired; renew it"),
    ],
)
async def test_unusable_certificate_stops_the_start(
    names: tuple[str, ...], days: int, problem: str, folder: Folder
) -> None:
    certified(folder.path, *names, days=days)
    (folder.path / "space.yaml").write_text(f"{SPACE}gateway: {{tls_cert: cert.pem, tls_key: key.pem}}\n")
    assert problem in await folder.mew("up", "--detach", "--port", "0", code=2)


async def test_background_space_with_tls_is_started_used_and_stopped(
    folder: Folder, shared: Folder, tmp_path: Path
) -> None:
    """No command names the certificate; over HTTP the same commands run in the other tests."""
    another = shared.run
    tls = certified(folder.path)
    (folder.path / "space.yaml").write_text(f"{SPACE}gateway: {{tls_cert: cert.pem, tls_key: {tls.files.key}}}\n")
    shown = await folder.mew_process("up", "--detach", "--port", "0")
    run = folder.run
    assert "review is running in the background at https://127.0.0.1:" in shown
    assert "  coder: joined" in shown
    assert f"dashboard: {run.gateway}/dashboard#token=" in shown
    assert run.ws.startswith("wss://")

    entries = json.loads(await folder.mew("status", "--json"))
    assert {entry["id"]: entry["connected"] for entry in entries} == {"ada": False, "adder": False, "coder": True}
    assert "nothing to compact yet" in await folder.mew("compact", "coder", code=3)
    assert "members: ada, adder, coder" in await folder.mew("compact", "ghost", code=2)
    assert "coder: paused" in await folder.mew("pause", "coder")
    assert "coder: active" in await folder.mew("resume", "coder")
    assert "MEW_GATEWAY=wss://" in await folder.mew_process("run", "env")
    assert "hello" in await folder.mew("chat", "coder", "hello")
    assert "already running" in await folder.mew("up", "--port", "0", code=2)
    elsewhere = Folder(tmp_path / "elsewhere", SPACE)
    token = (folder.path / ".mew" / "tokens" / "ada.token").read_text().split()[0]
    as_ada = ("--gateway", run.ws, "--space", "review", "--participant", "ada", f"MEW_TOKEN={token}")
    assert "is not trusted" in await elsewhere.mew("status", *as_ada, code=1)

    assert await folder.mew_process("down") == "review: stopped\n"
    assert nothing_left(run)
    assert not folder.run_path.exists()
    for command in ("status", "restart"):
        assert "no space is running here" in await folder.mew(command, code=2)
    assert another.is_running(another.pids.gateway)
    assert "coder" in await shared.mew_process("status")


async def test_restart_replaces_a_program_or_the_whole_space(shared: Folder) -> None:
    before = shared.run
    assert await shared.mew("shutdown", "coder") == "coder: shut down; `mew restart coder` starts it again\n"
    await until(lambda: "coder" in shared.run.exits)
    shown = await shared.mew("status")
    assert "exited with code 0" in shown
    assert "NEEDS YOU" not in shown
    # The dashboard runs the same commands by the gateway.
    assert await shared.programs("/coder/restart", {}) == {"participant": "coder", "done": True, "text": "restarted"}
    added = await shared.programs("", {"participant": "writer", "like": "coder"})
    assert (added["participant"], added["done"]) == ("writer", True)
    listed = await shared.programs("")
    assert (listed["running"], listed["startable"], listed["models"]) == (True, ["adder"], ["coder", "writer"])
    assert await shared.programs("/adder/restart", {}) == {"participant": "adder", "done": True, "text": "started"}
    async with workshop_over_http() as url:
        added = await shared.programs("", {"participant": "workshop", "type": "mcp_server", "value": url})
        assert added == {"participant": "workshop", "done": True, "text": "added and joined"}
        assert {"adder", "coder", "workshop", "writer"} <= {*(await shared.programs(""))["participants"]}
    assert (await shared.programs("/coder/log"))["participant"] == "coder"
    one = shared.run
    assert one.pids.gateway == before.pids.gateway
    assert one.pids.participants["coder"] != before.pids.participants["coder"]
    assert "did you mean 'coder'" in await shared.mew("restart", "codr", code=2)
    assert "'ada' has no program in" in await shared.mew("restart", "ada", code=2)

    by_hand = (shared.path / "space.yaml").read_text() + "  late: {command: sleep, args: ['600']}\n"
    (shared.path / "space.yaml").write_text(by_hand)
    assert "`mew restart` without a participant makes the gateway read it" in await shared.mew(
        "restart", "late", code=2
    )
    (shared.path / "space.yaml").write_text(SPACE.replace("auto_start: true", "autostart: true"))
    assert "autostart" in await shared.mew("restart", code=2)
    assert one.is_alive
    (shared.path / "space.yaml").write_text(SPACE)
    shown = json.loads(await shared.mew("restart", "--json"))
    assert (shown["gateway"], shown["programs"]["coder"]["joined"]) == (before.gateway, True)
    assert nothing_left(one)


async def test_tokens_and_run_file_are_private(shared: Folder) -> None:
    state = shared.path / ".mew"
    private = [shared.run_path, state / "tokens" / "ada.token", state / "tokens" / "coder.token"]
    assert [path.stat().st_mode & 0o077 for path in private] == [0, 0, 0]
    reported = shared.run_path.read_text() + "".join(
        path.read_text() for path in (shared.path / ".mew" / "logs").glob("*.log")
    )
    for name in ("ada", "coder"):
        assert (state / "tokens" / f"{name}.token").read_text().strip() not in reported


async def test_interrupt_stops_a_foreground_space(folder: Folder) -> None:
    async with folder.running("up", "--port", "0") as (process, printed):
        await until(lambda: "Ctrl-C stops everything" in printed())
        run = folder.run
        assert run.is_running(run.pids.participants["coder"])
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 130
        assert "gateway | gateway of 'review' listens at" in printed()
        assert "mew     | stopping; press Ctrl-C again to force quit" in printed()
        assert printed().endswith("review: stopped\n")
        assert "model   | rehearsal model" in printed()
        assert "OPENAI_BASE_URL" not in printed()
        assert "Traceback" not in printed()
    assert nothing_left(run)
    assert not folder.run_path.exists()


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize(
    ("moment", "number"),
    [("claimed", signal.SIGINT), ("started", signal.SIGTERM), ("started", signal.SIGHUP)],
)
async def test_interrupted_start_is_undone(light: Folder, moment: str, number: signal.Signals) -> None:
    """`slow` never joins, so that the command still waits for it when all have started."""
    slow = "  slow: {command: sleep, args: ['600'], auto_start: true}\n"
    (light.path / "space.yaml").write_text(GATEWAY_ONLY + slow)

    def has_come() -> bool:
        run = read_run_file(light.run_path)
        return run is not None and (moment == "claimed" or run.ready)

    async with light.running("up", "--detach", "--port", "0") as (process, printed):
        await until(has_come)
        run = light.run
        process.send_signal(number)
        assert await ended(process) == 130
        assert printed() == "review: stopped\n"
    assert nothing_left(run)
    assert not light.run_path.exists()


async def test_interrupted_foreground_start_leaves_nothing(light: Folder) -> None:
    async with light.running("up", "--port", "0") as (process, printed):
        await until(light.run_path.exists)
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 130
        assert "Traceback" not in printed()
    assert not light.run_path.exists()


async def test_failed_and_killed_programs_are_reported_and_the_rest_is_stopped(light: Folder) -> None:
    broken = "{command: mew, args: [agent, run, --base-url, http://x/v1, --id, ''], auto_start: true}"
    (light.path / "space.yaml").write_text(
        f"{GATEWAY_ONLY}  coder: {CALCULATOR}\n  writer: {CALCULATOR}\n  broken: {broken}\n"
    )
    shown = await light.mew("up", "--detach", "--port", "0", code=1)
    assert "  coder: joined" in shown
    assert "  broken: exited with code 2: mew: --participant" in shown
    assert "see .mew/logs/broken.log" in shown
    run = light.run
    os.kill(run.pids.participants["coder"], signal.SIGKILL)
    await until(lambda: "coder" in light.run.exits)
    shown = await light.mew("status")
    assert "was ended by signal 9" in shown
    assert "not connected" in shown
    assert "is not connected" in await light.mew("compact", "coder", code=4)
    assert run.pids.supervisor is not None
    os.kill(run.pids.supervisor, signal.SIGKILL)
    await until(lambda: not run.is_running(run.pids.supervisor))
    assert run.is_running(run.pids.gateway)
    shown = await light.mew("status")
    assert "mew: `mew up` of this space was killed" in shown
    assert "coder" in shown
    assert run.pids.gateway is not None
    os.kill(run.pids.gateway, signal.SIGKILL)
    await until(lambda: not run.is_running(run.pids.gateway))
    assert "some of its programs still run; `mew down` stops them" in await light.mew("up", "--port", "0", code=2)
    assert await light.mew("down") == "review: stopped\n"
    assert nothing_left(run)


async def test_a_removed_participant_is_neither_restarted_nor_listed(light: Folder) -> None:
    coder = CALCULATOR.replace("auto_start", "restart_policy: on-failure, auto_start")
    (light.path / "space.yaml").write_text(f"{GATEWAY_ONLY}  coder: {coder}\n")
    await light.mew("up", "--detach", "--port", "0")
    kick = {"kind": "space/kick", "payload": {"participant_id": "coder"}}
    await light.request("/participants/ada/messages?space=review", kick)
    log = light.path / ".mew" / "logs" / "mew.log"
    await until(lambda: "coder exited" in log.read_text())
    assert log.read_text().count("\n") == 1
    assert "; it does not restart, because the gateway refuses its token" in log.read_text()
    assert (await light.programs(""))["participants"] == ["coder"]
    (light.path / "space.yaml").write_text(GATEWAY_ONLY)
    await until(lambda: not light.run.exits)
    assert (await light.programs(""))["participants"] == []


async def test_a_program_that_fails_at_once_is_not_added(shared: Folder) -> None:
    shown = await shared.mew("agent", "add", "sums", "--command", "false", code=1)
    assert shown == "sums: not added: exited with code 1 (see .mew/logs/sums.log)\n"
    assert (shared.path / "space.yaml").read_text() == SPACE
    assert '"sums"' not in await shared.mew("status", "--json")
    assert await shared.mew("agent", "add", "sums", "--command", "mew agent start --type calculator") == (
        "sums: added and joined\n"
    )


async def test_agent_with_a_wrong_token_fails_in_one_line(shared: Folder) -> None:
    flags = ("--id", "coder", "--token", "wrong", "--base-url", "http://127.0.0.1:1/v1", "--log-level", "error")
    shown = await shared.mew_process("agent", "run", *flags, code=2)
    assert shown.splitlines()[-1].startswith("mew: the gateway refused this token for 'coder' (unauthorized)")


async def test_interrupted_watch_ends_quietly(shared: Folder) -> None:
    async with shared.running("status", "--watch") as (process, printed):
        await until(lambda: "coder" in printed())
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 130
        assert "Traceback" not in printed()
        assert "mew:" not in printed()


async def test_watch_redraws_in_place_and_restores_the_cursor(shared: Folder) -> None:
    screen, terminal = pty.openpty()
    process = await anyio.open_process(
        (*MEW, "status", "--watch", "--plain"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=shared.path,
        env={**environment(), "TERM": "xterm", "COLUMNS": "90", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(terminal)
    shown = bytearray()
    read_until = partial(read_screen, screen, shown)
    try:
        await read_until(b"no call yet")
        await shared.mew("pause", "coder")
        await read_until(b"paused")
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 130
        await read_until(b"\x1b[?25h")
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
        os.close(screen)
    assert b"\x1b[?25l" in shown
    assert b"Traceback" not in shown


async def test_mew_alone_opens_the_space_at_a_terminal(shared: Folder) -> None:
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    variables = {**environment(), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = await anyio.open_process(
        MEW, stdin=terminal, stdout=terminal, stderr=terminal, cwd=shared.path, env=variables, start_new_session=True
    )
    os.close(terminal)
    shown = bytearray()
    read_until = partial(read_screen, screen, shown)
    try:
        await read_until(b"you are ")
        os.write(screen, b"/exit\r")
        await read_until(b"\x1b[?1049l")  # back to the screen as it was
        assert await ended(process) == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
        os.close(screen)
    assert b"Traceback" not in shown


async def test_closed_pipe_ends_the_space_quietly(light: Folder) -> None:
    (light.path / "space.yaml").write_text(f"{GATEWAY_ONLY}  coder: {CALCULATOR}\n")  # it writes after `head` has ended
    command = f"{' '.join(MEW)} up --port 0 | head -1"
    with anyio.fail_after(PATIENCE_SECONDS):
        shown = await anyio.run_process(command, cwd=light.path, env=environment(), stderr=subprocess.STDOUT)
    assert shown.stdout.decode().count("\n") == 1
    assert not light.run_path.exists()


async def test_gateway_alone_serves_until_terminated(folder: Folder) -> None:
    async with folder.running("gateway", "start", "--port", "0") as (process, printed):
        await until(lambda: "listens at http://127.0.0.1:" in printed())
        url = printed().partition("listens at ")[2].split()[0]
        assert json.loads(await anyio.to_thread.run_sync(lambda: urlopen(f"{url}/health").read()))["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


async def test_rehearsal_model_describes_itself_and_answers(folder: Folder) -> None:
    async with folder.running("serve", "model", "--port", "0", "--window", "1234") as (process, printed):
        await until(lambda: "OPENAI_BASE_URL=" in printed())
        assert "no real model" in printed()
        url = printed().partition("OPENAI_BASE_URL=")[2].split()[0]
        models = json.loads(await anyio.to_thread.run_sync(lambda: urlopen(f"{url}/models").read()))
        assert [model["id"] for model in models["data"]] == ["rehearsal"]
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 130
