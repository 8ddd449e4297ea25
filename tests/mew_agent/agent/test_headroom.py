"""Chats that do not fit: notices to senders, held chats, and each way to deliver them. Gateway and model are real."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.context_report import answer_reserve_tokens
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import FitQuestion
from mew_protocol.payloads.text_fit import WouldFit
from mew_spaces.config.loading import SpaceConfig, load_space

from benchmarks.bursts import run_bursts
from mew_agent.agent.headroom import delivery_in
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.context.store import InboxChange
from mew_agent.conversation.fit import fit_of_text
from mew_agent.errors import ChatRefused, NoAnswer
from mew_agent.participant.participant import Participant
from mew_agent.tokens.projection import features
from mew_agent.tokens.sizes import Size
from tests.support.agents import SPACE, AgentDriver, StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until

WINDOW = 4_000
LONG = "\n".join(f"Line {number}: the gauge of hall {number % 17} shows {number * 31} litres." for number in range(400))
"""About twice the window."""


@pytest.fixture
def mode() -> str:
    return "hold"


@pytest.fixture
def space(tmp_path: Path, mode: str) -> SpaceConfig:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.replace("name: Demo", f"name: Demo, would_fit: {mode}"))
    return load_space(path)


async def acknowledged(driver: AgentDriver, chat: Envelope) -> dict[str, Any]:
    return dict((await driver.recorder.first("coder", "chat/acknowledge", about=chat, status="would_overflow")).body)


async def until_held(driver: AgentDriver, *chats: Envelope) -> None:
    """Wait until the agent reports that it holds exactly these chats."""

    def held() -> list[str]:
        context = driver.ada.peers["coder"].context.report
        return [str(wait.message) for wait in (context.waiting if context is not None else None) or ()]

    await driver.recorder.until(lambda: held() == [chat.id for chat in chats])


Joined = Callable[..., Participant]


def overflows(driver: AgentDriver) -> int:
    """How many requests were larger than the window."""
    return sum(request.prompt_tokens > WINDOW for request in driver.server.requests)


async def test_the_sender_of_a_held_chat_chooses_its_delivery(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        chat = await driver.send_chat(LONG)
        said = await acknowledged(driver, chat)
        fit = said["fit"]
        assert said["held"]
        assert said["choices"] == ["reference", "digest", "anyway", "cancel"]
        assert fit["fits"] is False
        assert fit["fits_after_compaction"] is False
        assert fit["tokens"] > WINDOW
        assert fit["max_tokens"] == WINDOW
        assert fit["tokens_basis"] == "heuristic"
        notice = await driver.recorder.first("coder", "chat", about=chat)
        assert notice.body["needs_reply"] is False
        assert "`reference`" in notice.body["text"]
        await driver.recorder.until(lambda: any("waiting" in status["context"] for status in driver.statuses))
        (wait,) = driver.statuses[-1]["context"]["waiting"]
        assert (wait["kind"], wait["peer"], wait["message"]) == ("room", "ada", chat.id)
        assert await driver.ask("Are you there?"), "others are answered"
        choice = await driver.ada.ask(
            "chat", {"text": "Reference."}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS
        )
        assert choice.correlation_ids[0] == chat.id
        assert len(choice.correlation_ids) == 2
        (asked,) = [one for one in driver.agent.conversation.history.items if one.envelope_id == chat.id]
        assert "read_reference" in asked.content
        assert "read_reference" not in asked.own_text, "the note is the agent's, not the sender's"
        assert len(asked.content) < 2_000
        assert not overflows(driver)
        assert driver.agent.conversation.tracker.waiting == ()


async def test_a_model_reads_parts_of_a_digest(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        chat = await driver.send_chat(f"{LONG}\nRule: never open hall 9.")
        await driver.recorder.first("coder", "chat", about=chat)
        await driver.ask("digest")
        items = driver.agent.conversation.history.items
        (asked,) = [one for one in items if one.envelope_id == chat.id]
        assert "Rule: never open hall 9." in asked.content.partition("[...]")[0], "the digest quotes the rule"
        (part,) = [one.content for one in items if one.role == "tool"]
        assert part.startswith(f"[{asked.id}, characters 0 to ")
        assert "Line 30:" in part
        assert not overflows(driver)


async def test_held_chats_are_answered_as_soon_as_a_compaction_makes_room(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=WINDOW, chunk_delay_seconds=0.004) as driver:
        chats = [await driver.send_chat(text(900)) for _ in range(7)]
        for chat in chats:
            answer = await driver.recorder.first("coder", "chat", about=chat)
            assert "would_overflow" not in answer.body, "no sender was asked"
        acks = driver.recorder.sent_by("coder", "chat/acknowledge")
        held = [one for one in acks if one.body["status"] == "would_overflow"]
        assert held
        assert all(one.body["fit"]["fits_after_compaction"] for one in held)
        assert held[-1].body["fit"]["queued_messages"]
        assert not overflows(driver)


async def test_held_chats_of_two_senders_with_one_id_are_two(start_agent: StartAgent, joined: Joined) -> None:
    async with start_agent(window_tokens=WINDOW) as driver, joined("bob") as bob:
        for sender, text in ((driver.ada, LONG), (bob, f"{LONG} And?")):
            await sender.messenger.send("chat", {"text": text}, to="coder", id="1")
        await driver.recorder.until(lambda: any(len(one["context"].get("waiting", ())) == 2 for one in driver.statuses))
        first, second = driver.statuses[-1]["context"]["waiting"]
        assert [(one["peer"], one["message"]) for one in (first, second)] == [("ada", "1"), ("bob", "1")]
        assert first["what"] != second["what"]


async def test_a_held_chat_survives_a_restart_and_can_be_cancelled(start_agent: StartAgent, tmp_path: Path) -> None:
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "s.sqlite")) as driver:
        kept, other = await driver.send_chat(LONG), await driver.send_chat(f"{LONG} And?")
        await driver.recorder.first("coder", "chat", about=other)
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "s.sqlite")) as driver:
        await until_held(driver, kept, other)
        await driver.ada.send("chat/cancel", {}, to="coder", correlation_id=(other.id,))
        await until_held(driver, kept)
        await driver.ada.deliver("coder", kept.id, "reference")
        answer = await driver.recorder.first("coder", "chat", about=kept)
        assert "would_overflow" not in answer.body
        assert not overflows(driver)
        assert not driver.recorder.sent_by("coder", "chat", about=other), "the notice is not repeated"
        assert driver.statuses[-1]["context"]["queued"]["messages"] == 0
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "s.sqlite")) as driver:
        await driver.ask("Are you there?")
        contents = [item.content for item in driver.agent.conversation.history.items]
        assert "reference" not in contents, "a choice is not read again after a restart"


async def test_a_chat_that_needs_no_answer_is_not_overdue(start_agent: StartAgent, joined: Joined) -> None:
    """It is counted, because the next call holds it, but nobody has to see to it that the agent reads it."""
    async with start_agent(window_tokens=8_192) as driver, joined("bob"):
        await driver.ada.chat("Lunch is at noon.")

        async def is_counted() -> bool:
            return bool((await driver.status())["context"]["queued"]["messages"] == 1)

        await until(is_counted)
        assert "oldest_at" not in (await driver.status())["context"]["queued"]


async def test_a_question_of_a_program_ends_with_would_overflow(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        stream = driver.ada.ask_agent("coder", LONG)
        with pytest.raises(NoAnswer, match="deliver it as `reference`") as failed:
            await stream
        assert failed.value.code == "would_overflow"
        fit = await driver.ada.would_fit("coder", LONG)
        assert fit.fits is False
        assert fit.tokens_basis == "heuristic"
        assert (await driver.ada.would_fit("coder", 100)).fits is True


async def test_a_program_learns_from_the_agent_itself_what_fits(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        await driver.ask("Are you there?")
        fit = await driver.ada.would_fit("coder", LONG)
        assert fit == await driver.agent._runtime.headroom.fit_of(FitQuestion(features=features(LONG).counts))
        assert (fit.by_report, fit.tokens_basis) == (None, "projected")
        assert fit.largest_tokens is not None, "only the agent knows it"


async def test_without_an_answer_the_last_report_decides_the_fit(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        await driver.ask("Are you there?")
        await driver.status()
        fit = await driver.ada.would_fit("coder", LONG, timeout_seconds=0)
        assert (fit.by_report, fit.fits, fit.tokens_basis) == (True, False, "heuristic")
        assert fit.largest_tokens is None


@pytest.mark.parametrize("mode", ["warn"])
async def test_a_warned_sender_still_gets_its_message_delivered(
    start_agent: StartAgent, mode: str, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=WINDOW, chunk_delay_seconds=0.004) as driver:
        chats = [await driver.send_chat(text(900)) for _ in range(6)]
        said = await acknowledged(driver, chats[-1])
        assert said["held"] is False
        assert "choices" not in said
        for chat in chats:
            await driver.recorder.first("coder", "chat", about=chat)


@pytest.mark.parametrize("mode", ["warn"])
async def test_an_idle_agent_warns_before_it_compacts_for_a_message(
    start_agent: StartAgent, mode: str, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        await driver.ask(text(2_600))
        small = text(1_000)
        question = FitQuestion(features=features(small).counts)
        request = {"fields": ["tokens"], "fit": question.model_dump(exclude_none=True)}

        async def answer_to(payload: Any) -> Envelope:
            return await driver.ada.ask("participant/request-status", payload, to="coder", answer="participant/status")

        asked = await answer_to(request)
        chat = await driver.send_chat(small)
        said = await acknowledged(driver, chat)
        await driver.recorder.first("coder", "chat", about=chat)
        assert said["fit"]["fits_after_compaction"]
        for key in ("fits", "tokens", "tokens_basis", "largest_tokens", "fits_after_compaction"):
            assert asked.body["fit"][key] == said["fit"][key]
        assert (await answer_to({"fit": {"tokens": 10}})).body["fit"]["tokens"] == 10
        assert "fit" not in (await answer_to({"fit": {"features": [1.0]}})).body


@pytest.mark.parametrize("mode", ["warn"])
async def test_a_message_that_can_never_fit_is_refused_before_any_call(start_agent: StartAgent, mode: str) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        await driver.ask("Are you there?")
        before, history = len(driver.server.requests), [*driver.agent.conversation.history.items]
        chat = await driver.send_chat(LONG)
        said = await driver.recorder.first("coder", "chat/acknowledge", about=chat, code="would_overflow")
        fit = said.body["fit"]
        assert fit["tokens"] > fit["largest_tokens"] > WINDOW // 2
        assert f"at most ~{fit['largest_tokens']:,} of the window of {WINDOW:,} fit" in said.body["status"]
        with pytest.raises(NoAnswer, match="never fit") as failed:
            await driver.ada.ask_agent("coder", LONG)
        assert failed.value.code == "would_overflow"
        assert len(driver.server.requests) == before, "nothing was spent"
        assert driver.agent.conversation.history.items == history
        assert driver.agent.conversation.tracker.compactions == 0
        assert await driver.ask("Are you still there?")


@pytest.mark.parametrize("mode", ["warn"])
async def test_the_largest_message_that_is_named_is_answered(start_agent: StartAgent, mode: str) -> None:
    async with start_agent(window_tokens=WINDOW) as driver:
        chat = await driver.send_chat(LONG)
        said = await driver.recorder.first("coder", "chat/acknowledge", about=chat, code="would_overflow")
        lines, fit = LONG.splitlines(), said.body["fit"]
        # The size of the text is a heuristic, which is a fifth too small for lines of numbers.
        part = "\n".join(lines[: len(lines) * fit["largest_tokens"] * 3 // (fit["tokens"] * 4)])
        assert await driver.ask(part)
        assert not overflows(driver)


def in_margin(driver: AgentDriver, text: str) -> bool:
    """Whether a text is too large for every compaction if its projected size is right, and only then."""
    fit = fit_of_text(driver.agent.conversation.tracker, Size(features(text)))
    return fit.may_never_fit and not fit.can_never_fit


@pytest.mark.parametrize("mode", ["warn"])
@pytest.mark.parametrize("names_size", [True, False])
async def test_a_message_that_only_its_model_refuses_costs_nothing(
    start_agent: StartAgent, text: Callable[[int], str], names_size: bool
) -> None:
    message = "\n".join(LONG.splitlines()[:240])
    async with start_agent(window_tokens=WINDOW, empty_stream_on_overflow=not names_size) as driver:
        for _ in range(3):
            await driver.ask(text(150))
        conversation = driver.agent.conversation
        assert in_margin(driver, message)
        before, tokens = len(driver.main_requests), conversation.tracker.measurement.tokens
        history = [*conversation.history.items]
        with pytest.raises(NoAnswer, match="never fit") as failed:
            await driver.ada.ask_agent("coder", message)
        assert failed.value.code == "would_overflow"
        said = await driver.recorder.first("coder", "chat/acknowledge", code="would_overflow")
        assert said.body["fit"]["tokens"] > said.body["fit"]["largest_tokens"] > WINDOW // 2
        (receipt,) = await driver.ada.receipts("coder", said.correlation_ids[0])
        assert (receipt.state, receipt.call) == ("refused", None)
        assert "never fit" in str(receipt.reason)
        assert not driver.summary_requests
        assert len(driver.main_requests) == before + 1
        assert conversation.history.items == history
        assert (conversation.tracker.measurement.tokens, conversation.tracker.measurement.basis) == (tokens, "reported")
        assert conversation.tracker.compactions == 0
        assert await driver.ask("Are you still there?")
        assert (await driver.status())["status"] == "active"


@pytest.mark.parametrize("mode", ["warn"])
async def test_a_killed_agent_sends_the_refusal_of_its_model_after_its_restart(
    start_agent: StartAgent, text: Callable[[int], str], tmp_path: Path, mode: str
) -> None:
    class LastStore(SqliteStore):
        """Stores a refusal, and nothing comes after it."""

        has_refusal = False

        async def change_inbox(self, change: InboxChange) -> None:
            await super().change_inbox(change)
            if any(chat.refusal is not None for chat in change.put):
                self.has_refusal = True
                await anyio.sleep_forever()

    message, store = "\n".join(LONG.splitlines()[:240]), LastStore(tmp_path / "coder.db")
    async with start_agent(window_tokens=WINDOW, store=store) as driver:
        for _ in range(3):
            await driver.ask(text(150))
        chat = await driver.send_chat(message)
        await until(lambda: store.has_refusal)
        acknowledged = driver.recorder.sent_by("coder", "chat/acknowledge", about=chat)
        assert "would_overflow" not in [one.body.get("code") for one in acknowledged]
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "coder.db")) as driver:
        said = await driver.recorder.first("coder", "chat/acknowledge", about=chat, code="would_overflow")
        assert said.body["fit"]["tokens"] > said.body["fit"]["largest_tokens"]
        await driver.ask("Are you there?")
        (receipt,) = await driver.ada.receipts("coder", chat.id)
        assert (receipt.state, receipt.call) == ("refused", None)
        assert str(receipt.reason) in said.body["status"]
        assert len(driver.main_requests) == 1


@pytest.mark.parametrize("mode", ["warn"])
@pytest.mark.parametrize(("history_tokens", "compactions"), [(600, 0), (1_500, 1)])
async def test_a_message_smaller_than_its_estimate_is_answered(
    start_agent: StartAgent, text: Callable[[int], str], history_tokens: int, compactions: int
) -> None:
    message = "internationalisation " * 700
    async with start_agent(window_tokens=WINDOW) as driver:
        conversation = driver.agent.conversation
        while (conversation.tracker.measurement.tokens or 0) < history_tokens:
            await driver.ask(text(150))
        assert in_margin(driver, message)
        assert await driver.ask(message)
        assert overflows(driver) == conversation.tracker.compactions == compactions
        if compactions:
            assert conversation.tracker.last_compaction is not None
            assert conversation.tracker.last_compaction.trigger == "overflow_error"


@pytest.mark.parametrize("mode", ["off"])
async def test_a_message_that_its_model_refuses_is_no_stall(
    start_agent: StartAgent, mode: str, tmp_path: Path, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "s.sqlite")) as driver:
        for _ in range(3):
            await driver.ask(text(400))
        with pytest.raises(ChatRefused, match="never fit"):
            await driver.ask(LONG)
        assert overflows(driver) == 1
        assert not driver.agent.conversation.tracker.is_stalled
    async with start_agent(window_tokens=WINDOW, store=SqliteStore(tmp_path / "s.sqlite")) as driver:
        assert not driver.agent.conversation.tracker.is_stalled
        assert not (await driver.status())["status"].startswith("compaction_stalled")


@pytest.mark.parametrize(("mode", "refused"), [("off", True), ("hold", False)])
async def test_bursts_overflow_only_without_the_check(mode: WouldFit, refused: bool) -> None:
    outcome = await run_bursts(mode, bursts=2, seed=1)
    assert bool(outcome.overflows) is bool(outcome.unread) is refused


def test_the_gateway_keeps_the_same_room_for_answers_as_the_policy() -> None:
    windows = (1, 19, 20, 4_000, 81_919, 81_920, 81_940, 128_000, 10**6)
    assert [answer_reserve_tokens(size) for size in windows] == [MEW.reserve.added_to(0, size)[0] for size in windows]


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ({"text": "`Reference`."}, "reference"),
        ({"text": "anyway"}, "anyway"),
        ({"text": "x", "deliver": "digest"}, "digest"),
        ({"text": "anyway, what now?"}, None),
        ({"text": "Send a reference"}, None),
        ({}, None),
    ],
)
def test_only_a_single_word_is_a_choice(body: dict[str, Any], how: str | None) -> None:
    chat = Envelope.write("chat", id="1", ts="", sender="ada", payload=body)
    assert delivery_in(chat) == how
