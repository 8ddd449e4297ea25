"""Restarts of an MCP server, and what the space sees of them."""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.errors import Unauthorized
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp.bridge import Bridge, run_bridge
from mew_agent.parts.mcp.mcp_session import ServerFailed
from mew_agent.parts.mcp.settings import BridgeSettings
from mew_agent.tools.catalog import UNAVAILABLE, RequestFailed
from tests.parts.mcp.conftest import (
    Recorder,
    call,
    mortal,
    running,
    script,
    settings,
    workshop,
    workshop_over_http,
)
from tests.support.waiting import PATIENCE_SECONDS, until

STARTS = "open(sys.argv[-1], 'a').write('.')\nhello()\n"


def counted(body: str, marks: Path, **more: Any) -> BridgeSettings:
    """A small server that appends a mark at each start."""
    configured = script(STARTS + body, **more)
    server = configured.server.model_copy(update={"args": (*configured.server.args, str(marks))})
    return configured.model_copy(update={"server": server})


async def test_a_bridge_refuses_requests_before_it_starts(recorder: Recorder) -> None:
    bridge = Bridge(workshop(), notify=recorder.record_notification, report_status=recorder.record_status)
    with pytest.raises(RequestFailed, match="has not started yet") as failed:
        await bridge.request("tools/list", {})
    assert failed.value.code == UNAVAILABLE


async def test_a_server_that_exits_is_restarted_and_announced(recorder: Recorder) -> None:
    async with running(
        mortal(), notify=recorder.record_notification, report_status=recorder.record_status, first_pause_seconds=0.01
    ) as bridge:
        with pytest.raises(RequestFailed, match="closed the connection"):
            await call(bridge, "saw")
        await recorder.until(lambda: "ready" in recorder.statuses)
        assert recorder.statuses == ["mcp_server_down:exited with code 7", "ready"]
        assert (await bridge.request("tools/list", {}))["tools"] == []
        await recorder.until(lambda: len(recorder.notifications) == 3)
        assert recorder.notifications[0] == "notifications/tools/list_changed"


async def test_requests_fail_at_once_while_the_server_is_down(recorder: Recorder) -> None:
    async with running(mortal(), report_status=recorder.record_status, first_pause_seconds=600) as bridge:
        with pytest.raises(RequestFailed):
            await call(bridge, "saw")
        await recorder.until(lambda: bool(recorder.statuses))
        with pytest.raises(RequestFailed, match="exited with code 7 and is being restarted") as failed:
            await bridge.request("tools/list", {})
        assert failed.value.code == UNAVAILABLE


