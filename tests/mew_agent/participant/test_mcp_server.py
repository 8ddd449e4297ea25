"""Responses to the MCP requests of peers."""

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.envelope import Envelope

from mew_agent.participant.mcp_server import MAX_REQUESTS, RUNNING_REQUESTS, McpServer
from mew_agent.participant.participant import Participant
from mew_agent.tools.catalog import UNAVAILABLE, LocalOffers, Offers, RequestFailed
from mew_agent.tools.functions import Tool, Toolbox
from tests.support.waiting import PATIENCE_SECONDS, until

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def offers() -> LocalOffers:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def page() -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "from the tool"}], "structuredContent": {"n": 1}}

    def half_page() -> dict[str, Any]:
        return {"content": [{"type": "text", "text": object()}]}

    def fails() -> None:
        raise OSError("out of \ud800 paper")

    def unsendable() -> object:
        return object()

    box = Toolbox()
    for function in (add, page, half_page, fails, unsendable):
        box.add(Tool.from_function(function))
    return LocalOffers(box)


def request(payload: dict[str, Any]) -> Envelope:
    return Envelope.write("mcp/request", id="r", ts="t", sender="bob", payload=payload, to=("ada",))


async def answer(request: Envelope, offers: Offers, *, is_paused: bool) -> dict[str, Any]:
    me = Participant("ws://h", space="demo", id="ada", token="t")
    if is_paused:
        me.messenger.pause()
    payload = await McpServer(me.messenger, offers).response_to(request)
    assert payload is not None
    return payload


async def ask(method: str, params: dict[str, Any] | None = None, *, is_paused: bool = False) -> dict[str, Any]:
    payload = {"method": method, "id": 7, **({"params": params} if params is not None else {})}
    return await answer(request(payload), offers(), is_paused=is_paused)


async def test_tools_are_listed_with_their_schemas() -> None:
    listed = await ask("tools/list")
    assert listed["jsonrpc"] == "2.0"
    assert listed["id"] == 7
    first = listed["result"]["tools"][0]
    assert (first["name"], first["description"]) == ("add", "Add two numbers.")
    assert first["inputSchema"]["required"] == ["a", "b"]


async def test_tool_call_is_answered_with_content() -> None:
    result = (await ask("tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}}))["result"]
    assert result == {"content": [{"type": "text", "text": "5"}]}


async def test_result_in_mcp_shape_is_passed_on_unchanged() -> None:
    result = (await ask("tools/call", {"name": "page"}))["result"]
    assert result == {"content": [{"type": "text", "text": "from the tool"}], "structuredContent": {"n": 1}}


@pytest.mark.parametrize("name", ["fails", "unsendable", "half_page"])
async def test_failing_tool_has_an_error_result_that_can_be_sent(name: str) -> None:
    reply = await ask("tools/call", {"name": name})
    assert reply["result"]["isError"] is True
    assert Envelope.write("mcp/response", id="a", ts="t", sender="ada", payload=reply).encode()


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("prompts/list", None, -32601),
        ("initialize", {}, -32601),
        ("tools/call", None, -32602),
        ("tools/call", {"name": 5}, -32602),
        ("tools/call", {"name": "add", "arguments": [1]}, -32602),
        ("tools/call", {"name": "nothing"}, -32602),
        ("tools/call", {"name": "add", "arguments": {"a": "x", "b": 1}}, -32602),
    ],
)
async def test_request_that_cannot_be_served_gets_its_error_code(
    method: str, params: dict[str, Any] | None, code: int
) -> None:
    reply = await ask(method, params)
    assert reply["error"]["code"] == code
    assert reply["id"] == 7


async def test_request_without_a_method_is_invalid_and_needs_no_id() -> None:
    reply = await answer(request({}), offers(), is_paused=False)
    assert reply == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "payload.method: is missing"}}
    assert (await answer(request({"method": "ping"}), offers(), is_paused=False)) == {"jsonrpc": "2.0", "result": {}}


