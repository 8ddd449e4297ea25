"""The views of the board that pages follow: whole at first, then what changed."""

from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest
from mew_board.grouping import GROUPINGS, grouped, total, totals
from mew_board.view import ParticipantView, views_of
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.board_views import AT_ONCE
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.gateway.server_sent_events import EventReader, event_stream
from mew_spaces.gateway.service import SpaceService, history_bounds
from mew_spaces.log.memory import SpaceLog

from tests.spaces.gateway.test_events import Reader

MANY = AT_ONCE + 50


@pytest.fixture
def crowd() -> SpaceConfig:
    status = "{capabilities: [{kind: participant/status}]}"
    names = "".join(f"  agent-{number:03}: {status}\n" for number in range(MANY))
    return parse_space(f'space: {{id: demo}}\nparticipants:\n  ada: {{capabilities: [{{kind: "**"}}]}}\n{names}')


@pytest.fixture
def service(crowd: SpaceConfig) -> SpaceService:
    return SpaceService(crowd, TokenBook.generate(crowd), space_log=SpaceLog(epoch="e", bounds=history_bounds(crowd)))


def reader_of(service: SpaceService) -> EventReader:
    return EventReader(service, service.tokens.token_of("ada") or "", "", with_views=True)


def report(service: SpaceService, name: str, tokens: int) -> None:
    context = {"basis": "reported", "level": "healthy", "severity": 0, "revision": 0}
    payload = {"messages_in_context": 1, "tokens": tokens, "max_tokens": 1_000, "context": context}
    service.receive(None, ParticipantId(name), read_draft({"kind": "participant/status", "payload": payload}))


def names_in(event: dict[str, Any]) -> list[str]:
    return [one["id"] for one in event["data"]["participants"]]


async def test_a_reader_gets_all_views_then_what_changed(service: SpaceService) -> None:
    report(service, "agent-000", 100)
    reader = Reader(event_stream(reader_of(service), None))
    first = await reader.next()
    assert (first["event"], first["id"], len(names_in(first))) == ("view", "e-1", MANY + 1)
    assert first["data"]["totals"]["text"] == "1 agent · 100 of 1,000 tokens in use"
    report(service, "agent-001", 950)
    await service.attention.refresh_views()
    assert (await reader.next())["event"] == "envelope"
    changed = await reader.next()
    assert (changed["event"], changed["data"]["is_whole"], names_in(changed)) == ("view", False, ["agent-001"])
    assert changed["data"]["participants"][0]["amount"] == "950"
    assert changed["data"]["totals"]["tokens"] == 1_050


async def test_an_unchanged_view_is_not_sent_again(service: SpaceService) -> None:
    await service.attention.refresh_views()
    number = service.attention.views.number
    await service.attention.refresh_views()
    assert service.attention.views.number == number


async def test_a_change_computes_no_other_view_again(service: SpaceService, monkeypatch: pytest.MonkeyPatch) -> None:
    report(service, "agent-000", 100)
    await service.attention.refresh_views()
    computed: list[ParticipantView] = []

    def watched(read: Callable[[ParticipantView], object]) -> property:
        def reading(view: ParticipantView) -> object:
            computed.append(view)
            return read(view)

        return property(reading)

    for name in ("order", "groups", "percent"):
        monkeypatch.setattr(ParticipantView, name, watched(getattr(ParticipantView, name).fget))
    report(service, "agent-001", 950)
    await service.attention.refresh_views()
    assert [one.about for one in service.attention.views.since(None, service.now()).groups if one.by == "role"]
    assert {one.name for one in computed} == {"agent-001"}


async def test_a_reader_that_reconnects_gets_all_views(service: SpaceService) -> None:
    report(service, "agent-000", 100)
    await service.attention.refresh_views()
    reader = Reader(event_stream(reader_of(service), "e-1"))
    events = [await reader.next(), await reader.next()]
    (event,) = [one for one in events if one["event"] == "view"]
    assert event["data"]["is_whole"]
    assert len(names_in(event)) == MANY + 1


async def test_a_removed_participant_leaves_the_views(service: SpaceService) -> None:
    await service.attention.refresh_views()
    number = service.attention.views.number
    kick = {"kind": "space/kick", "payload": {"participant_id": "agent-007"}}
    service.receive(None, ParticipantId("ada"), read_draft(kick))
    await service.attention.refresh_views()
    assert service.attention.views.since(number, service.now()).removed == ("agent-007",)


async def test_the_view_is_served_over_http(gateway: RunningGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token_of('ada')}"}
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        with anyio.fail_after(60):
            answer = (await client.get("/spaces/demo/view", headers=headers)).json()
    assert answer["is_whole"]
    assert "ada" in [one["id"] for one in answer["participants"]]


async def test_groups_and_totals_follow_each_change(service: SpaceService) -> None:
    views, titles, number = service.attention.views, dict[tuple[str, str], str](), -1
    people = [name for name in service.space.names if service.config.is_person(name)]
    for name, tokens in (("agent-000", 100), ("agent-001", 950), ("agent-000", 990), ("agent-001", 1)):
        report(service, name, tokens)
        await service.attention.refresh_views()
        changed = views.since(number, service.now())
        assert len(changed.participants) == (MANY + 1 if number < 0 else 1)
        number = views.number
        titles.update({(one.by, one.name): one.about for one in changed.groups})
        everyone = views_of(service.board(), now=service.now(), people=people, items=service.attention.items)
        expected = {(by, one.name): one.about for by in GROUPINGS for one in grouped(everyone, by)}
        assert {key: about for key, about in titles.items() if about} == expected
        assert changed.totals == totals(total(everyone))
