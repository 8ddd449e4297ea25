"""`mew chat`."""

import io
import json
from pathlib import Path

import anyio
import pytest
from mew_spaces.config.loading import load_space, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import serve_rehearsal
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.agents import SPACE as AGENT_SPACE
from tests.support.agents import EnvelopeRecorder, running_agent
from tests.support.cli import REPORT, Outcome, Output, answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message, joined
from tests.support.rehearsal_model import rehearsal_options
from tests.support.waiting import PATIENCE_SECONDS, until


async def repeats(client: Client, request: Message) -> None:
    await client.chat(f"you said: {request['payload']['text']}", to=["ada"], correlation_id=[request["id"]])


async def does_not_correlate(client: Client, _request: Message) -> None:
    await client.chat("to somebody else", to=["guest"])
    await client.chat("hello", to=["ada"])


async def remarks(client: Client, request: Message) -> None:
    await client.send_envelope("reasoning/start", {"message": "hm"}, correlation_id=[request["id"]])
    await client.chat("half of it is done", to=["ada"])
    await client.chat("all of it is done", to=["ada"], correlation_id=[request["id"]])


async def tries_to_drive_the_terminal(client: Client, request: Message) -> None:
    await client.chat("red \x1b[31m line\nsecond", to=["ada"], correlation_id=[request["id"]])


async def test_answer_is_printed(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "are you there?", *seat(gateway))
    assert (outcome.code, outcome.out, outcome.err) == (0, "you said: are you there?\n", "")


@pytest.mark.parametrize("word", ["model_unreachable", "failed:the ACP agent 'codex' cannot be started"])
async def test_an_answer_that_reports_a_failure_exits_with_code_1(gateway: RunningGateway, word: str) -> None:
    async def fails(client: Client, request: Message) -> None:
        await status(client, word)
        await client.chat("I could not reach my model.", to=["ada"], correlation_id=[request["id"]])

    async with answering(gateway, "coder", fails):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert (outcome.code, outcome.out) == (1, "I could not reach my model.\n")


async def test_a_failure_before_the_question_is_not_that_of_the_answer(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats) as coder:
        await status(coder, "model_unreachable")
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert (outcome.code, outcome.out) == (0, "you said: hi\n")


async def test_a_refused_message_ends_at_once_with_the_reason(gateway: RunningGateway) -> None:
    async def refuses(client: Client, request: Message) -> None:
        payload = {"status": "refused: 100 of your chats are waiting already"}
        await client.send_envelope("chat/acknowledge", payload, to=["ada"], correlation_id=[request["id"]])

    async with answering(gateway, "coder", refuses):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    said = "'coder' refused the message: 100 of your chats are waiting already"
    assert (outcome.out, said in outcome.err) == ("", True)
    assert outcome.code not in (0, 4)


class Screen(io.TextIOWrapper):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


