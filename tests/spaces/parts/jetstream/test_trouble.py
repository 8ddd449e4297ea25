"""Servers that are killed, stopped or paused while gateways append, follow and renew."""

import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import nats
import pytest
from mew_spaces.gateway.gateway import has_uvloop
from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneUnavailable, StoredBatch
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream
from mew_spaces.parts.jetstream.nats_link import LinkTimes
from mew_spaces.parts.jetstream.nats_server import NatsServer

from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS, until

QUICK = LinkTimes(start=PATIENCE_SECONDS, request=0.5, ping=0.1, pong=0.5, heartbeat=0.1, silence=0.6)
BATCHES_PER_PHASE = 20
LEADERS = int(os.environ.get("MEW_LEADERS", "1"))
"""How many leaders fail one after the other. An election takes some seconds."""


class Gateway:
    """Appends numbered batches, each until it is stored, and collects what it follows."""

    def __init__(self, name: str, backplane: Backplane) -> None:
        self.name = name
        self.backplane = backplane
        self.appended: dict[str, int] = {}
        """The sequence of each acknowledged batch."""
        self.failures = 0
        self.followed: list[StoredBatch] = []
        self.leases: list[set[str]] = []
        self.frames: list[bytes] = []

    async def append_all(self) -> None:
        while True:
            batch_id = f"{self.name}-{len(self.appended)}"
            try:
                self.appended[batch_id] = await self.backplane.append(batch_id.encode(), batch_id)
            except BackplaneUnavailable:
                self.failures += 1
            await anyio.sleep(0.005)

    async def follow(self) -> None:
        await self.backplane.follow(0, self.followed.append)

    async def renew(self) -> None:
        while True:
            with suppress(BackplaneUnavailable):
                await self.backplane.renew(self.name, b"")
            await anyio.sleep(0.1)

    async def publish(self) -> None:
        while True:
            with suppress(BackplaneUnavailable):
                await self.backplane.publish(self.name.encode())
            await anyio.sleep(0.1)

    async def listen(self) -> None:
        async with aclosing(self.backplane.frames()) as frames:
            async for frame in frames:
                self.frames.append(frame)

    async def watch(self) -> None:
        async with aclosing(self.backplane.leases()) as changes:
            async for leases in changes:
                self.leases.append(set(leases))

    async def next_phase(self) -> None:
        """Wait until more batches are acknowledged and frames of both gateways come, whatever happened before."""
        goal = len(self.appended) + BATCHES_PER_PHASE
        await until(lambda: len(self.appended) >= goal)
        self.frames.clear()
        await until(lambda: {b"one", b"other"} <= set(self.frames))


class Gateways:
    """Two gateways of one space that work until the block ends, and what must hold then."""

    def __init__(self, servers: list[NatsServer], folder: Path, *, replicas: int = 1) -> None:
        self._options = JetStreamOptions.model_validate(
            {"servers": [server.address for server in servers], "replicas": replicas}
        )
        self._folder = folder
        self._stack = AsyncExitStack()
        self.all: list[Gateway] = []

    async def __aenter__(self) -> Self:
        for name in ("one", "other"):
            connected = connect_jetstream(
                self._options, "trouble", folder=self._folder, kept_bytes=10_000_000, times=QUICK
            )
            self.all.append(Gateway(name, await self._stack.enter_async_context(connected)))
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        for gateway in self.all:
            for act in (
                gateway.append_all,
                gateway.follow,
                gateway.renew,
                gateway.watch,
                gateway.publish,
                gateway.listen,
            ):
                self._tasks.start_soon(act)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._stack.aclose()

    async def work(self) -> None:
        for gateway in self.all:
            await gateway.next_phase()

    async def check(self) -> None:
        """Every acknowledged batch was followed once, under its sequence, by both, in one order without a gap."""
        _, last = await self.all[0].backplane.bounds()
        for gateway in self.all:
            await until(lambda gateway=gateway: gateway.followed and gateway.followed[-1].sequence >= last)  # type: ignore[misc]
        one, other = ([batch for batch in gateway.followed if batch.sequence <= last] for gateway in self.all)
        assert one == other
        assert [batch.sequence for batch in one] == list(range(1, last + 1))
        followed = {batch.data.decode(): batch.sequence for batch in one}
        assert len(followed) == len(one)
        for gateway in self.all:
            acknowledged = {key: value for key, value in gateway.appended.items() if value <= last}
            assert acknowledged.items() <= followed.items()
            both = gateway.leases.index({"one", "other"})
            assert all(leases == {"one", "other"} for leases in gateway.leases[both:])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


async def test_nothing_is_lost_or_doubled_while_a_server_fails(server: NatsServer, tmp_path: Path) -> None:
    async with Gateways([server], tmp_path) as gateways:
        await gateways.work()
        server.send_signal(signal.SIGKILL)
        await until(lambda: all(gateway.failures for gateway in gateways.all))
        server.stop()
        server.start()
        await gateways.work()
        failures = [gateway.failures for gateway in gateways.all]
        server.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: all(one.failures > before for one, before in zip(gateways.all, failures, strict=True)))
        finally:
            server.send_signal(signal.SIGCONT)
        await gateways.work()
        await gateways.check()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[NatsServer]]:
    routes = [f"nats://127.0.0.1:{port}" for port in unused_ports(3)]
    servers = [
        NatsServer(
            tmp_path / f"nats-{number}",
            settings=f"server_name: s{number}\ncluster {{ name: c, listen: {route[7:]}, routes: {routes} }}\n",
        )
        for number, route in enumerate(routes)
    ]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


async def test_nothing_is_lost_or_doubled_while_leaders_of_a_cluster_fail(
    cluster: list[NatsServer], tmp_path: Path
) -> None:
    async with Gateways(cluster, tmp_path, replicas=3) as gateways:
        await gateways.work()
        for number in range(LEADERS):
            leader = await leader_of(cluster)
            if number % 2 == 0:
                leader.send_signal(signal.SIGKILL)
                await gateways.work()
                leader.stop()
                leader.start()
            else:
                leader.send_signal(signal.SIGSTOP)
                await gateways.work()
                leader.send_signal(signal.SIGCONT)
        await gateways.work()
        await gateways.check()


async def leader_of(cluster: list[NatsServer]) -> NatsServer:
    """The server that leads the stream of batches."""
    client = await nats.connect([server.address for server in cluster])
    try:
        info = await client.jetstream().stream_info("mew-batches-trouble")
    finally:
        await client.close()
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return cluster[int(info.cluster.leader[1:])]


@pytest.mark.skipif(not has_uvloop(), reason="only uvloop refuses to write to what it has closed")
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_a_connection_that_breaks_with_unsent_data_is_closed(
    nats_server: NatsServer, space: str, tmp_path: Path
) -> None:
    options = JetStreamOptions(servers=(nats_server.address,))
    async with connect_jetstream(options, space, folder=tmp_path, kept_bytes=10_000_000) as backplane:
        connection = backplane._link._connection_now()
        client: Any = connection.client
        client._transport._io_writer.transport.abort()
        await backplane.publish(b"not sent yet")
        with anyio.fail_after(PATIENCE_SECONDS):
            await connection.closed.wait()
        assert not client._subs
