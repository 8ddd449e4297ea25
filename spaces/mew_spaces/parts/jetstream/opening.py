"""Opens the configured backplane: running servers, or one that this gateway starts.

Gateways of one folder share an embedded server. One of them runs it; when it ends, another takes over.
"""

import json
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from mew_settings.private_files import FileLock, make_private_folder, replace_private_file

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.gateway.service import OpenStorage
from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneRefused
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.shared_storage import on_backplane

log = logging.getLogger("mew_spaces")

_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 0.5
_PLACE: Final = "address.json"


@asynccontextmanager
async def open_storage(config: SpaceConfig, *, folder: Path, state: Path) -> AsyncIterator[OpenStorage]:
    """Connect to the backplane of a configuration while the block runs. Yields the opener of a space on it.

    `folder` is the space's folder, `state` its state folder. Raises `BackplaneUnavailable` if no server answers, and
    `BackplaneRefused`.
    """
    async with open_backplane(config, folder=folder, state=state) as backplane:
        yield on_backplane(backplane)


@asynccontextmanager
async def open_backplane(config: SpaceConfig, *, folder: Path, state: Path) -> AsyncIterator[Backplane]:
    """Connect to the backplane of a configuration while the block runs; see `open_storage`."""
    options = config.backplane
    assert isinstance(options, JetStreamOptions)
    # The storage holds envelopes that members may still request, and also joins, statuses and ticks.
    kept_bytes = 2 * config.limits.history_bytes + 64 * 1024 * 1024
    token = None
    async with AsyncExitStack() as stack:
        if options.is_embedded:
            address, token = await stack.enter_async_context(embedded_server(state / "nats"))
            options = options.model_copy(update={"servers": (address,)})
        connected = connect_jetstream(options, config.space.id, folder=folder, kept_bytes=kept_bytes, token=token)
        yield await stack.enter_async_context(connected)


@asynccontextmanager
async def embedded_server(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Yield address and token of a folder's server. Both survive a restart of the server.

    Raises `BackplaneRefused` if it cannot be started.
    """
    make_private_folder(folder)
    shared = _SharedServer(folder)
    try:
        await shared.join_or_start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.keep_running)
            yield shared.address, shared.token
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shared.stop)


class _SharedServer:
    """The server of a folder: our own if we hold the folder's lock, else another gateway's."""

    def __init__(self, folder: Path) -> None:
        self.address, self.token = "", ""
        self._folder = folder
        self._place = folder / _PLACE
        self._server: NatsServer | None = None
        self._lock: FileLock | None = None
        """The server inherits it, so that no other server starts before it has ended."""

    async def join_or_start(self) -> None:
        """Find the server of another gateway of the folder, or start one. Raises `BackplaneRefused`."""
        with anyio.move_on_after(_START_SECONDS):
            while not self._takes_lock():
                with suppress(OSError, ValueError, LookupError):
                    self._read_place()
                    host, port = self.address.removeprefix("nats://").split(":")
                    await (await anyio.connect_tcp(host, int(port))).aclose()
                    return
                await anyio.sleep(_POLL_SECONDS)
            with suppress(OSError, ValueError, LookupError):
                self._read_place()  # other gateways may wait for a server at this address
            try:
                await anyio.to_thread.run_sync(self._start)
            except BackplaneRefused:
                if not self.address:
                    raise
                self.address = ""  # another program may use that port now
                await anyio.to_thread.run_sync(self._start)
            return
        raise BackplaneRefused(f"{self._folder}: another gateway uses this folder, but its NATS server does not answer")

    async def keep_running(self) -> None:
        """Restart the server when it or the gateway that runs it ends."""
        problem = ""
        while True:
            await anyio.sleep(_CHECK_SECONDS)
            if not self._takes_lock() or (self._server is not None and self._server.is_running):
                continue
            try:
                await anyio.to_thread.run_sync(self._start)
            except BackplaneRefused as error:
                if problem != str(error):
                    log.warning("%s; trying again", error)
                problem = str(error)
            else:
                problem = ""
                log.warning("the NATS server had ended; started it again")

    def stop(self) -> None:
        """Stop our own server, so that another gateway of the folder can start it. Blocks."""
        if self._server is not None:
            self._server.stop()
        if self._lock is not None:
            self._lock.release()

    def _takes_lock(self) -> bool:
        with suppress(BlockingIOError):
            self._lock = self._lock or FileLock(self._folder / "lock")
        return self._lock is not None

    def _read_place(self) -> None:
        running = json.loads(self._place.read_text(encoding="utf-8"))
        self.address, self.token = str(running["address"]), str(running["token"])

    def _start(self) -> None:
        """Start the server, at its last address if any. Blocks. Raises `BackplaneRefused`."""
        if self._server is not None:
            self._server.stop()
        self.token = self.token or secrets.token_urlsafe(32)
        self._server = NatsServer(
            self._folder,
            port=int(self.address.rpartition(":")[2]) if self.address else -1,
            token=self.token,
            inherited=self._lock,
        )
        self._server.start()
        self.address = self._server.address
        replace_private_file(self._place, json.dumps({"address": self.address, "token": self.token}))
