"""The gateway as a program: start, address, stop."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path

import anyio
import httpx2
import pytest
from mew_settings.private_files import FileLock
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import TokenBook, token_path
from mew_spaces.gateway.gateway import (
    HostedSpace,
    RunningGateway,
    create_app,
    run_gateway,
    serve_gateway,
)
from mew_spaces.gateway.history_files import history_path, open_log
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.sqlite import lock_path
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions

from tests.support.gateway_client import joined, opened
from tests.support.space_logs import commit
from tests.support.waiting import PATIENCE_SECONDS, until


async def test_a_running_gateway_knows_its_address_and_tokens(gateway: RunningGateway) -> None:
    assert gateway.host == "127.0.0.1"
    assert gateway.url == f"http://127.0.0.1:{gateway.port}"
    assert gateway.ws_url == f"ws://127.0.0.1:{gateway.port}"
    assert gateway.token_of("coder") == "token-of-coder"
    with pytest.raises(KeyError):
        gateway.token_of("ghost")
    assert {line.id for line in gateway.board().participants} == set(gateway.config.participants)


async def test_an_error_in_the_block_is_raised_unwrapped(config: SpaceConfig) -> None:
    with pytest.raises(ZeroDivisionError):
        async with serve_gateway(config):
            raise ZeroDivisionError


async def test_tokens_are_stored_in_the_state_folder(config: SpaceConfig, tmp_path: Path) -> None:
    async with serve_gateway(config, state=tmp_path) as gateway, joined(gateway, "bob"):
        assert token_path(tmp_path, "bob").read_text(encoding="utf-8").strip() == gateway.token_of("bob")


async def test_open_event_streams_do_not_delay_the_stop(config: SpaceConfig) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
            async with serve_gateway(config) as gateway:
                headers = {"authorization": "Bearer token-of-coder"}
                request = http.build_request("GET", gateway.url + "/spaces/demo/events", headers=headers)
                answer = await http.send(request, stream=True)
                lines = answer.aiter_lines()
                assert (await anext(lines)).startswith("id: ")
            assert [line async for line in lines][-1] == ""
            await answer.aclose()


async def test_the_http_application_runs_under_any_asgi_server(config: SpaceConfig) -> None:
    registry = SpaceRegistry([SpaceService(config, TokenBook.generate(config))])
    transport = httpx2.ASGITransport(app=create_app(registry))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/health")).json()["status"] == "ok"
    registry.default.close()


TWO = """
space: {id: two}
participants: {ada: {capabilities: [{kind: chat}]}, eve: {capabilities: [{kind: chat}]}}
limits: {message_bytes: 131072}
"""


async def test_two_spaces_share_only_a_port(config: SpaceConfig) -> None:
    second = parse_space(TWO)
    tokens = TokenBook.generate(second)
    async with (
        serve_gateway(config, others=[HostedSpace(second, tokens=tokens)]) as gateway,
        joined(gateway, "ada") as here,
        opened(gateway, "ada") as there,
        opened(gateway, "eve") as eve,
    ):
        await there.join(tokens.token_of("ada"), space="two")
        welcome = await there.next()
        assert (welcome["kind"], welcome["payload"]["participants"]) == ("system/welcome", [])
        await eve.join(tokens.token_of("eve"))  # its token names its space
        assert [one["id"] for one in (await eve.next())["payload"]["participants"]] == ["ada"]
        await eve.chat("only two")
        assert (await there.until("chat"))["payload"]["text"] == "only two"
        assert await here.seen_so_far() == []
        async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
            health = (await http.get("/health")).json()
            assert (health["spaces"], health["clients"]) == (2, 3)
            for space, token, names in (("demo", gateway.token_of("bob"), 4), ("two", tokens.token_of("eve"), 2)):
                known = {"authorization": f"Bearer {token}"}
                listed = (await http.get(f"/participants?space={space}", headers=known)).json()["participants"]
                assert len(listed) == names
            bearer = {"authorization": f"Bearer {tokens.token_of('eve')}"}
            body = {"kind": "chat", "payload": {"text": "by http"}}
            assert (await http.post("/participants/eve/messages", headers=bearer, json=body)).is_success
            assert (await there.until("chat"))["payload"]["text"] == "by http"
            refused = await http.get("/spaces/demo/context", headers=bearer)
            assert (refused.status_code, refused.json()["error"]) == (403, "unauthorized")
            assert (await http.get("/spaces/two/context", headers=bearer)).json()["space"] == "two"
        await eve.join(tokens.token_of("eve"), space="demo")
        assert (await eve.error())["error"] == "unauthorized"


async def test_a_connection_stays_in_the_space_it_joined(config: SpaceConfig) -> None:
    second = parse_space(TWO)
    tokens = TokenBook([("ada", "shared"), ("eve", "other")])
    first = TokenBook([("ada", "shared")])
    async with (
        serve_gateway(config, tokens=first, others=[HostedSpace(second, tokens=tokens)]) as gateway,
        opened(gateway, "ada") as ada,
    ):
        await ada.join("shared", space="two")
        assert (await ada.next())["kind"] == "system/welcome"
        await ada.join("shared", space="demo")
        assert "open another connection" in (await ada.error())["message"]
        assert (await ada.closing())[0] == 4401


async def test_two_spaces_with_one_name_are_refused(config: SpaceConfig) -> None:
    with pytest.raises(SpacesError, match="its own name"):
        async with serve_gateway(config, others=[HostedSpace(config)]):
            pass


async def test_a_gateway_without_a_backplane_shares_no_folder(config: SpaceConfig, tmp_path: Path) -> None:
    async with serve_gateway(config, state=tmp_path):
        with pytest.raises(SpacesError, match="--backplane"):
            async with serve_gateway(config, state=tmp_path):
                pass


def test_a_gateway_with_a_backplane_shares_no_folder_with_one_without(config: SpaceConfig, tmp_path: Path) -> None:
    on_nats = config.model_copy(update={"backplane": JetStreamOptions.model_validate("nats://127.0.0.1:1")})
    lock = FileLock(lock_path(history_path(config, tmp_path)))
    with pytest.raises(SpacesError, match="--backplane"):
        run_gateway(on_nats, state=tmp_path, port=0)
    lock.release()


@pytest.mark.parametrize("durability", ["flushed", "synced"])
def test_a_shared_space_keeps_the_same_copy_in_the_folder(config: SpaceConfig, tmp_path: Path, durability: str) -> None:
    history = config.history.model_copy(update={"durability": durability})
    log = open_log(config.model_copy(update={"history": history}), tmp_path, is_shared=True)
    assert log is not None
    with closing(log):
        assert (log.durability, history_path(config, tmp_path).exists()) == ("flushed", True)


def test_a_shared_space_in_memory_keeps_no_envelopes_in_the_folder(config: SpaceConfig, tmp_path: Path) -> None:
    history = config.history.model_copy(update={"durability": "memory"})
    log = open_log(config.model_copy(update={"history": history}), tmp_path, is_shared=True)
    log.stage(b"secret", sender="ada", id="1", at=1.0)
    commit(log)
    log.close()
    assert not any(b"secret" in one.read_bytes() for one in tmp_path.iterdir())


async def test_a_gateway_does_not_start_without_its_removals(config: SpaceConfig, tmp_path: Path) -> None:
    history_path(config, tmp_path).write_bytes(b"damaged" * 100)
    with pytest.raises(SpacesError, match="then restore a backup or repeat the invitations and removals"):
        async with serve_gateway(config, state=tmp_path):
            pass


async def test_logs_are_written_into_the_state_folder(config: SpaceConfig, tmp_path: Path) -> None:
    async with serve_gateway(config, state=tmp_path) as gateway, joined(gateway, "bob") as bob:
        await bob.chat("logged", id="mine")
        await bob.until("chat")
    logs = tmp_path / "logs"
    assert '"event":"received","id":"mine"' in (logs / "envelope-history.jsonl").read_text()
    assert '"envelope_id":"mine","participant":"bob"' in (logs / "capability-decisions.jsonl").read_text()


async def test_logs_record_until_the_last_connection_is_closed(config: SpaceConfig, tmp_path: Path) -> None:
    async with AsyncExitStack() as open_until_the_end:
        async with serve_gateway(config, state=tmp_path) as gateway:
            for name in ("ada", "bob"):
                await open_until_the_end.enter_async_context(joined(gateway, name))
            await until(lambda: len(gateway.service.space.members) == 2)
            log = gateway.service.log
        sent = [json.loads(one.data) for one in log.last(10)]
    assert [one["payload"]["event"] for one in sent] == ["join", "join", "leave", "leave"]
    lines = (tmp_path / "logs" / "envelope-history.jsonl").read_text().splitlines()
    # Nobody else is there to get the first and the last.
    assert {one["id"] for one in sent[1:3]} <= {json.loads(line)["id"] for line in lines}


def spoil(config: SpaceConfig, state: Path) -> Path:
    """Store a removal that cannot be read."""
    log = open_log(config, state)
    log.put("synced/space/removed/bob", b"[]")
    commit(log)
    log.close()
    return log.path


async def test_unusable_state_is_reported_with_its_path(config: SpaceConfig, tmp_path: Path) -> None:
    tokens = TokenBook.generate(config)
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(SpacesError, match="logs"):
        async with serve_gateway(config, state=tmp_path, tokens=tokens):
            pass
    (tmp_path / "logs").unlink()
    history = spoil(config, tmp_path)
    with pytest.raises(SpacesError, match=history.name):
        async with serve_gateway(config, state=tmp_path, tokens=tokens):
            pass


async def test_a_failed_start_leaves_no_space_locked(config: SpaceConfig, tmp_path: Path) -> None:
    second = config.model_copy(update={"space": config.space.model_copy(update={"id": "second"})})
    folder = tmp_path / "second"
    folder.mkdir()
    history = spoil(second, folder)
    others = [HostedSpace(second, folder)]
    with pytest.raises(SpacesError, match=history.name):
        async with serve_gateway(config, state=tmp_path, others=others):
            pass
    history.unlink()
    async with serve_gateway(config, state=tmp_path, others=others) as gateway:
        assert len(gateway.registry) == 2


PROGRAM = """
import signal
import sys
from pathlib import Path
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import run_gateway

