"""What an ACP agent's figures count, what they say after a restart or a cancel, and compactions that do not help."""

from pathlib import Path

import pytest
from mew_protocol.payloads.participant import Status
from mew_protocol.payloads.text_fit import fit_in
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.tokens.sizes import Size, Sizes
from tests.parts.acp.conftest import SPACE, Start
from tests.support.waiting import until

STALLED = "compaction_stalled:compacting does not free enough"


@pytest.mark.parametrize(
    ("style", "measure"), [("codex", "total"), ("kimi", "total"), ("opencode", "prompt"), ("stranger", None)]
)
async def test_a_report_says_what_its_figure_counts(start: Start, style: str, measure: str | None) -> None:
    async with start(style) as s:
        await s.ask("hello")
        status = await s.until_status(lambda body: body.get("tokens") == 1500)
        assert status["context"].get("measure") == measure


async def test_a_loaded_session_announces_nothing_of_its_history(start: Start, tmp_path: Path) -> None:
    store = {"store": str(tmp_path / "codex.db")}
    async with serve_gateway(parse_space(SPACE)) as gateway:
        async with start(gateway=gateway, **store) as s:
            await s.ask("hello")
        async with start(gateway=gateway, **store) as s:
            status = await s.until_status(lambda body: body["status"] == "ready")
            report = status["context"]
            assert (report["reason"], report["last_reported"]["tokens"]) == ("restarted", 1500)
            assert await s.ask("session?") == "loaded session: ada: session?"
            status = await s.until_status(lambda body: "tokens" in body)
            assert status["context"].get("compactions", 0) == 0
            words = set(s.recorder.words("codex"))
            assert not {"compacting", "compacted"} & words


@pytest.mark.parametrize("style", ["codex", "kimi"])
async def test_a_figure_after_a_cancelled_turn_is_provisional(start: Start, style: str) -> None:
    async with start(style) as s:
        asked = await s.ada.chat("wait for me", to="codex")
        await s.recorder.first("codex", "reasoning/start", about=asked)
        await s.recorder.until(lambda: bool(s.agent.engine.answer and s.agent.engine.answer.texts))
        await s.ada.send("chat/cancel", {}, to="codex", correlation_id=(asked.id,))
        status = await s.until_status(lambda body: body.get("tokens") == 1500)
        assert (status["context"]["basis"], status["context"]["level"]) == ("provisional", "unknown")
        await s.ask("hello")
        status = await s.until_status(lambda body: body.get("tokens") == 2000)
        assert (status["context"]["basis"], status["context"]["level"]) == ("agent_reported", "healthy")


async def test_an_agent_that_compacts_again_and_again_is_stalled(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask("compact yourself again and again")
        await s.until_status(lambda body: body["status"] == STALLED)
        assert s.recorder.words("codex").count("compacted") == 3
        status = s.agent.control.status()
        assert status.status == "compaction_stalled"
        await s.ada.send("participant/clear", {}, to="codex")
        await s.until_status(lambda body: body["status"] == "cleared")
        assert s.agent.control.status().status == "active"


async def test_compactions_with_work_between_them_are_not_stalled(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask("compact yourself again and again after work")
        assert s.recorder.words("codex").count("compacted") == 3
        assert not s.agent.external_context.is_stalled


async def test_compactions_are_seen_in_an_agent_that_reports_none(start: Start) -> None:
    async with start("opencode") as s:
        await s.ask("write messages with tools 9")
        assert "compacted" not in s.recorder.words("codex")
        await s.ask("write messages 3")  # an answer, the summary, and what follows
        assert s.recorder.words("codex").count("compacted") == 1
        status = await s.until_status(lambda body: body.get("tokens") == 2000)
        assert status["context"]["compactions"] == 1
        await s.ask("write messages 9")
        await s.until_status(lambda body: body["status"] == STALLED)


async def test_an_agent_is_not_asked_to_compact_when_that_frees_nothing(start: Start) -> None:
    async with start(compact_at="5%", env={"AGENT_STYLE": "codex", "AGENT_KEEPS": "1"}) as s:
        for number in range(5):  # it grows by 2,000 tokens each time, and its compactions free nothing
            await s.ask(f"number {number}")
        await s.until_status(lambda body: body["status"].startswith("compaction_stalled"))
        await s.ask("and more")
        assert s.recorder.words("codex").count("compacting") == 2


async def test_a_text_fits_or_not_into_an_acp_agent(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        body = await s.until_status(lambda body: body.get("tokens") == 1500)
        status = Status.model_validate(body)
        assert (fit_in(status, 10_000).fits, fit_in(status, 19_000).fits) == (True, False)
        assert (await s.ada.would_fit("codex", "A short text.")).fits is True
        await s.ada.compact("codex")
        after = await s.until_status(lambda body: body["status"] == "compacted")
        unknown = fit_in(Status.model_validate(after), 10)
        assert (unknown.fits, unknown.reason) == (None, "compacted")


async def test_a_chat_larger_than_the_window_never_reaches_the_program(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.until_status(lambda body: body.get("tokens") == 1500)
        long = await s.ada.chat("word " * 40_000, to="codex")
        refused = await s.recorder.first("codex", "chat/acknowledge", about=long, code="would_overflow")
        fit = refused.body["fit"]
        assert fit["tokens"] > fit["largest_tokens"]
        assert "can never fit" in refused.body["status"]
        assert await s.ask("hello")


async def test_a_queued_chat_takes_room_until_the_turn_that_reads_it(start: Start) -> None:
    async with start() as s:
        asked = await s.ada.chat("wait for me", to="codex")
        await s.recorder.until(lambda: bool(s.agent.engine.answer and s.agent.engine.answer.texts))
        queued = await s.bob.chat("word " * 2_000, to="codex")
        await s.recorder.first("codex", "chat/acknowledge", about=queued, status="queued")
        held = (await s.ada.request_status("codex")).context
        assert held is not None
        assert held.queued is not None
        assert (held.queued.messages, held.queued.basis) == (2, "heuristic")
        assert held.queued.tokens > 1_000
        await s.ada.send("chat/cancel", {}, to="codex", correlation_id=(asked.id,))
        await s.recorder.first("codex", "chat", about=queued)
        status = await s.until_status(lambda body: body.get("tokens") == 2000)
        assert status["context"]["queued"]["messages"] == 0


async def test_a_figure_that_counts_the_prompt_leaves_room_for_the_reply(start: Start) -> None:
    async with start("opencode") as s:
        await s.ask("hello")
        report = (await s.until_status(lambda body: body.get("tokens") == 1500))["context"]
        assert report["next_prompt_tokens"] > 1500
        assert report["next_prompt_basis"] == "heuristic"


async def test_a_chat_that_waits_is_measured_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[str]()
    measure = Sizes.measure

    async def count(self: Sizes, text: str) -> Size:
        measured.append(text)
        return await measure(self, text)

    monkeypatch.setattr(Sizes, "measure", count)
    async with start("codex") as stage:
        for number in range(20):
            await stage.ada.chat(f"The tide is {number} cm high.")
        await until(lambda: (queued := stage.agent.external_context.queued) is not None and queued.messages == 20)
    assert len([text for text in measured if "The tide" in text]) == 20
