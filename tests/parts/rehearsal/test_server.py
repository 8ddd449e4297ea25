"""Running the rehearsal model: options, ports, stopping, in the foreground, and embedded."""

import signal
import socket
from contextlib import aclosing
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from pydantic import ValidationError

from mew_agent.errors import ModelError
from mew_agent.model.interface import Message, ModelReply, ModelRequest
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import EmbeddedRehearsal, RehearsalOptions, serve_rehearsal
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS


async def test_the_server_runs_while_the_block_is_open() -> None:
    async with (
        serve_rehearsal(RehearsalOptions(model="tiny")) as server,
        httpx2.AsyncClient(trust_env=False, verify=False) as client,
    ):
        assert (await client.get(f"{server.base_url}/models")).json()["data"][0]["id"] == "tiny"
    with pytest.raises(OSError, match=r"."):
        await anyio.connect_tcp("127.0.0.1", server.port)


async def test_an_error_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with serve_rehearsal():
            raise LookupError("mine")


async def test_two_servers_record_their_own_requests() -> None:
    async with serve_rehearsal() as one, serve_rehearsal() as other:
        assert one.port != other.port
        async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
            body = {"messages": [{"role": "user", "content": "x"}]}
            await client.post(f"{one.base_url}/chat/completions", json=body)
        assert (len(one.requests), len(other.requests)) == (1, 0)


async def test_a_port_in_use_is_an_os_error() -> None:
    async with serve_rehearsal() as server:
        with pytest.raises(OSError, match="in use"):
            async with serve_rehearsal(port=server.port):
                pass


async def test_an_open_stream_does_not_delay_stopping() -> None:
    failures: list[ModelError] = []

    async def read(model: OpenAIModel) -> None:
        try:
            async with aclosing(model.stream(ModelRequest((Message("user", "Hello there, you."),)))) as events:
                async for _ in events:
                    pass
        except ModelError as error:
            failures.append(error)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with (
            anyio.create_task_group() as tasks,
            serve_rehearsal(RehearsalOptions(chunk_delay_seconds=600)) as server,
        ):
            model = rehearsal_model(server.base_url)
            tasks.start_soon(read, model)
            await server.wait_until(lambda: any(request.chunks_sent for request in server.requests))
        await model.aclose()
    assert len(failures) == 1


async def test_signal_handlers_are_unchanged() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with serve_rehearsal():
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_an_invalid_option_change_is_refused() -> None:
    async with serve_rehearsal() as server:
        before = server.options
        with pytest.raises(ValueError, match="window_tokens"):
            server.change(window_tokens=0)
        assert server.options is before


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback")
async def test_an_ipv6_address_has_brackets() -> None:
    async with serve_rehearsal(host="::1") as server, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        assert server.base_url.startswith("http://[::1]:")
        assert (await client.get(f"{server.base_url}/models")).status_code == 200


# -- embedded ----------------------------------------------------------------------------------------------------

ASK = ModelRequest((Message("user", "What is the tide?"),))


async def reply_of(model: EmbeddedRehearsal) -> ModelReply:
    last = None
    async with aclosing(model.stream(ASK)) as events:
        async for event in events:
            last = event
    assert isinstance(last, ModelReply)
    return last


async def test_the_server_starts_at_first_use_and_after_close() -> None:
    model = EmbeddedRehearsal(4096)
    try:
        await model.aclose()  # closing an unused model is allowed
        assert "What is the tide?" in (await reply_of(model)).text
        await model.aclose()
        assert "What is the tide?" in (await reply_of(model)).text
    finally:
        await model.aclose()


async def test_the_configured_window_and_counts_are_used() -> None:
    model = EmbeddedRehearsal(4096)
    try:
        window = await model.discover_window()
        usage = (await reply_of(model)).usage
        assert window is not None
        assert window.max_tokens == 4096
        assert usage is not None
        assert await model.count_prompt(ASK) == usage.prompt_tokens
    finally:
        await model.aclose()
    assert model.identity.endpoint == "rehearsal"


# -- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"window_tokens": 0},
        {"usage_on": "sometimes"},
        {"cut_after_chunks": -1},
        {"status": 200},
        {"windowtokens": 5},
        {"fixed_usage": [(1, -1, 2)]},
        {"script": [{"txt": "x"}]},
    ],
)
def test_an_invalid_option_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions(**fields)


def test_options_are_immutable() -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions().window_tokens = 5  # type: ignore[misc]