def interrupt(gateway):
    print(gateway.url, flush=True)
    for number in sys.argv[2:]:
        signal.raise_signal(int(number))

config = parse_space("space: {id: demo}\\nparticipants: {ada: {}}")
try:
    run_gateway(config, state=Path(sys.argv[1]), port=0, on_ready=interrupt)
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("ended", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
@pytest.mark.parametrize(("how", "outcome"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended")])
def test_run_gateway_stops_on_a_signal(tmp_path: Path, how: signal.Signals, outcome: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx2.get(url + "/health", trust_env=False, verify=False).json()["status"] == "ok"
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    assert (out.strip(), err, process.returncode) == (outcome, "", 0)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) != 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_quick_signals_stop_the_gateway_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *[str(signal.SIGINT.value)] * 3]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.splitlines()[1:], ended.stderr, ended.returncode) == (["interrupted"], "", 0)


EVERY_FEW_STEPS = """
import asyncio, os, signal, sys
from pathlib import Path
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway import gateway

def step(handle):
    global steps
    steps += 1
    if steps in interrupts:
        signal.raise_signal(signal.SIGINT)
    run_step(handle)

def run(*at):
    global steps, interrupts, ready
    steps, interrupts = 0, at
    def on_ready(running):
        global ready
        ready = steps
        os.kill(os.getpid(), signal.SIGTERM)
    try:
        gateway.run_gateway(config, state=Path(sys.argv[1]), port=0, on_ready=on_ready)
    except KeyboardInterrupt:
        return "interrupted"
    return "ended"

config = parse_space("space: {id: demo}\\nparticipants: {ada: {}}")
gateway.has_uvloop = lambda: False  # its steps cannot be counted
run_step, asyncio.Handle._run = asyncio.Handle._run, step
outcomes = [run()]
whole = steps
outcomes += [run(first, first + gap) for first in range(1, whole - 25, 2) for gap in (1, 3)]
print(outcomes[0], set(outcomes[1:]), whole > ready > 1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_two_signals_in_any_steps_of_the_loop_stop_the_gateway(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EVERY_FEW_STEPS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("ended {'interrupted'} True\n", "", 0)
