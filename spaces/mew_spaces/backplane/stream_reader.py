"""Reads a stream of JetStream in order and without a gap, over lost connections and restarts of servers.

Owns the consumers: each belongs to one server, acknowledges nothing, and is replaced as soon as a message is missing.
Does not know what the messages mean.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import anyio
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NotFoundError

from mew_spaces.backplane.interface import BackplaneUnavailable, HistoryLost
from mew_spaces.backplane.nats_link import LinkSubscription, NatsLink

RECOVERY_SECONDS: Final = 10.0
"""How long a cluster that recovers may not know its newest messages or its streams."""


class StoredMessage(NamedTuple):
    """A message of a stream."""

    subject: str
    sequence: int
    at: float
    data: bytes
    headers: Mapping[str, str]


async def read_stream(
    link: NatsLink, stream: str, after: int, *, has_gaps: bool = False, recovery_seconds: float = 0.0
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages of a stream after a sequence, over lost connections, until the link is closed.

    Raises `HistoryLost` if the next one is gone, or the stream is not the one that was read before.
    """
    created: object = None
    while (opened := await _open_consumer(link, stream, after, created, has_gaps, recovery_seconds)) is not None:
        consumer, created = opened
        try:
            while (message := await consumer.next()) is not None:
                if message.sequence != after + 1 and not has_gaps:
                    raise HistoryLost(f"message {after + 1} is no longer kept")
                after = message.sequence
                yield message
        except BackplaneUnavailable:
            continue
        finally:
            await consumer.close()


async def _open_consumer(
    link: NatsLink, stream: str, after: int, created: object, has_gaps: bool, recovery_seconds: float
) -> tuple["_Consumer", object] | None:
    """Return a consumer from the next message on, and when its stream was made; None once the link is closed."""
    missing_since: float | None = None
    while not link.is_closed:
        problem = ""
        try:
            info = await link.call(lambda jetstream: jetstream.stream_info(stream))
            if info.state.first_seq > after + 1 and not has_gaps:
                raise HistoryLost(f"message {after + 1} is no longer kept; the oldest is {info.state.first_seq}")
            if after > info.state.last_seq or created not in (None, info.created):
                problem = f"message {after} is not stored; the newest is {info.state.last_seq}"
            else:
                return await _Consumer.create(link, stream, after), info.created
        except NotFoundError:
            problem = f"the stream {stream} is not there"
        except BackplaneUnavailable:
            missing_since = None
        if problem:
            missing_since = missing_since or anyio.current_time()
            if anyio.current_time() >= missing_since + recovery_seconds:
                raise HistoryLost(problem)
        await link.wait_connected()
    return None


class _Consumer:
    """Messages of a stream as one server sends them, until any is missing."""

    def __init__(self, link: NatsLink, subscription: LinkSubscription) -> None:
        self._link = link
        self._subscription = subscription
        self._delivered = 0

    @classmethod
    async def create(cls, link: NatsLink, stream: str, after: int) -> "_Consumer":
        """Raises errors of a backplane."""
        inbox = f"_INBOX.{secrets.token_hex(12)}"
        config = api.ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=api.AckPolicy.NONE,
            idle_heartbeat=link.times.heartbeat,
            flow_control=True,
            mem_storage=True,
            num_replicas=1,
        )
        subscription = await link.subscribe(inbox)
        try:
            await link.call(lambda jetstream: jetstream.add_consumer(stream, config))
        except BaseException:
            await subscription.close()
            raise
        return cls(link, subscription)

    async def next(self) -> StoredMessage | None:
        """Return the next message, or None once the consumer has to be replaced. Raises errors of a backplane."""
        while True:
            message: Msg | None = None
            with anyio.move_on_after(self._link.times.silence), suppress(anyio.EndOfStream):
                message = await self._subscription.messages.receive()
            if message is None:
                return None
            headers = message.headers or {}
            if "Status" not in headers:
                place = message.metadata
                if place.sequence.consumer != self._delivered + 1:
                    return None
                self._delivered += 1
                at = place.timestamp.timestamp()
                return StoredMessage(message.subject, place.sequence.stream, at, message.data, headers)
            if headers["Status"] != "100":
                return None
            # Flow control: the server goes on once this is answered. A heartbeat of a stalled consumer asks again.
            reply = message.reply or headers.get("Nats-Consumer-Stalled")
            if reply:
                await self._link.publish(reply, b"")
            elif int(headers.get("Nats-Last-Consumer", self._delivered)) > self._delivered:
                return None

    async def close(self) -> None:
        """Let the server remove it."""
        await self._subscription.close()
