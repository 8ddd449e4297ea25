"""Sessions of an agent: what they share, what each has alone, the bound, restarts, and what an answer reports."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from tests.support.agents import AgentDriver, StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until

ASK = "What do the harbour records say about the tide gauge?"


async def ask(s: AgentDriver, text: str, session: str | None = None, **more: Any) -> dict[str, Any]:
    """The payload of the answer to a chat of ada in a session."""
    payload = {"text": text, **more, **({} if session is None else {"session": session})}
    answer = await s.ada.ask("chat", payload, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
    return dict(answer.body)


def sent(s: AgentDriver, nth: int = -1) -> str:
    """The messages of a model request as text."""
    return json.dumps(s.main_requests[nth].body["messages"])


async def test_a_session_knows_only_its_own_messages(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await ask(s, "The pump is red.")
        await ask(s, "The valve is blue.", "one")
        await ask(s, "What is red and what is blue?", "two")
        other = sent(s)
        await ask(s, "And now?", "one")
        again = sent(s)
        await ask(s, "And here?")
        own = sent(s)
    assert "pump" not in other
    assert "valve" not in other
    assert "valve" in again
    assert "pump" not in again
    assert "pump" in own
    assert "valve" not in own


async def test_two_participants_with_one_session_name_are_apart(start_agent: StartAgent, joined: Any) -> None:
    async with start_agent() as s, joined("bob") as bob:
        await ask(s, "The valve is blue.", "one")
        await bob.ask("chat", {"text": "Which valve?", "session": "one"}, to="coder", answer="chat")
        assert "blue" not in sent(s)


async def test_stored_sessions_of_another_form_are_ignored_with_a_warning(
    start_agent: StartAgent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "coder.db"
    store = SqliteStore(path)
    await store.keep_value("sessions", ["ada"])
    await store.aclose()
    async with start_agent(agent={"store": path}) as s:
        assert (await ask(s, "The valve is blue.", "one"))["text"]
    assert "sessions not loaded" in caplog.text


async def test_a_name_against_the_rules_is_a_session_of_its_own(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await ask(s, "The pump is crimson.")
        long = await ask(s, "The valve is blue.", "x" * 5_000)
        await ask(s, "What colour?", "\n")
        assert "blue" not in sent(s)
        assert "crimson" not in sent(s)
    assert len(long["turn"]["session"]) == 32


async def test_each_session_has_its_own_figures(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await ask(s, ASK)
        own = (await s.status())["tokens"]
        long = await ask(s, f"{ASK} " * 20, "one")
        short = await ask(s, "Hm?", "two")
        await until(lambda: len(s.ada.peers["coder"].context.report.sessions or ()) == 2)  # type: ignore[union-attr]
        report = s.ada.peers["coder"].context.report
        assert report is not None
        figures = {one.session: one.tokens for one in report.sessions or ()}
        assert (await s.status())["tokens"] == own
    assert figures == {name: turn["turn"]["status"]["tokens"] for name, turn in (("one", long), ("two", short))}
    assert (figures["one"] or 0) > (figures["two"] or 0)
    assert [one.participant for one in report.sessions or ()] == ["ada", "ada"]


async def test_the_session_not_used_for_longest_is_deleted(
    start_agent: StartAgent, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_agent(agent={"max_sessions": 2}) as s:
        for name in ("one", "two", "one", "three"):
            await ask(s, f"This is {name}.", name)
        kept = await ask(s, "Still here?", "one")
        renewed = await ask(s, "Still here?", "two")
        report = s.ada.peers["coder"].context.report
    assert not kept["turn"]["is_new"]
    assert renewed["turn"]["is_new"]
    assert report is not None
    assert len(report.sessions or ()) == 2
    assert "deleted session 'two' of 'ada': more than 2 sessions" in caplog.text


async def test_a_participant_with_many_sessions_deletes_only_its_own(start_agent: StartAgent) -> None:
    async with start_agent(agent={"max_sessions": 2}) as s:
        sessions = s.agent._sessions
        for participant, name in (("ada", "one"), *(("bob", str(number)) for number in range(9))):
            await sessions.session_for(participant, name)
        assert list(sessions._sessions) == [("ada", "one"), ("bob", "7"), ("bob", "8")]


async def test_clients_of_one_participant_share_its_sessions(start_agent: StartAgent) -> None:
    async with start_agent(agent={"max_sessions": 3}) as s:
        sessions = s.agent._sessions
        for name in ("key1:a", *(f"key2:{number}" for number in range(9))):
            await sessions.session_for("ada", name)
        assert [name for _, name in sessions._sessions] == ["key1:a", "key2:7", "key2:8"]


async def test_with_many_participants_the_one_with_most_sessions_loses_one(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.agent.sessions.MAX_SESSIONS", 4)
    async with start_agent(agent={"max_sessions": 3}) as s:
        sessions = s.agent._sessions
        for participant, name in (("ada", "one"), ("bob", "1"), ("bob", "2"), ("bob", "3"), ("cleo", "one")):
            await sessions.session_for(participant, name)
        assert list(sessions._sessions) == [("ada", "one"), ("bob", "2"), ("bob", "3"), ("cleo", "one")]


async def test_a_new_session_stays_if_each_owner_has_one(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.agent.sessions.MAX_SESSIONS", 4)
    async with start_agent(agent={"max_sessions": 2}) as s:
        sessions = s.agent._sessions
        for number in range(3):
            await sessions.session_for("ada", f"key{number}:one")
        assert [name for _, name in sessions._sessions] == ["key1:one", "key2:one"]
        for name in ("bob", "cleo", "dora", "emil", "fred"):
            await sessions.session_for(name, "one")
        assert [one for one, _ in sessions._sessions] == ["cleo", "dora", "emil", "fred"]


async def test_sessions_survive_a_restart(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = {"store": tmp_path / "coder.db", "max_sessions": 2}
    async with start_agent(agent=agent) as s:
        for name in ("one", "two", "three"):
            await ask(s, f"The word of {name} is tide-{name}.", name)
    files = {path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))}
    assert len([name for name in files if re.fullmatch(r"coder\.db~[0-9a-f]{32}", name)]) == 2
    async with start_agent(agent=agent) as s:
        report = (await s.status())["context"]
        answer = await ask(s, "Which word?", "three")
        assert "tide-three" in sent(s)
        assert "tide-two" not in sent(s)
    assert [one["session"] for one in report["sessions"]] == ["three", "two"]
    assert not answer["turn"]["is_new"]


async def test_a_session_that_cannot_be_stored_is_still_apart(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = {"store": tmp_path / "coder.db"}
    async with start_agent(agent=agent) as s:
        await ask(s, "The valve is blue.", "one")
    for path in tmp_path.glob("coder.db~*"):
        path.unlink()
        path.mkdir()
    async with start_agent(agent=agent) as s:
        await ask(s, "The pump is crimson.")
        answer = await ask(s, "What colour?", "one")
        assert "crimson" not in sent(s)
    assert answer["turn"]["is_new"]


async def test_a_turn_reports_the_usage_of_all_its_calls(start_agent: StartAgent) -> None:
    def word_count(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    call = ScriptedToolCall(name="word_count", arguments='{"text": "a b"}')
    script = (ScriptedReply(tool_calls=(call,)), ScriptedReply(text="Two."))
    async with start_agent(tools=[word_count], script=script) as s:
        turn = (await ask(s, "Count a b", "main"))["turn"]
        prompts = [request.prompt_tokens for request in s.main_requests]
    assert turn["calls"] == len(prompts) == 2
    assert turn["session"] == "main"
    assert turn["usage"]["prompt_tokens"] == sum(prompts)
    assert turn["last_call"]["prompt_tokens"] == prompts[-1]
    assert turn["status"]["tokens"] == turn["last_call"]["total_tokens"]


async def test_unreported_usage_of_one_call_leaves_the_sum_out(start_agent: StartAgent) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    script = (ScriptedReply(tool_calls=(ScriptedToolCall(name="now"),)), ScriptedReply(text="Noon."))
    async with start_agent(tools=[now], script=script, fixed_usage=((50, 5, 55), None)) as s:
        turn = (await ask(s, "What time is it?", "one"))["turn"]
    assert (turn["calls"], turn["calls_without_usage"]) == (2, 1)
    assert "usage" not in turn


async def test_an_answer_without_a_session_has_no_report(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        assert set(await ask(s, ASK)) == {"text"}


async def test_a_response_format_reaches_the_model_for_one_answer(start_agent: StartAgent) -> None:
    form = {"type": "json_object"}
    async with start_agent() as s:
        await ask(s, ASK, "one", response_format=form)
        await ask(s, ASK, "one")
        formats = [request.body.get("response_format") for request in s.main_requests]
    assert formats == [form, None]


async def test_a_failed_turn_says_why(start_agent: StartAgent) -> None:
    async with start_agent(script=(ScriptedReply(status=400),)) as s:
        turn = (await ask(s, ASK, "one"))["turn"]
    assert "HTTP 400" in turn["problem"]
    assert turn["calls"] == 0


@pytest.mark.part("policies")
async def test_a_new_session_does_not_read_the_policy_file_again(start_agent: StartAgent, tmp_path: Path) -> None:
    policy = tmp_path / "early.yaml"
    policy.write_text("name: early\nbased_on: mew\n", encoding="utf-8")
    async with start_agent(agent={"policy": str(policy)}) as s:
        policy.unlink()
        answer = await ask(s, ASK, "one")
    assert answer["turn"]["status"]["context"]["policy"] == "early"