async def test_request_with_invalid_params_names_them() -> None:
    reply = await answer(request({"method": "tools/list", "params": []}), offers(), is_paused=False)
    assert reply["error"] == {"code": -32600, "message": "payload.params: must be an object"}


async def test_paused_participant_answers_that_it_is_paused() -> None:
    reply = await ask("tools/list", is_paused=True)
    assert reply["error"] == {"code": -32000, "message": "paused"}


class Failing:
    """Offers that fail in every way."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "on purpose":
            raise RequestFailed(-32042, "not today", {"again_in_seconds": 5})
        raise KeyError("broken \ud800")


async def test_error_of_the_offers_keeps_its_code_and_data() -> None:
    reply = await answer(request({"method": "on purpose", "id": "x"}), Failing(), is_paused=False)
    error = {"code": -32042, "message": "not today", "data": {"again_in_seconds": 5}}
    assert reply == {"jsonrpc": "2.0", "id": "x", "error": error}


async def test_broken_offers_give_an_internal_error_that_can_be_sent() -> None:
    reply = await answer(request({"method": "anything"}), Failing(), is_paused=False)
    assert reply["error"]["code"] == -32603
    assert "KeyError" in reply["error"]["message"]
    assert Envelope.write("mcp/response", id="a", ts="t", sender="ada", payload=reply).encode()


@given(st.dictionaries(st.sampled_from(["method", "params", "id", "jsonrpc"]), JSON))
async def test_every_request_gets_a_response_that_can_be_sent(payload: dict[str, Any]) -> None:
    reply = await answer(request(payload), offers(), is_paused=False)
    assert ("result" in reply) != ("error" in reply)
    assert Envelope.write("mcp/response", id="a", ts="t", sender="ada", payload=reply).encode()


async def test_peers_call_each_others_tools_through_the_gateway(joined: Callable[..., Participant]) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @ada.tool
        async def word_count(text: str) -> int:
            """Count the words of a text."""
            return len(text.split())

        call = {"method": "tools/call", "params": {"name": "word_count", "arguments": {"text": "one two three"}}}
        reply = await bob.ask("mcp/request", call, to="ada", answer="mcp/response", timeout_seconds=60)
        assert reply.body["result"]["content"][0]["text"] == "3"
        assert reply.to == ("bob",)

        await bob.ask("participant/pause", {}, to="ada", answer="participant/status", timeout_seconds=60)
        reply = await bob.ask("mcp/request", call, to="ada", answer="mcp/response", timeout_seconds=60)
        assert reply.body["error"]["code"] == -32000


class Slow:
    """Offers a tool that runs until `go`, and counts the calls that run."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.go = anyio.Event()

    async def request(self, _method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.running.append(str(params["sender"]))
        await self.go.wait()
        return {}


async def test_a_sender_with_many_requests_leaves_places_for_others() -> None:
    slow = Slow()
    server = McpServer(Participant("ws://h", space="demo", id="ada", token="t").messenger, slow)

    def call(sender: str, number: int) -> Envelope:
        payload = {"method": "tools/call", "id": number, "params": {"sender": sender}}
        return Envelope.write(
            "mcp/request", id=f"{sender}{number}", ts="t", sender=sender, payload=payload, to=("ada",)
        )

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for number in range(MAX_REQUESTS):
                tasks.start_soon(server.response_to, call("bob", number))
            await until(lambda: len(server._in_progress) == MAX_REQUESTS)
            refused = await server.response_to(call("bob", MAX_REQUESTS))
            tasks.start_soon(server.response_to, call("cleo", 1))
            await until(lambda: "cleo" in slow.running)
            assert slow.running.count("bob") == RUNNING_REQUESTS
            slow.go.set()
    assert refused is not None
    assert (refused["id"], refused["error"]["code"]) == (MAX_REQUESTS, UNAVAILABLE)
    assert slow.running.count("bob") == MAX_REQUESTS
