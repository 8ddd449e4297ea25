"""Sessions with MCP servers: official, published, and small misbehaving ones."""

import logging
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mew_agent import tracing
from mew_agent.parts.mcp.bridge import Bridge
from mew_agent.parts.mcp.mcp_session import ServerFailed
from mew_agent.parts.mcp.settings import BridgeSettings
from mew_agent.tools.catalog import INVALID_PARAMS, METHOD_NOT_FOUND, UNAVAILABLE, RequestFailed
from tests.parts.mcp.conftest import (
    Recorder,
    call,
    forgetful,
    mortal,
    over_http,
    running,
    script,
    settings,
    workshop,
    workshop_over_http,
)
from tests.support.waiting import PATIENCE_SECONDS, until

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
async def workshop_bridge() -> AsyncIterator[Bridge]:
    """A bridge to the workshop, for tests that leave it as it was."""
    async with running(workshop()) as bridge:
        yield bridge


async def everything_works(bridge: Bridge) -> None:
    """Tools, resources, templates and prompts, through one bridge."""
    assert bridge.server == "workshop 1.2"
    tools = {tool["name"]: tool for tool in (await bridge.request("tools/list", {}))["tools"]}
    assert tools["add"]["inputSchema"]["required"] == ["a", "b"]
    result = await call(bridge, "add", a=2, b=3)
    assert (result["content"], result["structuredContent"]) == ([{"type": "text", "text": "5"}], {"result": 5})
    (resource,) = (await bridge.request("resources/list", {}))["resources"]
    assert (resource["uri"], resource["mimeType"]) == ("notes://today", "text/markdown")
    (content,) = (await bridge.request("resources/read", {"uri": "notes://today"}))["contents"]
    assert content["text"] == "# Today"
    (template,) = (await bridge.request("resources/templates/list", {}))["resourceTemplates"]
    assert template["uriTemplate"] == "notes://{day}"
    (content,) = (await bridge.request("resources/read", {"uri": "notes://monday"}))["contents"]
    assert content["text"] == "nothing on monday"
    (prompt,) = (await bridge.request("prompts/list", {}))["prompts"]
    assert prompt["name"] == "greet"
    got = await bridge.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})
    assert got["messages"][0]["content"]["text"] == "Say hello to Ada."
    assert await bridge.request("ping", {}) == {}


async def test_a_program_serves_tools_resources_and_prompts(workshop_bridge: Bridge) -> None:
    await everything_works(workshop_bridge)


async def test_a_server_over_streamable_http_serves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # cannot reach servers on this machine
    async with workshop_over_http() as url:
        configured = BridgeSettings.model_validate({"server": {"url": url}})
        async with running(configured) as bridge:
            await everything_works(bridge)


async def test_requests_run_concurrently(workshop_bridge: Bridge) -> None:
    async with anyio.create_task_group() as tasks:
        answers: list[str] = []

        async def wait() -> None:
            answers.append((await call(workshop_bridge, "wait_at_gate"))["content"][0]["text"])

        for _ in range(5):
            tasks.start_soon(wait)
        assert (await call(workshop_bridge, "add", a=1, b=1))["structuredContent"] == {"result": 2}
        assert answers == []
        await call(workshop_bridge, "open_gate")
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(answers) < 5:
                await anyio.lowlevel.checkpoint()
        assert answers == ["through"] * 5


async def test_a_request_without_an_answer_times_out() -> None:
    answers_pings = "hello()\nwhile (m := read()):\n    if m.get('method') == 'ping': write(id=m['id'], result={})"
    async with running(script(answers_pings, request_seconds=0.3)) as bridge:
        with pytest.raises(RequestFailed, match="out") as failed:
            await call(bridge, "wait_at_gate")
        assert failed.value.code == -32001
        assert await bridge.request("ping", {}) == {}


