"""Providers reject every request with certain messages: none of them may stay in the history of an agent."""

from pathlib import Path
from typing import Any

import pytest

from mew_agent.agent.turn import LEFT_OUT
from mew_agent.conversation.texts import EMPTY_ANSWER
from mew_agent.parts.rehearsal.rehearsal_options import ScriptedReply, ScriptedToolCall
from tests.support.agents import AgentDriver, StartAgent

BROKEN = '{"q": "wat'


def look_up(q: str = "everything") -> str:
    """Look something up."""
    return f"found {q}"


def sent(driver: AgentDriver) -> list[dict[str, Any]]:
    """The messages of the newest request, without the system prompt."""
    body: dict[str, Any] = dict(driver.main_requests[-1].body)
    return list(body["messages"][1:])


@pytest.mark.parametrize(
    ("name", "arguments", "name_sent", "arguments_sent"),
    [
        ("look_up", BROKEN, "look_up", '{"INVALID_JSON": "{\\"q\\": \\"wat"}'),
        ("look_up", '"water"', "look_up", '{"INVALID_JSON": "\\"water\\""}'),
        ("look_up", '{"q": NaN}', "look_up", '{"INVALID_JSON": "{\\"q\\": NaN}"}'),
        ("", "{}", "_", "{}"),
        ("functions.look up", "{}", "functions_look_up", "{}"),
        ("x" * 80, "{}", "x" * 64, "{}"),
    ],
)
async def test_an_invalid_tool_call_enters_in_a_form_that_servers_accept(
    start_agent: StartAgent, name: str, arguments: str, name_sent: str, arguments_sent: str
) -> None:
    call = ScriptedToolCall(name=name, arguments=arguments)
    async with start_agent(tools=(look_up,), script=(ScriptedReply(tool_calls=(call,)),)) as driver:
        await driver.ask("How deep is the water?")
        (made,) = sent(driver)[1]["tool_calls"]
        assert made["function"] == {"name": name_sent, "arguments": arguments_sent}
        assert sent(driver)[2]["content"].startswith("Error: "), "the model learns what was wrong"


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_answer_enters_as_the_sender_reads_it(start_agent: StartAgent, text: str) -> None:
    async with start_agent(script=(ScriptedReply(text=text),)) as driver:
        assert await driver.ask("Hello?") == EMPTY_ANSWER
        await driver.ask("Are you there?")
        assert sent(driver)[1] == {"role": "assistant", "content": EMPTY_ANSWER}


async def test_a_rejected_question_does_not_fail_the_next_one(start_agent: StartAgent) -> None:
    async with start_agent(script=(ScriptedReply(text="Fine."), ScriptedReply(status=400))) as driver:
        await driver.ask("How are you?")
        await driver.ada.chat("By the way, this is a remark.")
        before = await driver.status()
        assert (await driver.ask("Say something forbidden.")).endswith(LEFT_OUT)
        after = await driver.status()
        assert (after["tokens"], after["context"]["basis"]) == (before["tokens"], "reported")
        await driver.ask("Say something else.")
        assert [message["content"] for message in sent(driver)] == ["How are you?", "Fine.", "Say something else."]
        *_, removed = await driver.agent.conversation.state.store.compactions()
        assert "HTTP 400" in str(removed.reason)


async def test_a_rejected_tool_result_leaves_with_its_call(start_agent: StartAgent) -> None:
    calls = [ScriptedReply(tool_calls=(ScriptedToolCall(name="look_up", arguments=f'{{"q": "{q}"}}'),)) for q in "ab"]
    async with start_agent(tools=(look_up,), script=(*calls, ScriptedReply(status=422))) as driver:
        await driver.ask("Look up a and b.")
        await driver.ask("And now?")
        roles = [(message["role"], message["content"]) for message in sent(driver)]
        assert roles == [("user", "Look up a and b."), ("assistant", ""), ("tool", "found a"), ("user", "And now?")]


async def test_a_failure_of_the_server_removes_nothing(start_agent: StartAgent) -> None:
    async with start_agent(script=(ScriptedReply(status=500),)) as driver:
        assert LEFT_OUT not in await driver.ask("How are you?")
        await driver.ask("And now?")
        assert [message["content"] for message in sent(driver)] == ["How are you?", "And now?"]


async def test_the_reasoning_of_a_turn_with_tool_calls_is_kept(start_agent: StartAgent, tmp_path: Path) -> None:
    """Some providers reject later requests without it; see `Dialect.sends_reasoning`."""
    script = (ScriptedReply(text="Yes."), ScriptedReply(tool_calls=(ScriptedToolCall(name="look_up"),)))
    store = {"store": tmp_path / "coder.db"}
    async with start_agent(agent=store, tools=(look_up,), script=script, visible_reasoning="I think.") as driver:
        await driver.ask("Are you there?")
        await driver.ask("Look it up.")
    async with start_agent(agent=store) as driver:
        replies = [item for item in driver.agent.conversation.history.items if item.role == "assistant"]
        assert [item.reasoning for item in replies] == ["", "I think.", "I think."]
        await driver.ask("Thanks.")
        assert "I think." not in str(sent(driver))
