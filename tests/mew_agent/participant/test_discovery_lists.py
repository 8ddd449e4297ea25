"""Lists of peers: pages, shapes, and peers that have none."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from mew_agent.errors import BadAnswer, PeerFailed
from mew_agent.participant.discovery import MAX_PAGES, Pace
from mew_agent.tools.catalog import INTERNAL_ERROR, METHOD_NOT_FOUND, RequestFailed
from mew_agent.tools.peer_offers import PeerList
from tests.support.peers import space_of_peers
from tests.support.waiting import PATIENCE_SECONDS


class Answering:
    """Offers that give these answers in order and repeat the last one."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requested: list[tuple[str, Mapping[str, Any]]] = []

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.requested.append((method, params))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


async def asked_for(offers: Answering, name: str = "tools") -> PeerList:
    async with space_of_peers() as (_, join), join("more", offers=offers), join("asker") as me:
        with anyio.fail_after(PATIENCE_SECONDS):
            me.discovery.pace = Pace(answer_seconds=5.0)
            return await me.discovery.fetch("more", name)


async def test_list_is_fetched_page_by_page() -> None:
    offers = Answering({"tools": [{"name": "a"}, {"name": "b"}], "nextCursor": "x"}, {"tools": [{"name": "c"}]})
    listing = await asked_for(offers)
    assert [tool.name for tool in listing.offers] == ["a", "b", "c"]
    assert offers.requested == [("tools/list", {}), ("tools/list", {"cursor": "x"})]


async def test_endless_list_is_cut_after_the_last_permitted_page() -> None:
    class Endless(Answering):
        async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            self.requested.append((method, params))
            return {"tools": [{"name": str(len(self.requested))}], "nextCursor": str(len(self.requested))}

    assert len((await asked_for(Endless())).offers) == MAX_PAGES


async def test_page_that_points_to_itself_is_the_last() -> None:
    offers = Answering({"tools": [{"name": "a"}], "nextCursor": "x"})
    assert [tool.name for tool in (await asked_for(offers)).offers] == ["a"]
    assert len(offers.requested) == 2


async def test_list_may_come_without_a_key_or_under_another_key() -> None:
    assert [tool.name for tool in (await asked_for(Answering([{"name": "bare"}]))).offers] == ["bare"]
    templates = Answering({"resourceTemplates": [{"uriTemplate": "x://{y}", "name": "y"}]})
    listing = await asked_for(templates, "resourceTemplates")
    assert [resource.uri for resource in listing.offers] == ["x://{y}"]
    assert templates.requested == [("resources/templates/list", {})]


async def test_list_of_tools_names_the_other_lists() -> None:
    listing = await asked_for(Answering({"tools": [], "_meta": {"mew/lists": ["resources"]}}))
    assert (listing.offers, listing.others) == ((), {"resources"})


async def test_peer_that_does_not_know_the_method_has_an_empty_list() -> None:
    assert (await asked_for(Answering(RequestFailed(METHOD_NOT_FOUND, "no")))).offers == ()


async def test_other_errors_and_unreadable_lists_are_raised() -> None:
    with pytest.raises(PeerFailed, match="broken"):
        await asked_for(Answering(RequestFailed(INTERNAL_ERROR, "broken")))
    with pytest.raises(BadAnswer, match="more"):
        await asked_for(Answering("all of them"))
