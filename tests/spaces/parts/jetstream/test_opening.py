"""The configuration of a backplane, embedded servers, and the errors when NATS cannot be used."""

import json
import os
import re
import signal
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from secrets import token_hex

import anyio
import nkeys
import pytest
import trustme
from anyio.abc import TaskStatus
from hypothesis import given
from hypothesis import strategies as st
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import open_shared
from mew_spaces.launch.processes import started_mark
from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneRefused, BackplaneUnavailable, StoredBatch
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream, safe_name
from mew_spaces.parts.jetstream.nats_link import LinkTimes
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.opening import open_backplane

from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS, until


async def test_a_space_without_a_backplane_opens_none(tmp_path: Path) -> None:
    async with open_shared(parse_space("space: {id: a}"), folder=tmp_path, state=tmp_path) as storage:
        assert storage is None


async def test_gateways_of_one_folder_share_an_embedded_server(tmp_path: Path) -> None:
    config = parse_space("{space: {id: a}, backplane: embedded-nats}")
    is_over, has_ended = anyio.Event(), anyio.Event()

    async def hold(*, task_status: TaskStatus[Backplane | None]) -> None:
        async with open_backplane(config, folder=tmp_path, state=tmp_path) as one:
            task_status.started(one)
            await is_over.wait()
        has_ended.set()

    async with anyio.create_task_group() as tasks:
        one = await tasks.start(hold)
        async with open_backplane(config, folder=tmp_path, state=tmp_path) as other:
            assert await one.append(b"a", "1-1") == 1
            assert other is not None
            assert await other.bounds() == (1, 1)
            (ports,) = (tmp_path / "nats").glob("*.ports")
            os.kill(int(ports.stem.rpartition("_")[2]), signal.SIGKILL)
            second = await stored(one)
            assert second > 1
            is_over.set()  # the gateway that ran the server ends
            await has_ended.wait()
            third = await stored(other)
            assert third > second
    # What was stored is there again.
    async with open_backplane(config, folder=tmp_path, state=tmp_path) as again:
        assert again is not None
        assert await again.bounds() == (1, third)


async def stored(backplane: Backplane) -> int:
    """Append as a gateway does: repeat it until the backplane answers."""
    batch_id = token_hex(8)
    with anyio.fail_after(2 * PATIENCE_SECONDS):
        while True:
            try:
                return await backplane.append(b"a", batch_id)
            except BackplaneUnavailable:
                await anyio.sleep(0.05)


