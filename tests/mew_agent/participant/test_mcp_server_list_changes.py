"""Notifications that the list of tools or resources changed after joining."""

import pytest

from mew_agent.tools.functions import UnknownTool
from tests.support.agents import EnvelopeRecorder
from tests.support.peers import space_of_peers
from tests.support.waiting import until


def one() -> str:
    """One."""
    return "1"


def two() -> str:
    """Two."""
    return "2"


async def test_peers_learn_of_tools_added_and_removed_after_joining() -> None:
    async with space_of_peers() as (_, join), join("asker", discover=True) as me, join("tools") as tools:

        def known() -> list[str] | None:
            peer = me.peers.get("tools")
            return None if peer is None or peer.tools is None else [tool.name for tool in peer.tools]

        await until(lambda: known() == [])
        tools.tool(one)
        await until(lambda: known() == ["one"])
        tools.tool(two)
        await until(lambda: known() == ["one", "two"])
        tools.toolbox.remove("one")
        await until(lambda: known() == ["two"])
        with pytest.raises(UnknownTool):
            tools.toolbox.remove("one")


async def test_several_changes_cause_one_notification_for_each_list() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada, join("tools") as tools:
        recorder = EnvelopeRecorder(ada)
        tools.tool(one)
        tools.tool(two)
        tools.resource("notes://one")(one)
        tools.resource("notes://two")(two)
        await until(lambda: len(recorder.sent_by("tools", "mcp/notification")) == 2)
        await ada.request("tools", "tools/list")  # its answer comes after anything sent earlier
        reported = [notice.body["method"] for notice in recorder.sent_by("tools", "mcp/notification")]
        assert reported == ["notifications/tools/list_changed", "notifications/resources/list_changed"]


async def test_participant_without_the_capability_sends_no_notification() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada, join("more") as more:
        recorder = EnvelopeRecorder(ada)
        more.tool(one)
        assert [tool["name"] for tool in (await ada.request("more", "tools/list"))["tools"]] == ["one"]
        assert not recorder.sent_by("more", "mcp/notification")
        assert not recorder.sent_by("system:gateway", "system/error")


async def test_tools_added_before_joining_cause_no_notification() -> None:
    async with space_of_peers() as (_, join), join("ada") as ada:
        recorder, tools = EnvelopeRecorder(ada), join("tools")
        tools.tool(one)
        async with tools:
            await until(lambda: "tools" in ada.peers)
            await ada.request("tools", "tools/list")
        assert not recorder.sent_by("tools", "mcp/notification")
