"""What needs a person, as the gateway serves it: over HTTP with what the reader may do, and in event streams."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock, create_autospec

import anyio
import httpx2
import pytest
from mew_board.attention import UNREAD_SECONDS, approval_item
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.attention_items import AttentionItem
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.attention_watch import ABSENCE_GRACE, START_GRACE
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.gateway.service import SpaceService

from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {command: mew, auto_start: true, capabilities: [{kind: participant/status}]}
  tools: {command: mew, auto_start: true, capabilities: [{kind: "mcp/*"}]}
  bob: {capabilities: [{kind: mcp/reject}, {kind: mcp/request}]}
  eve: {capabilities: [{kind: mcp/request}]}
"""
DOWN: Message = {
    "messages_in_context": 1,
    "status": "model_unreachable",
    "context": {
        "basis": "unknown",
        "reason": "no_call_yet",
        "waiting": [{"kind": "model", "what": "http://localhost:1", "since": "2026-01-01T00:00:00Z"}],
    },
}
PROPOSAL: Message = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "x"}}}


async def listed(gateway: RunningGateway, name: str) -> list[Any]:
    headers = {"authorization": f"Bearer {gateway.token_of(name)}"}
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        return list((await client.get("/spaces/demo/attention", headers=headers)).json()["items"])


async def streamed(gateway: RunningGateway, name: str) -> AsyncIterator[list[Any]]:
    """The items of each `attention` event."""
    headers = {"authorization": f"Bearer {gateway.token_of(name)}"}
    async with (
        httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client,
        client.stream("GET", "/spaces/demo/events", headers=headers) as answer,
    ):
        event = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event in ("board", "attention"):
                yield json.loads(line.removeprefix("data: ")).get("items", [])


async def propose(client: Client) -> None:
    await client.send_envelope("mcp/proposal", PROPOSAL, to=["files"], id="p-1")