async def test_a_cancelled_call_stops_in_the_server(caplog: pytest.LogCaptureFixture, workshop_bridge: Bridge) -> None:
    caplog.set_level(logging.DEBUG, "mew_agent")
    params = {"name": "work", "arguments": {}, "_meta": {"progressToken": "mine"}}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workshop_bridge.request, "tools/call", params)
        await until(lambda: "took the tools out" in caplog.text)
        await until(lambda: "half done" in caplog.text)
        tasks.cancel_scope.cancel()
    await until(lambda: "put the tools away" in caplog.text)
    assert "server: notifications/progress" in caplog.text
    assert (await call(workshop_bridge, "add", a=1, b=1))["structuredContent"] == {"result": 2}


@pytest.mark.parametrize(
    ("method", "requested"),
    [("sampling", "sampling/createMessage"), ("elicitation", "elicitation/create"), ("roots", "roots/list")],
)
async def test_requests_of_the_server_are_refused_with_a_message(
    method: str, requested: str, caplog: pytest.LogCaptureFixture, workshop_bridge: Bridge
) -> None:
    answer = (await call(workshop_bridge, "ask_back", method=method))["content"][0]["text"]
    assert answer.startswith(f"-32601: '{requested}' is not offered")
    assert f"refused '{requested}' of the MCP server" in caplog.text


async def test_a_call_carries_its_trace_context_in_meta(workshop_bridge: Bridge) -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with tracing.span("http", {}, header):
        assert (await call(workshop_bridge, "trace"))["content"][0]["text"] == header
    assert (await call(workshop_bridge, "trace"))["content"][0]["text"] == "None"


async def test_a_list_of_tools_names_the_other_lists(workshop_bridge: Bridge) -> None:
    only = "hello()\nwhile (m := read()): write(id=m['id'], error={'code': -32601, 'message': 'no such method'})"
    with_resources = only.replace("hello()", "hello(capabilities={'resources': {}})")
    assert (await workshop_bridge.request("tools/list", {}))["_meta"]["mew/lists"] == ["resources", "prompts"]
    async with running(script(with_resources)) as bridge:
        assert await bridge.request("tools/list", {}) == {"tools": [], "_meta": {"mew/lists": ["resources"]}}
    async with running(script(only)) as bridge:
        with pytest.raises(RequestFailed, match="no such method"):
            await bridge.request("tools/list", {})


async def test_a_failed_tool_has_an_error_result(workshop_bridge: Bridge) -> None:
    result = await call(workshop_bridge, "fail")
    assert result["isError"] is True
    assert "the drill is broken" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("initialize", {}, METHOD_NOT_FOUND),
        ("sampling/createMessage", {}, METHOD_NOT_FOUND),
        ("tools/call", {}, INVALID_PARAMS),
    ],
)
async def test_each_error_has_its_code(method: str, params: dict[str, Any], code: int, workshop_bridge: Bridge) -> None:
    with pytest.raises(RequestFailed) as failed:
        await workshop_bridge.request(method, params)
    assert failed.value.code == code


async def test_an_error_of_the_server_is_forwarded_unchanged() -> None:
    refusal = {"code": -32042, "message": "closed on Sundays", "data": {"open": "Monday"}}
    async with running(script(f"hello()\nwhile (m := read()): write(id=m['id'], error={refusal!r})")) as bridge:
        with pytest.raises(RequestFailed) as failed:
            await bridge.request("tools/list", {})
        assert {key: getattr(failed.value, key) for key in refusal} == refusal


