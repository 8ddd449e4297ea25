"""A2A as the SDK's own client sees it: cards, messages, streams, cancels, figures and errors."""

from collections.abc import Callable

import anyio
import httpx
import pytest
from a2a.client import Client
from a2a.client.errors import A2AClientError
from a2a.helpers import get_data_parts, get_message_text
from a2a.types import CancelTaskRequest, GetTaskRequest, Part, StreamResponse, SubscribeToTaskRequest, TaskState
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from mew_listener import listener_options

from mew_agent import Participant
from mew_agent.participant.answers import agent_answers as exchange
from mew_agent.parts.a2a import a2a_server
from mew_agent.parts.a2a import tasks as task_module
from mew_agent.parts.a2a.tasks import CONTEXT_EXTENSION
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from tests.parts.a2a.conftest import WITH_CONTEXT, StartA2A, call, question, report_in
from tests.support.rehearsal_model import ENDLESS
from tests.support.waiting import PATIENCE_SECONDS

ASK = "What do the harbour records say about the tide gauge at the northern pier?"
LONG = " ".join(f"Sentence {n} tells of stone {n}." for n in range(200))


def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def shown(events: list[StreamResponse]) -> str:
    """The answer as a stream shows it: pieces are appended, or replace what came before."""
    text = ""
    for update in (one.artifact_update for one in events if one.HasField("artifact_update")):
        piece = "".join(part.text for part in update.artifact.parts)
        text = text + piece if update.append else piece
    return text


def remarks(events: list[StreamResponse]) -> list[tuple[str, str]]:
    """The kind and the text of each message of the agent that is not the answer."""
    statuses = [one.status_update.status for one in events if one.HasField("status_update")]
    return [
        (one.message.metadata["kind"], get_message_text(one.message)) for one in statuses if one.HasField("message")
    ]


async def begin(client: Client, text: str = LONG) -> tuple[str, list[StreamResponse]]:
    """Ask; returns the task's id and the events up to the first piece of an answer, or what it waits for."""
    events = list[StreamResponse]()
    async for event in client.send_message(question(text)):
        events.append(event)
        if event.HasField("artifact_update") or event.status_update.status.HasField("message"):
            break
    return events[0].task.id, events