async def test_each_reader_sees_its_permitted_actions(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        await propose(ada)
        await ada.until("mcp/proposal")
        (of_ada,), (of_bob,) = await listed(gateway, "ada"), await listed(gateway, "bob")
    assert of_ada["reason"] == of_bob["reason"] == 'ada waits for approval of write on files: {"path": "x"}'
    assert [(one["label"], one["allowed"]) for one in of_ada["actions"]] == [
        ("Approve", True),
        ("Reject", True),
        ("Always allow this tool", True),
    ]
    assert [one["allowed"] for one in of_bob["actions"]] == [False, False, False]


async def test_event_streams_follow_attention_items(gateway: RunningGateway) -> None:
    events = streamed(gateway, "bob")
    with anyio.fail_after(PATIENCE_SECONDS):
        assert await anext(events) == []
        async with joined(gateway, "coder") as coder, joined(gateway, "ada") as ada:
            await coder.send_envelope("participant/status", DOWN)
            (first,) = await anext(events)
            assert (first["id"], first["since"]) == ("model_unreachable:coder", "2026-01-01T00:00:00Z")
            await propose(ada)
            assert [one["kind"] for one in await anext(events)] == ["model_unreachable", "approval"]
            await ada.send_envelope("mcp/reject", {"reason": "no"}, to=["ada"], correlation_id=["p-1"])
            assert [one["kind"] for one in await anext(events)] == ["model_unreachable"]
            await coder.send_envelope("participant/status", {**DOWN, "status": "active", "context": None})
            assert await anext(events) == []
    await events.aclose()  # type: ignore[attr-defined] # an async generator


def needed(service: SpaceService) -> list[AttentionItem]:
    service.attention.refresh()
    return list(service.attention.items)


def test_the_item_of_a_proposal_is_made_again_only_when_the_proposal_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_space(SPACE)
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    service = SpaceService(config, TokenBook.generate(config), clock=lambda: moment[0])
    make = Mock(side_effect=approval_item)
    monkeypatch.setattr("mew_spaces.gateway.attention_watch.approval_item", make)

    def send(kind: str, payload: Message, **headers: Any) -> None:
        draft = read_draft({"kind": kind, "payload": payload, **headers})
        assert service.receive(None, ParticipantId("ada"), draft).receipt.accepted is not None

    send("mcp/proposal", PROPOSAL, id="p-1")
    send("mcp/proposal", PROPOSAL, id="p-2")
    first, _ = needed(service)
    moment[0] += timedelta(seconds=1)
    assert needed(service)[0] == first
    assert make.call_count == 2
    other = read_draft({"kind": "mcp/reject", "payload": {"reason": "no"}, "correlation_id": ["p-1"]})
    service.receive(None, ParticipantId("bob"), other)
    again, second = needed(service)
    assert make.call_count == 3
    assert (again.since, again.rejected_by, second.rejected_by) == (first.since, ("bob",), ())
    send("mcp/withdraw", {"reason": "timeout"}, correlation_id=["p-1"])
    assert [one.id for one in needed(service)] == ["approval:ada:p-2"]
    assert make.call_count == 3


def test_readers_with_the_same_capabilities_share_computed_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_space(SPACE + "  dan: {capabilities: [{kind: '*'}]}\n")
    service = SpaceService(config, TokenBook.generate(config), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    check = create_autospec(CapabilitySet.allows, side_effect=CapabilitySet.allows)
    names, actions = ("ada", "dan", "eve", None), 2

    def propose_next(number: int) -> None:
        draft = read_draft({"kind": "mcp/proposal", "payload": PROPOSAL, "id": f"p-{number}"})
        service.receive(None, ParticipantId("ada"), draft)
        service.attention.refresh()

    def allowed(reader: str | None) -> list[list[bool | None]]:
        shown = service.attention.for_reader(reader).items
        return [[one.allowed for one in item.actions] for item in (shown[0].items or shown)]

    monkeypatch.setattr(CapabilitySet, "allows", check)
    for number in range(1, 7):  # from the fourth on they are in a group
        propose_next(number)
        check.reset_mock()
        for _ in range(2):
            found = [allowed(one) for one in names]
            assert found[0] == found[1] == [[True] * actions] * number
            assert found[2:] == [[[True, False]] * number, [[False] * actions] * number]
        assert check.call_count == 3 * actions


def test_an_absence_counts_after_a_while_from_its_beginning() -> None:
    config = parse_space(SPACE)
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    service = SpaceService(config, TokenBook.generate(config), clock=lambda: moment[0])
    connection = service.new_connection()
    service.join(connection, ParticipantId("coder"))
    service.receive(connection, ParticipantId("coder"), read_draft({"kind": "participant/status", "payload": DOWN}))
    assert [one.kind for one in needed(service)] == ["model_unreachable"]
    service.leave(connection)
    left_at = moment[0]
    assert not needed(service)
    moment[0] += ABSENCE_GRACE
    (gone,) = needed(service)
    assert (gone.id, gone.level) == ("disconnected:coder", "warning")
    assert datetime.fromisoformat(gone.since or "") == left_at
    moment[0] += START_GRACE
    assert [one.reason for one in needed(service)] == [
        "coder is no longer connected",
        "tools has not joined",
    ]
    assert not service.attention.refresh()
    moment[0] += timedelta(seconds=5)
    service.join(service.new_connection(), ParticipantId("coder"))
    assert [one.kind for one in needed(service)] == ["model_unreachable", "disconnected"]


def test_a_message_for_an_agent_that_is_away_counts_from_when_it_was_sent() -> None:
    config = parse_space(SPACE)
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    service = SpaceService(config, TokenBook.generate(config), clock=lambda: moment[0])
    connection = service.new_connection()
    service.join(connection, ParticipantId("coder"))
    service.receive(connection, ParticipantId("coder"), read_draft({"kind": "participant/status", "payload": DOWN}))
    service.leave(connection)
    assert not needed(service)
    moment[0] += ABSENCE_GRACE
    assert [one.kind for one in needed(service)] == ["disconnected"]
    sent_at = moment[0]
    service.join(service.new_connection(), ParticipantId("ada"))
    draft = read_draft({"kind": "chat", "payload": {"text": "Are you there?"}, "to": ["coder"]})
    assert service.receive(None, ParticipantId("ada"), draft).receipt.refused is None
    moment[0] += timedelta(seconds=UNREAD_SECONDS - 1)
    assert [one.participant for one in needed(service) if one.kind == "unread"] == []
    moment[0] += timedelta(seconds=1)
    (unread,) = [one for one in needed(service) if one.kind == "unread"]
    assert unread.reason == "coder has not read a message, it is not connected"
    assert datetime.fromisoformat(unread.since or "") == sent_at
    service.join(service.new_connection(), ParticipantId("coder"))
    assert [one.kind for one in needed(service) if one.participant == "coder"] == ["model_unreachable"]


async def test_an_error_does_not_end_the_search_for_attention_items(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_space(SPACE)
    service = SpaceService(config, TokenBook.generate(config))
    announced: list[str] = []

    def announce() -> None:
        announced.extend(one.kind for one in service.attention.items)
        if len(announced) == 1:
            raise ZeroDivisionError

    coder = service.new_connection()
    service.join(coder, ParticipantId("coder"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.attention.run, announce)
        for payload in (DOWN, {"messages_in_context": 1, "status": "turn_stopped"}):
            before = len(announced)
            draft = read_draft({"kind": "participant/status", "payload": payload})
            service.receive(coder, ParticipantId("coder"), draft)
            await until(lambda before=before: len(announced) > before)  # type: ignore[misc]
        tasks.cancel_scope.cancel()
    assert announced == ["model_unreachable", "turn_stopped"]
    assert [one.getMessage() for one in caplog.records] == ["failed to find what needs a person"]
