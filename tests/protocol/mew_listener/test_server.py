"""The HTTP server on real sockets."""

import httpx2
import pytest
from mew_listener.server import bound_socket, serving
from starlette.responses import PlainTextResponse

APP = PlainTextResponse("here")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_server_answers_while_its_block_runs(host: str) -> None:
    stopped: list[str] = []
    async with httpx2.AsyncClient(trust_env=False) as client:
        async with serving(APP, host=host, port=0, stopping=lambda: stopped.append("now")) as url:
            assert (await client.get(url)).text == "here"
            assert not stopped
        assert stopped == ["now"]
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)


async def test_taken_port_is_reported_before_anything_is_served() -> None:
    with bound_socket("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        async with serving(APP, host="127.0.0.1", port=taken.getsockname()[1], stopping=lambda: None):
            raise AssertionError