OWNER = """
import sys
from pathlib import Path
from secrets import token_hex
from mew_spaces.parts.jetstream.nats_link import LinkTimes
from mew_spaces.parts.jetstream.nats_server import NatsServer
server = NatsServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


async def test_a_server_ends_with_its_killed_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert started_mark(pid) is not None
        owner.kill()
        await until(lambda: started_mark(pid) is None)


@contextmanager
def running(server: NatsServer) -> Iterator[NatsServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def first_append(options: Mapping[str, object], folder: Path, *, start_seconds: float = PATIENCE_SECONDS) -> int:
    read = JetStreamOptions.model_validate(options)
    async with connect_jetstream(
        read, "a", folder=folder, kept_bytes=1_000_000, times=LinkTimes(start=start_seconds)
    ) as backplane:
        return await backplane.append(b"a", "1-1")


async def test_secrets_and_certificates_come_from_files(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("gateway")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    client.private_key_pem.write_to_path(tmp_path / "client.key")
    (tmp_path / "password").write_text("right\n")
    (tmp_path / "wrong").write_text("wrong\n")
    files = {key: str(tmp_path / name) for key, name in (("cert_file", "server.pem"), ("key_file", "server.key"))}
    tls = json.dumps({**files, "ca_file": str(tmp_path / "ca.pem"), "verify": True})
    settings = f"authorization {{ user: ada, password: right }}\ntls: {tls}\n"
    with running(NatsServer(tmp_path / "nats", settings=settings)) as server:
        complete = {
            "servers": server.address.replace("nats:", "tls:"),
            "user": "ada",
            "password_file": "password",
            "tls_ca": "ca.pem",
            "tls_cert": "client.pem",
            "tls_key": "client.key",
        }
        assert await first_append(complete, tmp_path) == 1
        with pytest.raises(BackplaneRefused, match=r"Authorization Violation\); check user and password_file of"):
            await first_append({**complete, "password_file": "wrong"}, tmp_path)
        for key in ("password_file", "tls_ca", "tls_cert"):
            with pytest.raises(BackplaneRefused, match="absent: no such file"):
                await first_append({**complete, key: "absent"}, tmp_path)
        with pytest.raises(BackplaneRefused, match="certificate is not trusted"):
            await first_append({**complete, "tls_ca": "stranger.pem"}, tmp_path)


async def test_credentials_of_an_account_are_used_and_checked(tmp_path: Path) -> None:
    operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)[0]
    account, system = (new_key(nkeys.PREFIX_BYTE_ACCOUNT)[0] for _ in range(2))
    user, seed = new_key(nkeys.PREFIX_BYTE_USER)
    limits = dict.fromkeys(("subs", "data", "payload", "conn", "disk_storage", "streams", "consumer"), -1)
    tokens = [
        web_token(operator, operator, {"type": "operator"}),
        web_token(operator, account, {"type": "account", "limits": limits | {"wildcards": True}}),
        web_token(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1}),
        web_token(operator, system, {"type": "account", "limits": {"subs": -1, "conn": -1}}),
    ]
    accounts = f"{{ {account.public_key.decode()}: {tokens[1]}, {system.public_key.decode()}: {tokens[3]} }}"
    settings = f"operator: {tokens[0]}\nresolver: MEMORY\nresolver_preload: {accounts}\n"
    settings += f"system_account: {system.public_key.decode()}\n"
    complete = (
        f"-----BEGIN NATS USER JWT-----\n{tokens[2]}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    files = {
        "no NATS credentials": ("", complete.replace("NATS USER JWT", "X"), complete.replace(seed.decode(), "SUAA")),
        "no such file": (None,),
        "check credentials of 'backplane'": (
            complete.replace(seed.decode(), new_key(nkeys.PREFIX_BYTE_USER)[1].decode()),
        ),
    }
    with running(NatsServer(tmp_path / "nats", settings=settings)) as server:
        options = {"servers": server.address, "credentials": "user.creds"}
        for problem, contents in files.items():
            for content in contents:
                (tmp_path / "user.creds").unlink(missing_ok=True)
                if content is not None:
                    (tmp_path / "user.creds").write_text(content)
                with pytest.raises(BackplaneRefused, match=problem):
                    await first_append(options, tmp_path)
        (tmp_path / "user.creds").write_text(complete)
        assert await first_append(options, tmp_path) == 1


def new_key(prefix: int) -> tuple[nkeys.KeyPair, bytes]:
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return nkeys.from_seed(seed), seed


def web_token(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, claims: Mapping[str, object]) -> str:
    """What `nsc` makes: claims of NATS about a key, signed by another one."""
    names = {"iss": issuer.public_key.decode(), "sub": subject.public_key.decode(), "jti": "x", "iat": 1}
    parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**names, "nats": {**claims, "version": 2}})
    signed = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return (signed + b"." + urlsafe_b64encode(issuer.sign(signed)).rstrip(b"=")).decode()


async def test_no_secret_leaves_without_encryption(tmp_path: Path, nats_server: NatsServer) -> None:
    (tmp_path / "token").write_text("secret")
    options = {"servers": nats_server.address.replace("nats:", "tls:"), "token_file": "token"}
    with pytest.raises(BackplaneRefused, match="TLS"):
        await first_append(options, tmp_path)


async def test_servers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    ports = unused_ports(2)
    addresses = [f"nats://127.0.0.1:{port}" for port in ports]
    with pytest.raises(BackplaneUnavailable, match="NATS cannot be reached") as caught:
        await first_append({"servers": addresses}, tmp_path, start_seconds=0.1)
    assert all(f"{address} (connection refused)" in str(caught.value) for address in addresses)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    with (
        running(NatsServer(tmp_path, settings="jetstream: disabled")) as server,
        pytest.raises(BackplaneUnavailable, match="is JetStream enabled"),
    ):
        await first_append({"servers": server.address}, tmp_path, start_seconds=0.1)


async def test_a_server_with_too_little_room_is_refused(tmp_path: Path) -> None:
    small = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'store'))}, max_file_store: 100KB }}"
    with (
        running(NatsServer(tmp_path, settings=small)) as server,
        pytest.raises(BackplaneUnavailable, match=r"storage .*lower limits\.history_bytes"),
    ):
        await first_append({"servers": server.address}, tmp_path, start_seconds=0.1)
    with (
        running(NatsServer(tmp_path / "narrow", settings="max_payload: 1024")) as server,
        pytest.raises(BackplaneRefused, match="max_payload of the NATS server is 1024 bytes"),
    ):
        await first_append({"servers": server.address}, tmp_path)


async def test_the_documented_permissions_are_enough(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "several-gateways.md").read_text(encoding="utf-8")
    found = re.search(r'title="nats-users.conf"\n(.*?)```', page, re.DOTALL)
    assert found is not None
    (tmp_path / "password").write_text("choose-a-password")
    with running(NatsServer(tmp_path / "nats", settings=found[1])) as server:
        options = JetStreamOptions(servers=(server.address,), user="mew", password_file="password")
        async with connect_jetstream(options, "a", folder=tmp_path, kept_bytes=1_000_000) as backplane:
            with anyio.fail_after(PATIENCE_SECONDS):
                assert await backplane.claim("ticker", b"1")
                async with aclosing(backplane.leases()) as changes:
                    assert await anext(changes) == {"ticker": b"1"}
                assert await backplane.save("key", b"value", expected=0) > 0
                assert await backplane.append(b"a", "1-1") == 1
                batches: list[StoredBatch] = []
                await backplane.follow(0, batches.append, until=1)
                assert batches == [(1, b"a")]
                await backplane.trim(2)
                async with aclosing(backplane.frames()) as frames:
                    await publish_until_heard(backplane, frames)


async def publish_until_heard(backplane: Backplane, frames: AsyncGenerator[bytes, None]) -> None:
    async with anyio.create_task_group() as tasks:

        async def publish() -> None:
            while True:
                await backplane.publish(b"frame")
                await anyio.sleep(0.01)

        tasks.start_soon(publish)
        assert await anext(frames) == b"frame"
        tasks.cancel_scope.cancel()


async def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("right")
    permissions = """authorization { users: [
        {user: ada, password: right, permissions: {publish: ["$JS.API.STREAM.INFO.*", "_INBOX.>"]}}
    ]}"""
    with running(NatsServer(tmp_path / "nats", settings=permissions)) as server:
        options = {"servers": server.address, "user": "ada", "password_file": "password"}
        with pytest.raises(BackplaneRefused, match=r"(?i)permissions violation .*\$JS\.API\.STREAM\.CREATE"):
            await first_append(options, tmp_path)


@given(st.text(max_size=60), st.text(max_size=60))
def test_names_of_spaces_become_one_safe_token(one: str, other: str) -> None:
    name = safe_name(one)
    assert len(name) <= 80
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-=")
    assert (name == safe_name(other)) == (one == other)
