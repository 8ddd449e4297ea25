"""Data streams over sockets."""

from typing import Any

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from tests.conformance.rules import rule
from tests.support.gateway_client import Client, joined, opened


async def open_stream(client: Client, **payload: Any) -> str:
    """Ask for a stream and wait until it is open."""
    await client.send_envelope("stream/request", {"direction": "upload", **payload}, id=f"request-{len(payload)}")
    stream_id: str = (await client.until("stream/open"))["payload"]["stream_id"]
    await client.until("stream/request")
    return stream_id


@rule("stream.open")
async def test_a_stream_opens_before_its_request_is_delivered(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/request", {"direction": "upload", "description": "x"}, id="r", to=["gateway"])
        await bob.until("system/presence")
        opening, request = await bob.next(), await bob.next()
    assert (opening["kind"], opening["from"], opening["correlation_id"]) == ("stream/open", "gateway", ["r"])
    assert opening["to"] == ["coder"]
    assert opening["payload"] == {
        "stream_id": "stream-1",
        "encoding": "text",
        "owner": "coder",
        "authorized_writers": ["coder"],
    }
    assert (request["kind"], request["id"]) == ("stream/request", "r")


@rule("stream.frames")
@pytest.mark.parametrize("frame", ["#{}#text # with\nmarks", "#{}#", b"#{}#\x00\xff#"])
async def test_frames_arrive_unchanged(gateway: RunningGateway, frame: str | bytes) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        stream = await open_stream(coder)
        sent = frame.format(stream) if isinstance(frame, str) else frame.replace(b"{}", stream.encode())
        await coder.send(sent)
        assert await coder.raw() == sent
        await bob.until("stream/request")
        assert await bob.raw() == sent


@rule("stream.targets")
async def test_only_targets_receive_the_frames(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/request", {"direction": "upload", "target": ["ada"]})
        opening = await coder.until("stream/open")
        assert opening["payload"]["target"] == ["ada"]
        await coder.until("stream/request")
        await coder.send("#stream-1#only ada")
        await coder.chat("end")
        await ada.until("stream/request")
        assert await ada.raw() == "#stream-1#only ada"
        await bob.until("stream/request")
        assert (await bob.next())["kind"] == (await coder.next())["kind"] == "chat"
        await coder.send_envelope("stream/request", {"direction": "upload", "target": ["ada", "ghost"]})
        refusal = await coder.error()
        assert (refusal["error"], refusal["targets"]) == ("target_not_found", ["ghost"])


@rule("stream.unauthorized")
async def test_a_frame_without_the_right_to_write_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "files") as files, joined(gateway, "coder") as coder:
        stream = await open_stream(coder)
        await files.until("stream/request")
        for wrong in (stream, "stream-99"):
            await files.send(f"#{wrong}#mine")
            refusal = await files.next()
            assert refusal["payload"]["error"] == "unauthorized_stream_write"
            assert refusal["payload"]["stream_id"] == wrong
        assert await coder.seen_so_far() == []


@rule("stream.grant")
async def test_an_owner_grants_and_revokes_writing(gateway: RunningGateway) -> None:
    async with joined(gateway, "files") as files, joined(gateway, "coder") as coder:
        stream = await open_stream(coder)
        requested = {"stream_id": stream, "participant_id": "files", "reason": "help"}
        await coder.send_envelope("stream/grant-write", requested, id="g")
        granted = await files.until("stream/write-granted")
        assert (granted["from"], granted["correlation_id"]) == ("gateway", ["g"])
        assert granted["payload"] == {**requested, "authorized_writers": ["coder", "files"]}
        await files.send(f"#{stream}#now")
        assert await files.raw() == f"#{stream}#now"
        await coder.send_envelope("stream/revoke-write", requested)
        revoked = await files.until("stream/write-revoked")
        assert revoked["payload"]["authorized_writers"] == ["coder"]
        await files.send(f"#{stream}#no more")
        assert (await files.error())["error"] == "unauthorized_stream_write"


@rule("stream.transfer")
async def test_an_owner_transfers_its_stream(gateway: RunningGateway) -> None:
    async with joined(gateway, "files") as files, joined(gateway, "coder") as coder:
        stream = await open_stream(coder)
        await coder.send_envelope("stream/transfer-ownership", {"stream_id": stream, "new_owner": "files"})
        reported = (await files.until("stream/ownership-transferred"))["payload"]
        assert reported == {
            "stream_id": stream,
            "previous_owner": "coder",
            "new_owner": "files",
            "authorized_writers": ["files"],
        }
        await coder.send(f"#{stream}#still")
        assert (await coder.error())["error"] == "unauthorized_stream_write"


@rule("stream.owner-only")
async def test_only_the_owner_changes_rights(gateway: RunningGateway) -> None:
    async with joined(gateway, "files") as files, joined(gateway, "coder") as coder:
        stream = await open_stream(coder)
        for kind in ("stream/grant-write", "stream/revoke-write"):
            await files.send_envelope(kind, {"stream_id": stream, "participant_id": "files"})
            assert (await files.error())["error"] == "unauthorized"
        await files.send_envelope("stream/transfer-ownership", {"stream_id": stream, "new_owner": "files"})
        assert (await files.error())["error"] == "unauthorized"
        await coder.send_envelope("stream/grant-write", {"stream_id": stream, "participant_id": "ghost"})
        assert (await coder.error())["error"] == "participant_not_found"
        await coder.send_envelope("stream/grant-write", {"stream_id": "stream-9", "participant_id": "files"})
        assert (await coder.error())["error"] == "stream_not_found"


@rule("stream.close")
@pytest.mark.parametrize("name", ["id", "request", "opening"])
async def test_a_stream_is_closed_by_any_of_its_ids(gateway: RunningGateway, name: str) -> None:
    async with joined(gateway, "files") as files, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/request", {"direction": "upload"}, id="r")
        opening = await coder.until("stream/open")
        stream = opening["payload"]["stream_id"]
        payload = {"reason": "done"} if name != "id" else {"stream_id": stream}
        headers = {"request": {"correlation_id": ["r"]}, "opening": {"correlation_id": [opening["id"]]}}.get(name, {})
        if name == "id":
            await files.send_envelope("stream/close", payload)
            assert (await files.error())["error"] == "unauthorized"
        await coder.send_envelope("stream/close", payload, **headers)
        assert (await files.until("stream/close"))["from"] == "coder"
        await coder.send(f"#{stream}#late")
        assert (await coder.error())["error"] == "unauthorized_stream_write"


@rule("stream.late")
async def test_a_late_joiner_gets_open_streams(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        forged = {"stream_id": "other", "owner": "ada", "authorized_writers": ["ada"], "created": "never"}
        described = {"description": "log", "content_type": "text/plain", "format": "utf8", "expected_size_bytes": 9}
        stream = await open_stream(coder, **described, **forged)
        async with opened(gateway, "bob") as bob:
            await bob.join(gateway.token_of("bob"))
            (reported,) = (await bob.next())["payload"]["active_streams"]
        assert {key: reported[key] for key in described} == described
        assert (reported["stream_id"], reported["owner"], reported["direction"]) == (stream, "coder", "upload")
        assert reported["authorized_writers"] == ["coder"]
        assert reported["created"].startswith("20")
        await coder.send_envelope("stream/close", {"stream_id": stream})
        await coder.until("stream/close")
        async with opened(gateway, "bob") as bob:
            await bob.join(gateway.token_of("bob"))
            assert (await bob.next())["payload"]["active_streams"] == []


@rule("stream.relayed")
async def test_messages_about_unknown_streams_are_passed_on(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/open", {"stream_id": "mine", "owner": "coder"})
        assert (await coder.error())["error"] == "reserved_kind"  # only the gateway opens streams
        await coder.send_envelope("stream/close", {"reason": "done"})
        assert (await bob.until("stream/close"))["payload"] == {"reason": "done"}


@rule("limit.streams")
async def test_the_streams_of_an_owner_are_limited(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        for _ in range(3):
            await open_stream(coder)
        await coder.send_envelope("stream/request", {"direction": "upload"})
        assert (await coder.error())["error"] == "limit_exceeded"
        await coder.send_envelope("stream/close", {"stream_id": "stream-1"})
        assert await open_stream(coder) == "stream-4"