async def test_an_error_with_the_code_of_a_lost_connection_ends_nothing(recorder: Recorder) -> None:
    broken = {"code": -32000, "message": "the drill is broken"}
    body = f"hello()\nwhile (m := read()): write(id=m['id'], error={broken!r})"
    async with running(script(body), report_status=recorder.record_status) as bridge:
        for _ in range(5):
            with pytest.raises(RequestFailed, match="the drill is broken"):
                await call(bridge, "drill")
    assert recorder.statuses == []


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, -32600, "Session not found"),  # the Python SDK
        (404, -32001, "Session not found"),  # the TypeScript SDK
        (400, -32000, "Bad Request: No valid session ID provided"),  # servers after its examples
    ],
)
async def test_a_server_that_forgot_the_session_gets_another(
    status: int, code: int, words: str, recorder: Recorder
) -> None:
    async with over_http(forgetful(status, code, words)) as url:
        configured = BridgeSettings.model_validate({"server": {"url": url}})
        async with running(configured, report_status=recorder.record_status, first_pause_seconds=0.01) as bridge:
            await call(bridge, "forget")
            with pytest.raises(RequestFailed, match="closed the connection") as failed:
                await bridge.request("tools/list", {})
            assert failed.value.code == UNAVAILABLE
            await recorder.until(lambda: "ready" in recorder.statuses)
            assert recorder.statuses == ["mcp_server_down:closed the connection", "ready"]
            assert (await bridge.request("tools/list", {}))["tools"] == []


async def test_a_refused_request_does_not_end_a_session_over_http(recorder: Recorder) -> None:
    async with over_http(forgetful(400, -32602, "no such drill")) as url:
        configured = BridgeSettings.model_validate({"server": {"url": url}})
        async with running(configured, report_status=recorder.record_status) as bridge:
            await call(bridge, "forget")
            for _ in range(2):
                with pytest.raises(RequestFailed, match="no such drill"):
                    await call(bridge, "drill")
    assert recorder.statuses == []


async def test_an_answer_larger_than_an_envelope_is_an_error(workshop_bridge: Bridge) -> None:
    with pytest.raises(RequestFailed, match=r"the answer of \d\d,\d{3},\d{3} bytes exceeds the limit of"):
        await call(workshop_bridge, "big", characters=9_000_000)
    assert (await call(workshop_bridge, "add", a=1, b=1))["structuredContent"] == {"result": 2}


async def test_cursors_and_pages_are_forwarded() -> None:
    pages = (
        "hello()\n"
        "while (message := read()):\n"
        "    at = message.get('params', {}).get('cursor', '0')\n"
        "    tool = {'name': 'tool-' + at, 'inputSchema': {'type': 'object'}, 'future': [1]}\n"
        "    write(id=message['id'], result={'tools': [tool], 'nextCursor': str(int(at) + 1)})\n"
    )
    async with running(script(pages)) as bridge:
        first = await bridge.request("tools/list", {})
        second = await bridge.request("tools/list", {"cursor": first["nextCursor"]})
        assert second["tools"] == [{"name": "tool-1", "inputSchema": {"type": "object"}, "future": [1]}]


async def test_an_unknown_protocol_version_is_accepted() -> None:
    async with running(
        script("hello('0.1.0')\nwhile (m := read()): write(id=m['id'], result={'tools': []})")
    ) as bridge:
        assert await bridge.request("tools/list", {}) == {"tools": []}


async def test_a_stateless_server_is_asked_and_reports_changes(recorder: Recorder) -> None:
    newest = (
        "stamp = 'io.modelcontextprotocol/'\n"
        "while (m := read()):\n"
        "    meta = m.get('params', {}).get('_meta', {})\n"
        "    version = meta.get(stamp + 'protocolVersion')\n"
        "    if m['method'] == 'initialize':\n"
        "        data = {'supported': ['2026-07-28'], 'requested': m['params']['protocolVersion']}\n"
        "        write(id=m['id'], error={'code': -32022, 'message': 'too old', 'data': data})\n"
        "    elif m['method'] == 'server/discover':\n"
        "        write(id=m['id'], result={'supportedVersions': ['2026-07-28'], 'capabilities': {'tools': {}}, "
        "'resultType': 'complete', 'ttlMs': 0, 'cacheScope': 'private'})\n"
        "    elif m['method'] == 'subscriptions/listen':\n"
        "        about = {'_meta': {stamp + 'subscriptionId': m['id']}}\n"
        "        write(method='notifications/subscriptions/acknowledged', "
        "params={'notifications': {'toolsListChanged': True}, **about})\n"
        "        write(method='notifications/tools/list_changed', params=about)\n"
        "    elif m['method'] == 'tools/list':\n"
        "        tool = {'name': 'seen-' + str(version), 'inputSchema': {'type': 'object'}}\n"
        "        write(id=m['id'], result={'tools': [tool], 'resultType': 'complete', 'ttlMs': 0, "
        "'cacheScope': 'private'})\n"
    )
    async with running(script(newest), notify=recorder.record_notification) as bridge:
        await recorder.until(lambda: recorder.notifications == ["notifications/tools/list_changed"])
        (tool,) = (await bridge.request("tools/list", {}))["tools"]
        assert tool["name"] == "seen-2026-07-28"


