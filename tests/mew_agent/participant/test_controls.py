"""The `participant/*` controls: which are carried out, which envelopes answer, in which order."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mew_protocol.context_report import ContextReport, LastReported
from mew_protocol.payloads.participant import Status
from mew_settings.environment import COMPAT_VARIABLE

from mew_agent.errors import NotAccepted
from mew_agent.participant.controls import narrowed
from mew_agent.participant.participant import Participant
from tests.support.agents import AgentDriver
from tests.support.waiting import PATIENCE_SECONDS

Joined = Callable[..., Participant]
StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""


def kinds_about(driver: AgentDriver, sent: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    """The agent's envelopes about another: kind, status word, addressees."""
    return [(e.kind, str(e.body.get("status")), e.addressees) for e in driver.recorder.sent_by("coder", about=sent)]


async def test_compact_is_answered_between_two_statuses(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent() as s:
        for _ in range(4):
            await s.ask(text(150))
        sent = await s.control("compact", {"reason": "long review ahead"})
        await s.recorder.first("coder", "participant/status", about=sent, status="compacted")
        assert kinds_about(s, sent) == [
            ("participant/status", "compacting", ()),
            ("participant/compact-done", "compacted", ("ada",)),
            ("participant/status", "compacted", ()),
        ]
        done = s.recorder.sent_by("coder", "participant/compact-done")[0].body
        status = s.statuses[-1]
        assert done["skipped"] is False
        assert done["freed_tokens"] == status["context"]["last_compaction"]["freed_tokens"]
        assert done["tokens_after"] == status["tokens"]
        assert status["context"]["basis"] == "server_counted"


@pytest.mark.parametrize(("payload", "reason"), [({}, "no_history"), ({"target_tokens": 8000}, "already_below_target")])
async def test_a_skipped_compaction_is_answered_in_the_same_order(
    start_agent: StartAgent, payload: dict[str, Any], reason: str
) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        sent = await s.control("compact", payload)
        await s.recorder.first("coder", "participant/status", about=sent, status="active")
        assert [word for _, word, _ in kinds_about(s, sent)] == ["compacting", "skipped", "active"]
        assert s.recorder.sent_by("coder", "participant/compact-done")[0].body["reason"] == reason


async def test_a_second_compact_while_one_runs_is_answered_at_once(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(chunk_delay_seconds=0.01) as s:
        for _ in range(4):
            await s.ask(text(150))
        first, second = await s.control("compact"), await s.control("compact")
        await s.recorder.first("coder", "participant/status", about=first, status="compacted")
        await s.recorder.until(lambda: bool(s.recorder.sent_by("coder", "participant/compact-done", about=second)))
        answer = s.recorder.sent_by("coder", "participant/compact-done", about=second)[0]
        assert answer.body["reason"] == "compaction_in_progress"
        assert "compacted" not in s.recorder.words("coder", about=second), "it is not over for the first"


async def test_forget_is_announced_before_and_after(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        for question in ("One.", "Two."):
            await s.ask(question)
        sent = await s.control("forget", {"direction": "oldest", "entries": 2})
        await s.recorder.first("coder", "participant/status", about=sent, status="forgot")
        assert s.recorder.words("coder", about=sent) == ["forgetting", "forgot"]
        assert s.statuses[-1]["messages_in_context"] == 2
        await s.control("forget", {"direction": "newest"})
        await s.ask("Three.")
        sent_messages = str(s.main_requests[-1].body["messages"])
        assert "One." not in sent_messages


async def test_the_reference_mode_ends_both_with_compacted(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPAT_VARIABLE, "reference")
    async with start_agent() as s:
        await s.ask("One.")
        for control, payload in (("forget", {"direction": "oldest", "entries": 1}), ("compact", {})):
            sent = await s.control(control, payload)
            await s.recorder.first("coder", "participant/status", about=sent, status="compacted")
            words = [word for kind, word, _ in kinds_about(s, sent) if kind == "participant/status"]
            assert words == ["compacting", "compacted"]


@pytest.mark.parametrize(("payload", "word"), [({}, "cleared"), ({"reason": "new topic"}, "cleared:new topic")])
async def test_a_clear_leaves_no_figure(start_agent: StartAgent, payload: dict[str, Any], word: str) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        sent = await s.control("clear", payload)
        status = (await s.recorder.first("coder", "participant/status", about=sent)).body
        assert status["status"] == word
        assert status["messages_in_context"] == 0
        assert "tokens" not in status
        assert status["context"]["reason"] == "cleared"
        assert status["context"]["last_reported"]["tokens"] == s.reported[-1]["tokens"]


async def test_a_restart_clears_and_announces_it(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        sent = await s.control("restart", {"mode": "soft", "reason": "x"})
        status = (await s.recorder.first("coder", "participant/status", about=sent)).body
        assert (status["status"], status["messages_in_context"]) == ("restarted", 0)
        assert "tokens" not in status
        assert await s.ask("Two.")


async def test_a_restart_closes_the_agents_own_streams(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=0.02) as s:
        await s.send_chat("Think slowly about water.")
        opening = await s.recorder.first("gateway", "stream/open")
        await s.server.wait_until(lambda: bool(s.server.requests) and s.server.requests[0].chunks_sent > 2)
        sent = await s.control("restart")
        closed = await s.recorder.first("coder", "stream/close")
        assert closed.body == {"stream_id": opening.body["stream_id"], "reason": "restart"}
        await s.recorder.first("coder", "participant/status", about=sent, status="restarted")
        assert s.recorder.received.index(closed) < s.recorder.received.index(
            s.recorder.sent_by("coder", about=sent)[-1]
        )
        await s.recorder.first("coder", "chat")
        assert len(s.recorder.sent_by("coder", "stream/close")) == 1


@pytest.mark.parametrize(("payload", "word"), [({}, "shutting_down"), ({"reason": "night"}, "shutting_down:night")])
async def test_a_shutdown_is_announced_before_leaving(
    start_agent: StartAgent, payload: dict[str, Any], word: str
) -> None:
    async with start_agent() as s:
        sent = await s.control("shutdown", payload)
        leave = await s.recorder.first("system:gateway", "system/presence", event="leave")
        assert leave.body["participant"]["id"] == "coder"
        assert s.recorder.words("coder", about=sent) == [word]
        with anyio.fail_after(PATIENCE_SECONDS):
            await s.ended.wait()


async def test_a_shutdown_cancels_the_running_call(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=5.0) as s:
        await s.send_chat("Think slowly.")
        await s.server.wait_until(lambda: bool(s.server.requests) and s.server.requests[0].chunks_sent > 0)
        await s.control("shutdown")
        with anyio.fail_after(PATIENCE_SECONDS):
            await s.ended.wait()
            await s.server.wait_until(lambda: s.server.requests[0].is_disconnected)


# -- pausing -----------------------------------------------------------------------------------------------


async def test_a_pause_holds_answers_until_the_resume(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        pause = await s.control("pause")
        await s.recorder.first("coder", "participant/status", about=pause, status="paused")
        await s.send_chat("Anybody there?")
        assert (await s.status())["status"] == "paused"
        assert not s.recorder.sent_by("coder", "chat")
        assert not s.server.requests
        resume = await s.control("resume")
        await s.recorder.first("coder", "participant/status", about=resume, status="active")
        await s.recorder.first("coder", "chat")


async def test_a_pause_during_a_call_holds_its_answer(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=0.005) as s:
        question = await s.send_chat("Think a little.")
        await s.server.wait_until(lambda: bool(s.server.requests) and s.server.requests[0].chunks_sent > 1)
        await s.control("pause")
        await s.server.wait_until(lambda: s.server.requests[0].is_complete)
        await s.recorder.until(lambda: bool(s.reported))
        assert s.reported[-1]["status"] == "paused"
        assert (await s.status())["status"] == "paused"
        assert not s.recorder.sent_by("coder", "chat", "reasoning/conclusion")
        await s.control("resume")
        await s.recorder.first("coder", "chat", about=question)


async def test_a_pause_ends_after_its_timeout(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        pause = await s.control("pause", {"timeout_seconds": 0.05})
        await s.recorder.first("coder", "participant/resume", about=pause)
        said = [
            (e.kind, e.body.get("status") or e.body.get("reason"), e.addressees)
            for e in s.recorder.sent_by("coder", about=pause)
        ]
        assert said == [
            ("participant/status", "paused", ()),
            ("participant/status", "active", ()),
            ("participant/resume", "timeout", ("ada",)),
        ]
        assert await s.ask("Back?")


async def test_a_newer_pause_replaces_the_older_ones_timeout(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        first = await s.control("pause", {"timeout_seconds": 0.05})
        second = await s.control("pause", {"timeout_seconds": 0.15})
        await s.recorder.first("coder", "participant/resume", about=second)
        assert s.recorder.words("coder", about=first) == ["paused"]
        forever = await s.control("pause", {"timeout_seconds": 1e300})
        await s.recorder.first("coder", "participant/status", about=forever, status="paused")
        assert (await s.status())["status"] == "paused"
        await s.control("resume")
        assert await s.ask("Back?")


async def test_a_resume_without_a_pause_is_answered(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        resume = await s.control("resume")
        await s.recorder.first("coder", "participant/status", about=resume, status="active")


async def test_a_compaction_is_answered_while_paused(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent() as s:
        for _ in range(4):
            await s.ask(text(150))
        await s.control("pause")
        done = await s.ada.compact("coder", timeout_seconds=60)
        assert not done.skipped


# -- asking for a status -----------------------------------------------------------------------------------


async def test_a_requested_status_goes_only_to_its_sender(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        answer = await s.ada.ask("participant/request-status", {}, to="coder", answer="participant/status")
        assert answer.to == ("ada",)
        assert answer.body["tokens"] == s.reported[-1]["tokens"]
        assert answer.body["latency_ms"] >= 0


async def test_requested_fields_keep_their_qualifiers(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.ask("One.")

        async def ask(*fields: str) -> dict[str, Any]:
            request = {"fields": list(fields)}
            received = await s.ada.ask("participant/request-status", request, to="coder", answer="participant/status")
            return dict(received.body)

        whole = await s.status()
        tokens = await ask("tokens")
        assert set(tokens) == {"messages_in_context", "status", "tokens", "context"}
        assert tokens["context"] == {"basis": "reported", "measured_at": whole["context"]["measured_at"]}
        assert set(await ask("latency")) == {"messages_in_context", "status", "latency_ms"}
        assert set(await ask("no such field")) == {"messages_in_context", "status"}
        assert (await ask("tokens", "context"))["context"] == whole["context"]
        # A peer that received partial statuses still knows the whole one.
        await s.recorder.until(lambda: len([e for e in s.recorder.sent_by("coder", "participant/status") if e.to]) == 5)
        assert s.ada.peers["coder"].context.tokens == whole["tokens"]
        assert s.ada.peers["coder"].context.level == "healthy"


def test_an_unknown_figure_keeps_its_reason_when_narrowed() -> None:
    report = ContextReport(
        basis="unknown", reason="cleared", last_reported=LastReported(tokens=5, measured_at="t", call_id="c")
    )
    status = Status(messages_in_context=0, status="active", context=report)
    assert narrowed(status, ("tokens",))["context"] == {"basis": "unknown", "reason": "cleared"}
    assert narrowed(status, None)["context"]["last_reported"]["tokens"] == 5


# -- who is obeyed, and bad input --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compact", "forget", "clear", "restart", "shutdown"])
@pytest.mark.parametrize("to", [(), ("bob",)])
async def test_controls_that_change_a_conversation_must_name_their_target(
    start_agent: StartAgent, kind: str, to: tuple[str, ...]
) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        sent = await s.ada.send(f"participant/{kind}", {"direction": "oldest"}, to=to)
        status = await s.status()
        assert status["messages_in_context"] == 2
        assert not s.recorder.sent_by("coder", about=sent)


@pytest.mark.parametrize(("kind", "word"), [("pause", "paused"), ("resume", "active"), ("request-status", "active")])
async def test_pause_resume_and_request_status_may_be_broadcast(start_agent: StartAgent, kind: str, word: str) -> None:
    async with start_agent() as s:
        sent = await s.ada.send(f"participant/{kind}", {})
        await s.recorder.first("coder", "participant/status", about=sent, status=word)
        elsewhere = await s.ada.send(f"participant/{kind}", {}, to="bob")
        await s.control("resume")
        await s.status()
        assert not s.recorder.sent_by("coder", about=elsewhere)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("request-status", {"fields": 5}),
        ("forget", {}),
        ("forget", {"direction": "sideways"}),
        ("forget", {"direction": "oldest", "entries": 0}),
        ("clear", {"reason": ["a", "list"]}),
    ],
)
async def test_an_unreadable_control_is_refused_to_its_sender(
    start_agent: StartAgent, kind: str, payload: dict[str, Any]
) -> None:
    async with start_agent() as s:
        sent = await s.control(kind, payload)
        refusal = await s.recorder.first("coder", "participant/status", about=sent)
        assert refusal.to == ("ada",)
        assert refusal.body["status"].startswith("refused:payload.")
        assert await s.ask("Still there?")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("pause", {"timeout_seconds": "soon"}),
        ("pause", {"timeout_seconds": -1}),
        ("shutdown", {"reason": {}}),
        ("resume", {"reason": 5}),
    ],
)
async def test_the_gateway_refuses_an_unreadable_control_that_it_enforces(
    start_agent: StartAgent, kind: str, payload: dict[str, Any]
) -> None:
    async with start_agent() as s:
        with pytest.raises(NotAccepted, match=r"invalid_payload.*payload\."):
            await s.control(kind, payload)
        assert await s.ask("Still there?")


async def test_an_unreadable_compact_is_answered(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        sent = await s.control("compact", {"target_tokens": "small"})
        answer = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert answer.body["skipped"] is True
        assert "target_tokens" in answer.body["reason"]


async def test_controls_work_without_the_capability_to_answer(start_agent: StartAgent) -> None:
    async with start_agent(name="mute") as s:
        answer = await s.ada.ask("chat", {"text": "One?"}, to="mute", answer="chat", timeout_seconds=60)
        assert answer.body["text"]
        for kind in ("pause", "resume", "request-status", "compact", "clear"):
            await s.ada.send(f"participant/{kind}", {}, to="mute")
        await s.ada.send("participant/shutdown", {}, to="mute")
        await s.recorder.first("system:gateway", "system/presence", event="leave")
        assert {e.kind for e in s.recorder.sent_by("mute")} == {"chat"}


# -- controls during a call --------------------------------------------------------------------------------


async def test_a_compact_during_a_call_runs_after_the_call(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent() as s:
        for _ in range(4):
            await s.ask(text(150))
        s.server.change(chunk_delay_seconds=0.005, tokens_per_chunk=6)
        question = await s.send_chat(text(150))
        await s.server.wait_until(lambda: s.main_requests[-1].number == 5 and s.main_requests[-1].chunks_sent > 1)
        sent = await s.control("compact")
        await s.recorder.first("coder", "participant/status", about=sent, status="compacting")
        assert not s.main_requests[-1].is_complete
        await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert s.main_requests[-1].is_complete
        await s.recorder.first("coder", "chat", about=question)
        assert len(s.main_requests) == 5


async def test_a_call_interrupted_by_a_control_is_repeated(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent(call_bound_seconds=0.05) as s:
        for _ in range(4):
            await s.ask(text(150))
        s.server.change(chunk_delay_seconds=5.0)
        question = await s.send_chat("What now?")
        await s.server.wait_until(lambda: s.main_requests[-1].number == 5 and s.main_requests[-1].chunks_sent > 0)
        s.server.change(chunk_delay_seconds=0.0)
        sent = await s.control("compact")
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert done.body["skipped"] is False
        assert s.server.requests[4].is_disconnected
        await s.recorder.first("coder", "chat", about=question)
        assert "What now?" in str(s.main_requests[-1].body["messages"])


async def test_a_clear_during_a_turn_keeps_the_question(start_agent: StartAgent) -> None:
    async with start_agent(call_bound_seconds=0.05) as s:
        await s.ask("Something old.")
        s.server.change(chunk_delay_seconds=5.0)
        question = await s.send_chat("Something new?")
        await s.server.wait_until(lambda: len(s.main_requests) == 2 and s.main_requests[-1].chunks_sent > 0)
        s.server.change(chunk_delay_seconds=0.0)
        sent = await s.control("clear")
        await s.recorder.first("coder", "participant/status", about=sent, status="cleared")
        await s.recorder.first("coder", "chat", about=question)
        requested = str(s.main_requests[-1].body["messages"])
        assert "Something new?" in requested
        assert "Something old." not in requested
        assert s.reported[-1]["messages_in_context"] in (1, 2)
        assert len(s.recorder.sent_by("coder", "reasoning/conclusion", about=question)) == 1


async def test_a_question_interrupted_too_often_is_answered_with_the_reason(start_agent: StartAgent) -> None:
    async with start_agent(call_bound_seconds=0.01, chunk_delay_seconds=5.0) as s:
        question = await s.send_chat("Will I ever know?")
        for number in range(1, 5):
            await s.server.wait_until(
                lambda number=number: len(s.main_requests) == number and s.main_requests[-1].chunks_sent > 0
            )
            await s.control("clear")
        answer = await s.recorder.first("coder", "chat", about=question)
        assert answer.body["text"] == "a control interrupted this call; please ask again."
