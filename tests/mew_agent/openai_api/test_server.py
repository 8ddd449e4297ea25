"""The server's life: a port, an address, and an orderly end."""

from collections.abc import Callable

import anyio
import httpx2
import pytest

from mew_agent.openai_api.app import create_app
from mew_agent.openai_api.chat_participant import Door
from mew_agent.openai_api.server import serve_app
from mew_agent.participant.participant import Participant
from tests.mew_agent.conftest import PATIENCE_SECONDS, Ear
from tests.mew_agent.openai_api.conftest import KEY

Opened = Callable[..., Door]


async def test_a_server_has_its_address_and_closes_with_the_block(opened: Opened) -> None:
    async with opened() as door, httpx2.AsyncClient() as http:
        async with serve_app(create_app(door, api_key=KEY), door) as base_url:
            health = await http.get(base_url.removesuffix("/v1") + "/health")
        with pytest.raises(httpx2.ConnectError):
            await http.get(base_url)
    assert health.status_code == 200
    assert base_url.startswith("http://127.0.0.1:")


async def test_a_port_in_use_is_an_error(opened: Opened) -> None:
    async with opened() as door, serve_app(create_app(door, api_key=KEY), door) as base_url:
        port = int(base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            async with serve_app(create_app(door, api_key=KEY), door, port=port):
                pass


async def test_stopping_ends_open_streams_with_an_error_event(
    opened: Opened, joined: Callable[..., Participant]
) -> None:
    lines: list[str] = []
    async with opened(configured=frozenset({"coder"})) as door, joined("coder") as coder:
        ear = Ear(coder)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as http:
            addresses: list[str] = []

            async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                async with serve_app(create_app(door, api_key=KEY), door) as base_url:
                    addresses.append(base_url)
                    task_status.started()
                    await stop.wait()

            await tasks.start(serve)
            with anyio.fail_after(PATIENCE_SECONDS):
                while "coder" not in door.peers:
                    await anyio.sleep(0.005)
            body = {"model": "coder", "stream": True, "messages": [{"role": "user", "content": "Hello?"}]}
            headers = {"authorization": f"Bearer {KEY}"}
            url = f"{addresses[0]}/chat/completions"
            async with http.stream("POST", url, json=body, headers=headers) as response:
                await ear.first("bob", "chat")
                stop.set()
                lines = [line async for line in response.aiter_lines()]
        await ear.first("bob", "chat/cancel")
    assert '"code":"closing"' in lines[-4]
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