async def test_lines_that_are_not_messages_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    chatty = (
        "print('Welcome!', flush=True)\nhello()\nprint()\nwhile (m := read()): write(id=m['id'], result={'tools': []})"
    )
    async with running(script(chatty)) as bridge:
        assert await bridge.request("tools/list", {}) == {"tools": []}
    assert "a line of the MCP server that is not a message: Welcome!" in caplog.text


async def test_an_answer_that_is_not_mcp_is_an_internal_error() -> None:
    async with running(script("hello()\nwhile (m := read()): write(id=m['id'], result={'tools': 5})")) as bridge:
        with pytest.raises(RequestFailed, match="invalid answer of the MCP server: tools: ") as failed:
            await bridge.request("tools/list", {})
        assert failed.value.code == -32603


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        (settings("no-such-program-here"), "the MCP server 'no-such-program-here' cannot be started: no such file"),
        (
            script("sys.stderr.write('loading\\nno key given\\n'); sys.exit(3)"),
            r"exited with code 3 before it was ready; stderr: loading / no key given$",
        ),
        (script("time.sleep(600)", init_timeout=300), "did not answer `initialize` within 0.3 seconds"),
        (
            script("m = read(); write(id=m['id'], error={'code': -32000, 'message': 'no licence'}); read()"),
            "refused `initialize`: no licence",
        ),
    ],
)
async def test_an_unusable_server_is_reported_with_its_cause(configured: BridgeSettings, words: str) -> None:
    with pytest.raises(ServerFailed, match=words):
        async with running(configured):
            pass


async def test_a_url_without_a_server_is_reported(held_port: int) -> None:
    configured = {"server": {"url": f"http://127.0.0.1:{held_port}/mcp"}, "max_reconnects": 0}
    with pytest.raises(ServerFailed, match=rf"the MCP server 'http://127.0.0.1:{held_port}/mcp' cannot be reached: "):
        async with running(BridgeSettings.model_validate(configured)):
            pass


async def test_a_request_is_answered_when_its_server_exits() -> None:
    async with running(mortal()) as bridge:
        with pytest.raises(RequestFailed, match="closed the connection") as failed:
            await call(bridge, "saw")
        assert failed.value.code == UNAVAILABLE


async def test_the_published_time_server_answers() -> None:
    async with running(settings(str(BIN / "mcp-server-time"), "--local-timezone", "Europe/Paris")) as bridge:
        tools = [tool["name"] for tool in (await bridge.request("tools/list", {}))["tools"]]
        assert {"get_current_time", "convert_time"} <= set(tools)
        result = await call(bridge, "convert_time", source_timezone="UTC", time="12:30", target_timezone="Asia/Kolkata")
        assert "18:00:00" in result["content"][0]["text"]


async def test_the_published_git_server_answers(tmp_path: Path) -> None:
    assert shutil.which("git"), "these tests need git"
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    (tmp_path / "a.txt").write_text("one\n")
    for arguments in (("init", "-q"), ("add", "a.txt"), (*identity, "commit", "-q", "-m", "First page")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    async with running(settings(str(BIN / "mcp-server-git"), "--repository", str(tmp_path))) as bridge:
        log = await call(bridge, "git_log", repo_path=str(tmp_path), max_count=1)
        assert "First page" in log["content"][0]["text"]
        (tmp_path / "a.txt").write_text("two\n")
        changed = await call(bridge, "git_diff_unstaged", repo_path=str(tmp_path))
        assert "+two" in changed["content"][0]["text"]
