"""Somebody who may write to the NATS servers of a space: what no gateway wrote is skipped everywhere alike."""

import logging
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.core.events import (
    EPOCH,
    RULES_VERSION,
    BatchHeader,
    ConnectionId,
    ConnectionJoins,
    EnvelopeArrives,
    InputEvent,
    decode_batch,
    encode_batch,
    encode_event,
)
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneRefused
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream, safe_name
from mew_spaces.parts.jetstream.leases import MAX_LEASES, LeaseTable
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.shared_records import SharedStorageOptions
from mew_spaces.parts.jetstream.shared_storage import on_backplane
from nats.aio.client import Client as NatsClient
from pydantic_core import to_json

from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {capabilities: [{kind: chat}], tokens: [b]}
"""
PATIENT = SharedStorageOptions(
    wait_seconds=PATIENCE_SECONDS, start_seconds=PATIENCE_SECONDS, renew_seconds=0.1, snapshot_events=10
)
SEED = "00" * 16
GOOD = BatchHeader(1, 1, EPOCH, bytes(16))


def batch(*lines: Any, head: Any = (RULES_VERSION, 7, 1, 0, SEED)) -> bytes:
    return b"\n".join([to_json(head), *(to_json(one) for one in lines), b""])


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello",
    "no list": b"{}\n",
    "deep": b"[" * 100_000,
    "null": b"null\n",
    "other rules": batch(head=(99, 7, 1, 0, SEED)),
    "rules as text": batch(head=(str(RULES_VERSION), 7, 1, 0, SEED)),
    "rules as a list": batch(head=([], 7, 1, 0, SEED)),
    "gateway as text": batch(head=(RULES_VERSION, "7", 1, 0, SEED)),
    "huge time": batch(head=(RULES_VERSION, 7, 1, 10**30, SEED)),
    "late time": batch(head=(RULES_VERSION, 7, 1, 2**62, SEED)),
    "negative number": batch(head=(RULES_VERSION, 7, -1, 0, SEED)),
    "no seed": batch(head=(RULES_VERSION, 7, 1, 0, None)),
    "bad seed": batch(head=(RULES_VERSION, 7, 1, 0, "xyz")),
    "unknown event": batch(["start"], ["explode"]),
    "event as an object": batch({"join": 1}),
    "name as a list": batch([["join"], 1, "ada", 0]),
    "join as text": batch(["start"], ["join", "x", "ada", 0]),
    "join with too much": batch(["start"], ["join", 1, "ada", 0, 0]),
    "gone without a number": batch(["start"], ["gone", None]),
    "flag as connection": batch(["start"], ["leave", True, "ada"]),
    "negative size": batch(["start"], ["send", None, "ada", 0, False, -10]),
    "size beyond the end": batch(["start"], ["send", None, "ada", 0, False, 10**6]),
    "no line end": batch(["start"])[:-1],
    "not UTF-8": b"\xff\xfe\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_batch_is_refused_as_a_whole(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the JSON parser, too
        decode_batch(MALFORMED[name])


def test_every_field_of_a_batch_is_read_as_it_was_written() -> None:
    events: list[InputEvent] = [
        ConnectionJoins(ConnectionId(1 << 32), "ada", 0),  # type: ignore[arg-type]
        EnvelopeArrives(None, "ada", 3, may_repeat=True, data=b'{"kind":"chat"}\n'),  # type: ignore[arg-type]
    ]
    assert decode_batch(encode_batch(GOOD, map(encode_event, events))) == (GOOD, events)


def test_leases_without_end_are_forgotten() -> None:
    table = LeaseTable(6.0)
    for number in range(MAX_LEASES + 10):
        table.read(f"name-{number}", b"", sequence=number + 1, at=1.0)
    assert len(table.in_force()) == MAX_LEASES


class Intruder:
    """A client with rights on the servers, and the subjects of one space."""

    def __init__(self, client: NatsClient, server: NatsServer, space: str) -> None:
        self.client, self.server, self.name = client, server, safe_name(space)
        self.batches = f"mew.batches.{self.name}"
        self.state = f"mew.state.{self.name}"
        self.leases = f"mew.leases.{self.name}"
        self.frames = f"mew.frames.{self.name}"

    async def store(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        return int((await self.client.jetstream().publish(subject, data, headers=headers)).seq)

    async def store_raw_headers(self, subject: str, headers: bytes) -> None:
        """Publish with headers that no client library writes."""
        host, port = self.server.address.removeprefix("nats://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b'CONNECT {"headers":true,"verbose":false,"protocol":1}\r\n')
            size = len(headers)
            await stream.send(b"HPUB %s %d %d\r\n%sx\r\nPING\r\n" % (subject.encode(), size, size + 1, headers))
            received = b""
            while b"PONG" not in received:
                received += await stream.receive()


@asynccontextmanager
async def intruder(server: NatsServer, space: str) -> AsyncIterator[Intruder]:
    client = await nats.connect(server.address)
    try:
        yield Intruder(client, server, space)
    finally:
        await client.close()


@pytest.fixture
def start(nats_server: NatsServer, space: str) -> Callable[[], Any]:
    options = JetStreamOptions(servers=(nats_server.address,))
    connect = partial(
        connect_jetstream, options, space, folder=Path(), kept_bytes=2**26, lease_seconds=PATIENCE_SECONDS
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[tuple[RunningGateway, Backplane]]:
        async with AsyncExitStack() as stack:
            link: Backplane = await stack.enter_async_context(connect())
            serving = serve_gateway(parse_space(SPACE), storage=on_backplane(link, PATIENT))
            yield await stack.enter_async_context(serving), link

    return running


def history(running: RunningGateway) -> list[tuple[int, bytes]]:
    return [(entry.sequence, entry.data) for entry in running.service.log.last(10_000)]


async def talk(first: RunningGateway, second: RunningGateway, text: str) -> None:
    async with joined(first, "ada") as ada, joined(second, "bob") as bob:
        await ada.chat(text)
        while (await bob.until("chat"))["payload"]["text"] != text:
            pass
    await until(lambda: history(first)[-1:] == history(second)[-1:] and not first.service.space.members)


async def test_malformed_messages_change_nothing_and_end_no_gateway(
    start: Callable[[], Any], nats_server: NatsServer, space: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with intruder(nats_server, space) as stranger, start() as (first, _), start() as (second, _):
        await talk(first, second, "before")
        for data in MALFORMED.values():
            await stranger.store(stranger.batches, data[:60_000])
        await stranger.store(stranger.batches, b"x" * 60_000)
        newest = await stranger.store(stranger.batches, b"part", {"Mew-Part": "1"})
        for parts in ("", "x", "0", "-1", "1,1", "9" * 50, f"{newest + 100}", "1", f"{newest - 3}", f"1,{newest}", "²"):
            await stranger.store(stranger.batches, b"tail", {"Mew-Parts": parts})
        for status in ("404", "100", "x"):
            await stranger.store(stranger.batches, b"data", {"Status": status})
        await stranger.store(stranger.batches, b"data", {"Nats-Last-Consumer": "x", "Nats-Consumer-Stalled": "y"})
        for headers in (
            b"X\r\n\r\n",
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0 404 \xff\xfe\r\n\r\n",
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.",
        ):
            await stranger.store_raw_headers(stranger.batches, headers)
            await stranger.store_raw_headers(stranger.leases + ".x", headers)
            await stranger.store_raw_headers(stranger.frames, headers)
        for lease in ("gateway", "gateway.x", "gateway.1.2", "ticker.x", "a.b.c"):
            await stranger.store(f"{stranger.leases}.{lease}", b"+\xff\xff")
            await stranger.store(f"{stranger.leases}.{lease}", b"")
        for frame in (
            b"",
            b"x",
            b"[]\n",
            b'["o",1,[["s",1,[],true,5]]]\n#s#\xff\xff',
            b'["o",-1,[["s",1,[],true,-5]]]\n',
        ):
            await stranger.client.publish(stranger.frames, frame)
        await stranger.client.flush()
        await talk(first, second, "after")
        assert history(first) == history(second)
        assert first.service.space.state == second.service.space.state
        async with start() as (third, _):
            await talk(third, first, "third")
            assert third.service.space.state == first.service.space.state
            assert history(third)[-3:] == history(first)[-3:]
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert any("let only gateways write there" in one for one in said)
    assert not [one for one in caplog.records if one.exc_info]


async def snapshots(running: RunningGateway, link: Backplane, *, least: int = 1) -> list[int]:
    """Let members talk until so many snapshots are kept, and return which."""
    async with joined(running, "ada") as ada:
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                await ada.chat("more")
                saved = await link.load("snapshots")
                if saved is not None and re.fullmatch(rb"\[[0-9]+(,[0-9]+)*\]", saved.value):
                    known = [int(one) for one in saved.value.strip(b"[]").split(b",")]
                    if len(known) >= least:
                        return known


async def test_a_damaged_small_state_ends_no_gateway(
    start: Callable[[], Any], nats_server: NatsServer, space: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with intruder(nats_server, space) as stranger, start() as (first, link):
        await stranger.store(f"{stranger.state}.part.snapshots.stranger.0", b"x")
        await snapshots(first, link)
        for value in (b"", b"x", b"-1", b"9" * 5_000):
            await stranger.store(f"{stranger.state}.value.newest-gateway", value)
            async with start() as (second, _):
                await talk(first, second, f"number {value[:3]!r}")
        for value in (b"x", b'{"a":1}', b"[true]", b'["1"]'):
            await stranger.store(f"{stranger.state}.value.snapshots", value, {"Mew-Parts": "x.9999999999"})
            await snapshots(first, link)
            async with start() as (second, _):
                await talk(first, second, f"list {value!r}")
        await stranger.store(f"{stranger.state}.value.space", b'{"rules": "x"}')
        unreadable = pytest.RaisesExc(BackplaneRefused, match="the backplane's record of this space cannot be read")
        with pytest.RaisesGroup(unreadable):
            async with start():
                pass
        async with joined(first, "ada") as ada:
            await ada.chat("still here")
            await ada.until("chat")
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize(
    "content", [b"x", zlib.compress(b"x"), zlib.compress(b"{}")[:-4], zlib.compress(b'{"batch":5}')]
)
async def test_a_damaged_snapshot_is_skipped_for_an_older_one(
    start: Callable[[], Any], nats_server: NatsServer, space: str, content: bytes
) -> None:
    async with intruder(nats_server, space) as stranger, start() as (first, link):
        known = await snapshots(first, link, least=2)
        await stranger.store(f"{stranger.state}.value.snapshot.{known[0]}", content)
        async with start() as (second, _):
            await talk(first, second, "after")
            assert second.service.space.state == first.service.space.state
