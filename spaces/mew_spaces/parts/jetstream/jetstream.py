"""A backplane on NATS JetStream.

Three streams store one space: `batches`, `state` (the newest message of each subject) and `leases`. Frames are plain
messages. Data larger than a server message is stored in parts: first the parts, then the message that names them. Owns
names, layout and reading order. `nats_link` connects and translates errors.
"""

import asyncio
import hashlib
import math
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

from mew_spaces.parts.jetstream.backplane import (
    DEDUPLICATION_SECONDS,
    LEASE_SECONDS,
    Backplane,
    BackplaneError,
    BackplaneRefused,
    BackplaneUnavailable,
    Conflict,
    HistoryLost,
    SavedValue,
    StoredBatch,
    report_foreign,
)
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.leases import MAX_LEASES, LeaseTable
from mew_spaces.parts.jetstream.nats_link import LinkTimes, NatsLink
from mew_spaces.parts.jetstream.stream_reader import (
    RECOVERY_SECONDS,
    Consumer,
    StoredMessage,
    StreamSource,
    read_stream,
)

_MESSAGE_OVERHEAD: Final = 4096
"""Room for headers in a message of the largest size."""

_MIN_PAYLOAD: Final = 64 * 1024

_PART: Final = "Mew-Part"
"""Header of a message that is not itself a batch."""
_PARTS: Final = "Mew-Parts"
"""Header of a message in parts: the sequences of the other parts; for a value, version and number."""

_ID: Final = api.Header.MSG_ID.value
_EXPECTED: Final = api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value

_HELD: Final = b"+"
_ENDED: Final = b"-"
_TIME: Final = "_time"
"""Name of a lease without a holder."""

_STREAM_EXISTS: Final = 10058
_LOAD_ATTEMPTS: Final = 10
_MAX_NAME: Final = 80
_MAX_DIGITS: Final = 19
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]")

_COUNT: Final = re.compile(r"[0-9]{1,5}")
_VERSION: Final = re.compile(r"[0-9]{1,18}-[0-9a-f]+")

_MAX_UNUSED_PARTS: Final = 64 * 1024 * 1024
"""How many bytes of parts may wait for their batch."""

_T = TypeVar("_T")


class _PartsMissing(Exception):
    """The reader started after the first part of a batch. The arguments are the sequences of that part and the
    batch.
    """


