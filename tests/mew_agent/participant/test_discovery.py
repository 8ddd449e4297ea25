"""Discovery: which peers it asks, how often, and what it makes of answers and missing answers."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.errors import PeerAbsent, PeerTimeout
from mew_agent.participant.discovery import CONCURRENT_REQUESTS
from mew_agent.participant.participant import Participant
from mew_agent.tools.catalog import METHOD_NOT_FOUND, RequestFailed
from tests.support.agents import EnvelopeRecorder
from tests.support.peers import QUICK, space_of_peers, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until


class Shelf:
    """The offers of one peer; records the requests."""

    def __init__(self, *pages: list[str], silent_for: int = 0, error: int | None = None) -> None:
        self.pages = list(pages)
        self.requested: list[str] = []
        self._silent_for, self._error = silent_for, error

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.requested.append(method)
        if len(self.requested) <= self._silent_for:
            await anyio.sleep_forever()
        if self._error is not None:
            raise RequestFailed(self._error, "no")
        if method != "tools/list":
            raise RequestFailed(METHOD_NOT_FOUND, "only tools")
        page = int(params.get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if page + 1 < len(self.pages) else {}
        return {"tools": [{"name": name} for name in self.pages[page]], **more}


def names(me: Participant, peer: str) -> list[str] | None:
    known = me.peers.get(peer)
    return None if known is None or known.tools is None else [tool.name for tool in known.tools]


def resources(me: Participant, peer: str) -> list[str] | None:
    known = me.peers.get(peer)
    return None if known is None or known.resources is None else [one.uri for one in known.resources]


async def test_present_and_joining_peers_are_asked() -> None:
    async with space_of_peers() as (_, join), with_tools(join("tools")), join("asker", discover=True) as me:
        await until(lambda: names(me, "tools") == ["add", "fail", "where"])
        async with join("more", offers=Shelf(["late"])):
            await until(lambda: names(me, "more") == ["late"])
        await until(lambda: "more" not in me.peers)


async def test_participant_without_discovery_asks_no_peer() -> None:
    async with space_of_peers() as (_, join), with_tools(join("tools")), join("asker") as me:
        await until(lambda: "tools" in me.peers)
        assert me.peers["tools"].tools is None
        peer = await me.discover("tools")
        assert peer.tools is not None
        add = peer.tools[0]
        assert (add.peer, add.name, add.description) == ("tools", "add", "Add two numbers.")
        assert add.schema["required"] == ["a", "b"]
        assert (peer.resources, peer.prompts) == ((), ())


async def test_absent_peer_cannot_be_discovered() -> None:
    async with space_of_peers() as (_, join), join("asker") as me:
        with pytest.raises(PeerAbsent):
            await me.discover("ghost")


async def test_peer_that_leaves_during_discovery_is_absent() -> None:
    class Leaving(Shelf):
        async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            if method == "resources/list":
                await more.aclose()
            return await super().request(method, params)

    async with space_of_peers() as (_, join), join("asker") as me, join("more", offers=Leaving(["a"])) as more:
        await until(lambda: "more" in me.peers)
        with pytest.raises(PeerAbsent, match="left before it answered"):
            await me.discover("more")


async def test_lists_are_read_page_by_page() -> None:
    shelf = Shelf(["a", "b"], ["c"], ["d"])
    async with space_of_peers() as (_, join), join("more", offers=shelf), join("asker") as me:
        await me.discover("more")
        assert names(me, "more") == ["a", "b", "c", "d"]


async def test_peer_without_tools_is_asked_once() -> None:
    shelf = Shelf(error=METHOD_NOT_FOUND)
    async with space_of_peers() as (_, join), join("more", offers=shelf), join("asker", discover=True) as me:
        me.discovery.pace = QUICK._replace(time_to_live_seconds=0.0)
        await until(lambda: names(me, "more") == [])
        await me.discovery.wait_for_first_answers(1.0)
        assert shelf.requested == ["tools/list"]
        await me.discover("more")
        reported = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]
        assert shelf.requested == ["tools/list", *reported]


async def test_silent_peer_is_asked_a_limited_number_of_times() -> None:
    patient, silent = Shelf(["late"], silent_for=2), Shelf(["never"], silent_for=99)
    async with (
        space_of_peers() as (_, join),
        join("more", offers=patient),
        join("tools", offers=silent),
        join("asker", discover=True) as me,
    ):
        await until(lambda: names(me, "more") == ["late"])
        await until(lambda: silent.requested == ["tools/list"] * 3)
        assert me.peers["tools"].tools is None
        with pytest.raises(PeerTimeout):
            await me.discover("tools")


async def test_silent_peer_delays_one_answer_even_if_it_joins_again() -> None:
    silent = Shelf(["late"], silent_for=2)
    async with space_of_peers() as (_, join), join("asker", discover=True) as me:
        me.discovery.pace = QUICK._replace(answer_seconds=PATIENCE_SECONDS)
        async with join("more", offers=silent):
            await until(lambda: "more" in me.peers and len(silent.requested) == 1)
            await me.discovery.wait_for_first_answers(0.01)
        await until(lambda: "more" not in me.peers)
        async with join("more", offers=silent):
            await until(lambda: "more" in me.peers and len(silent.requested) == 2)
            for only in ((), ("more",)):
                with anyio.fail_after(PATIENCE_SECONDS / 2):
                    await me.discovery.wait_for_first_answers(PATIENCE_SECONDS, *only)
        await until(lambda: "more" not in me.peers)
        async with join("more", offers=silent):  # it answers now, so it may be waited for again
            await until(lambda: names(me, "more") == ["late"])
            assert not me.discovery._unanswered


async def test_a_named_peer_is_asked_without_discovery() -> None:
    async with space_of_peers() as (_, join), join("more", offers=Shelf(["one"])), join("asker") as me:
        me.discovery.pace = QUICK
        await until(lambda: "more" in me.peers)
        await me.discovery.wait_for_first_answers(PATIENCE_SECONDS, "more")
        assert names(me, "more") == ["one"]


async def test_outdated_answer_is_asked_for_again() -> None:
    shelf = Shelf(["one"])
    async with space_of_peers() as (_, join), join("more", offers=shelf), join("asker", discover=True) as me:
        await until(lambda: names(me, "more") == ["one"])
        shelf.pages = [["two"]]
        await me.discovery.wait_for_first_answers(1.0)
        assert names(me, "more") == ["one"]
        me.discovery.pace = QUICK._replace(time_to_live_seconds=0.0)
        await me.discovery.wait_for_first_answers(1.0)
        await until(lambda: names(me, "more") == ["two"])


async def test_list_changed_notification_leads_to_a_new_request() -> None:
    shelf = Shelf(["one"])
    async with space_of_peers() as (_, join), join("tools", offers=shelf) as tools, join("asker", discover=True) as me:
        await until(lambda: names(me, "tools") == ["one"])
        shelf.pages = [["one", "two"]]
        await tools.send("mcp/notification", {"method": "notifications/tools/list_changed"})
        await until(lambda: names(me, "tools") == ["one", "two"])


async def test_peer_that_joins_again_is_asked_again() -> None:
    async with space_of_peers() as (_, join), join("asker", discover=True) as me:
        async with join("more", offers=Shelf(["old"])):
            await until(lambda: names(me, "more") == ["old"])
        async with join("more", offers=Shelf(["new"])):
            await until(lambda: names(me, "more") == ["new"])


async def test_participant_asks_only_after_it_gets_the_capability() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada, join("more", offers=Shelf(["x"])):
        recorder = EnvelopeRecorder(ada)
        async with join("mute", discover=True) as me:
            with anyio.fail_after(PATIENCE_SECONDS):
                await me.discovery.wait_for_first_answers(60.0)
            assert names(me, "more") is None
            granted = {"recipient": "mute", "capabilities": [{"kind": "mcp/request"}]}
            await ada.send("capability/grant", granted, to="mute")
            await until(lambda: names(me, "more") == ["x"])
        assert not recorder.sent_by("mute", "mcp/proposal")


async def test_participant_that_may_only_propose_proposes_once_to_each_peer() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada, join("more", offers=Shelf(["x"])):
        recorder = EnvelopeRecorder(ada)

        @ada.on("mcp/proposal")
        async def decide(proposal: Envelope) -> None:
            if proposal.addressees == ("more",):
                await ada.send("mcp/request", proposal.payload, to="more", correlation_id=(proposal.id,))
            else:
                await ada.send("mcp/reject", {"reason": "disagree"}, to="proposer", correlation_id=(proposal.id,))

        async with join("proposer", discover=True) as me:
            await until(lambda: names(me, "more") == ["x"])
            await me.discovery.wait_for_first_answers(5.0)
        assert sorted(p.addressees[0] for p in recorder.sent_by("proposer", "mcp/proposal")) == ["ada", "more"]


# -- few requests ---------------------------------------------------------------------------------


def crowd(count: int) -> str:
    members = "\n".join(
        f"  p{number}: {{command: mew, capabilities: [{{kind: mcp/request}}]}}" for number in range(count)
    )
    return f"space: {{id: demo}}\nparticipants:\n  ada: {{capabilities: [{{kind: '*'}}]}}\n{members}"


async def test_list_sent_to_another_participant_is_not_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)  # all but the first wait long enough to receive its answer
    async with space_of_peers(crowd(7)) as (_, join), join("ada") as ada, contextlib.AsyncExitStack() as stack:
        recorder = EnvelopeRecorder(ada)
        members = [await stack.enter_async_context(join(f"p{number}", discover=True)) for number in range(6)]
        await until(lambda: all(len(one.peers) == 6 for one in members))
        for number, one in enumerate(members):
            one.discovery.pace = QUICK._replace(stagger_seconds=0.0 if number == 0 else 60.0)
        shelf = Shelf(["one", "two"])
        async with join("p6", offers=shelf):
            await until(lambda: all(names(one, "p6") == ["one", "two"] for one in members))
            for one in members:
                await one.discovery.wait_for_first_answers(5.0)
        assert shelf.requested == ["tools/list"]
        requested = [
            r for number in range(6) for r in recorder.sent_by(f"p{number}", "mcp/request") if r.addressees == ("p6",)
        ]
        assert [(r.sender, r.body["method"]) for r in requested] == [("p0", "tools/list")]


async def test_list_received_while_waiting_for_a_turn_is_not_requested() -> None:
    async with space_of_peers(crowd(7)) as (_, join), join("ada") as ada, contextlib.AsyncExitStack() as stack:
        me = await stack.enter_async_context(join("p0", discover=True))
        me.discovery.pace = QUICK._replace(answer_seconds=PATIENCE_SECONDS)
        newest = me
        for number in range(1, 1 + CONCURRENT_REQUESTS):
            silent = Shelf(["never"], silent_for=9)
            newest = await stack.enter_async_context(join(f"p{number}", offers=silent))
            await until(lambda silent=silent: silent.requested)  # type: ignore[misc]
        asked, last = Shelf(["one"]), Shelf(["last"])
        async with join("p5", offers=asked), join("p6", offers=last):
            await until(lambda: {"p5", "p6"} <= set(ada.peers) & set(me.peers))
            await ada.request("p5", "tools/list")
            await until(lambda: names(me, "p5") == ["one"])
            await newest.aclose()  # its absence ends the request to it
            await until(lambda: names(me, "p6") == ["last"])
        assert asked.requested == ["tools/list"]


async def test_one_page_sent_to_another_participant_is_not_the_list() -> None:
    async with space_of_peers() as (_, join), join("asker", discover=True) as me, join("ada") as ada:
        me.discovery.pace = QUICK._replace(stagger_seconds=0.2)
        shelf = Shelf(["a"], ["b"])
        async with join("more", offers=shelf):
            await until(lambda: "more" in ada.peers)
            await ada.request("more", "tools/list")
            await until(lambda: names(me, "more") == ["a", "b"])


async def test_third_participant_cannot_answer_for_a_peer() -> None:
    async with space_of_peers() as (_, join), join("asker", discover=True) as me, join("ada") as ada:
        me.discovery.pace = QUICK._replace(stagger_seconds=0.2)
        shelf = Shelf(["true"])
        received: list[list[str] | None] = []
        me.on("mcp/response")(_noting(lambda: received.append(names(me, "more"))))
        async with join("more", offers=shelf), join("bob") as bob:
            await until(lambda: {"more", "bob"} <= set(ada.peers))
            request = await ada.send("mcp/request", {"method": "tools/list"}, to="more")
            forged = {"result": {"tools": [{"name": "forged"}]}}
            await bob.send("mcp/response", forged, to="ada", correlation_id=(request.id,))
            await until(lambda: names(me, "more") == ["true"])
        assert ["forged"] not in received


def _noting(note: Callable[[], None]) -> Callable[[Envelope], Awaitable[None]]:
    async def handler(_: Envelope) -> None:
        note()

    return handler


async def test_resources_are_hinted_at_with_the_tools_and_listed_on_demand() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada, join("asker", discover=True) as me:
        recorder = EnvelopeRecorder(ada)
        async with with_tools(join("tools")) as tools, join("more"):

            @tools.resource("notes://today")
            def today() -> str:
                """What happened."""
                return "rain"

            @tools.resource("notes://{day}")
            def notes(day: str) -> str:
                """A day's notes."""
                return day

            await until(lambda: me.discovery.with_resources() == ("tools",))
            assert resources(me, "tools") is None
            assert not [one for one in recorder.sent_by("asker", "mcp/request") if one.body["method"] != "tools/list"]
            found = await me.discovery.resources("tools")
            assert [(one.uri, one.is_template) for one in found] == [("notes://today", False), ("notes://{day}", True)]
            assert resources(me, "tools") == [one.uri for one in found]
        await until(lambda: me.discovery.with_resources() == ())


async def test_change_of_resources_is_followed_if_they_were_listed() -> None:
    async with space_of_peers() as (_, join), join("asker") as me, join("tools") as tools:
        tools.resource("notes://one")(lambda: "1")
        await until(lambda: "tools" in me.peers)
        await me.discover("tools")
        tools.resource("notes://two")(lambda: "2")
        await until(lambda: len(me.peers["tools"].resources or ()) == 2)
        tools.resources.remove("notes://one")
        await until(lambda: [one.uri for one in me.peers["tools"].resources or ()] == ["notes://two"])
