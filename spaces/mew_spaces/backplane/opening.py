"""Opens the backplane that space.yaml names: servers that run already, or one that this gateway starts.

Gateways of one folder share an embedded server. The first one starts it, and it ends with that gateway.
"""

import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

if sys.platform != "win32":
    import fcntl

from mew_spaces.backplane.interface import Backplane, BackplaneRefused
from mew_spaces.backplane.nats_server import NatsServer
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.private_files import make_private_folder, replace_private_file

_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_PLACE: Final = "address.json"
_IS_LOCKED: Final = -1
_LOCK_DESCRIPTOR: Final = 64
"""Above those that a shell uses for itself."""


@asynccontextmanager
async def open_backplane(config: SpaceConfig, *, folder: Path, state: Path) -> AsyncIterator[Backplane | None]:
    """Connect to the backplane of a configuration while the block runs; None if it names none.

    `folder` is that of the space, `state` its state folder. Raises `BackplaneUnavailable` if no server answers, and
    `BackplaneRefused`, also if the extra is not installed.
    """
    options = config.backplane
    if options is None:
        yield None
        return
    try:
        # Only now: few spaces have more than one gateway, and the extra is not always installed.
        from mew_spaces.backplane.jetstream import connect_jetstream
    except ModuleNotFoundError as error:
        raise BackplaneRefused(
            f"'backplane' needs the extra 'scale': pip install 'mew-agent[scale]' ({error})"
        ) from None
    # Besides envelopes that a member may ask for later, there are joins, statuses and ticks.
    kept_bytes = 2 * config.limits.history_bytes + 64 * 1024 * 1024
    if not options.is_embedded:
        async with connect_jetstream(options, config.space.id, folder=folder, kept_bytes=kept_bytes) as backplane:
            yield backplane
        return
    async with embedded_server(state / "nats") as (address, token):
        embedded = options.model_copy(update={"servers": (address,)})
        async with connect_jetstream(
            embedded, config.space.id, folder=folder, kept_bytes=kept_bytes, token=token
        ) as backplane:
            yield backplane


@asynccontextmanager
async def embedded_server(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Address and token of the server of a folder: the one that runs, else one that ends with the block.

    Raises `BackplaneRefused` if it cannot be started.
    """
    make_private_folder(folder)
    lock, running = await _lock_or_join(folder)
    if running is not None:
        yield running
        return
    token = secrets.token_urlsafe(32)
    inherited = (lock,) if lock is not None else ()
    server = NatsServer(folder, token=token, inherited_descriptors=inherited)
    try:
        await anyio.to_thread.run_sync(server.start)
        replace_private_file(folder / _PLACE, json.dumps({"address": server.address, "token": token}))
        yield server.address, token
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.stop)
        (folder / _PLACE).unlink(missing_ok=True)
        for descriptor in inherited:
            os.close(descriptor)


async def _lock_or_join(folder: Path) -> tuple[int | None, tuple[str, str] | None]:
    """Return the lock of the folder, or address and token of the server that another gateway runs there."""
    with anyio.move_on_after(_START_SECONDS):
        while (lock := _lock(folder / "lock")) == _IS_LOCKED:
            with suppress(OSError, ValueError, LookupError):
                running = json.loads((folder / _PLACE).read_text(encoding="utf-8"))
                host, port = running["address"].removeprefix("nats://").split(":")
                await (await anyio.connect_tcp(host, int(port))).aclose()
                return None, (running["address"], running["token"])
            await anyio.sleep(_POLL_SECONDS)
        return lock, None
    raise BackplaneRefused(f"{folder}: another gateway holds this folder, but no NATS server answers there")


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock, `_IS_LOCKED`, or None where the system has no such lock.

    The server inherits the descriptor, so that no other server starts before it has ended.
    """
    if sys.platform == "win32":
        return None
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOCK_DESCRIPTOR)
    except BlockingIOError:
        return _IS_LOCKED
    finally:
        os.close(file)
