"""The API as the OpenAI client sees it: a real gateway and a real agent over HTTP."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest
from mew_listener import listener_options
from mew_listener.request_guard import Allowed
from openai import (
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
)

from mew_agent.participant.answers import agent_answers as exchange
from mew_agent.participant.participant import Participant
from mew_agent.parts.openai_api.openai_app import create_app, serve_app
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from mew_agent.parts.shared.chat_participant import ChatParticipant
from tests.parts.openai_api.conftest import KEY, StartChatApi, content, reasoning
from tests.support.agents import EnvelopeRecorder
from tests.support.rehearsal_model import ENDLESS
from tests.support.waiting import PATIENCE_SECONDS

Connected = Callable[..., ChatParticipant]
ASK = "What do the harbour records say about the tide gauge at the northern pier?"


def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def test_each_agent_is_a_model_with_its_window(chat: StartChatApi) -> None:
    async with chat(options={"configured": frozenset({"writer"})}) as built:
        models = {model.id: model.model_dump() for model in (await built.client.models.list()).data}
        one = await built.client.models.retrieve("coder")
    assert set(models) == {"coder", "writer"}
    assert models["coder"]["context_window"] == 8192
    assert models["coder"]["owned_by"] == "demo"
    assert models["coder"]["mew"]["is_here"] is True
    assert "context_window" not in models["writer"]
    assert models["writer"]["mew"]["is_here"] is False
    assert one.model_dump() == models["coder"]


async def test_a_participant_that_answers_nothing_is_not_a_model(chat: StartChatApi) -> None:
    async with chat(options={"silent": frozenset({"coder"})}) as built:
        assert [model.id for model in (await built.client.models.list()).data] == []


async def test_a_whole_answer_carries_the_usage_of_the_provider(chat: StartChatApi) -> None:
    async with chat(cached_tokens=8, reasoning_tokens=5) as built:
        answer = await built.ask(ASK)
        answered = await built.driver.recorder.first("coder", "chat")
        request = built.driver.main_requests[-1]
    report = answered.body["turn"]["status"]
    assert answer.choices[0].message.content == answered.body["text"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "coder"
    assert answer.usage.prompt_tokens == request.prompt_tokens == report["context"]["prompt_tokens"]
    assert answer.usage.completion_tokens == report["context"]["completion_tokens"]
    assert answer.usage.total_tokens == report["tokens"]
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    assert answer.usage.completion_tokens_details.reasoning_tokens == 5
    mew = answer.model_dump()["mew"]
    assert mew["basis"] == "reported"
    assert mew["max_tokens"] == 8192
    assert mew["level"] == "healthy"


async def test_a_stream_starts_with_the_role_and_ends_with_usage(chat: StartChatApi) -> None:
    async with chat(chunk_delay_seconds=0.005) as built:
        chunks = await built.stream(ASK, stream_options={"include_usage": True})
        answered = await built.driver.recorder.first("coder", "chat")
    report = answered.body["turn"]["status"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert content(chunks) == answered.body["text"]
    pieces = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == report["tokens"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].model_dump()["mew"]["call_id"] == report["context"]["call_id"]


async def test_without_include_usage_the_finish_chunk_carries_usage(chat: StartChatApi) -> None:
    async with chat() as built:
        chunks = await built.stream(ASK)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens > 0


async def test_unreported_usage_is_null(chat: StartChatApi) -> None:
    async with chat(usage_on="none") as built:
        chunks = await built.stream(ASK, stream_options={"include_usage": True})
        whole = await built.ask(ASK)
    assert content(chunks)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is None
    assert whole.usage is None
    assert whole.model_dump()["mew"]["reason"] == "usage_unavailable"


async def test_reasoning_is_separate_from_the_answer(chat: StartChatApi) -> None:
    async with chat(visible_reasoning="The pier comes first, then the gauge.") as built:
        chunks = await built.stream(ASK)
        answered = await built.driver.recorder.first("coder", "chat")
    assert "The pier comes first" in reasoning(chunks)
    assert content(chunks) == answered.body["text"]


async def test_text_before_a_tool_call_is_reasoning(chat: StartChatApi) -> None:
    script = (
        ScriptedReply(
            text="Let me count them.", tool_calls=(ScriptedToolCall(name="word_count", arguments='{"text": "a b"}'),)
        ),
        ScriptedReply(text="There are two words."),
    )
    async with chat(name="writer", tools=[word_count], script=script) as built:
        chunks = await built.stream("Count a b", model="writer")
    assert content(chunks) == "There are two words."
    assert reasoning(chunks).count("Let me count them.") == 1
    assert 'word_count {"text": "a b"}' in reasoning(chunks)


async def test_an_agent_without_a_reasoning_stream_answers_whole(chat: StartChatApi) -> None:
    async with chat(name="mute") as built:
        chunks = await built.stream(ASK, model="mute")
        answered = await built.driver.recorder.first("mute", "chat")
    pieces = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) == 1
    assert content(chunks) == answered.body["text"]


@pytest.mark.parametrize("policy", ["shared", "client"])
async def test_a_compaction_notice_precedes_the_answer(
    chat: StartChatApi, text: Callable[[int], str], policy: str
) -> None:
    async with chat(app={"sessions": policy}, window_tokens=3000, reply_tokens=60) as built:
        for _ in range(4):
            await built.ask(text(450))
        chunks = await built.stream(text(700), stream_options={"include_usage": True})
        answered = [str(e.body["text"]) for e in built.driver.recorder.sent_by("coder", "chat")]
        done = built.driver.recorder.sent_by("coder", "chat")[-1].body["turn"]["status"]
        requests = built.driver.summary_requests
        newest = built.driver.main_requests[-1]
    whole = content(chunks)
    freed = done["context"]["last_compaction"]["freed_tokens"]
    started, ended, answer = (
        whole.index("> compacting "),
        whole.index(f"> freed {freed:,} tokens"),
        whole.index(answered[-1]),
    )
    assert requests
    assert started < ended < answer
    assert whole.endswith(answered[-1])
    assert whole.count(answered[-1]) == 1
    assert chunks[-1].model_dump()["mew"]["notices"][0].startswith("compacting ")
    assert chunks[-1].usage.prompt_tokens == sum(one.prompt_tokens for one in (*requests, newest))
    assert chunks[-1].model_dump()["mew"]["last_call"]["prompt_tokens"] == newest.prompt_tokens < 3000


async def test_a_repeated_model_call_has_a_notice(chat: StartChatApi) -> None:
    script = [{"text": "It rises. " * 40}, {"text": "It falls."}]
    async with chat(
        app={"sessions": "shared"}, call_bound_seconds=0.05, script=script, chunk_delay_seconds=0.05
    ) as built:
        server, chunks = built.driver.server, list[Any]()

        async def ask() -> None:
            chunks.extend(await built.stream(ASK))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await server.wait_until(lambda: bool(server.requests) and server.requests[0].chunks_sent > 3)
            await built.driver.control("clear")
    whole = content(chunks)
    assert whole.startswith("It ")
    assert whole.endswith("\n\n> interrupted by a control; the answer begins again\n\nIt falls.")
    assert chunks[-1].model_dump()["mew"]["notices"] == ["interrupted by a control; the answer begins again"]


@pytest.mark.parametrize("place", ["reasoning", "off"])
async def test_notices_may_be_reasoning_or_omitted(place: str, chat: StartChatApi, text: Callable[[int], str]) -> None:
    async with chat(
        app={"sessions": "shared"}, options={"notices": place}, window_tokens=3000, reply_tokens=60
    ) as built:
        for _ in range(4):
            await built.ask(text(450))
        chunks = await built.stream(text(700))
        answered = [str(e.body["text"]) for e in built.driver.recorder.sent_by("coder", "chat")]
    assert content(chunks) == answered[-1]
    assert ("> compacting" in reasoning(chunks)) is (place == "reasoning")


async def test_a_compaction_between_requests_is_reported_with_the_next(
    chat: StartChatApi, text: Callable[[int], str]
) -> None:
    async with chat(app={"sessions": "shared"}, reply_tokens=40) as built:
        for _ in range(4):
            await built.ask(text(200))
        done = await built.driver.ada.compact("coder")
        await built.driver.recorder.until(lambda: "compacted" in built.driver.recorder.words("coder"))
        chunks = await built.stream(ASK)
        again = await built.stream(ASK)
    assert content(chunks).startswith(f"> meanwhile: freed {done.freed_tokens:,} tokens; now ")
    assert "freed" not in content(again).split("\n")[0]


async def test_a_wrong_or_missing_key_is_refused(chat: StartChatApi) -> None:
    async with chat() as built:
        async with AsyncOpenAI(base_url=built.base_url, api_key="wrong") as stranger:
            with pytest.raises(AuthenticationError) as caught:
                await stranger.models.list()
            with pytest.raises(AuthenticationError):
                await stranger.chat.completions.create(model="coder", messages=[{"role": "user", "content": "hi"}])
        async with httpx2.AsyncClient() as http:
            bare = await http.get(f"{built.base_url}/models")
            health = await http.get(built.base_url.removesuffix("/v1") + "/health")
    assert caught.value.code == "invalid_api_key"
    assert bare.status_code == 401
    assert bare.headers["www-authenticate"] == "Bearer"
    assert health.json() == {"status": "ok", "space": "demo"}
    assert not built.driver.main_requests


async def test_an_unknown_model_error_lists_the_agents(chat: StartChatApi) -> None:
    async with chat() as built:
        with pytest.raises(NotFoundError, match="no agent 'gpt-4o' in this space \\(agents: coder\\)") as caught:
            await built.ask("hello", model="gpt-4o")
        with pytest.raises(NotFoundError):
            await built.client.models.retrieve("ada")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


async def test_an_invalid_body_error_names_the_field(chat: StartChatApi) -> None:
    async with chat() as built:
        picture: list[Any] = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
        with pytest.raises(BadRequestError, match=r"part of type 'image_url' .*text parts only") as caught:
            await built.client.chat.completions.create(model="coder", messages=[{"role": "user", "content": picture}])
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as http:
            broken = await http.post(f"{built.base_url}/chat/completions", content=b'{"model":')
            nowhere = await http.post(f"{built.base_url}/completions", content=b"{}")
    assert caught.value.param == "messages[0].content[0]"
    assert broken.status_code == 400
    assert "invalid JSON" in broken.json()["error"]["message"]
    assert nowhere.status_code == 404
    assert "/v1/chat/completions" in nowhere.json()["error"]["message"]


async def test_half_of_a_surrogate_pair_in_a_body_is_replaced(chat: StartChatApi) -> None:
    async with chat() as built, httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as http:
        body = b'{"model": "\\ud800", "messages": [{"role": "user", "content": "a"}]}'
        refused = await http.post(f"{built.base_url}/chat/completions", content=body)
    assert refused.status_code == 404
    assert refused.json()["error"]["message"].startswith("no agent '\ufffd' in this space")


async def test_a_body_that_is_too_large_is_refused(chat: StartChatApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_options, "BODY_BYTES", 10_000)
    async with chat() as built, httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as http:
        refused = await http.post(f"{built.base_url}/chat/completions", content=b" " * 10_001)
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "too_large"
    assert refused.json()["error"]["message"] == "body: exceeds 10,000 bytes"


async def test_a_client_that_disconnects_cancels_the_turn(chat: StartChatApi) -> None:
    async with chat(**ENDLESS) as built:
        stream = await built.ask(ASK, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        conclusion = await built.driver.recorder.first("coder", "reasoning/conclusion", cancelled=True)
        server = built.driver.server
        with anyio.fail_after(PATIENCE_SECONDS):
            await server.wait_until(lambda: server.requests[0].is_disconnected)
            after = await built.ask("And now?")
    assert conclusion.body["reason"] == "the asker left"
    assert after.choices[0].message.content


async def test_a_queued_request_is_dropped_when_its_client_disconnects(chat: StartChatApi) -> None:
    async with chat(chunk_delay_seconds=0.03) as built:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(built.ask, ASK)
            await built.driver.recorder.first("coder", "reasoning/start")
            with anyio.move_on_after(PATIENCE_SECONDS) as second:

                async def leave_when_queued() -> None:
                    await built.driver.recorder.first("coder", "chat/acknowledge", status="queued")
                    second.cancel()

                tasks.start_soon(leave_when_queued)
                await built.ask("The forgotten question")
        await built.driver.recorder.first("bob", "chat/cancel")
        await built.ask("The third question")
        prompts = json.dumps([request.body for request in built.driver.main_requests])
    assert "The third question" in prompts
    assert "The forgotten question" not in prompts


async def test_concurrent_requests_get_their_own_answers(chat: StartChatApi) -> None:
    messages = [f"The {thing} is on the shelf." for thing in ("lamp", "kettle", "globe")]
    answers: dict[str, str] = {}
    async with chat() as built:

        async def ask(question: str) -> None:
            answers[question] = content(await built.stream(question))

        async with anyio.create_task_group() as tasks:
            for message in messages:
                tasks.start_soon(ask, message)
        recorder = built.driver.recorder
        requested = {str(e.body["text"]): e for e in recorder.sent_by("bob", "chat")}
        answered = {
            text: str((await recorder.first("coder", "chat", about=e)).body["text"]) for text, e in requested.items()
        }
    assert len(set(answers.values())) == len(messages)
    assert answers == answered


async def test_a_failed_model_call_returns_the_agents_message(chat: StartChatApi) -> None:
    async with chat(script=(ScriptedReply(text="fine"), ScriptedReply(status=500))) as built:
        await built.ask(ASK)
        chunks = await built.stream(ASK, stream_options={"include_usage": True})
    assert content(chunks).startswith("My model call failed")
    assert chunks[-1].usage is None, "usage of the call before is not this answer's"


async def test_the_stream_of_a_departed_agent_ends_with_an_error(
    chat: StartChatApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "RETURN_SECONDS", 0.05)
    async with chat(**ENDLESS) as built:
        stream = await built.ask(ASK, stream=True)

        async def read_on() -> None:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    await built.driver.agent.aclose()

        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(APIError, match="'coder' left the space before"):
            await read_on()


async def test_an_absent_agent_is_an_error_before_sending(chat: StartChatApi) -> None:
    async with chat(options={"configured": frozenset({"writer"})}) as built:
        patient = built.client.with_options(max_retries=0)
        with pytest.raises(InternalServerError, match="'writer' is not in the space") as caught:
            await patient.chat.completions.create(model="writer", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.status_code == 503


async def test_a_silent_agent_times_out_without_a_retry(chat: StartChatApi, joined: Callable[..., Participant]) -> None:
    async with (
        chat(options={"inactivity_seconds": 0.2, "configured": frozenset({"writer"})}) as built,
        joined("writer"),
    ):
        with pytest.raises(InternalServerError, match=r"showed no activity for 0\.2 seconds") as caught:
            await built.ask("Anybody?", model="writer")
        await built.driver.recorder.first("bob", "chat/cancel")
        requested = built.driver.recorder.sent_by("bob", "chat")
    assert caught.value.status_code == 504
    assert len(requested) == 1


async def test_a_waiting_stream_sends_keep_alive_lines(chat: StartChatApi) -> None:
    async with chat(app={"keep_alive_seconds": 0.02}, chunk_delay_seconds=0.1, reply_tokens=20) as built:
        body = {"model": "coder", "stream": True, "messages": [{"role": "user", "content": ASK}]}
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=PATIENCE_SECONDS) as http:
            answer = await http.post(f"{built.base_url}/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "\n: keep-alive\n" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


TITLE_PROMPT = """### Task:
Find a short title.
### Output:
JSON format: { "title": "a title" }
### Chat History:
<chat_history>
USER: Why do tides differ at the two piers of this harbour, and who measured them first?
ASSISTANT: They do not.
</chat_history>"""


async def test_background_prompts_of_clients_are_answered_locally(chat: StartChatApi) -> None:
    async with chat() as built:
        title = await built.ask(TITLE_PROMPT)
        streamed = await built.stream(TITLE_PROMPT)
        requested = list(built.driver.main_requests)
    assert json.loads(title.choices[0].message.content)["title"].startswith("Why do tides differ")
    assert content(streamed) == title.choices[0].message.content
    assert title.usage is None
    assert not requested


async def test_background_prompts_reach_the_agent_if_configured(chat: StartChatApi) -> None:
    async with chat(app={"answer_background": False}) as built:
        await built.ask(TITLE_PROMPT)
        requested = list(built.driver.main_requests)
    assert len(requested) == 1


async def test_ignored_parts_are_named_in_the_answer(chat: StartChatApi) -> None:
    async with chat(app={"sessions": "shared"}) as built:
        answer = await built.client.chat.completions.create(
            model="coder",
            temperature=0.1,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            messages=[
                {"role": "system", "content": "Be a pirate."},
                {"role": "user", "content": "First question"},
                {"role": "assistant", "content": "First answer"},
                {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
            ],
        )
        sent = json.dumps(built.driver.main_requests[0].body["messages"])
    assert answer.model_dump()["mew"]["ignored"] == ["system messages", "temperature", "tools", "earlier messages"]
    assert answer.model_dump()["mew"]["warnings"] == [
        "the client's tools were not offered; the agent calls the tools of its space"
    ]
    assert "pirate" not in sent
    assert "One.\\nTwo." in sent


async def test_web_pages_need_an_allowed_origin(chat: StartChatApi) -> None:
    preflight = {"origin": "http://page.test", "access-control-request-method": "POST"}
    async with chat() as built, httpx2.AsyncClient() as http:
        refused = await http.options(f"{built.base_url}/chat/completions", headers=preflight)
    assert refused.status_code == 403
    async with chat(serve={"allowed": Allowed(origins=["http://page.test"])}) as built, httpx2.AsyncClient() as http:
        allowed = await http.options(f"{built.base_url}/chat/completions", headers=preflight)
    assert "access-control-allow-origin" not in refused.headers
    assert allowed.headers["access-control-allow-origin"] == "http://page.test"


async def test_a_person_without_the_chat_capability_is_refused(
    chat: StartChatApi, connected: Callable[..., Any]
) -> None:
    async with chat(options={"person": "shy"}) as built:
        with pytest.raises(APIError, match="'shy' may not chat with 'coder'"):
            await built.ask("hello")


# -- the server --------------------------------------------------------------------------------------------------


async def test_a_server_has_its_address_and_closes_with_the_block(connected: Connected) -> None:
    async with connected() as participant, httpx2.AsyncClient() as http:
        async with serve_app(create_app(participant, api_key=KEY), participant) as base_url:
            health = await http.get(base_url.removesuffix("/v1") + "/health")
        with pytest.raises(httpx2.ConnectError):
            await http.get(base_url)
    assert health.status_code == 200
    assert base_url.startswith("http://127.0.0.1:")


async def test_a_port_in_use_is_an_error(connected: Connected) -> None:
    async with connected() as participant, serve_app(create_app(participant, api_key=KEY), participant) as base_url:
        port = int(base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            async with serve_app(create_app(participant, api_key=KEY), participant, port=port):
                pass


async def test_stopping_ends_open_streams_with_an_error_event(
    connected: Connected, joined: Callable[..., Participant]
) -> None:
    lines: list[str] = []
    async with connected(configured=frozenset({"coder"})) as participant, joined("coder") as coder:
        recorder = EnvelopeRecorder(coder)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as http:
            addresses: list[str] = []

            async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                async with serve_app(create_app(participant, api_key=KEY), participant) as base_url:
                    addresses.append(base_url)
                    task_status.started()
                    await stop.wait()

            await tasks.start(serve)
            with anyio.fail_after(PATIENCE_SECONDS):
                while "coder" not in participant.peers:
                    await anyio.sleep(0.005)
            body = {"model": "coder", "stream": True, "messages": [{"role": "user", "content": "Hello?"}]}
            headers = {"authorization": f"Bearer {KEY}"}
            url = f"{addresses[0]}/chat/completions"
            async with http.stream("POST", url, json=body, headers=headers) as response:
                await recorder.first("bob", "chat")
                stop.set()
                lines = [line async for line in response.aiter_lines()]
        await recorder.first("bob", "chat/cancel")
    assert '"code":"closing"' in lines[-4]
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
