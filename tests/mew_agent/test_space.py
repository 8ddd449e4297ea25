"""A Python program that launches agents: `Space`, `Agent` by its id, and the verbs of its participant."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import httpx2
import pytest

from mew_agent.agent.agent import Agent
from mew_agent.errors import ConfigError, NotPermitted, PeerAbsent, Refused, Rejected, Unauthorized
from mew_agent.participant.participant import Participant
from mew_agent.space import OWNER, Space
from tests.support.waiting import PATIENCE_SECONDS, until


def count_words(text: str) -> int:
    """Count words."""
    return len(text.split())


def agent(name: str) -> Agent:
    return Agent(name, base_url="rehearsal", context_token_limit=8192, system_prompt=f"You are {name}.")


async def test_agents_of_a_program_answer_and_report_their_contexts() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space("review") as space:
            for name in ("planner", "coder"):
                await space.add(agent(name))
            answer = await space.me.ask_agent("planner", "Hello?")
            assert "Hello?" in answer.text
            assert answer.context.max_tokens == 8192
            assert space.me.peers["coder"].may_send("chat", {}, "planner")
            assert not space.me.peers["coder"].may_send("participant/compact", {}, "planner")
            async with httpx2.AsyncClient() as http:
                assert (await http.get(f"{space.url}/health")).status_code == 200


async def test_a_program_with_tools_joins_together_with_the_agents() -> None:
    tools = Participant(id="tools")

    @tools.tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            await space.add(tools)
            coder = await space.add(agent("coder"), capabilities=[{"kind": "mcp/request", "to": ["tools"]}])
            assert (await coder.call_tool("tools", "double", {"number": 21})).text == "42"
            await space.remove(tools)
            await until(lambda: "tools" not in coder.peers)
            with pytest.raises(KeyError):
                await space.remove(tools)


async def test_an_agent_that_comes_back_has_its_conversation(tmp_path: Path) -> None:
    def coder() -> Agent:
        return Agent("coder", base_url="rehearsal", context_token_limit=8192, store=tmp_path / "coder.sqlite")

    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            first = await space.add(coder())
            await space.me.ask_agent("coder", "One?")
            await space.remove(first)
            assert "coder" not in space.me.peers
            await space.add(coder())
            status = await space.me.request_status("coder")
            assert status.tokens is None
            assert status.context is not None
            assert status.context.reason == "restarted"
            assert status.context.last_reported is not None
            assert status.context.next_prompt_tokens, "the estimate comes back from what is stored"


async def test_errors_of_the_block_are_raised_as_they_are() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        coder = agent("coder")

        async def fail() -> None:
            async with Space() as space:
                await space.add(coder)
                with pytest.raises(ConfigError, match="already has a gateway or token"):
                    await space.add(coder)
                with pytest.raises(Refused, match="already"):
                    await space.add(Participant(id="coder"))
                assert coder.is_joined
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert not coder.is_joined


async def test_a_space_refuses_participants_before_it_is_open_and_capabilities_that_are_no_list() -> None:
    with pytest.raises(RuntimeError, match="space 'review' is not open; add participants inside `async with Space"):
        await Space("review").add(Participant(id="files"))
    async with Space("review") as space:
        with pytest.raises(TypeError, match=r"capabilities is a list: \['chat'\]"):
            await space.add(Participant(id="files"), capabilities="chat")


async def test_a_program_adds_agents_to_a_space_that_runs() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space("first") as running:
            async with Space(me=running.me) as space:
                await space.add(agent("coder"))
                assert space.name == "first"
                assert (await running.me.ask_agent("coder", "Hello?")).text
            await until(lambda: "coder" not in running.me.peers)


async def test_the_verbs_of_the_command_line_are_methods() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            me = space.me
            coder = await space.add(agent("coder"))
            await me.ask_agent("coder", "One?")
            assert (await me.pause("coder")).status == "paused"
            assert (await me.resume("coder")).status != "paused"
            assert (await me.forget("coder", 1)).messages_in_context < 2
            assert (await me.clear("coder")).messages_in_context == 0
            assert (await me.reset("coder")).messages_in_context == 0
            grant = await me.grant("coder", "participant/compact")
            await until(lambda: coder.may_send("participant/compact", to=(OWNER,)))
            await me.revoke("coder", grant_id=grant)
            with pytest.raises(NotPermitted):
                await coder.compact(OWNER)
            invited = await me.invite("bob", "chat")
            bob = Participant(space.gateway, space=space.name, id="bob", token=str(invited.token))
            async with bob:
                await me.kick("bob")
                await bob.until_ended()


async def test_a_peer_is_shut_down_from_python() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            await space.add(agent("coder"))
            await space.me.shutdown("coder", reason="the day is over")
            assert "coder" not in space.me.peers
            with pytest.raises(PeerAbsent):
                await space.me.shutdown("coder")


async def test_history_returns_the_newest_matching_envelopes() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            me = space.me
            await space.add(agent("coder"))
            for number in range(4):
                await me.chat(f"Note {number}.")
            await me.ask_agent("coder", "Last?")
            assert [one.body["text"] for one in await me.history(last=3)][:2] == ["Note 3.", "Last?"]
            assert {one.sender for one in await me.history("coder")} == {"coder", OWNER}
            assert {one.kind for one in await me.history(kinds_like=["participant/*"])} == {"participant/status"}
            stranger = Participant(space.gateway, space=space.name, id="eve", token="wrong")
            with pytest.raises(Unauthorized):
                await stranger.history()


async def test_proposals_are_decided_by_their_id() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            me, words, writer = space.me, Participant(id="words"), Participant(id="writer")
            words.tool(count_words)
            await space.add(words)
            await space.add(writer, role="agent")
            async with anyio.create_task_group() as tasks:
                for text in ("one two", "three"):
                    call: Mapping[str, object] = {"name": "count_words", "arguments": {"text": text}}
                    tasks.start_soon(propose, writer, call)
                await until(lambda: len(me.proposals) == 2)
                first, second = me.proposals
                await me.approve(first.envelope.id)
                await me.reject(second, "not now")
            await until(lambda: not me.proposals)
            with pytest.raises(ConfigError, match="is not open"):
                await me.approve(first.envelope.id)


async def propose(writer: Participant, call: Mapping[str, object]) -> None:
    with suppress(Rejected):
        await writer.propose("words", "tools/call", call)


async def test_a_running_turn_of_others_is_cancelled() -> None:
    slow = Agent("slow", base_url="rehearsal")
    started = anyio.Event()

    @slow.tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await anyio.sleep_forever()
        return ""

    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            await space.add(slow)
            bob = await space.add(Participant(id="bob"), role="person")
            assert await space.me.cancel("slow") == ()
            await bob.chat("Please use the tool wait.", to="slow")
            await started.wait()
            (sent,) = await space.me.cancel("slow", reason="too long")
            assert (sent.kind, sent.addressees) == ("reasoning/cancel", ("slow",))
            await until(lambda: not space.me.unfinished.turns)


async def test_a_cancelled_chat_gets_no_answer() -> None:
    slow = Agent("slow", base_url="rehearsal")
    with anyio.fail_after(PATIENCE_SECONDS):
        async with Space() as space:
            await space.add(slow)
            await space.me.pause("slow")
            sent = await space.me.chat("Hello?", to="slow")
            await space.me.cancel(sent, reason="too late")
            await space.me.resume("slow")
            assert "Again?" in (await space.me.ask_agent("slow", "Again?")).text
            texts = [item.content for item in slow.conversation.history.items]
            assert "Hello?" not in texts