async def test_card_says_where_and_how_to_ask_the_agent(a2a: StartA2A) -> None:
    async with a2a(options={"configured": frozenset({"writer"})}) as built, httpx.AsyncClient() as stranger:
        card = (await stranger.get(f"{built.base_url}/agents/coder/.well-known/agent-card.json")).json()
        cards = (await built.http.get(f"{built.base_url}/agents")).json()["agents"]
        schema = (await stranger.get(card["capabilities"]["extensions"][0]["params"]["schema"])).json()
        ready = await stranger.get(f"{built.base_url}/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert [one["name"] for one in cards] == ["ada", "coder", "writer"]
    assert cards[1] == card
    assert {(one["url"], one["protocolVersion"]) for one in card["supportedInterfaces"]} == {
        (f"{built.base_url}/agents/coder", "1.0"),
        (f"{built.base_url}/agents/coder", "0.3"),
    }
    assert card["securitySchemes"]["token"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
    assert card["capabilities"]["extensions"][0]["uri"] == schema["$id"] == CONTEXT_EXTENSION


async def test_message_is_answered_with_the_reported_figures(a2a: StartA2A) -> None:
    async with a2a() as built:
        task = await built.send(ASK, context=WITH_CONTEXT)
        answered = await built.driver.recorder.first("coder", "chat")
        plain = await built.send(ASK)
        stored = await (await built.client()).get_task(GetTaskRequest(id=task.id))
    status = answered.body["turn"]["status"]
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert "".join(part.text for part in task.artifacts[0].parts) == answered.body["text"]
    report = report_in(task.metadata)
    assert report == {"participant": "coder", **{name: value for name, value in status.items() if name != "latency_ms"}}
    assert report["context"]["basis"] == "reported"
    assert report_in(plain.metadata) == {}
    assert stored == task


async def test_stream_shows_the_answer_and_the_tool_calls(a2a: StartA2A) -> None:
    call = ScriptedToolCall(name="word_count", arguments='{"text": "a b"}')
    script = (ScriptedReply(text="Let me count them.", tool_calls=(call,)), ScriptedReply(text="There are two words."))
    async with a2a(name="writer", tools=[word_count], script=script) as built:
        events = await built.stream("Count a b", agent="writer")
    assert events[0].HasField("task")
    assert shown(events) == "There are two words."
    assert ("thinking", "Let me count them.\n") in remarks(events)
    assert ("tool_call", 'word_count {"text": "a b"}') in remarks(events)
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert report_in(events[-1].status_update.metadata)["context"]["basis"] == "reported"


async def test_text_that_the_agent_discards_is_replaced(a2a: StartA2A) -> None:
    call = ScriptedToolCall(name="word_count", arguments='{"text": "a b"}')
    script = (ScriptedReply(text="Let me count. " * 60, tool_calls=(call,)), ScriptedReply(text="There are two words."))
    async with a2a(name="writer", tools=[word_count], script=script) as built:
        events = await built.stream("Count a b", agent="writer")
    pieces = [one.artifact_update for one in events if one.HasField("artifact_update")]
    assert pieces[0].artifact.parts[0].text.startswith("Let me count.")
    assert pieces[-1].last_chunk
    assert shown(events) == "There are two words."


async def test_context_is_a_session_that_remembers_and_compacts(a2a: StartA2A, text: Callable[[int], str]) -> None:
    async with a2a(window_tokens=3000, reply_tokens=60) as built:
        for _ in range(4):
            await built.stream(text(450), context_id="one")
        events = await built.stream(text(700), context_id="one")
        other = await built.stream(ASK, context_id="two")
    notices = [said for kind, said in remarks(events) if kind == "notice"]
    report = report_in(events[-1].status_update.metadata)
    freed = report["context"]["last_compaction"]["freed_tokens"]
    assert notices[0].startswith("compacting ")
    assert notices[1].startswith(f"freed {freed:,.0f} tokens")
    assert report_in(other[-1].status_update.metadata)["messages_in_context"] == 2


async def test_cancel_stops_the_agent_and_ends_the_stream(a2a: StartA2A) -> None:
    async with a2a(**ENDLESS) as built:
        client, ends = await built.client(), list[TaskState]()
        with anyio.fail_after(PATIENCE_SECONDS):
            task_id, _ = await begin(client)
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
                        if event.HasField("task"):
                            subscribed.set()
                        ends.append(event.status_update.status.state)

                subscribed = anyio.Event()
                tasks.start_soon(watch)
                await subscribed.wait()
                more = question("And this?")
                more.message.task_id = task_id
                with pytest.raises(UnsupportedOperationError, match="begins a task"):
                    [one async for one in client.send_message(more)]
                cancelled = await client.cancel_task(CancelTaskRequest(id=task_id))
            conclusion = await built.driver.recorder.first("coder", "reasoning/conclusion", cancelled=True)
            server = built.driver.server
            await server.wait_until(lambda: server.requests[0].is_disconnected)
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(CancelTaskRequest(id=task_id))
            with pytest.raises(UnsupportedOperationError, match="begins a task"):
                [one async for one in client.send_message(more)]
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
    assert ends[-1] == TaskState.TASK_STATE_CANCELED
    assert conclusion.body["reason"] == "the asker left"


async def test_task_continues_when_its_client_disconnects(a2a: StartA2A) -> None:
    async with a2a(chunk_delay_seconds=0.01) as built:
        client = await built.client()
        with anyio.fail_after(PATIENCE_SECONDS):
            task_id, _ = await begin(client)
            answered = await built.driver.recorder.first("coder", "chat")
            while (
                task := await client.get_task(GetTaskRequest(id=task_id))
            ).status.state == TaskState.TASK_STATE_WORKING:
                await anyio.sleep(0.01)
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert "".join(part.text for part in task.artifacts[0].parts) == answered.body["text"]


async def test_agent_that_leaves_for_good_fails_the_task(a2a: StartA2A, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RETURN_SECONDS", 0.05)
    options = {"configured": frozenset({"coder"})}
    async with a2a(**ENDLESS, options=options) as built:
        client, events = await built.client(), list[StreamResponse]()
        with anyio.fail_after(PATIENCE_SECONDS):
            async for event in client.send_message(question(LONG)):
                events.append(event)
                if event.HasField("artifact_update") and not built.driver.ended.is_set():
                    await built.driver.agent.aclose()
            absent = await built.send(ASK)
    status = events[-1].status_update.status
    assert status.state == TaskState.TASK_STATE_FAILED
    assert status.message.metadata["code"] == "agent_left"
    assert "'coder' left the space before it answered" in get_message_text(status.message)
    assert absent.status.state == TaskState.TASK_STATE_FAILED
    assert absent.status.message.metadata["code"] == "agent_not_here"


async def test_server_that_stops_fails_its_tasks(a2a: StartA2A) -> None:
    async with a2a(**ENDLESS) as built:
        client, events = await built.client(), list[StreamResponse]()
        with anyio.fail_after(PATIENCE_SECONDS):
            async for event in client.send_message(question(LONG)):
                events.append(event)
                if event.HasField("artifact_update"):
                    built.participant.close()
    assert events[-1].status_update.status.message.metadata["code"] == "closing"


async def test_strangers_read_no_list_and_write_no_address(a2a: StartA2A) -> None:
    path = "/agents/coder/.well-known/agent-card.json"
    async with a2a() as built, httpx.AsyncClient(base_url=built.base_url) as stranger:
        unknown = await stranger.get("/agents/nobody/.well-known/agent-card.json")
        card = (await stranger.get(path)).json()
        refused = [
            await stranger.get(path, headers={"host": "evil.example"}),
            *[await stranger.get(one) for one in ("/agents", "/agents/", "//agents", "/agents/coder", "/agents/%2e")],
        ]
    assert unknown.status_code == 404
    for answer in (unknown, *refused):
        assert not any(name in answer.text for name in ("ada", "coder'", "writer"))
        assert answer.status_code >= 400
    assert {one["url"] for one in card["supportedInterfaces"]} == {f"{built.base_url}/agents/coder"}
    assert "evil" not in str(card)


async def test_a_public_url_is_the_address_in_cards(a2a: StartA2A) -> None:
    async with a2a(public_url="https://agents.example.org/a") as built:
        card = (await built.http.get(f"{built.base_url}/agents/coder/.well-known/agent-card.json")).json()
    assert card["supportedInterfaces"][0]["url"] == "https://agents.example.org/a/agents/coder"


async def test_participants_without_known_tools_delay_a_list_once(
    a2a: StartA2A, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, both_asked = [], anyio.Event()

    async def wait_for_both(_me: object, name: str, _seconds: float) -> tuple[()]:
        asked.append(name)
        if len(asked) == 2:
            both_asked.set()
        await both_asked.wait()
        return ()

    monkeypatch.setattr(a2a_server, "tools_of", wait_for_both)
    async with a2a(options={"configured": frozenset({"writer"})}) as built:
        cards = (await built.http.get(f"{built.base_url}/agents")).json()["agents"]
    assert [one["name"] for one in cards] == ["ada", "coder", "writer"]
    assert sorted(asked) == ["coder", "writer"]


async def test_a_participant_that_answers_nothing_has_no_card(a2a: StartA2A) -> None:
    async with a2a(options={"silent": frozenset({"ada", "coder"})}) as built:
        cards = (await built.http.get(f"{built.base_url}/agents")).json()["agents"]
    assert cards == []


async def test_wrong_token_and_unknown_agent_are_refused(a2a: StartA2A) -> None:
    async with a2a(only=("writer",), options={"configured": frozenset({"writer"})}, name="writer") as built:
        client = await built.client("writer")
        with pytest.raises(A2AClientError, match="404"):
            await built.client("coder")
        missing = await built.http.post(f"{built.base_url}/agents/coder", json={})
        built.http.headers["authorization"] = "Bearer wrong"
        with pytest.raises(A2AClientError, match="401"):
            await client.get_task(GetTaskRequest(id="any"))
        cards = await built.http.get(f"{built.base_url}/agents")
    assert (missing.status_code, cards.status_code) == (404, 401)
    assert "no participant 'coder'" in missing.json()["error"]["message"]
    assert "wrong API key" in cards.json()["error"]["message"]


async def test_unusable_request_leaves_no_task(a2a: StartA2A, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_options, "BODY_BYTES", 10_000)
    async with a2a() as built:
        client = await built.client()
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="unknown"))
        request = question(ASK)
        request.message.parts.append(Part(raw=b"PNG", media_type="image/png"))
        with pytest.raises(ContentTypeNotSupportedError, match="text only"):
            [one async for one in client.send_message(request)]
        with pytest.raises(A2AError, match="no text"):
            await built.send(" ")
        with pytest.raises(A2AError, match="413"):
            await built.send("x" * 20_000)
        tasks = await built.http.post(
            f"{built.base_url}/agents/coder",
            json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}},
            headers={"A2A-Version": "1.0"},
        )
    assert tasks.json()["result"]["totalSize"] == 0
    assert not built.driver.recorder.sent_by("bob", "chat")


