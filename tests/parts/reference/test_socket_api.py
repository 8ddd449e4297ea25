"""One-shot commands on a gateway that serves no board over HTTP.

The stand-in answers `/health` and `/spaces` as the TypeScript gateway (0.11) does, and passes everything else on.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.cli import answering, mew
from tests.support.gateway_client import Client as Member
from tests.support.gateway_client import Message, joined

HEALTH = json.dumps({"status": "ok", "spaces": 0, "clients": 0, "uptime": 1.5, "features": ["context"]}).encode()
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(HEALTH) + HEALTH
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
async def flags(gateway: RunningGateway) -> AsyncIterator[tuple[str, ...]]:
    """The options to act as ada on the stand-in."""
    async with stand_in(gateway) as url:
        yield ("--gateway", url, "--space", "review", "--participant", "ada", f"MEW_TOKEN={gateway.token_of('ada')}")


@asynccontextmanager
async def stand_in(gateway: RunningGateway) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith((b"GET /health", b"GET /spaces", b"GET /openapi")):
            writer.write(OK if head.startswith(b"GET /health") else NOT_FOUND)
        elif head.startswith(b"GET /participants?"):
            # That gateway lists who is connected, and wants no token.
            here = [{"id": name, "connected": True} for name in gateway.service.space.members]
            body = json.dumps({"participants": here}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        else:
            inner, outer = await asyncio.open_connection(gateway.host, gateway.port)
            outer.write(head)
            await asyncio.gather(_pipe(reader, outer), _pipe(inner, writer))
            outer.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # either side may be gone
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def reports(client: Member, request: Message) -> None:
    """Answer as an agent of that gateway does."""
    about = {"to": [request["from"]], "correlation_id": [request["id"]]}
    words = {"participant/pause": "paused", "participant/clear": "cleared"}
    if request["kind"] == "chat":
        await client.chat(f"you said: {request['payload']['text']}", **about)
    elif request["kind"] == "participant/compact":
        await client.send_envelope("participant/compact-done", {"status": "compacted", "freed_tokens": 40}, **about)
    elif request["kind"].startswith("participant/"):
        status = {
            "messages_in_context": 3,
            "tokens": 60,
            "max_tokens": 100,
            "status": words.get(request["kind"], "active"),
        }
        await client.send_envelope("participant/status", status, **about)


async def test_commands_join_for_as_long_as_they_need(gateway: RunningGateway, flags: tuple[str, ...]) -> None:
    async with answering(gateway, "coder", reports):
        said = await mew("chat", "coder", "hello", *flags)
        assert said.out == "you said: hello\n", said.err
        assert "coder: paused; ~60 of ~100" in (await mew("pause", "coder", *flags)).out
        assert "coder: freed 40 tokens" in (await mew("compact", "coder", *flags)).out
        shown = await mew("status", *flags)
        assert "60 of ~100" in shown.out
        assert (await mew("cancel", "coder", *flags)).out == "coder: nothing to cancel\n"
        entries = json.loads((await mew("status", "--json", *flags)).out)
        assert {one["id"]: one.get("status", {}).get("tokens") for one in entries} == {"ada": None, "coder": 60}


async def test_a_participant_that_is_connected_is_not_cut_off(gateway: RunningGateway, flags: tuple[str, ...]) -> None:
    async with joined(gateway, "ada") as ada:
        refused = await mew("status", *flags)
        assert refused.code == 2
        assert "--participant: 'ada' is connected" in refused.err
        await ada.chat("still here")
        assert (await ada.until("chat"))["payload"]["text"] == "still here"


async def test_errors_name_what_that_gateway_cannot_serve(flags: tuple[str, ...]) -> None:
    refused = await mew("proposals", *flags)
    assert "keeps no proposals: it is not a gateway of mew-agent; join it to see them" in refused.err
    assert "keeps no messages: it is not a gateway of mew-agent" in (await mew("history", *flags)).err
    assert refused.code == 1


async def test_an_absent_participant_is_named(flags: tuple[str, ...]) -> None:
    assert "no participant 'coder' in space 'review' (members: ada)" in (await mew("chat", "coder", "hi", *flags)).err
