"""The recipes for reverse proxies as the documentation shows them, run by a real nginx and a real Caddy."""

import http.client
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.participant.participant import Participant
from tests.interaction.test_docs import DOCS, blocks_of
from tests.support.certificates import Certified, certified
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS, until

PAGE = {block.title: block.code for block in blocks_of(DOCS / "how-to" / "internet.md") if block.title}
PUBLIC = "mew.example.org"


@dataclass(frozen=True)
class Place:
    """Where a proxy runs in a test."""

    folder: Path
    port: int
    upstream: int
    tls: Certified


def nginx(place: Place) -> list[str]:
    """Write the page's configuration of nginx for this place, and return the command that runs it."""
    recipe = PAGE["/etc/nginx/conf.d/mew.conf"]
    recipe = recipe.replace("listen 443", f"listen 127.0.0.1:{place.port}").replace("8080", str(place.upstream))
    recipe = recipe.replace(f"/etc/letsencrypt/live/{PUBLIC}/fullchain.pem", str(place.tls.files.cert))
    recipe = recipe.replace(f"/etc/letsencrypt/live/{PUBLIC}/privkey.pem", str(place.tls.files.key))
    recipe = recipe.replace(PUBLIC, "localhost")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {place.folder}/{kind};\n" for kind in kinds)
    (place.folder / "nginx.conf").write_text(
        f"daemon off; pid {place.folder}/nginx.pid; error_log {place.folder}/error.log; worker_processes 1;\n"
        f"{'user root;' if os.geteuid() == 0 else ''} events {{}}\nhttp {{ access_log off;\n{temporary}{recipe} }}\n"
    )
    return ["nginx", "-p", str(place.folder), "-c", str(place.folder / "nginx.conf")]


def caddy(place: Place) -> list[str]:
    """Write the page's configuration of Caddy for this place, and return the command that runs it."""
    recipe = PAGE["/etc/caddy/Caddyfile"].replace("8080", str(place.upstream))
    recipe = recipe.replace("{\n", "{\n\tadmin off\n\tauto_https disable_redirects\n\tgrace_period 1s\n", 1)
    files = place.tls.files
    recipe = recipe.replace(
        f"{PUBLIC} {{", f"localhost:{place.port} {{\n\tbind 127.0.0.1\n\ttls {files.cert} {files.key}"
    )
    (place.folder / "Caddyfile").write_text(recipe)
    return ["caddy", "run", "--config", str(place.folder / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(one, id=one.__name__, marks=pytest.mark.skipif(
            shutil.which(one.__name__) is None, reason=f"{one.__name__} is not installed; .ci/run installs it"
        ))
        for one in (nginx, caddy)
    ],
)  # fmt: skip
Proxy = Callable[[Place], list[str]]


def page_space() -> SpaceConfig:
    config = parse_space(PAGE["space.yaml"])
    limits = config.limits.model_copy(update={"failed_tokens_per_second": 0.001})
    return config.model_copy(update={"limits": limits})


@asynccontextmanager
async def served(proxy: Proxy, folder: Path) -> AsyncIterator[tuple[RunningGateway, Place]]:
    """The page's space behind a proxy."""
    (port,) = unused_ports()
    async with serve_gateway(page_space()) as gateway:
        place = Place(folder, port, gateway.port, certified(folder, "localhost"))
        with (folder / "proxy.log").open("wb") as log:
            environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
            process = subprocess.Popen(proxy(place), stdout=log, stderr=log, env=environment)
        try:
            await until(lambda: process.poll() is not None or is_open(port))
            assert process.poll() is None, (folder / "proxy.log").read_text()
            yield gateway, place
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):  # in a thread: its open connections end only if the gateway goes on
                await anyio.to_thread.run_sync(process.wait)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def requested(
    place: Place, client: str, path: str, headers: dict[str, str] | None = None, *, body: bytes | None = None
) -> int:
    """The status of a request that a client with this address sends to the proxy."""
    context = ssl.create_default_context(cafile=place.tls.ca_file)
    connection = http.client.HTTPSConnection(
        "localhost", place.port, timeout=PATIENCE_SECONDS, context=context, source_address=(client, 0)
    )
    try:
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


@PROXIES
async def test_participants_commands_and_event_streams_pass_the_proxy(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(proxy, tmp_path) as (gateway, place):
        monkeypatch.setenv("MEW_CA_FILE", str(place.tls.ca_file))
        url, token = f"https://localhost:{place.port}", gateway.token_of("ada")
        api = GatewayApi(url, space="review", participant="ada", token=token)
        received: list[Envelope] = []
        async with Participant(url, space="review", id="ada", token=token) as ada:
            assert [entry.connected for entry in (await anyio.to_thread.run_sync(api.board)).participants] == [True]

            @ada.on("chat")
            async def keep(envelope: Envelope) -> None:
                received.append(envelope)

            with await anyio.to_thread.run_sync(api.events) as events:
                assert (await anyio.to_thread.run_sync(events.next)).name == "board"
                await ada.chat("x" * 300_000)  # returns when the gateway has confirmed it
                with anyio.fail_after(PATIENCE_SECONDS):
                    event = await anyio.to_thread.run_sync(events.next)  # it arrives while the stream is open
                assert event.body["kind"] == "chat"
        dashboard = await anyio.to_thread.run_sync(requested, place, "127.0.0.1", "/dashboard")
        assert dashboard == 200


@PROXIES
async def test_limits_hold_for_each_client_behind_the_proxy(proxy: Proxy, tmp_path: Path) -> None:
    async with served(proxy, tmp_path) as (gateway, place):

        def attack() -> None:
            guess = {"authorization": "Bearer guess"}
            statuses = [requested(place, "127.0.0.2", "/participants", guess) for _ in range(101)]
            assert statuses == [403] * 100 + [429]
            forged = {"x-forwarded-for": "192.0.2.9", "forwarded": "for=192.0.2.9", **guess}
            assert requested(place, "127.0.0.2", "/participants", forged) == 429
            assert requested(place, "127.0.0.3", "/participants", guess) == 403
            token = {"authorization": f"Bearer {gateway.token_of('ada')}"}
            path = "/participants/ada/messages"
            refused = (413, 502)  # Caddy 2.6 answers 502
            assert requested(place, "127.0.0.3", path, token, body=b"x" * 1_500_000) in refused

        await anyio.to_thread.run_sync(attack)
