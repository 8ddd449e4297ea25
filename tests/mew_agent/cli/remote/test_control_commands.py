"""Controls: the request, the answer, and what a person and a script see of them."""

import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from mew_spaces.gateway.auth import token_path
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.participant.participant import Participant
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import REPORT, answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW

BEFORE: Message = {"tokens": 98_412, "max_tokens": 128_000, "context": REPORT}
AFTER: Message = {"tokens": 27_046, "max_tokens": 128_000, "context": {**REPORT, "basis": "projected"}}


async def done(client: Client, request: Message, **payload: object) -> None:
    await client.send_envelope(
        "participant/compact-done", payload, to=[request["from"]], correlation_id=[request["id"]]
    )


async def compacts(client: Client, request: Message) -> None:
    await status(client, "compacting", to=request, **BEFORE)
    await done(client, request, status="compacted", skipped=False, freed_tokens=71_366, freed_messages=84)
    await status(client, "compacted", to=request, **AFTER)


async def skips(client: Client, request: Message) -> None:
    await done(client, request, status="skipped", skipped=True, reason="already_below_target")
    await status(client, "compacted", to=request, **AFTER)


async def says_nothing(_client: Client, _request: Message) -> None:
    return


@pytest.fixture
async def coder(gateway: RunningGateway) -> AsyncIterator[Client]:
    async with joined(gateway, "coder") as client:
        yield client


async def test_compaction_prints_tokens_freed(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", compacts):
        outcome = await mew("compact", "coder", "--reason", "long review ahead", *seat(gateway))
    freed = "coder: freed 71,366 tokens, 84 messages; now ~27,046 of 128,000 (projected; exact after its next call)\n"
    assert (outcome.code, outcome.out, outcome.err) == (0, freed, "")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
async def test_an_interrupted_compact_showed_progress_and_says_that_the_agent_goes_on(gateway: RunningGateway) -> None:
    async def begins(client: Client, request: Message) -> None:
        work = {"kind": "compaction", "done": 1, "total": 2, "unit": "pieces", "since": "2026-01-01T12:00:00Z"}
        await status(client, "compacting", **{**BEFORE, "context": {**REPORT, "progress": work}})

    screen, terminal = pty.openpty()
    shown = b""
    *flags, token = seat(gateway)
    command = ["env", token, *MEW, "compact", "coder", *flags]
    environment = {**os.environ, "TERM": "xterm"}
    with anyio.fail_after(PATIENCE_SECONDS):
        async with (
            answering(gateway, "coder", begins),
            await anyio.open_process(command, stderr=terminal, env=environment) as process,
        ):
            os.close(terminal)
            while b"coder: compacting, piece 2 of 2, 98,412 of 128,000 tokens" not in shown:
                shown += await anyio.to_thread.run_sync(os.read, screen, 1_000)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            with suppress(OSError):  # the terminal has no writer any more
                while more := os.read(screen, 1_000):
                    shown += more
    os.close(screen)
    assert b"coder continues to compact; `mew undo coder` restores what that removes" in shown
    assert b"Traceback" not in shown


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
async def test_an_interrupted_chat_cancels_the_question(gateway: RunningGateway) -> None:
    asked, cancelled = anyio.Event(), anyio.Event()
    about: list[Message] = []

    async def listens(_client: Client, message: Message) -> None:
        about.append(message)
        (cancelled if message["kind"] == "chat/cancel" else asked).set()

    *flags, token = seat(gateway)
    command = ["env", token, *MEW, "chat", "coder", "How high is the tide?", *flags]
    with anyio.fail_after(PATIENCE_SECONDS):
        async with answering(gateway, "coder", listens), await anyio.open_process(command) as process:
            await asked.wait()
            process.send_signal(signal.SIGINT)
            await cancelled.wait()
            assert process.stderr is not None
            assert b"".join([part async for part in process.stderr]) == b"mew: asked coder to cancel the question\n"
            assert await process.wait() == 130
    question, cancel = about
    assert cancel["correlation_id"] == [question["id"]]


async def test_request_carries_target_reason_and_one_recipient(gateway: RunningGateway) -> None:
    received: list[Message] = []

    async def listens(client: Client, request: Message) -> None:
        received.append(request)
        await compacts(client, request)

    async with answering(gateway, "coder", listens):
        await mew("compact", "coder", "--target-tokens", "500", "--reason", "why not", *seat(gateway))
    assert received[0]["payload"] == {"target_tokens": 500, "reason": "why not"}
    assert received[0]["to"] == ["coder"]
    assert received[0]["from"] == "ada"


async def test_a_status_without_a_word_is_no_outcome_of_a_compaction(gateway: RunningGateway) -> None:
    async def reports_first(client: Client, request: Message) -> None:
        await client.send_envelope(
            "participant/status", {"messages_in_context": 90}, to=["ada"], correlation_id=[request["id"]]
        )
        await compacts(client, request)

    async with answering(gateway, "coder", reports_first):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert (outcome.code, "freed 71,366 tokens, 84 messages" in outcome.out) == (0, True)


async def test_skipped_compaction_prints_the_reason_and_exits_with_3(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", skips) as client:
        await status(client, **AFTER)
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("compact", "coder", "--target-tokens", "200000", *seat(gateway))
    assert outcome.out == "coder: skipped, already below 200,000 (~27,046)\n"
    assert outcome.code == 3


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("no_history", "nothing to compact yet; the newest turns stay"),
        ("my_model_is_gone", "my model is gone"),
        (None, "no reason given"),
    ],
)
async def test_reasons_for_skipping_are_shown_in_words(gateway: RunningGateway, reason: str | None, said: str) -> None:
    async def skip(client: Client, request: Message) -> None:
        await done(client, request, status="skipped", skipped=True, **({"reason": reason} if reason else {}))

    async with answering(gateway, "coder", skip):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert (outcome.out, outcome.code) == (f"coder: skipped, {said}\n", 3)


