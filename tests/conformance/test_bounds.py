"""The limits of a space, small enough to be reached in a test."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.conformance.rules import rule
from tests.support.gateway_client import joined, opened
from tests.support.raw_socket import frame, messages, raw_socket, shake_hands
from tests.support.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def bounded(**limits: float) -> AsyncIterator[RunningGateway]:
    """A gateway with these limits."""
    people = {"ada": {"capabilities": [{"kind": "*"}]}, "bob": {"capabilities": [{"kind": "chat"}]}}
    config = parse_space(json.dumps({"space": {"id": "demo"}, "participants": people, "limits": limits}))
    async with serve_gateway(config) as gateway:
        yield gateway


@rule("limit.body")
async def test_a_body_above_the_limit_is_refused() -> None:
    async with bounded(http_body_bytes=1024) as gateway, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        headers = {"authorization": f"Bearer {gateway.token_of('bob')}"}
        said = {"kind": "chat", "payload": {"text": "x" * 2_000}}
        answer = await client.post(f"{gateway.url}/participants/bob/messages", headers=headers, json=said)
    assert answer.status_code == 413
    assert answer.json() == {"error": "too_large", "message": "request body too large; the limit is 1,024 bytes"}


@rule("limit.name")
async def test_names_above_the_limit_are_refused() -> None:
    async with bounded() as gateway, joined(gateway, "ada") as ada:
        await ada.send_envelope("k" * 129)
        assert "at most 128 characters" in (await ada.error())["message"]
        await ada.send_envelope("chat", {"text": "x"}, id="i" * 513)
        assert "at most 512 characters" in (await ada.error())["message"]
        await ada.send_envelope("space/invite", {"participant_id": "p" * 129})
        assert "at most 128 characters" in (await ada.error())["message"]
        await ada.send_envelope("k" * 128, id="i" * 512)
        assert (await ada.next())["kind"] == "k" * 128


@rule("limit.sockets")
async def test_the_sockets_of_a_person_are_limited() -> None:
    async with (
        bounded(sockets_per_member=2) as gateway,
        joined(gateway, "bob"),
        joined(gateway, "bob"),
        opened(gateway, "bob") as third,
    ):
        await third.join(gateway.token_of("bob"))
        error = await third.error()
        assert (error["error"], error["message"]) == (
            "limit_exceeded",
            "you already have 2 connections, which is the limit; close one first",
        )
        assert (await third.closing())[0] == 4429


@rule("limit.grants")
async def test_the_grants_of_a_participant_are_limited() -> None:
    async with bounded() as gateway, joined(gateway, "ada") as ada:
        for first in (0, 200):
            patterns = [{"kind": f"x/{number}"} for number in range(first, first + 200)]
            await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": patterns})
        error = await ada.error()
        assert error["error"] == "limit_exceeded"
        assert "256" in error["message"]


@rule("limit.kept")
async def test_payloads_kept_for_late_joiners_are_limited() -> None:
    async with bounded(kept_payload_bytes=300) as gateway, joined(gateway, "ada") as ada:
        long = "x" * 400
        for kind, payload in (
            ("stream/request", {"description": long}),
            ("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "chat", "payload": {"text": long}}]}),
            ("space/invite", {"participant_id": "eve", "reason": long}),
        ):
            await ada.send_envelope(kind, payload)
            error = await ada.error()
            assert (error["error"], kind in error["message"], "300" in error["message"]) == (
                "limit_exceeded",
                True,
                True,
            )
        status = {"messages_in_context": 1, "tokens": 5, "max_tokens": 10}
        for said in (status, {**status, "tokens": 6, "note": long}, {"chatter": long}):
            await ada.send_envelope("participant/status" if "tokens" in said else "chat", {"text": "y", **said})
            await ada.next()
        async with opened(gateway, "bob") as bob:
            await bob.join(gateway.token_of("bob"))
            reported = (await bob.next())["payload"]
        assert [line["status"]["tokens"] for line in reported["board"]] == [5]
        assert reported["active_streams"] == []


@rule("limit.join")
async def test_a_socket_that_does_not_join_is_closed() -> None:
    async with bounded(join_timeout_seconds=0.05) as gateway, opened(gateway) as nobody:
        assert (await nobody.error())["error"] == "not_joined"
        assert (await nobody.closing())[0] == 4401


@rule("limit.ping")
async def test_a_socket_that_answers_no_ping_is_closed() -> None:
    async with bounded(ping_interval_seconds=0.05, ping_timeout_seconds=0.05) as gateway:
        join = {"type": "join", "space": "demo", "token": gateway.token_of("bob")}

        def last_said() -> tuple[int, bytes]:
            with raw_socket(gateway) as connection:
                shake_hands(connection)
                connection.sendall(frame(json.dumps(join).encode()))
                *_, last = messages(connection)
                return last

        async with joined(gateway, "ada") as ada:
            opcode, data = await anyio.to_thread.run_sync(last_said)
            assert (opcode, int.from_bytes(data[:2])) == (8, 1011)
            assert [(await ada.until("system/presence"))["payload"]["event"] for _ in range(2)] == ["join", "leave"]


@rule("limit.slow")
async def test_a_slow_consumer_is_disconnected() -> None:
    async with bounded(write_buffer_bytes=65_536, message_bytes=65_536) as gateway:
        join = {"type": "join", "space": "demo", "token": gateway.token_of("bob")}
        async with joined(gateway, "ada") as ada:
            with raw_socket(gateway) as connection:
                await anyio.to_thread.run_sync(shake_hands, connection)
                connection.sendall(frame(json.dumps(join).encode()))
                assert (await ada.until("system/presence"))["payload"]["event"] == "join"
                with anyio.fail_after(PATIENCE_SECONDS):
                    while "bob" in gateway.service.space.members:
                        await ada.chat("x" * 60_000)
                        await ada.until("chat")

                def last_words() -> list[dict[str, Any]]:
                    said = (json.loads(data) for opcode, data in messages(connection) if opcode == 1)
                    return list(itertools.islice((one for one in said if one["kind"] == "system/error"), 1))

                (error,) = await anyio.to_thread.run_sync(last_words)
                assert error["payload"]["error"] == "slow_consumer"


@rule("limit.history")
@pytest.mark.parametrize("limit", [{"history_envelopes": 3}, {"history_bytes": 500}])
async def test_the_history_is_limited(limit: dict[str, int]) -> None:
    async with bounded(**limit) as gateway, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        headers = {"authorization": f"Bearer {gateway.token_of('bob')}"}
        address = f"{gateway.url}/participants/bob/messages"
        first = (await client.get(address, headers=headers)).json()["next"]
        for number in range(5):
            await client.post(address, headers=headers, json={"kind": "chat", "payload": {"text": str(number)}})
        kept = (await client.get(address, headers=headers, params={"since": first})).json()
        assert [one["payload"]["text"] for one in kept["messages"]] == ["2", "3", "4"]
        assert kept["complete"] is False
