"""Token files of a running gateway: what changes on the disk counts at once."""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import httpx2
import pytest
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import observer_path, token_path, write_new_token
from mew_spaces.gateway.gateway import serve_gateway
from mew_spaces.gateway.server_sent_events import KEEP_ALIVE_SECONDS

from tests.support.gateway_client import joined, opened
from tests.support.waiting import PATIENCE_SECONDS, until

CHAT = {"kind": "chat", "payload": {"text": "x"}}


@pytest.mark.parametrize("change", ["deleted", "replaced"])
async def test_a_changed_token_file_closes_the_sockets_of_its_participant(
    config: SpaceConfig, tmp_path: Path, change: str
) -> None:
    async with serve_gateway(config, state=tmp_path) as gateway:
        old = {"authorization": f"Bearer {gateway.token_of('ada')}"}
        path = token_path(tmp_path, "ada")
        async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
            new = write_new_token(path).token if change == "replaced" else None
            if new is None:
                path.unlink()
            with anyio.fail_after(PATIENCE_SECONDS):
                assert await ada.closing() == (4401, "unauthorized")
                await bob.until("system/presence")
        async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as http:
            assert (await http.post("/participants/ada/messages", headers=old, json=CHAT)).status_code == 403
            assert (await http.get("/spaces/demo/context", headers=old)).status_code == 403
            if new is not None:
                mine = {"authorization": f"Bearer {new}"}
                assert (await http.post("/participants/ada/messages", headers=mine, json=CHAT)).status_code == 200


async def test_token_files_are_looked_at_in_a_thread(
    config: SpaceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_gateway(config, state=tmp_path):
        looked, path, find_status = list[int](), token_path(tmp_path, "ada"), Path.stat

        def noted(file: Path, *, follow_symlinks: bool = True) -> os.stat_result:
            if file == path:
                looked.append(threading.get_ident())
            return find_status(file, follow_symlinks=follow_symlinks)

        monkeypatch.setattr(Path, "stat", noted)
        await until(lambda: len(looked) > 1)
        assert threading.get_ident() not in looked


@pytest.mark.parametrize("end", ["deleted", "replaced", "expired"])
async def test_an_idle_event_stream_ends_with_its_token(config: SpaceConfig, tmp_path: Path, end: str) -> None:
    async with (
        serve_gateway(config, state=tmp_path) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as http,
    ):
        path, token = token_path(tmp_path, "ada"), gateway.token_of("ada")
        if end == "expired":
            token = write_new_token(path, datetime.now(UTC) + timedelta(seconds=1.5)).token
            await until(lambda: gateway.tokens.may_read(token))
        mine = {"authorization": f"Bearer {token}"}
        # Well before the next keep-alive, and without any event.
        with anyio.fail_after(KEEP_ALIVE_SECONDS / 2):
            async with http.stream("GET", "/spaces/demo/events", headers=mine) as events:
                chunks = events.aiter_text()
                assert "event: board" in await anext(chunks)
                if end == "deleted":
                    path.unlink()
                elif end == "replaced":
                    write_new_token(path)
                assert "event:" not in "".join([chunk async for chunk in chunks])
        assert len(gateway.registry.event_streams) == 0


async def test_event_streams_are_limited_by_token_and_address(config: SpaceConfig) -> None:
    limits = config.limits.model_copy(update={"event_streams_per_token": 2, "event_streams_per_address": 3})
    async with (
        serve_gateway(config.model_copy(update={"limits": limits})) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as http,
    ):

        @asynccontextmanager
        async def reading(name: str) -> AsyncIterator[int]:
            headers = {"authorization": f"Bearer {gateway.token_of(name)}"}
            async with http.stream("GET", "/spaces/demo/events", headers=headers) as events:
                yield events.status_code

        async with reading("ada") as first:
            async with (
                reading("ada") as second,
                reading("ada") as too_many,
                reading("bob") as other,
                reading("files") as fourth,
            ):
                assert (first, second, too_many, other, fourth) == (200, 200, 429, 200, 429)
            await until(lambda: len(gateway.registry.event_streams) == 1)
            async with reading("ada") as again:
                assert again == 200


async def test_an_observer_reads_board_and_events_and_sends_nothing(config: SpaceConfig, tmp_path: Path) -> None:
    async with (
        serve_gateway(config, state=tmp_path) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as http,
    ):
        token = write_new_token(observer_path(tmp_path, "screen")).token
        mine = {"authorization": f"Bearer {token}"}
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await http.get("/spaces/demo/context", headers=mine)).status_code != 200:
                await anyio.sleep(0.05)
        async with http.stream("GET", "/spaces/demo/events", headers=mine) as events:
            assert events.status_code == 200
        for name in ("ada", "screen"):
            sent = await http.post(f"/participants/{name}/messages", headers=mine, json=CHAT)
            polled = await http.get(f"/participants/{name}/messages", headers=mine)
            assert (sent.status_code, polled.status_code) == (403, 403)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with opened(gateway, "ada") as socket:
                await socket.join(token)
                assert (await socket.closing())[0] == 4401