async def test_a_server_that_keeps_exiting_is_not_restarted(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    configured = counted("print('bye', file=sys.stderr); sys.exit(5)", marks, max_reconnects=2)
    with pytest.raises(ServerFailed, match=r"exited with code 5; stderr: bye$"):
        async with running(configured, first_pause_seconds=0.01):
            await anyio.sleep(PATIENCE_SECONDS)
    assert marks.read_text() == "..."


async def test_a_bridge_without_reconnect_ends_with_its_server(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with pytest.raises(ServerFailed, match="exited with code 0"):
        async with running(counted("", marks, reconnect=False)):
            await anyio.sleep(PATIENCE_SECONDS)
    assert marks.read_text() == "."


async def test_a_program_that_never_started_is_not_retried(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    configured = script(f"open({str(marks)!r}, 'a').write('.'); sys.exit(1)")
    with pytest.raises(ServerFailed, match="before it was ready"):
        async with running(configured, first_pause_seconds=0.01):
            pass
    assert marks.read_text() == "."


async def test_a_server_at_a_url_is_retried(held_port: int, recorder: Recorder) -> None:
    url = f"http://127.0.0.1:{held_port}/mcp"
    configured = BridgeSettings.model_validate({"server": {"url": url}, "max_reconnects": 1000})
    bridge = Bridge(
        configured,
        notify=recorder.record_notification,
        report_status=recorder.record_status,
        first_pause_seconds=0.02,
    )
    async with anyio.create_task_group() as tasks:
        ready = anyio.Event()

        async def start() -> None:
            await tasks.start(bridge.keep_running)
            ready.set()

        tasks.start_soon(start)
        await anyio.lowlevel.checkpoint()
        assert not ready.is_set()
        async with workshop_over_http(held_port):
            with anyio.fail_after(PATIENCE_SECONDS):
                await ready.wait()
            assert (await call(bridge, "add", a=1, b=2))["structuredContent"] == {"result": 3}
        with pytest.raises(RequestFailed) as failed:
            await call(bridge, "add", a=1, b=2)
        assert failed.value.code == UNAVAILABLE
        async with workshop_over_http(held_port):
            await recorder.until(lambda: "ready" in recorder.statuses)
            assert (await call(bridge, "add", a=1, b=2))["structuredContent"] == {"result": 3}
            tasks.cancel_scope.cancel()


# -- in a space --------------------------------------------------------------------------------------------


@asynccontextmanager
async def bridged(gateway: RunningGateway, configured: BridgeSettings, name: str = "bob") -> AsyncIterator[Bridge]:
    """A bridge that has joined the test's space."""
    found: list[Bridge] = []
    there = anyio.Event()

    def joined(bridge: Bridge) -> None:
        found.append(bridge)
        there.set()

    run = partial(
        run_bridge, gateway=gateway.ws_url, space="demo", id=name, token=gateway.token_of(name), joined=joined
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, configured)
        with anyio.fail_after(PATIENCE_SECONDS):
            await there.wait()
        yield found[0]
        tasks.cancel_scope.cancel()


async def test_peers_call_and_cancel_the_tools_of_an_mcp_server(
    gateway: RunningGateway, joined: Callable[..., Participant], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mew_agent")
    async with bridged(gateway, workshop()), joined("ada") as ada:

        async def ask(method: str, **params: Any) -> dict[str, Any]:
            payload = {"method": method, "params": params}
            answer = await ada.ask(
                "mcp/request", payload, to="bob", answer="mcp/response", timeout_seconds=PATIENCE_SECONDS
            )
            return dict(answer.body)

        assert "add" in str((await ask("tools/list"))["result"])
        call_add = await ask("tools/call", name="add", arguments={"a": 20, "b": 22})
        assert call_add["result"]["structuredContent"] == {"result": 42}
        assert (await ask("resources/read", uri="notes://today"))["result"]["contents"][0]["text"] == "# Today"
        assert (await ask("prompts/list"))["result"]["prompts"][0]["name"] == "greet"
        assert (await ask("sampling/createMessage"))["error"]["code"] == -32601
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ada.call_tool, "bob", "work")
            await until(lambda: "took the tools out" in caplog.text)
            tasks.cancel_scope.cancel()
        await until(lambda: "put the tools away" in caplog.text)
        assert (await ada.call_tool("bob", "add", {"a": 1, "b": 1})).text == "2"


async def test_changes_of_the_tools_are_announced_and_discovered(
    gateway: RunningGateway, joined: Callable[..., Participant]
) -> None:
    received: list[str] = []
    ada = joined("ada", discover=True)

    @ada.on("mcp/notification")
    async def note(envelope: Any) -> None:
        received.append(envelope.body["method"])

    async with bridged(gateway, workshop()), ada:
        known = await ada.discover("bob")
        assert known.tools is not None
        assert {"add", "learn"} <= {tool.name for tool in known.tools}
        assert "saw" not in {tool.name for tool in known.tools}
        assert [prompt.name for prompt in known.prompts or ()] == ["greet"]
        result = await ada.call_tool("bob", "add", {"a": 20, "b": 22})
        assert result.text == "42"
        await ada.call_tool("bob", "learn")
        await until(lambda: "saw" in {tool.name for tool in ada.peers["bob"].tools or ()})
        await until(lambda: received)
        assert received == ["notifications/tools/list_changed"]


async def test_thousands_of_notifications_reach_the_space_as_a_few(
    gateway: RunningGateway, joined: Callable[..., Participant]
) -> None:
    received: list[str] = []
    ada = joined("ada")

    @ada.on("mcp/notification")
    async def note(envelope: Any) -> None:
        received.append(f"{envelope.body['method']} {envelope.body['params'].get('uri')}")

    noisy = (
        "hello()\nwhile (m := read()):\n"
        "    for number in range(2000):\n"
        "        write(method='notifications/tools/list_changed')\n"
        "        write(method='notifications/resources/updated', params={'uri': f'notes://{number % 2}'})\n"
        "    write(method='notifications/resources/updated', params={'uri': 'x' * 2_000_000})\n"
        "    write(id=m['id'], result={'content': []})\n"
    )
    async with bridged(gateway, script(noisy)), ada:
        await ada.call_tool("bob", "shout")
        await until(lambda: len(set(received)) == 3)
        assert (await ada.call_tool("bob", "shout")).text == ""
    assert len(received) < 200


async def test_a_bridge_leaves_when_its_server_stays_down(
    gateway: RunningGateway, joined: Callable[..., Participant]
) -> None:
    left = anyio.Event()
    failure: list[BaseException] = []
    async with joined("ada") as ada:

        @ada.on("system/presence")
        async def presence(envelope: Any) -> None:
            if envelope.body["event"] == "leave":
                left.set()

        with anyio.fail_after(PATIENCE_SECONDS):
            try:
                async with bridged(gateway, mortal(reconnect=False)) as bridge:
                    with pytest.raises(RequestFailed):
                        await call(bridge, "saw")
                    await anyio.sleep_forever()
            except* ServerFailed as group:
                failure.extend(group.exceptions)
            await left.wait()
    assert [str(one) for one in failure] == [
        f"the MCP server '{sys.executable}' exited with code 7; stderr: out of wood"
    ]


async def test_a_wrong_token_ends_the_bridge_and_its_server(gateway: RunningGateway) -> None:
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized):
        await run_bridge(mortal(), gateway=gateway.ws_url, space="demo", id="bob", token="wrong")


async def test_a_bridge_never_joins_if_its_server_does_not_start() -> None:
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ServerFailed, match="no such file"):
        await run_bridge(
            settings("no-such-program-here"), gateway="ws://127.0.0.1:9", space="demo", id="bob", token="none"
        )
