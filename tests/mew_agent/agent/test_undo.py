"""People and programs list, show, undo and search compactions over the space; the model recalls on its own."""

from collections.abc import Callable
from typing import Any

import pytest
from mew_protocol.payloads.participant import Compact, Forget

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.errors import ControlRefused, NotPermitted
from mew_agent.participant.participant import Participant
from tests.support.waiting import PATIENCE_SECONDS, until

StartAgent = Callable[..., Any]


async def test_a_compaction_is_listed_shown_and_undone_byte_for_byte(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent() as s:
        for number in range(5):
            await s.ask(f"The code of door {number} is K-{number}7. {text(100)}")
        before, sent = await s.status(), s.agent.conversation.history.request_messages("")
        done = await s.ada.compact("coder", reason="long review ahead")
        assert not done.skipped
        history = await s.ada.compaction_history("coder")
        (entry,) = history.entries
        assert (entry.number, entry.trigger, entry.asked_by, entry.reason) == (
            1,
            "requested",
            "ada",
            "long review ahead",
        )
        assert (entry.tokens_before, entry.tokens_after) == (before["tokens"], done.tokens_after)
        assert entry.cost is not None
        assert entry.cost.calls >= 1
        shown = await s.ada.show_compaction("coder", 1)
        assert shown.summary == s.agent.conversation.history.summary.text
        assert [item.text for item in shown.items] == [m.content for m in sent[: len(shown.items)]]

        undone = await s.ada.undo("coder", 1, reason="too early")
        assert (undone.status, undone.number, undone.entry) == ("undone", 1, 2)
        assert s.agent.conversation.history.request_messages("") == sent
        await s.recorder.until(lambda: "undone:1" in s.recorder.words("coder"))
        after = await s.status()
        assert abs(after["tokens"] - before["tokens"]) <= 2
        assert after["context"]["basis"] == "projected"
        assert after["messages_in_context"] == before["messages_in_context"]
        first, second = (await s.ada.compaction_history("coder")).entries
        assert (first.undone_by, second.trigger, second.undoes, second.asked_by) == (2, "undo", 1, "ada")
        await s.ask("And now?")
        drift = (await s.status())["context"]["drift_tokens"]
        assert abs(drift) <= 16
        assert "The code of door 0 is K-07." in str(s.main_requests[-1].body["messages"])


async def test_an_undo_is_refused_with_its_reason(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent(window_tokens=4096) as s:
        refused = await s.ada.undo("coder")
        assert (refused.status, refused.reason) == ("refused", "there is nothing to undo")
        for _ in range(5):
            await s.ask(text(400))
        await s.ada.compact("coder")
        for _ in range(4):
            await s.ask(text(300))
        await s.ada.compact("coder")
        assert (await s.ada.undo("coder", 1)).reason == "2 came after it; undo 2 first"
        assert (await s.ada.undo("coder", 9)).reason == "there is no entry 9; the newest is 2"
        assert (await s.ada.undo("coder", 2)).status == "undone"
        items = list(s.agent.conversation.history.items)
        misfit = await s.ada.undo("coder", 1)
        assert (misfit.status, misfit.tokens_before) == ("refused", misfit.tokens_after)
        assert "in a window of 4,096" in (misfit.reason or "")
        assert s.agent.conversation.history.items == items
        assert (await s.ada.undo("coder", 3)).reason == "3 is an undo itself; compact again instead"


async def test_a_clear_and_a_forget_can_be_undone(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent() as s:
        for _ in range(3):
            await s.ask(text(100))
        items, tokens = list(s.agent.conversation.history.items), (await s.status())["tokens"]
        forgotten = await s.control("forget", {"direction": "oldest", "entries": 2})
        await s.recorder.until(lambda: "forgot" in s.recorder.words("coder", about=forgotten))
        await s.control("clear", {"reason": "a new topic"})
        await s.recorder.until(lambda: "cleared:a new topic" in s.recorder.words("coder"))
        listed = (await s.ada.compaction_history("coder")).entries
        assert [(one.trigger, one.asked_by) for one in listed] == [("forget", "ada"), ("clear", "ada")]
        assert (await s.ada.undo("coder")).number == 2
        assert (await s.ada.undo("coder")).number == 1
        assert s.agent.conversation.history.items == items
        assert abs((await s.status())["tokens"] - tokens) <= 2


async def test_a_restarted_agent_undoes_and_recalls(
    start_agent: StartAgent, text: Callable[[int], str], tmp_path: Any
) -> None:
    async with start_agent(store=SqliteStore(tmp_path / "session.db")) as s:
        await s.ask(f"The lighthouse keeper is called Ondine. {text(80)}")
        for _ in range(4):
            await s.ask(text(100))
        items = list(s.agent.conversation.history.items)
        await s.ada.compact("coder")
    async with start_agent(store=SqliteStore(tmp_path / "session.db")) as s:
        (found, *_) = await s.ada.recall("coder", "lighthouse keeper")
        assert "is called Ondine" in found.text
        assert found.sender == "ada"
        assert await s.ada.recall("coder", "submarine") == ()
        assert (await s.ada.undo("coder")).status == "undone"
        assert s.agent.conversation.history.items == items
        assert await s.ada.recall("coder", "lighthouse keeper") == ()


async def test_capabilities_gate_requests_and_answers(start_agent: StartAgent, joined: Any) -> None:
    async with start_agent(name="writer") as s:
        with pytest.raises(ControlRefused, match="'writer' lacks the capability participant/history"):
            await s.ada.compaction_history("writer")
        with pytest.raises(ControlRefused, match="lacks the capability participant/undo-done"):
            await s.ada.undo("writer")
        mute: Participant
        async with joined("mute") as mute:
            with pytest.raises(NotPermitted, match="participant/recall"):
                await mute.recall("writer", "words")
    async with joined("bob") as bob, joined("ada") as ada:
        with pytest.raises(ControlRefused, match="has no context"):
            await bob.show_compaction("ada", 1)
        assert (await bob.undo("ada")).reason == "this participant has no context"
        assert ada.id == "ada"


async def test_a_model_recalls_what_its_summary_lost(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    script: list[Any] = [
        {"tool_calls": [{"name": "recall", "arguments": '{"words": "lighthouse keeper"}'}]},
        {"text": "Ondine."},
    ]
    async with start_agent() as s:
        await s.ask(f"The lighthouse keeper is called Ondine. {text(80)}")
        for _ in range(4):
            await s.ask(text(100))
        assert not s.main_requests[-1].body.get("tools")
        await s.ada.compact("coder")
        s.server.change(script=script)
        assert await s.ask("Who keeps the light?") == "Ondine."
        body = s.main_requests[-1].body
        assert [tool["function"]["name"] for tool in body["tools"]] == ["recall"]
        (result,) = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        assert "is called Ondine" in result


@pytest.mark.parametrize("control", ["clear", "undo"])
async def test_a_control_interrupts_a_silent_summary_at_once(
    start_agent: StartAgent, text: Callable[[int], str], control: str
) -> None:
    async with start_agent(summary_behaviour="silent", call_bound_seconds=10 * PATIENCE_SECONDS) as s:
        for _ in range(4):
            await s.ask(text(100))
        await s.agent.conversation.forget(Forget(direction="oldest", entries=1))
        asked = await s.control("compact")
        await until(lambda: s.summary_requests)
        await s.control(control)
        done = await s.recorder.first("coder", "participant/compact-done", about=asked)
        assert done.body["skipped"]
        assert "interrupted" in done.body["reason"]
        assert s.agent.conversation.tracker.compactions == 0


async def test_a_cancelled_chat_interrupts_the_summary_that_follows_its_answer(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    usage = ((1000, 100, 1100), (2500, 100, 2600), (4500, 100, 4600), (7313, 60, 7373))
    async with start_agent(summary_behaviour="silent", fixed_usage=usage, call_bound_seconds=1_000) as s:
        for _ in usage[1:]:
            await s.ask(text(300))
        asked = await s.send_chat(text(300))
        await until(lambda: s.summary_requests)
        await s.ada.send("chat/cancel", {}, to="coder", correlation_id=(asked.id,))
        await s.recorder.until(lambda: any(word.startswith("compaction_failed") for word in s.recorder.words("coder")))
        assert not s.agent.conversation.tracker.is_stalled


async def test_a_damaged_archive_says_so_and_stops_nothing(
    start_agent: StartAgent, text: Callable[[int], str], tmp_path: Any
) -> None:
    store = SqliteStore(tmp_path / "session.db")
    async with start_agent(store=store) as s:
        for _ in range(4):
            await s.ask(text(100))
        await s.agent.conversation.compact(Compact())
        await store._run(lambda db: db.execute("UPDATE compactions SET record = '{'"))
        (entry,) = (await s.ada.compaction_history("coder")).entries
        assert entry.problem == "damaged"
        assert (await s.ada.undo("coder")).reason == "1 is damaged in the session file"
        await store._run(lambda db: db.execute("CREATE TABLE left_text (wrong TEXT)"))
        assert await s.ada.recall("coder", "water station")
        assert await s.ask("Still there?")