async def test_client_of_an_older_version_is_answered(a2a: StartA2A) -> None:
    message = {"messageId": "1", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": ASK}]}
    async with a2a() as built:
        response = await built.http.post(
            f"{built.base_url}/agents/coder",
            json={"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}},
            headers={"X-A2A-Extensions": CONTEXT_EXTENSION},
        )
        other = await built.http.post(
            f"{built.base_url}/agents/coder", headers={"A2A-Extensions": "urn:mew:context:v10"}
        )
        answered = await built.driver.recorder.first("coder", "chat")
    task = response.json()["result"]
    assert "A2A-Extensions" not in other.headers  # another version of the extension
    assert response.headers["X-A2A-Extensions"] == CONTEXT_EXTENSION
    assert task["metadata"][CONTEXT_EXTENSION]["tokens"] == answered.body["turn"]["status"]["tokens"]
    assert task["status"]["state"] == "completed"
    pieces = [part["text"] for part in task["artifacts"][0]["parts"]]  # as the answer was streamed
    assert "".join(pieces) == answered.body["text"]


async def test_oldest_tasks_are_forgotten(a2a: StartA2A, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "MAX_TASKS", 1)
    async with a2a() as built:
        first, second = await built.send(ASK), await built.send(ASK)
        client = await built.client()
        kept = await client.get_task(GetTaskRequest(id=second.id))
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=first.id))
    assert kept.status.state == TaskState.TASK_STATE_COMPLETED


