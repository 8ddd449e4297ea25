"""A participant that keeps its context elsewhere: what it reports, and what it is asked to do."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import LastCompaction
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Compact, CompactDone, Forget
from mew_protocol.status_word import status_word
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent import Participant
from mew_agent.errors import ControlRefused, InvalidReport, PeerError
from mew_agent.participant.event_handlers import ContextReported
from mew_agent.participant.external_context import ExternalContext
from tests.support.agents import EnvelopeRecorder
from tests.support.faulty_link import faulty_link
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]

NOW, LATER = "2026-01-31T12:00:00Z", "2026-01-31T12:05:00Z"
USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000, "cache_read_input_tokens": None}


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"tokens": -1}, "tokens"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({}, "tokens"),
        ({"tokens": 10, "window": 0}, "window"),
        ({"tokens": 10, "messages": -1}, "messages"),
        ({"tokens": 10, "basis": "exact"}, "basis"),
        ({"usage": {"prompt_tokens": 900, "completion_tokens": 1, "total_tokens": 800}}, "usage"),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}, "usage"),
        ({"usage": {"tokens": 3}}, "usage"),
        ({"usage": USAGE, "tokens": 899}, "tokens"),
        ({"tokens": 10, "model": 5}, "model"),
        ({"tokens": 10, "measured_at": "yesterday"}, "measured_at"),
        ({"tokens": 10, "measured_at": "2026-01-31T12:00:00"}, "measured_at"),
        ({"tokens": 10, "measured_at": "2026-01-31T11:59:59Z"}, "measured_at"),
    ],
)
def test_an_impossible_report_is_refused_and_changes_nothing(values: dict[str, Any], where: str) -> None:
    context = ExternalContext()
    context.report(500, basis="reported", now=NOW, window=1000)
    before = context.status()
    with pytest.raises(InvalidReport) as caught:
        context.report(**{"tokens": None, "basis": "reported", "now": NOW, **values})
    assert caught.value.where == where
    assert context.status() == before


def test_a_first_report_with_a_malformed_time_is_refused() -> None:
    context = ExternalContext()
    with pytest.raises(InvalidReport) as caught:
        context.report(500, basis="reported", now=NOW, measured_at="yesterday")
    assert caught.value.where == "measured_at"
    assert context.figures is None


def test_a_report_keeps_earlier_figures_despite_a_clock_change() -> None:
    context = ExternalContext()
    context.report(None, USAGE, basis="reported", now=LATER, window=2000, messages=4, model="m")
    context.report(1500, basis="reported", now=NOW, messages=0)
    status = context.status()
    assert (status.tokens, status.max_tokens, status.messages_in_context) == (1500, 2000, 0)
    assert status.context is not None
    assert (status.context.model, status.context.measured_at) == ("m", LATER)
    assert status.context.prompt_tokens is None  # of an earlier call


async def test_a_failure_is_shown_before_a_wait_to_compact_but_after_a_compaction() -> None:
    context = ExternalContext()
    context.compacting.is_held_up = True
    assert context.status().status == "compaction_waiting"
    context.failing = status_word("failed", "RuntimeError: the engine is gone")
    assert context.status().status == "failed:RuntimeError: the engine is gone"
    context.compacting.begin("requested")
    await context.compacting.announce_begin()
    assert context.status().status == "compacting"


def test_a_figure_without_a_meaning_has_no_level() -> None:
    context = ExternalContext()
    context.report(950, basis="agent_reported", now=NOW, window=1000)
    context.shows_level, known = False, context.status().context
    unknown = context.status().context
    assert known is not None
    assert unknown is not None
    assert isinstance(known.severity, int)
    assert (unknown.level, unknown.severity) == ("unknown", "unknown")


async def test_the_size_is_unknown_from_a_compaction_to_the_next_report() -> None:
    context = ExternalContext()
    context.report(1800, basis="agent_reported", now=NOW, window=2000)
    context.compacting.begin("threshold")
    await context.compacting.announce_begin()
    context.report(300, basis="agent_reported", now=NOW)  # the summariser's own prompt
    running = context.status()
    assert (running.tokens, running.status) == (None, "compacting")
    context.compacting.end(CompactDone(status="compacted", tokens_before=1800))
    after = context.status().context
    assert after is not None
    assert (after.basis, after.reason) == ("unknown", "compacted")
    assert after.last_compaction is not None
    assert after.last_compaction.freed_tokens is None
    context.report(700, basis="agent_reported", now=LATER)
    done = context.status()
    assert done.tokens == 700
    assert done.context is not None
    last = done.context.last_compaction
    assert last is not None
    assert (last.trigger, last.tokens_after, last.freed_tokens, last.basis) == ("threshold", 700, 1100, "projected")


def last_compaction(context: ExternalContext) -> LastCompaction:
    report = context.status().context
    assert report is not None
    assert report.last_compaction is not None
    return report.last_compaction


@pytest.mark.parametrize("tokens", [-5, 12.5, float("nan"), "many"])
async def test_an_invalid_report_completes_no_compaction(tokens: Any) -> None:
    context = ExternalContext()
    context.on_compact = lambda _: None
    context.report(1000, basis="reported", now=NOW, window=2000)
    await context.compact(Compact())
    with pytest.raises(InvalidReport):
        context.report(tokens, basis="reported", now=LATER)
    assert last_compaction(context).tokens_after is None
    context.report(400, basis="reported", now=LATER)
    assert (last_compaction(context).tokens_after, last_compaction(context).freed_tokens) == (400, 600)


def test_a_reason_without_a_meaning_is_refused_and_the_status_stays_valid() -> None:
    context = ExternalContext()
    context.report(500, basis="reported", now=NOW)
    reason: Any = "tired"
    with pytest.raises(InvalidReport, match="tired"):
        context.forget_figures(reason)
    assert context.status().tokens == 500


async def test_a_report_from_inside_the_handler_is_not_the_size_before_the_compaction() -> None:
    context = ExternalContext()

    async def compact(_: Compact) -> None:
        context.report(200, basis="reported", now=LATER)

    context.on_compact = compact
    context.report(1000, basis="reported", now=NOW, window=2000)
    await context.compact(Compact())
    assert last_compaction(context).tokens_before == 1000
    context.report(250, basis="reported", now=LATER)
    assert last_compaction(context).freed_tokens == 750


async def test_messages_that_left_the_context_are_not_counted() -> None:
    context = ExternalContext()
    context.on_compact = lambda _: CompactDone(status="compacted", freed_messages=4)
    context.on_forget = lambda _: 3
    context.on_clear = lambda: None
    context.report(1000, basis="reported", now=NOW, messages=12)
    await context.compact(Compact())
    assert context.status().messages_in_context == 8
    await context.forget(Forget(direction="oldest"))
    assert context.status().messages_in_context == 5
    await context.clear()
    assert context.status().messages_in_context == 0


async def test_a_report_during_the_next_compaction_does_not_measure_the_last_one() -> None:
    context = ExternalContext()
    context.on_compact = lambda _: None
    context.report(1000, basis="reported", now=NOW, window=2000)
    await context.compact(Compact())
    context.compacting.begin("agent")
    context.report(20, basis="reported", now=LATER)  # the summariser's own prompt
    assert last_compaction(context).tokens_after is None


async def test_a_report_that_was_lost_with_the_gateway_follows_after_the_next_welcome(
    gateway: RunningGateway, joined: Joined
) -> None:
    async with faulty_link(gateway.port) as link, joined("ada") as ada:
        bob = Participant(link.url, space="demo", id="bob", token=gateway.token_of("bob"))

        def shown() -> int | None:
            return ada.peers["bob"].context.tokens if "bob" in ada.peers else None

        async with bob:
            await bob.report_context(100, window=1000)
            await until(lambda: shown() == 100)
            link.go_dark()
            with anyio.move_on_after(0.1):
                await bob.report_context(900, window=1000)
            await link.cut()
            link.release()
            await until(lambda: shown() == 900)


@given(
    st.lists(
        st.one_of(
            st.integers(1, 10_000),
            st.sampled_from(["start", "end", "skip", "cleared", "restarted"]),
        ),
        max_size=30,
    )
)
def test_figures_from_before_a_compaction_are_not_shown_after_it(steps: list[int | str]) -> None:
    context, shown = ExternalContext(), None
    for step in steps:
        match step:
            case int():
                context.report(step, basis="reported", now=NOW)
                shown = None if context.compacting.is_running else step
            case "start":
                context.compacting.begin("requested")
            case "end":
                context.compacting.end(CompactDone(status="compacted"))
                shown = None
            case "skip":
                context.compacting.end(CompactDone.as_skipped("x"))
                shown = context.figures.tokens if context.figures and context.status().tokens else None
            case reason:
                context.forget_figures(reason)  # type: ignore[arg-type]
                shown = None
        assert context.status().tokens == (None if context.compacting.is_running else shown)


async def test_a_program_reports_its_context_and_is_asked_to_act(joined: Joined) -> None:
    seen: list[tuple[int | None, str | None]] = []
    asked: list[object] = []
    async with joined("ada") as ada, joined("bob") as bob:

        @ada.on(ContextReported)
        def note(event: ContextReported) -> None:
            seen.append((event.context.tokens, event.context.basis))

        @bob.on_compact
        async def compact(request: Compact) -> None:
            asked.append(request.target_tokens)

        @bob.on_forget
        def forget(request: Forget) -> int:
            asked.append(request.entries)
            return 2

        @bob.on_clear
        def clear() -> None:
            asked.append("clear")

        @bob.on_cancel
        def cancel(envelope: Envelope) -> None:
            asked.append(envelope.kind)

        @bob.on_pause
        def pause(control: object) -> None:
            asked.append(type(control).__name__)

        await bob.report_context(usage=USAGE, window=2000, model="theirs")
        await until(lambda: (1000, "reported") in seen)
        status = await ada.request_status("bob", timeout_seconds=30)
        assert (status.tokens, status.max_tokens) == (1000, 2000)
        done = await ada.compact("bob", target_tokens=500, timeout_seconds=30)
        assert (done.skipped, done.freed_tokens) == (False, None)
        await until(lambda: seen[-1] == (None, "unknown"))
        await bob.report_context(400, basis="agent_reported")
        await until(lambda: seen[-1] == (400, "agent_reported"))
        report = ada.peers["bob"].context.report
        assert report is not None
        assert report.last_compaction is not None
        assert report.last_compaction.freed_tokens == 600
        await ada.send("participant/forget", {"direction": "oldest", "entries": 2}, to="bob")
        await until(lambda: 2 in asked)
        await ada.send("participant/clear", {}, to="bob")
        await until(lambda: seen[-1] == (None, "unknown") and "clear" in asked)
        await ada.send("chat/cancel", {}, to="bob")
        await ada.send("participant/pause", {}, to="bob")
        await ada.send("participant/resume", {}, to="bob")
        await until(lambda: "Resume" in asked)
        assert asked == [500, 2, "clear", "chat/cancel", "Pause", "Resume"]


async def test_a_program_acting_for_a_person_keeps_the_persons_report(joined: Joined) -> None:
    async with joined("ada") as ada:
        async with joined("bob") as bob:
            await bob.report_context(1000, window=2000)
            await until(lambda: "bob" in ada.peers and ada.peers["bob"].context.tokens == 1000)
        async with joined("bob", reports_context=False) as acting:
            await acting.chat("done", to="ada")
            await ada.request_status("bob", timeout_seconds=30)
            assert ada.peers["bob"].context.tokens == 1000
            with pytest.raises(TypeError, match="outside of this package"):
                await acting.report_context(1)
        async with joined("bob"):
            await until(
                lambda: (report := ada.peers["bob"].context.report) is not None and report.reason == "restarted"
            )


async def test_a_failing_or_silent_handler_is_answered_and_the_figure_stays(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        recorder = EnvelopeRecorder(ada)
        await bob.report_context(1000, window=2000)

        @bob.on_compact
        def fail(request: Compact) -> None:
            raise RuntimeError("the engine is gone")

        failed = await ada.compact("bob", timeout_seconds=30)
        assert (failed.skipped, failed.reason) == (True, "RuntimeError: the engine is gone")

        @bob.on_compact
        async def wait(request: Compact) -> None:
            await anyio.sleep_forever()

        bob.external_context.handler_timeout_seconds = 0.01
        silent = await ada.compact("bob", timeout_seconds=30)
        assert (silent.skipped, silent.reason) == (True, "timeout")

        @bob.on_forget
        async def hang(request: Forget) -> None:
            await anyio.sleep_forever()

        @bob.on_clear
        def refuse() -> None:
            raise RuntimeError("the engine is gone")

        asked = await ada.send("participant/forget", {"direction": "oldest"}, to="bob")
        await recorder.first("bob", "participant/status", about=asked, status="refused:timeout")
        bob.external_context.handler_timeout_seconds = PATIENCE_SECONDS
        asked = await ada.send("participant/clear", {}, to="bob")
        await recorder.first(
            "bob", "participant/status", about=asked, status="refused:RuntimeError: the engine is gone"
        )
        await until(lambda: ada.peers["bob"].context.status == "active")
        assert (await ada.request_status("bob", timeout_seconds=30)).tokens == 1000


async def test_a_history_kept_elsewhere_is_refused_with_that_reason(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        for reason in ("has no context", "the agent's own program keeps its history"):
            undone = await ada.undo("bob", timeout_seconds=30)
            assert (undone.status, reason in (undone.reason or "")) == ("refused", True)
            with pytest.raises(ControlRefused, match=reason):
                await ada.pin("bob", "Never push to main.", timeout_seconds=30)
            with pytest.raises(ControlRefused, match=reason):
                await ada.unpin("bob", "p1", timeout_seconds=30)
            with pytest.raises(ControlRefused, match=reason):
                await ada.recall("bob", "port", timeout_seconds=30)
            with pytest.raises(ControlRefused, match=reason):
                await ada.compaction_history("bob", timeout_seconds=30)
            assert await ada.pins("bob", timeout_seconds=30) == ()
            await bob.report_context(5000, window=10_000)


async def test_a_control_without_a_handler_is_refused_and_claims_nothing(joined: Joined) -> None:
    words: list[str] = []
    async with joined("ada") as ada, joined("bob"):

        @ada.on("participant/status")
        def note(envelope: Envelope) -> None:
            words.append(str(envelope.body["status"]))

        done = await ada.compact("bob", timeout_seconds=30)
        assert (done.skipped, done.reason) == (True, "not_supported")
        for kind, payload in (("forget", {"direction": "oldest"}), ("clear", {}), ("restart", {})):
            await ada.send(f"participant/{kind}", payload, to="bob")
        await until(lambda: len(words) == 3)
        assert words == ["refused:not_supported"] * 3
        status = await ada.request_status("bob", timeout_seconds=30)
        assert (status.tokens, status.context) == (None, None)
        with pytest.raises(PeerError):
            await ada.compact("nobody", timeout_seconds=30)