class JetStreamBackplane(Backplane):
    """See `Backplane`. Use `connect_jetstream` to create one."""

    def __init__(self, link: NatsLink, space: str, options: JetStreamOptions, lease_seconds: float) -> None:
        name, prefix = safe_name(space), options.prefix
        self._link = link
        self._replicas = options.replicas
        self._recovery_seconds = RECOVERY_SECONDS if options.replicas > 1 else 0.0
        self._batches, self._state, self._leases = (
            f"{prefix}-{kind}-{name}" for kind in ("batches", "state", "leases")
        )
        self._batch_subject = f"{prefix}.batches.{name}"
        self._state_subject = f"{prefix}.state.{name}"
        self._lease_subject = f"{prefix}.leases.{name}"
        self._frame_subject = f"{prefix}.frames.{name}"
        self._consumers: set[Consumer] = set()
        self._table = LeaseTable(lease_seconds)
        self._table_changed = anyio.Event()

    @property
    def max_frame_bytes(self) -> int:
        return self._link.max_payload

    @property
    def stale_lease_seconds(self) -> float:
        return 2 * self._table.lease_seconds  # the table's clock starts late and is slow

    async def send(self, data: bytes, batch_id: str) -> None:
        if len(data) <= self._part_bytes:
            await self._link.publish(self._batch_subject, data, {_ID: batch_id})
        else:
            await self.append(data, batch_id)

    async def append(self, data: bytes, batch_id: str) -> int:
        size = self._part_bytes
        *parts, last = _split(data, size)
        sequences = [
            await self._store(self._batch_subject, part, {_ID: f"{batch_id}/{size}/{number}", _PART: "1"})
            for number, part in enumerate(parts)
        ]
        headers = {_ID: batch_id, **({_PARTS: ",".join(map(str, sequences))} if parts else {})}
        stored = await self._call(lambda jetstream: jetstream.publish(self._batch_subject, last, headers=headers))
        for consumer in self._consumers:
            if stored.duplicate and consumer.after < stored.seq:  # stored earlier, but not received
                consumer.end()
        return stored.seq

    async def follow(self, after: int, receive: Callable[[StoredBatch], object], *, until: float = math.inf) -> None:
        handed_over, searched, parts, part_bytes = after, 0, dict[int, bytes](), 0

        def receive_message(message: StoredMessage) -> None:
            nonlocal handed_over, part_bytes
            sequence, data, headers = message.sequence, message.data, message.headers
            if _PART in headers:
                parts[sequence] = data
                part_bytes += len(data)
                while part_bytes > _MAX_UNUSED_PARTS:  # gateways leave fewer
                    part_bytes -= len(parts.pop(next(iter(parts))))
                return
            if _PARTS in headers:
                named = _sequences(headers[_PARTS], before=sequence)
                found = [parts.pop(one) for one in named if one in parts]
                part_bytes -= sum(map(len, found))
                if sequence > handed_over and (not named or len(found) < len(named)):
                    if named and sequence > searched:
                        raise _PartsMissing(named[0], sequence)
                    report_foreign("a batch without its parts")
                    handed_over = sequence
                    return
                data = b"".join([*found, data])
            if sequence > handed_over:
                handed_over = sequence
                receive(StoredBatch(sequence, data))

        source = StreamSource(
            self._link,
            self._batches,
            receive_message,
            self._consumers,
            recovery_seconds=self._recovery_seconds,
            until=until,
        )
        while True:
            try:
                return await read_stream(source, after)
            except _PartsMissing as missing:
                after, searched = missing.args[0] - 1, missing.args[1]
            except HistoryLost:
                if after >= handed_over:
                    raise
                after = handed_over  # the parts that were searched are gone

    async def bounds(self) -> tuple[int, int]:
        state = (await self._stream_info(self._batches)).state
        return state.first_seq if state.messages else state.last_seq + 1, state.last_seq

    async def trim(self, before: int) -> None:
        await self._purge(self._batches, sequence=before)

    async def load(self, key: str) -> SavedValue | None:
        for _ in range(_LOAD_ATTEMPTS):
            head = await self._last_message(self._head(key))
            if head is None:
                return None
            version, _, count = head.headers.get(_PARTS, ".0").rpartition(".")
            prefix = f"{self._part_prefix(key)}.{version}"
            number_of_parts = int(count) if _COUNT.fullmatch(count) and _VERSION.fullmatch(version or "0-0") else 0
            parts = [await self._last_message(f"{prefix}.{number}") for number in range(number_of_parts)]
            if None not in parts:  # a missing part: another gateway has replaced the value in the meantime
                return SavedValue(b"".join([*(one.data for one in parts if one is not None), head.data]), head.sequence)
        raise BackplaneUnavailable(f"{key} changes too often to be read")

    async def save(self, key: str, value: bytes, *, expected: int) -> int:
        *parts, last = _split(value, self._part_bytes)
        version = f"{expected}-{secrets.token_hex(8)}"
        headers = {_EXPECTED: str(expected)}
        if parts:
            headers[_PARTS] = f"{version}.{len(parts)}"
        for number, part in enumerate(parts):
            await self._store(f"{self._part_prefix(key)}.{version}.{number}", part)
        revision = await self._store(self._head(key), last, headers)
        with suppress(BackplaneError):  # the value is saved
            await self._remove_parts(key, before=expected, but=version)
        return revision

    async def delete(self, key: str) -> None:
        await self._purge(self._state, subject=self._head(key))
        await self._purge(self._state, subject=f"{self._part_prefix(key)}.>")

    async def renew(self, lease: str, value: bytes) -> None:
        self._note(lease, value, await self._store(f"{self._lease_subject}.{lease}", _HELD + value))

    async def claim(self, lease: str, value: bytes) -> bool:
        subject = f"{self._lease_subject}.{lease}"
        while True:
            if self._table.in_force().get(lease, value) != value:
                await self._refresh(lease)
                if self._table.in_force().get(lease, value) != value:
                    return False
            headers = {_EXPECTED: str(self._table.sequence_of(lease))}
            try:
                self._note(lease, value, await self._store(subject, _HELD + value, headers))
                return True
            except Conflict:
                await self._refresh(lease)

    async def release(self, lease: str) -> None:
        self._note(lease, None, await self._store(f"{self._lease_subject}.{lease}", _ENDED))

    async def leases(self) -> AsyncGenerator[Mapping[str, bytes], None]:
        stored: int | None = None
        while stored is None and not self._link.is_closed:
            try:
                stored = (await self._stream_info(self._leases)).state.last_seq
            except BackplaneUnavailable:
                await self._link.wait_connected()
        shown: Mapping[str, bytes] | None = None
        while not self._link.is_closed:
            changed = self._table_changed
            current = self._table.in_force()
            if self._table.sequence >= (stored or 0) and current != shown:
                stored, shown = 0, current
                yield current
            else:
                await changed.wait()

    async def publish(self, data: bytes) -> None:
        if len(data) > self.max_frame_bytes:
            raise BackplaneRefused(f"a frame of {len(data)} bytes exceeds the {self.max_frame_bytes} that NATS accepts")
        await self._link.publish(self._frame_subject, data)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        while not self._link.is_closed:
            arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
            try:
                subscription = await self._link.subscribe(self._frame_subject, arrived.put_nowait)
            except BackplaneUnavailable:
                await self._link.wait_connected()
                continue
            try:
                while (message := await arrived.get()) is not None:
                    yield message.data
            finally:
                await subscription.close()

    async def close(self) -> None:
        await self._link.close()
        self._wake()

    async def watch_leases(self) -> None:
        """Update the table of leases until the link is closed."""
        source = StreamSource(self._link, self._leases, self._read_lease, set(), has_gaps=True)
        while not self._link.is_closed:
            with suppress(HistoryLost):
                await read_stream(source, self._table.sequence)
            self._table.restart()
            await self._link.wait_connected()

    async def keep_time(self) -> None:
        """Store a message if no gateway renews its lease, so that killed gateways' leases expire."""
        step_seconds = self._table.lease_seconds / 4
        seen = 0
        while True:
            await anyio.sleep(step_seconds)
            if self._table.sequence > seen:
                seen = self._table.sequence
                continue
            with suppress(BackplaneError):
                seen = await self._store(f"{self._lease_subject}.{_TIME}", _ENDED)

    def configs(self, *, kept_bytes: int, kept_batches: int | None) -> list[api.StreamConfig]:
        """Return the streams of the space."""

        def config(name: str, subject: str) -> api.StreamConfig:
            return api.StreamConfig(
                name=name, subjects=[subject], storage=api.StorageType.FILE, num_replicas=self._replicas
            )

        latest = {"max_msgs_per_subject": 1}
        return [
            config(self._batches, self._batch_subject).evolve(
                max_bytes=kept_bytes, max_msgs=kept_batches or -1, duplicate_window=DEDUPLICATION_SECONDS
            ),
            config(self._state, f"{self._state_subject}.>").evolve(**latest, max_bytes=-1, max_msgs=-1),
            config(self._leases, f"{self._lease_subject}.>").evolve(**latest, max_bytes=-1, max_msgs=MAX_LEASES),
        ]

    @property
    def _part_bytes(self) -> int:
        return self._link.max_payload - _MESSAGE_OVERHEAD

    def _head(self, key: str) -> str:
        return f"{self._state_subject}.value.{key}"

    def _part_prefix(self, key: str) -> str:
        return f"{self._state_subject}.part.{key.replace('.', '/')}"

    async def _remove_parts(self, key: str, *, before: int, but: str) -> None:
        """Remove the parts of earlier values, including incomplete ones of ended gateways.

        Keep the parts of a gateway that continues from a newer revision, because it may be about to name them.
        """
        prefix = f"{self._part_prefix(key)}."
        info = await self._stream_info(self._state, subjects=f"{prefix}>")
        versions = {subject.removeprefix(prefix).split(".")[0] for subject in info.state.subjects or {}}
        for version in versions - {but}:
            if not _VERSION.fullmatch(version) or int(version.split("-")[0]) <= before:
                await self._purge(self._state, subject=f"{prefix}{version}.>")

    async def _store(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        return (await self._call(lambda jetstream: jetstream.publish(subject, data, headers=headers))).seq

    async def _purge(self, stream: str, *, subject: str | None = None, sequence: int | None = None) -> None:
        await self._call(lambda jetstream: jetstream.purge_stream(stream, subject=subject, seq=sequence))

    async def _stream_info(self, stream: str, *, subjects: str | None = None) -> api.StreamInfo:
        return await self._call(lambda jetstream: jetstream.stream_info(stream, subjects_filter=subjects))

    async def _last_message(self, subject: str, *, stream: str | None = None) -> StoredMessage | None:
        try:
            found = await self._link.call(lambda jetstream: jetstream.get_last_msg(stream or self._state, subject))
        except NotFoundError:
            return None
        return StoredMessage(subject, found.seq or 0, 0.0, found.data or b"", found.headers or {})

    async def _call(self, exchange: Callable[[JetStreamContext], Awaitable[_T]]) -> _T:
        try:
            return await self._link.call(exchange)
        except NotFoundError:
            raise BackplaneUnavailable("the streams of the space are missing; restart the gateway") from None

    async def _refresh(self, lease: str) -> None:
        """Note the stored value of a lease, which may be ahead of the stream reader."""
        newest = await self._last_message(f"{self._lease_subject}.{lease}", stream=self._leases)
        if newest is not None:
            self._note(lease, _lease_value(newest.data), newest.sequence)
        else:
            self._table.restart()

    def _read_lease(self, message: StoredMessage) -> None:
        name, value = message.subject.removeprefix(f"{self._lease_subject}."), _lease_value(message.data)
        self._table.read(name, value, sequence=message.sequence, at=message.at)
        self._wake()

    def _note(self, lease: str, value: bytes | None, sequence: int) -> None:
        self._table.note(lease, value, sequence=sequence)
        self._wake()

    def _wake(self) -> None:
        self._table_changed.set()
        self._table_changed = anyio.Event()


@asynccontextmanager
async def connect_jetstream(
    options: JetStreamOptions,
    space: str,
    *,
    folder: Path,
    kept_bytes: int,
    kept_batches: int | None = None,
    token: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
    times: LinkTimes | None = None,
) -> AsyncIterator[JetStreamBackplane]:
    """Connect one gateway to a space on NATS while the block runs, and create the streams of the space.

    `kept_bytes` and `kept_batches` limit the stored batches; the oldest are deleted first. `token` is an embedded
    server's token. Raises `BackplaneUnavailable` if NATS does not answer, and `BackplaneRefused`.
    """
    link = NatsLink(options, folder, token, times or LinkTimes())
    backplane = JetStreamBackplane(link, space, options, lease_seconds)
    configs = backplane.configs(kept_bytes=kept_bytes, kept_batches=kept_batches)

    async def prepare() -> None:
        if link.max_payload < _MIN_PAYLOAD:
            problem = f"max_payload of the NATS server is {link.max_payload} bytes"
            raise BackplaneRefused(f"{problem}; raise it to at least {_MIN_PAYLOAD} (recommended: 8 MB)")
        for config in configs:
            await link.call(partial(_ensure_stream, config=config))

    try:
        await link.start(prepare)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.keep_connected)
            tasks.start_soon(backplane.watch_leases)
            tasks.start_soon(backplane.keep_time)
            try:
                yield backplane
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await backplane.close()