async def test_tool_runs_calls_and_says_what_it_offers(a2a: StartA2A) -> None:
    async with a2a(roles={"ada": "tool"}) as built:
        stopped = anyio.Event()

        @built.driver.ada.tool
        def add(a: int, b: int) -> dict[str, int]:
            """Add two numbers."""
            return {"sum": a + b}

        @built.driver.ada.tool
        async def wait() -> None:
            """Wait for good."""
            try:
                await anyio.sleep_forever()
            finally:
                stopped.set()

        await built.driver.recorder.until(lambda: len(built.participant.peers["ada"].tools or ()) == 2)
        card = (await built.http.get(f"{built.base_url}/agents/ada/.well-known/agent-card.json")).json()
        called = await built.run(call("add", a=2300, b=45), agent="ada")
        as_text = await built.send('{"tool": "add", "arguments": {"a": 1, "b": 1}}', agent="ada")
        offer = await built.send("Hello?", agent="ada")
        wrong = await built.run(call("divide", a=1), agent="ada")
        client, task_id = await built.client("ada"), ""
        with anyio.fail_after(PATIENCE_SECONDS):
            async for event in client.send_message(call("wait")):
                if event.HasField("task"):
                    task_id = event.task.id
                elif event.status_update.status.state == TaskState.TASK_STATE_WORKING:
                    break
            await built.driver.recorder.first("bob", "mcp/request", params={"name": "wait", "arguments": {}})
            cancelled = await client.cancel_task(CancelTaskRequest(id=task_id))
            await stopped.wait()
        await built.driver.ada.aclose()
        await built.driver.recorder.until(lambda: "ada" not in built.participant.peers)
        absent = await built.run(call("add", a=1, b=1), agent="ada")
    assert [one["id"] for one in card["skills"]] == ["add", "wait"]
    (extension,) = card["capabilities"]["extensions"]
    assert extension["params"]["tools"][0]["inputSchema"]["properties"]["a"]["type"] == "integer"
    assert get_data_parts(called.artifacts[0].parts) == [{"sum": 2345}]
    assert as_text.status.state == offer.status.state == TaskState.TASK_STATE_COMPLETED
    assert "- add: Add two numbers." in offer.artifacts[0].parts[0].text
    assert wrong.status.state == absent.status.state == TaskState.TASK_STATE_FAILED
    assert "divide" in get_message_text(wrong.status.message)
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED


async def test_person_answers_when_they_have_read_the_message(
    a2a: StartA2A, joined: Callable[..., Participant]
) -> None:
    async with a2a(roles={"mute": "person"}, options={"inactivity_seconds": 0.01}) as built:
        client, states = await built.client("mute"), list[TaskState]()
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    async for event in client.send_message(question("May I merge it?")):
                        states.append(event.status_update.status.state)
                        if event.HasField("artifact_update"):
                            answers.append(event.artifact_update.artifact.parts[0].text)

                answers = list[str]()
                tasks.start_soon(ask)
                await built.driver.recorder.first("bob", "chat", text="May I merge it?")
                async with joined("mute") as mute:
                    await mute.chat("Let me see.", to="ada")
                async with joined("mute") as mute:
                    await mute.chat("Yes.", to="bob")
            task_id, _ = await begin(client, "Are you there?")
            asked = await built.driver.recorder.first("bob", "chat", text="Are you there?")
            cancelled = await client.cancel_task(CancelTaskRequest(id=task_id))
            await built.driver.recorder.first("bob", "chat/cancel", about=asked)
    assert answers == ["Yes."]
    assert states[-1] == TaskState.TASK_STATE_COMPLETED
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"\\ud800": 1, "jsonrpc": "2.0", "method": "SendMessage", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": "\\ud83d", "id": "\\ude42"}', -32601),
        (b'{"jsonrpc": "2.0", "method": "SendMessage", "id": 1e999}', -32700),
        (b'{"jsonrpc":', -32700),
    ],
)
async def test_a_body_that_no_response_can_repeat_is_an_error_of_the_client(
    a2a: StartA2A, caplog: pytest.LogCaptureFixture, body: bytes, code: int
) -> None:
    async with a2a() as built:
        answer = await built.http.post(f"{built.base_url}/agents/coder", content=body)
    assert answer.json()["error"]["code"] == code
    assert [one for one in caplog.records if one.exc_info] == []