async def test_waiting_for_an_answer_shows_the_agents_activity(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    seen = Output(*(Screen(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)))

    async def shows(text: str) -> None:
        await until(lambda: text in seen.text(seen.err))

    async def calls(client: Client, word: str, number: int) -> None:
        spent = {"calls": number, "prompt_tokens": 400 * number, "completion_tokens": 9}
        await status(client, word, tokens=500, max_tokens=1_000, context={**REPORT, "spending": spent})

    async def works(client: Client, request: Message) -> None:
        await shows("coder: waiting for the answer, 500 of 1,000 tokens, ")
        await calls(client, "compacting", 3)
        await shows("coder: compacting, 500 of 1,000 tokens, ")
        await calls(client, "active", 4)
        await shows("coder: waiting for the answer, call 2, 500 of 1,000 tokens, ")
        await repeats(client, request)

    async with answering(gateway, "coder", works) as client:
        await calls(client, "active", 3)
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("chat", "coder", "hi", *seat(gateway), output=seen)
    assert outcome.out == "you said: hi\n"
    assert outcome.err.endswith("\r\x1b[K")


async def test_an_urgent_message_is_answered_with_the_running_turn() -> None:
    entered, opened = anyio.Event(), anyio.Event()

    async def look() -> str:
        """Look something up."""
        entered.set()
        await opened.wait()
        return "Door 4 is closed."

    settings = {"space": "demo", "between_steps": "urgent"}
    async with (
        serve_gateway(parse_space(AGENT_SPACE)) as gateway,
        serve_rehearsal(rehearsal_options()) as server,
        running_agent(gateway, server, settings, None, 30.0, "coder", [look]),
        Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob")) as bob,
        anyio.create_task_group() as tasks,
    ):
        recorder = EnvelopeRecorder(bob)
        await bob.chat("call look with {}", to="coder")
        with anyio.fail_after(PATIENCE_SECONDS):
            await entered.wait()
        outcomes: list[Outcome] = []

        async def chat() -> None:
            outcomes.append(await mew("chat", "coder", "Stop: door 4 is on fire.", "--urgent", *seat(gateway)))

        tasks.start_soon(chat)
        await recorder.first("coder", "chat/acknowledge", status="queued")
        assert next(one.body for one in recorder.sent_by("ada", "chat")) == {
            "text": "Stop: door 4 is on fire.",
            "receipts": True,
            "urgent": True,
        }
        opened.set()
        await until(lambda: bool(outcomes))
        assert outcomes[0].code == 0
        assert "read by coder in call 2" in outcomes[0].err
        assert "Stop: door 4 is on fire." in str(server.requests[1].body["messages"])


async def test_unquoted_words_form_one_message(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "are", "you", "there?", *seat(gateway))
    assert outcome.out == "you said: are you there?\n"


async def test_paused_participant_gives_a_warning_and_a_timeout_hint(gateway: RunningGateway) -> None:
    async def stays_silent(_client: Client, _request: Message) -> None:
        return None

    async with answering(gateway, "coder", stays_silent) as client:
        await status(client, "paused")
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("chat", "coder", "hi", "--timeout", "0.2", *seat(gateway))
    assert outcome.code == 4
    assert outcome.err.splitlines() == [
        "mew: 'coder' is paused and answers later; `mew resume coder` resumes it",
        "mew: 'coder' did not answer 'chat' within 0.2 seconds (it is paused; `mew resume coder` resumes it)",
    ]


async def test_uncorrelated_answer_is_accepted(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", does_not_correlate):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "hello\n"


async def test_a_remark_during_the_turn_is_not_the_answer(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", remarks):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "all of it is done\n"


async def test_answer_cannot_control_the_terminal(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", tries_to_drive_the_terminal):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "red [31m line\nsecond\n"


async def test_dash_sends_standard_input(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a whole\nfile")))
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "-", *seat(gateway))
    assert outcome.out == "you said: a whole\nfile\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x89PNG", "TEXT: standard input is not UTF-8 text (at byte 0) (expected a text file)"),
        (b"a\x00b", "TEXT: standard input is not text (a NUL byte at 1) (expected a text file)"),
        (b"x" * 2_000_000, "request body too large; the limit is 1,048,576 bytes"),
    ],
    ids=["image", "binary", "large"],
)
async def test_chat_explains_why_a_file_cannot_be_sent(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, data: bytes, problem: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "-", *seat(gateway))
    assert (outcome.code != 0, outcome.out) == (True, "")
    assert problem in outcome.err
    assert outcome.err.count("\n") == 1


async def test_chat_help_shows_how_to_send_a_file() -> None:
    assert "`mew chat PARTICIPANT - < FILE` sends a text file." in (await mew("chat", "--help")).out


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_empty_message_is_bad_input(gateway: RunningGateway, text: str) -> None:
    outcome = await mew("chat", "coder", text, *seat(gateway))
    assert outcome.code == 2
    assert "is empty" in outcome.err


async def test_unknown_recipient_lists_the_members(gateway: RunningGateway) -> None:
    outcome = await mew("chat", "nobody", "boo", *seat(gateway))
    assert outcome.code == 2
    assert "no participant 'nobody' in space 'review' (members: ada, coder, guest)" in outcome.err


@pytest.mark.part("mcp")
async def test_chat_with_an_mcp_server_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("space: {id: review}\nparticipants:\n  ada: {role: person}\n  files: {mcp_server: {command: x}}\n")
    async with serve_gateway(load_space(path)) as gateway, joined(gateway, "files") as files:
        running_space(tmp_path, gateway=gateway.url, ws=gateway.ws_url, config=str(path))
        outcome = await mew("chat", "files", "hello", seat(gateway)[-1])
        assert (await files.until("chat"))["payload"]["text"] == "hello"
    said = "'files' offers tools and does not answer chats; `mew tools files` lists them"
    assert (outcome.code, outcome.out, outcome.err) == (4, "", f"mew: {said}\n")


async def test_answer_with_a_failure_exits_with_code_1(gateway: RunningGateway) -> None:
    failure = {"code": "killed", "problem": "its program was killed"}

    async def fails(client: Client, request: Message) -> None:
        payload = {"text": "I cannot answer.", "failure": failure}
        await client.send_envelope("chat", payload, to=[request["from"]], correlation_id=[request["id"]])

    async with answering(gateway, "coder", fails):
        outcome = await mew("chat", "coder", "go", "--json", *seat(gateway))
    assert outcome.code == 1
    assert json.loads(outcome.out)["failure"] == failure