def safe_name(space: str) -> str:
    """Return a space id as one token of a subject, and of the name of a stream. Different ids stay different."""
    name = "".join(one if _PLAIN.fullmatch(one) else "".join(f"={b:02X}" for b in one.encode()) for one in space)
    if len(name) > _MAX_NAME:  # NATS names folders after streams
        name = f"{name[:40]}=={hashlib.sha256(space.encode()).hexdigest()[:32]}"
    return name


def _split(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]


def _sequences(text: str, *, before: int) -> list[int]:
    """Read the sequences of the parts of a batch. Empty if `append` did not write them."""
    written = text.split(",")
    found = [int(one) for one in written if one.isascii() and one.isdigit() and len(one) < _MAX_DIGITS]
    is_ours = len(found) == len(written) and found == sorted(set(found)) and found[0] > 0 and found[-1] < before
    return found if is_ours else []


def _lease_value(data: bytes) -> bytes | None:
    return data[1:] if data[:1] == _HELD else None


async def _ensure_stream(jetstream: JetStreamContext, config: api.StreamConfig) -> None:
    """Create a stream, or change the bounds of an existing one. Other settings of an operator stay."""
    assert config.name is not None
    try:
        current = (await jetstream.stream_info(config.name)).config
    except NotFoundError:
        try:
            await jetstream.add_stream(config)
            return
        except APIError as error:
            if error.err_code != _STREAM_EXISTS:
                raise
            current = (await jetstream.stream_info(config.name)).config
    ours = {key: getattr(config, key) for key in ("max_bytes", "max_msgs", "num_replicas")}
    if {key: getattr(current, key) for key in ours} != ours:
        await jetstream.update_stream(current.evolve(**ours))
