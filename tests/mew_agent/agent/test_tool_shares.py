"""Tools of peers are bounded in all they weigh, and people see whose tools are left out."""

from typing import Any

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.config.settings import SpaceConfig

from mew_agent.agent.peer_tools import MOST_TOOLS, WINDOW_PART, PeerTools, ToolRoom
from mew_agent.participant.participant import Participant
from mew_agent.tools.peer_offers import PeerTool
from tests.support.agents import SPACE, StartAgent
from tests.support.peers import space_of_peers, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

WINDOW = 8_192


@pytest.fixture
def space() -> SpaceConfig:
    """The agent may list and call tools."""
    return parse_space(SPACE.replace("[{kind: chat}, ", "[{kind: chat}, {kind: mcp/request}, "))


def many_tools(count: int, words: int = 1_000) -> dict[str, Any]:
    """A list of tools with large schemas."""
    schema = {"type": "object", "properties": {"where": {"type": "string", "description": "harbour gauge " * words}}}
    return {"tools": [{"name": f"tool{n}", "description": "Reads.", "inputSchema": schema} for n in range(count)]}


class Offering:
    """Offers one list of tools, in pages of this many."""

    def __init__(self, listed: dict[str, Any], per_page: int = 1_000) -> None:
        self.tools, self.per_page, self.pages = listed["tools"], per_page, 0

    async def request(self, method: str, params: Any) -> dict[str, Any]:
        assert method == "tools/list"
        self.pages += 1
        start = int(params.get("cursor") or 0)
        end = start + self.per_page
        return {"tools": self.tools[start:end], **({"nextCursor": str(end)} if end < len(self.tools) else {})}


async def test_a_peers_tools_never_cause_a_compaction_before_an_answer(start_agent: StartAgent, joined: Any) -> None:
    async with start_agent(window_tokens=WINDOW) as s, joined("bob", offers=Offering(many_tools(100, words=300))):
        await until(lambda: "bob" in s.agent.peers and s.agent.peers["bob"].tools is not None)
        answer = await s.ada.ask("chat", {"text": "What is the tide?"}, to="coder", answer="chat")
        assert answer.body["text"]
        status = await s.status()
        (wait,) = [one for one in status["context"]["waiting"] if one["kind"] == "tools"]
        asked: dict[str, Any] = dict(s.main_requests[-1].body)
    assert wait["peer"] == "bob"
    assert "of its 100 tools are not offered to the model" in wait["what"]
    assert status["context"]["compactions"] == 0
    assert status["tokens"] < WINDOW * 9 // 10
    assert len(asked.get("tools", ())) < 30


async def test_a_peer_that_joins_late_starts_no_compaction(start_agent: StartAgent, joined: Any) -> None:
    async with start_agent(window_tokens=WINDOW) as s:
        while (await s.status()).get("tokens", 0) < WINDOW * 3 // 4:
            await s.ada.ask("chat", {"text": "The harbour records say a lot. " * 60}, to="coder", answer="chat")
        async with joined("bob", offers=Offering(many_tools(100, words=60))):
            await until(lambda: s.agent.peers["bob"].tools is not None)
            await s.ada.ask("chat", {"text": "And now?"}, to="coder", answer="chat")
        status = await s.status()
    assert status["context"]["compactions"] == 0
    assert status["tokens"] < WINDOW * 9 // 10


async def test_pages_without_end_are_not_read() -> None:
    offers = Offering(many_tools(2_000, words=500), per_page=20)
    async with space_of_peers() as (_, join), join("more", offers=offers), join("asker") as me:
        with anyio.fail_after(PATIENCE_SECONDS):
            peer = await me.discover("more")
    assert offers.pages < 6
    assert peer.tools is not None
    assert peer.tools_left_out > 0


def offered_by(me: Participant, room: ToolRoom, left_out: dict[str, str]) -> tuple[PeerTools, list[str]]:
    tools = PeerTools(me, room=room, on_left_out=left_out.update)
    return tools, [spec.name for spec in tools.specs()]


def with_words(peer: str, name: str, words: int) -> PeerTool:
    return PeerTool(peer, name, schema={"type": "object", "properties": {"a": {"description": "gauge " * words}}})


async def test_a_peer_with_large_tools_leaves_room_for_the_others() -> None:
    async with space_of_peers() as (_, join), with_tools(join("tools")), join("more"), join("asker") as me:
        await me.discover("tools")
        me.peers.set_offers("more", tools=tuple(with_words("more", f"t{n}", 200) for n in range(50)))
        left_out: dict[str, str] = {}
        _, names = offered_by(me, ToolRoom(lambda: 4_000), left_out)
        again = offered_by(me, ToolRoom(lambda: 4_000), {})[1]
    assert [name for name in names if name.startswith("tools__")] == ["tools__add", "tools__fail", "tools__where"]
    large = [name for name in names if name.startswith("more__")]
    assert large == [f"more__t{n}" for n in range(len(large))]
    assert 0 < len(large) < 50
    assert list(left_out) == ["more"]
    assert again == names


async def test_no_more_tools_are_offered_than_a_request_may_have() -> None:
    """OpenAI rejects every request with more than 128."""
    async with space_of_peers() as (_, join), with_tools(join("tools")), join("more"), join("asker") as me:
        await me.discover("tools")
        me.peers.set_offers("more", tools=tuple(with_words("more", f"t{n}", 1) for n in range(200)))
        left_out: dict[str, str] = {}
        _, names = offered_by(me, ToolRoom(lambda: 1_000_000), left_out)
    assert len(names) == MOST_TOOLS
    assert [name for name in names if name.startswith("tools__")] == ["tools__add", "tools__fail", "tools__where"]
    assert "91 of its 200 tools are not offered" in left_out["more"]


async def test_offered_tools_stay_until_history_is_removed_and_there_is_room() -> None:
    async with space_of_peers() as (_, join), join("more"), join("asker") as me:
        me.peers.set_offers("more", tools=(with_words("more", "first", 50),))
        free, revision = 10_000, 0
        room = ToolRoom(lambda: 40_000, lambda: free, lambda: revision)
        tools, names = offered_by(me, room, {})
        free = 0
        me.peers.set_offers("more", tools=(with_words("more", "new", 50), with_words("more", "first", 50)))
        assert [spec.name for spec in tools.specs()] == names == ["more__first"]
        free = 10_000
        assert [spec.name for spec in tools.specs()] == names, "the list changes only when history is removed"
        revision = 1
        assert [spec.name for spec in tools.specs()] == ["more__new", "more__first"]


@pytest.mark.parametrize("window", [1_000, 8_192, 128_000])
async def test_the_tools_of_all_peers_take_their_part_of_the_window(window: int) -> None:
    async with space_of_peers() as (_, join), join("more"), join("mute"), join("asker") as me:
        for peer in ("more", "mute"):
            me.peers.set_offers(peer, tools=tuple(with_words(peer, f"t{n}", 100) for n in range(400)))
        tools = PeerTools(me, room=ToolRoom(lambda: window))
        tools.specs()
        assert sum(one.tokens for one in tools._offered) <= window // WINDOW_PART
