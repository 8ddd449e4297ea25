"""Read receipts say whether a model has read a message, and what its context still holds of it."""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.read_receipts import ReadReceipt
from mew_protocol.payloads.retrieval import Undo

from mew_agent.agent.inbox_receipts import LEFT_DURING_TURN
from mew_agent.context.archive import ItemLife
from mew_agent.context.message_facts import MAX_FOLLOWERS, MessageKey, ReceiptChange, ReceiptFollower
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.context.store import InboxChange, StoreLimits
from mew_agent.errors import NotConfirmed
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from tests.support.agents import AgentDriver
from tests.support.peers import with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

StartAgent = Callable[..., Any]


async def receipt_of(s: AgentDriver, message_id: str) -> ReadReceipt:
    (found,) = await s.ada.receipts("coder", message_id)
    return found


def copied(path: Path) -> Path:
    """Copy a session file as a process that is killed now leaves it."""
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


async def test_a_sender_learns_which_call_read_its_chat(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.ask("Hello.")
        sent = await s.send_chat("The code of door 4 is K-47.")
        receipts = await sent.read()
        assert receipts["coder"].call.number == 2
        assert str(sent.receipt) == "read by coder in call 2"
        answer = await s.recorder.first("coder", "chat", about=sent)
        await s.recorder.first("coder", "chat/acknowledge", about=sent, status="answered")
        with anyio.fail_after(PATIENCE_SECONDS):  # the answer is here before it is confirmed
            while (found := await receipt_of(s, sent.id)).answer is None:
                assert found.state == "answered"
        assert (found.state, found.in_context, found.basis) == ("answered", "whole", "prompt")
        assert found.answer == answer.id
        assert [event.what for event in found.history] == ["in_prompt", "answered"]
        assert str(sent.body["text"]) in str(s.main_requests[1].body["messages"])


async def test_receipts_follow_a_message_through_compaction_and_undo(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent() as s:
        plain = await s.ada.chat(text(100), to="coder")
        await s.recorder.first("coder", "chat", about=plain)
        fact = await s.ada.chat("Decision: we deploy on Fridays only.", to="coder")
        await s.recorder.first("coder", "chat", about=fact)
        for _ in range(3):
            await s.ask(text(50))
        await s.ada.compact("coder")
        found = await receipt_of(s, fact.id)
        assert (found.in_context, found.summary, found.compaction) == ("summary", "quoted", 1)
        lost = await receipt_of(s, plain.id)
        assert lost.in_context in ("summary", "recoverable")
        await s.ada.undo("coder")
        back = await receipt_of(s, fact.id)
        assert back.in_context == "whole"
        assert [event.what for event in back.history] == ["in_prompt", "answered", "summary", "undone"]


async def test_a_receipt_is_of_one_moment_although_an_undo_comes_between(
    start_agent: StartAgent, text: Callable[[int], str], tmp_path: Path
) -> None:
    class InterruptedStore(SqliteStore):
        """Lets the context change while a receipt reads the store."""

        meanwhile: Sequence[Callable[[], Awaitable[object]]] = ()

        async def life_of(self, seq: int) -> ItemLife | None:
            found = await super().life_of(seq)
            acts, self.meanwhile = self.meanwhile, ()
            for act in acts:
                await act()
            return found

    store = InterruptedStore(tmp_path / "coder.db")
    async with start_agent(store=store) as s:
        fact = await s.ada.chat("Decision: we deploy on Fridays only.", to="coder")
        await s.recorder.first("coder", "chat", about=fact)
        for _ in range(3):
            await s.ask(text(50))
        await s.ada.compact("coder")
        store.meanwhile = [lambda: s.agent.conversation.archive.undo(Undo(), "ada")]
        found = await receipt_of(s, fact.id)
        assert not store.meanwhile
        assert found.in_context == "whole"
        assert [event.what for event in found.history] == ["in_prompt", "answered", "summary", "undone"]


@pytest.mark.parametrize("end", ["cancelled", "answered"])
async def test_a_message_is_never_unknown_while_its_end_is_stored(
    start_agent: StartAgent, tmp_path: Path, end: str
) -> None:
    class WatchedStore(SqliteStore):
        """Asks for receipts before it stores an end."""

        seen: list[ReadReceipt]

        async def change_inbox(self, change: InboxChange) -> None:
            for one in change.receipts.endings:
                self.seen.append(await s.agent.control.receipts.book.receipt(one.key))
            await super().change_inbox(change)

    store = WatchedStore(tmp_path / "coder.db")
    store.seen = []
    async with start_agent(store=store, chunk_delay_seconds=0.05) as s:
        first = await s.send_chat("The code of door 4 is K-47.")
        waiting = await s.ada.send("chat", {"text": "And of door 5?"}, to="coder")
        if end == "cancelled":
            await s.recorder.first("coder", "chat/acknowledge", about=waiting, status="queued")
            await s.ada.send("chat/cancel", {}, to="coder", correlation_id=(waiting.id,))
        await s.recorder.first("coder", "chat", about=first)
        await until(lambda: len(store.seen) == 2)
    found = {one.id: one for one in store.seen}
    assert found[first.id].state == "answered"
    assert found[first.id].call is not None
    assert found[waiting.id].state == ("queued" if end == "cancelled" else "answered")


async def test_a_forgotten_message_is_recoverable_and_an_unknown_one_is_unknown(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        sent = await s.send_chat("The code of door 4 is K-47.")
        await s.recorder.first("coder", "chat", about=sent)
        await s.control("clear")
        await s.recorder.first("coder", "participant/status", status="cleared")
        found = await receipt_of(s, sent.id)
        assert (found.state, found.in_context, found.compaction) == ("answered", "recoverable", 1)
        missing = await receipt_of(s, "nothing-like-it")
        assert (missing.state, missing.in_context) == ("unknown", "unknown")
        assert missing.reason is not None


async def test_a_result_of_a_tool_has_a_receipt(start_agent: StartAgent, joined: Callable[..., Participant]) -> None:
    call = ScriptedToolCall(name="bob__add", arguments='{"a": 2, "b": 3}')
    grant = {"recipient": "coder", "capabilities": [{"kind": "mcp/request", "payload": {"method": "*"}}]}
    async with start_agent(script=(ScriptedReply(tool_calls=(call,)),)) as s:
        await s.ada.send("capability/grant", grant)
        async with with_tools(joined("bob")):
            await s.ask("Add 2 and 3.")
        response = next(e for e in s.recorder.sent_by("bob", "mcp/response") if "5" in str(e.body.get("result")))
        found = await receipt_of(s, response.id)
        assert (found.state, found.in_context, found.sender) == ("in_prompt", "whole", "bob")
        assert found.call is not None
        assert found.call.number == 2


async def test_a_call_that_a_receipt_named_is_named_after_a_kill(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "coder.sqlite"
    async with start_agent(store=SqliteStore(path), chunk_delay_seconds=0.2) as s:
        sent = await s.send_chat("The code of door 4 is K-47.")
        first = (await sent.read())["coder"].call
        copy = copied(path)  # the model has begun its reply
    async with start_agent(store=SqliteStore(copy)) as s:
        await s.recorder.first("coder", "chat", about=sent)
        found = await receipt_of(s, sent.id)
        assert found.call == first
        after = await s.ada.chat("Who has the key?", to="coder")
        assert (await after.read())["coder"].call.number > first.number + 1


async def test_a_follower_is_notified_after_the_agent_was_killed_early(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "coder.sqlite"
    async with start_agent(store=SqliteStore(path), chunk_delay_seconds=0.2) as s:
        sent = await s.ada.send("chat", {"text": "The code of door 4 is K-47.", "receipts": True}, to="coder")
        await s.recorder.first("coder", "chat/acknowledge", about=sent, status="read")
        copy = copied(path)
    with closing(sqlite3.connect(copy)) as stored, stored:
        stored.execute("DELETE FROM follows")
    async with start_agent(store=SqliteStore(copy)) as s:
        await s.recorder.first("coder", "chat/acknowledge", about=sent, status="answered")
        told = [str(one.body["status"]) for one in s.recorder.sent_by("coder", "chat/acknowledge", about=sent)]
        assert told[-1] == "answered"
        assert len(told) == len(set(told))


async def test_a_restart_makes_no_removed_message_doubtful(
    start_agent: StartAgent, tmp_path: Path, text: Callable[[int], str]
) -> None:
    path = tmp_path / "coder.sqlite"
    async with start_agent(store=SqliteStore(path), agent={"context_token_limit": 8_192}) as s:
        s.server.change(window_tokens=600)  # the agent learns it when the model refuses the prompt
        sent = await s.send_chat(text(1_000))
        await s.recorder.first("coder", "chat/acknowledge", about=sent, code="would_overflow")
        before = await receipt_of(s, sent.id)
        assert (before.call, before.in_context) == (None, "recoverable")
    async with start_agent(store=SqliteStore(path)) as s:
        after = await receipt_of(s, sent.id)
        assert (after.call, after.in_context, after.reason) == (None, "recoverable", before.reason)


async def test_a_message_that_a_clear_removes_during_its_turn_is_in_doubt(start_agent: StartAgent) -> None:
    entered, opened = anyio.Event(), anyio.Event()

    async def look() -> str:
        """Look something up."""
        entered.set()
        await opened.wait()
        return "Door 4 is closed."

    async with start_agent(tools=[look]) as s:
        sent = await s.send_chat("call look with {}")
        with anyio.fail_after(PATIENCE_SECONDS):
            await entered.wait()
        await s.ada.clear("coder")
        found = await receipt_of(s, sent.id)
        assert found.call is not None
        assert (found.call.number, found.in_context, found.reason) == (1, "unknown", LEFT_DURING_TURN)
        opened.set()
        await s.recorder.first("coder", "chat", about=sent)
        assert (await receipt_of(s, sent.id)).in_context == "whole"


async def test_followers_are_told_each_time_that_a_form_returns(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=8_192, shortens_prompts=True) as s:
        for _ in range(6):
            await s.ask(text(250))
        sent = await s.ada.send("chat", {"text": "The code of door 4 is K-47.", "receipts": True}, to="coder")
        await s.recorder.first("coder", "chat", about=sent)

        def told() -> list[str]:
            found = s.recorder.sent_by("coder", "chat/acknowledge", about=sent)
            words = [str(one.body["status"]) for one in found if "receipt" in one.body]
            return [one for one in words if one != "queued"]  # only if it is not read at once

        await s.ask(text(250))
        expected = ["read", "answered"]
        for _ in range(2):
            s.server.change(window_tokens=1_200)
            await s.ask(text(250))
            expected.append("unknown")
            await until(lambda: told() == expected)
            s.server.change(window_tokens=8_192)
            await s.ada.forget("coder", entries=2)
            expected.append("whole")
            await until(lambda: told() == expected)
            await s.ask("Thank you.")  # the server reports a whole prompt


async def test_a_refusal_lost_with_the_connection_is_sent_again(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, text: Callable[[int], str]
) -> None:
    async def lose(_: object, chat: Envelope, *__: Any, **___: Any) -> None:
        raise NotConfirmed(chat)

    async with start_agent(window_tokens=2_000) as s:
        with monkeypatch.context() as broken:
            broken.setattr("mew_agent.participant.messenger.Messenger.refuse_chat", lose)
            sent = await s.ada.send("chat", {"text": text(6_000), "receipts": True}, to="coder")
            await until(lambda: s.agent._runtime.receipts.source.is_behind)
        s.agent._runtime.receipts.source.joined()
        told = await s.recorder.first("coder", "chat/acknowledge", about=sent, status="refused")
        assert told.body["receipt"]["state"] == "refused"
        s.agent._runtime.receipts.source.changed("join")  # sends nothing more
        await s.ask("Hello.")
        assert len(s.recorder.sent_by("coder", "chat/acknowledge", about=sent)) == 1


async def test_many_changes_of_one_message_push_out_no_other_follower(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "coder.sqlite")
    old, new = (ReceiptFollower(MessageKey("ada", name), "ada") for name in ("old", "new"))
    await store.change_inbox(InboxChange(receipts=ReceiptChange(followers=(old, new))))
    changes = [ReceiptFollower(new.key, "ada", f"queued {number}") for number in range(MAX_FOLLOWERS + 1)]
    await store.change_inbox(InboxChange(receipts=ReceiptChange(followers=changes)))
    await store.prune(StoreLimits())
    assert [one.key for one in await store.followers()] == [old.key, new.key]
    await store.aclose()


@pytest.mark.parametrize("decision", ["reject", "approve"])
async def test_a_decision_about_a_proposal_has_a_receipt(
    start_agent: StartAgent, joined: Callable[..., Participant], decision: str
) -> None:
    call = ScriptedToolCall(name="bob__add", arguments='{"a": 2, "b": 3}')
    may_propose = [{"kind": "mcp/request", "payload": {"method": "*/list"}}, {"kind": "mcp/proposal"}]
    async with start_agent(script=(ScriptedReply(tool_calls=(call,)),)) as s, AsyncExitStack() as stack:
        await s.ada.send("capability/grant", {"recipient": "coder", "capabilities": may_propose})
        await stack.enter_async_context(with_tools(joined("bob")))
        asked = await s.send_chat("Add 2 and 3.")
        proposal = await s.recorder.first("coder", "mcp/proposal")
        if decision == "reject":
            sent = await s.ada.send("mcp/reject", {"reason": "not now"}, to="coder", correlation_id=(proposal.id,))
        else:
            sent = await s.ada.send("mcp/request", proposal.body, to="bob", correlation_id=(proposal.id,))
        await s.recorder.first("coder", "chat", about=asked)
        found = await receipt_of(s, sent.id)
        assert (found.state, found.in_context, found.sender) == ("in_prompt", "whole", "ada")
        assert found.call is not None
        assert found.call.number == 2