async def test_answer_without_figures_invents_none(gateway: RunningGateway) -> None:
    async def vague(client: Client, request: Message) -> None:
        await done(client, request, status="compacted", skipped=False)
        await status(client, "compacted", to=request, context={"basis": "unknown", "reason": "no_call_yet"})

    async with answering(gateway, "coder", vague):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.out == "coder: freed ? tokens; now ? of ? (no call yet)\n"


async def test_unknown_participant_gets_a_suggestion(gateway: RunningGateway) -> None:
    outcome = await mew("compact", "ghost", *seat(gateway))
    assert outcome.err == "mew: no participant 'ghost' in space 'review' (did you mean 'guest'?)\n"
    assert outcome.code == 2


async def test_offline_participant_is_reported(gateway: RunningGateway) -> None:
    outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.err == "mew: 'coder' is not connected to space 'review'\n"
    assert outcome.code == 4


async def test_offline_program_of_the_running_space_can_be_started(gateway: RunningGateway, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("space: {id: review}\nparticipants: {ada: {}, coder: {agent: {base_url: rehearsal}}}\n")
    running_space(tmp_path, gateway=gateway.url, ws=gateway.ws_url, config=str(path))
    token_path(tmp_path / ".mew", "ada").write_text(gateway.token_of("ada"))
    outcome = await mew("compact", "coder")
    assert outcome.err == "mew: 'coder' is not connected to space 'review'; `mew restart coder` starts it\n"
    assert "restart" not in (await mew("compact", "ada")).err  # a person has no program


async def test_missing_answer_times_out(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", says_nothing):
        outcome = await mew("compact", "coder", "--timeout", "0.2", *seat(gateway))
    assert outcome.err == "mew: 'coder' did not answer 'participant/compact' within 0.2 seconds\n"
    assert outcome.code == 4


async def test_participant_that_leaves_ends_the_wait(gateway: RunningGateway) -> None:
    async def leaves(client: Client, _request: Message) -> None:
        await client.socket.close()
        await anyio.sleep_forever()

    async with answering(gateway, "coder", leaves):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.err == "mew: 'coder' left before it answered\n"
    assert outcome.code == 4


async def test_answer_to_another_request_is_ignored(gateway: RunningGateway) -> None:
    async def mixes_up(client: Client, request: Message) -> None:
        await done(client, {**request, "id": "another"}, status="compacted", freed_tokens=1)
        await compacts(client, request)

    async with answering(gateway, "coder", mixes_up):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert "freed 71,366" in outcome.out


async def test_answer_from_another_participant_is_ignored(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as other:

        async def beaten(client: Client, request: Message) -> None:
            await done(other, request, status="compacted", freed_tokens=1)
            await other.until("participant/compact-done")
            await compacts(client, request)

        async with answering(gateway, "coder", beaten):
            outcome = await mew("compact", "coder", *seat(gateway))
    assert "freed 71,366" in outcome.out


async def test_missing_capability_is_reported(gateway: RunningGateway, coder: Client) -> None:
    outcome = await mew("compact", coder.name, *seat(gateway, "guest"))
    assert outcome.err == "mew: 'guest' has no capability that covers 'participant/compact'; add one in space.yaml\n"
    assert outcome.code == 2


async def test_compaction_without_an_answer_is_read_from_the_final_status(gateway: RunningGateway) -> None:
    last = {"at": "2026-01-01T00:00:00Z", "trigger": "request", "freed_tokens": 900, "freed_messages": 4}

    async def mute(client: Client, request: Message) -> None:
        await status(client, "compacting", to=request)
        context = {"basis": "projected", "last_compaction": {**last, "basis": "projected"}}
        await status(client, "compacted", to=request, tokens=100, max_tokens=1_000, context=context)

    async with answering(gateway, "coder", mute):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.out.startswith("coder: freed ~900 tokens, 4 messages; now ~100 of 1,000 (projected")
    assert outcome.code == 0


async def test_compaction_without_figures_freed_an_unknown_number(gateway: RunningGateway) -> None:
    async def mute(client: Client, request: Message) -> None:
        await status(client, "compacted", to=request)

    async with answering(gateway, "coder", mute):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.out.startswith("coder: freed ? tokens")


async def test_failed_compaction_is_read_from_the_final_status(gateway: RunningGateway) -> None:
    async def mute(client: Client, request: Message) -> None:
        await status(client, "compaction_failed:no model", to=request)

    async with answering(gateway, "coder", mute):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert (outcome.out, outcome.code) == ("coder: skipped, no model\n", 3)


async def test_participant_without_a_context_skips_compaction(gateway: RunningGateway) -> None:
    async def tool(client: Client, request: Message) -> None:
        await status(client, "compacting", to=request, messages_in_context=0)
        await status(client, "compacted", to=request, messages_in_context=0)

    async with answering(gateway, "coder", tool):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.out.splitlines()[-1] == "coder: skipped, it reports no context"
    assert outcome.code == 3


@pytest.mark.parametrize(
    ("kept", "said"), [(1, "forgot 2 messages"), (2, "forgot 1 message"), (3, "had nothing to forget")]
)
async def test_forget_prints_the_number_of_dropped_messages(gateway: RunningGateway, kept: int, said: str) -> None:
    async def forgets(client: Client, request: Message) -> None:
        await status(client, "compacted", to=request, **{**BEFORE, "messages_in_context": kept})

    async with answering(gateway, "coder", forgets) as client:
        await status(client, **BEFORE)
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("forget", "coder", *seat(gateway))
    assert outcome.out == f"coder: {said}; 98,412 of 128,000 (reported)\n"


async def test_invalid_answer_fails_in_one_line(gateway: RunningGateway) -> None:
    async def garbles(client: Client, request: Message) -> None:
        await client.send_envelope("participant/compact-done", {"freed_tokens": "many"}, correlation_id=[request["id"]])

    async with answering(gateway, "coder", garbles):
        outcome = await mew("compact", "coder", *seat(gateway))
    assert outcome.err.startswith("mew: cannot read the answer of 'coder': 'status' is missing")
    assert outcome.err.count("\n") == 1
    assert outcome.code == 1


@pytest.mark.parametrize(
    ("command", "kind", "payload", "word", "said"),
    [
        (("pause", "--seconds", "5"), "participant/pause", {"timeout_seconds": 5.0}, "paused", "paused"),
        (("resume",), "participant/resume", {}, "active", "active"),
        (("clear", "--reason", "new task"), "participant/clear", {"reason": "new task"}, "cleared:new task", "cleared"),
        (("forget", "-n", "2"), "participant/forget", {"direction": "oldest", "entries": 2}, "compacted", "compacted"),
        (("forget", "--newest"), "participant/forget", {"direction": "newest"}, "compacted", "compacted"),
    ],
)
async def test_other_controls_print_the_answering_status(
    gateway: RunningGateway, command: tuple[str, ...], kind: str, payload: Message, word: str, said: str
) -> None:
    received: list[Message] = []

    async def obeys(client: Client, request: Message) -> None:
        received.append(request)
        if kind == "participant/forget":
            await status(client, "compacting", to=request, **BEFORE)
        await status(client, word, to=request, **BEFORE)

    async with answering(gateway, "coder", obeys):
        outcome = await mew(command[0], "coder", *command[1:], *seat(gateway))
    assert received[0]["kind"] == kind
    assert received[0]["payload"] == payload
    assert outcome.out.startswith(f"coder: {said}")
    assert outcome.out.endswith("; 98,412 of 128,000 (reported)\n")
    assert outcome.code == 0


async def test_outcome_of_a_control_is_printed_as_json(gateway: RunningGateway) -> None:
    async def obeys(client: Client, request: Message) -> None:
        if request["kind"] == "chat":
            await client.chat("done", to=["ada"], correlation_id=[request["id"]])
        else:
            await status(client, "active", to=request, **BEFORE)

    async with answering(gateway, "coder", compacts):
        compaction = await mew("compact", "coder", "--json", *seat(gateway))
    async with answering(gateway, "coder", obeys):
        resume = await mew("resume", "coder", "--json", *seat(gateway))
        answer = await mew("chat", "coder", "go", "--json", *seat(gateway))
    freed = json.loads(compaction.out)
    assert (freed["participant"], freed["freed_tokens"], freed["status"]["tokens"]) == ("coder", 71_366, 27_046)
    assert json.loads(resume.out) == {"participant": "coder", "messages_in_context": 3, "status": "active", **BEFORE}
    assert answer.out == '{"participant":"coder","text":"done"}\n'


async def test_shutdown_waits_until_the_participant_has_left(gateway: RunningGateway) -> None:
    agent = Participant(gateway.ws_url, space="review", id="coder", token=gateway.token_of("coder"))
    async with agent:
        outcome = await mew("shutdown", "coder", "--reason", "enough", *seat(gateway))
    assert (outcome.code, outcome.out) == (0, "coder: shut down\n")
    again = await mew("shutdown", "coder", "--json", *seat(gateway))
    assert again.code == 4


async def test_refused_control_exits_with_3(gateway: RunningGateway) -> None:
    async def refuses(client: Client, request: Message) -> None:
        await status(client, "refused: busy", to=request)

    async with answering(gateway, "coder", refuses):
        outcome = await mew("pause", "coder", *seat(gateway))
    assert outcome.out.startswith("coder: refused: busy")
    assert outcome.code == 3
