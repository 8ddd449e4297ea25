"""The rehearsal model over real HTTP, through the client that agents use."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import httpx2
import pytest

from mew_agent.errors import ContextOverflow, ModelFailed, ModelStreamCut
from mew_agent.model.interface import Message, ModelReply, ModelRequest, ToolSpec
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalServer, ScriptedReply, ScriptedToolCall, serve_rehearsal
from mew_agent.parts.rehearsal import model_service as rehearsal_service
from mew_agent.parts.rehearsal.tokenizer import TOKENS_FOR_PRIMER, count, count_request, count_tool_call
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

GIVEN = Message("user", "The Elbe is 1094 km long. Hamburg lies at it. The Elbe starts in Bohemia.")
QUESTION = Message("user", "How long is the Elbe?")
SUMMARISE = Message("user", "Summarise the above.")
LOOK_UP = ToolSpec("look_up", "Looks a word up.", {"type": "object", "properties": {"word": {"type": "string"}}})


@pytest.fixture
async def server() -> AsyncIterator[RehearsalServer]:
    async with serve_rehearsal() as server:
        yield server


@pytest.fixture
async def model(server: RehearsalServer) -> AsyncIterator[OpenAIModel]:
    model = rehearsal_model(server.base_url)
    yield model
    await model.aclose()


@pytest.fixture
async def http(server: RehearsalServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=server.base_url.removesuffix("/v1"), trust_env=False, verify=False
    ) as client:
        yield client


async def ask(
    model: OpenAIModel, *messages: Message, tools: tuple[ToolSpec, ...] = (), bound: int | None = None
) -> ModelReply:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(model.stream(ModelRequest(messages, tools, bound))) as events:
            reply = [event async for event in events][-1]
    assert isinstance(reply, ModelReply)
    return reply


def reply_tokens(reply: ModelReply) -> int:
    return count(reply.text) + sum(count_tool_call(call.name, call.arguments) for call in reply.tool_calls)


@pytest.mark.parametrize(
    "usage_on", ["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "no_total", "every_chunk"]
)
@pytest.mark.parametrize("text", ["How long is the Elbe?", 'call look_up with {"word": "Elbe"}'])
async def test_usage_equals_the_tokenizer_count_in_every_stream_shape(
    server: RehearsalServer, model: OpenAIModel, usage_on: str, text: str
) -> None:
    server.change(usage_on=usage_on)
    reply = await ask(model, GIVEN, Message("user", text), tools=(LOOK_UP,))
    body: Any = server.requests[-1].body
    assert reply.usage is not None
    assert (
        reply.usage.prompt_tokens == count_request(body["messages"], body["tools"]) == server.requests[-1].prompt_tokens
    )
    assert reply.usage.completion_tokens == reply_tokens(reply) == server.requests[-1].completion_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.total_computed == (usage_on == "no_total")


async def test_a_server_without_usage_reports_none(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(usage_on="none")
    assert (await ask(model, GIVEN)).usage is None
    assert server.requests[-1].reported is None


async def test_the_next_prompt_grows_by_reply_and_new_message(server: RehearsalServer, model: OpenAIModel) -> None:
    first = await ask(model, GIVEN)
    await ask(model, GIVEN, Message("assistant", first.text), QUESTION)
    before, after = server.requests
    overhead = count_request([{"content": ""}, {"content": ""}]) - count_request([])
    assert after.prompt_tokens - before.prompt_tokens == count(first.text) + count(QUESTION.content) + overhead


async def test_the_prefix_cache_reports_what_two_prompts_have_in_common(
    server: RehearsalServer, model: OpenAIModel
) -> None:
    server.change(prefix_cache=True)

    async def cached(*messages: Message, tools: tuple[ToolSpec, ...] = ()) -> int | None:
        usage = (await ask(model, *messages, tools=tools)).usage
        return None if usage is None else usage.cached_tokens

    given = count_request([{"role": "user", "content": GIVEN.content}]) - TOKENS_FOR_PRIMER
    assert await cached(GIVEN) == 0
    assert await cached(GIVEN, QUESTION) == given
    assert (await cached(QUESTION, GIVEN) or 0) < given
    assert await cached(GIVEN, QUESTION) == server.requests[-1].prompt_tokens - 1, "one token is always evaluated"
    assert await cached(GIVEN, QUESTION, tools=(LOOK_UP,)) == 0, "tools come first in the prompt"


async def test_streamed_and_whole_replies_are_equal(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(visible_reasoning="Let me see.")
    streamed = await ask(model, GIVEN, QUESTION)
    server.change(refuse_streaming=True)
    whole = await ask(model, GIVEN, QUESTION)
    assert not whole.streamed
    assert (whole.text, whole.reasoning_text, whole.usage) == (streamed.text, streamed.reasoning_text, streamed.usage)


async def test_a_tool_round_ends_with_an_answer(model: OpenAIModel) -> None:
    order = Message("user", 'call look_up with {"word": "Elbe"} and look_up with {"word": "Rhine"}')
    called = await ask(model, order, tools=(LOOK_UP,))
    assert called.finish_reason == "tool_calls"
    assert [json.loads(call.arguments)["word"] for call in called.tool_calls] == ["Elbe", "Rhine"]
    results = [Message("tool", f"{call.id} is wet", tool_call_id=call.id) for call in called.tool_calls]
    answer = await ask(model, order, Message("assistant", "", tool_calls=called.tool_calls), *results, tools=(LOOK_UP,))
    assert answer.text == "\n".join(f"look_up answered: {result.content}" for result in results)
    assert answer.finish_reason == "stop"


async def test_tool_call_ids_are_unique(model: OpenAIModel) -> None:
    order = Message("user", "call look_up with {}")
    replies = [await ask(model, order, tools=(LOOK_UP,)) for _ in range(2)]
    assert len({call.id for reply in replies for call in reply.tool_calls}) == 2


async def test_max_tokens_cuts_the_reply_with_finish_reason_length(model: OpenAIModel) -> None:
    reply = await ask(model, GIVEN, QUESTION, bound=5)
    assert (reply.finish_reason, count(reply.text)) == ("length", 5)


async def test_a_reply_at_the_window_limit_fills_it_exactly(server: RehearsalServer, model: OpenAIModel) -> None:
    prompt_tokens = count_request([{"content": GIVEN.content}, {"content": QUESTION.content}])
    server.change(window_tokens=prompt_tokens + 4)
    reply = await ask(model, GIVEN, QUESTION)
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == prompt_tokens + 4


async def test_a_prompt_without_room_gets_an_overflow_error(server: RehearsalServer, model: OpenAIModel) -> None:
    prompt_tokens = count_request([{"content": GIVEN.content}])
    server.change(window_tokens=prompt_tokens)
    with pytest.raises(ContextOverflow) as caught:
        await ask(model, GIVEN)
    assert (caught.value.limit_tokens, caught.value.requested_tokens) == (prompt_tokens, prompt_tokens)
    assert server.requests[-1].status == 400


async def test_hidden_reasoning_is_counted_but_not_sent(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(reasoning_tokens=50, cached_tokens=7)
    reply = await ask(model, GIVEN, QUESTION)
    assert reply.usage is not None
    assert reply.usage.reasoning_tokens == 50
    assert reply.usage.cached_tokens == 7
    assert reply.usage.completion_tokens == 50 + count(reply.text)
    assert reply.reasoning_text == ""


async def test_visible_reasoning_may_be_unreported(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(visible_reasoning="Let me see.", reasoning_reported=False)
    reply = await ask(model, GIVEN, QUESTION)
    assert reply.usage is not None
    assert reply.usage.reasoning_tokens is None
    assert reply.usage.completion_tokens == count("Let me see.") + count(reply.text)


async def test_fixed_usage_applies_to_main_calls_in_order(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(fixed_usage=[(100, 10, 110), None, (200, 20, None)])
    totals = []
    for messages in ([GIVEN], [GIVEN, SUMMARISE], [GIVEN], [GIVEN], [GIVEN]):
        usage = (await ask(model, *messages)).usage
        totals.append(usage and usage.total_tokens)
    summary, last = server.requests[1], server.requests[4]
    assert summary.completion_tokens is not None
    assert last.completion_tokens is not None
    assert totals == [
        110,
        summary.prompt_tokens + summary.completion_tokens,
        None,
        220,
        last.prompt_tokens + last.completion_tokens,
    ]


async def test_scripted_replies_are_sent_in_order(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(
        script=[
            ScriptedReply(text="one"),
            ScriptedReply(tool_calls=(ScriptedToolCall(name="look_up"),)),
            ScriptedReply(status=500),
        ]
    )
    assert (await ask(model, GIVEN)).text == "one"
    assert (await ask(model, GIVEN, SUMMARISE)).text not in ("", "one")
    assert [call.name for call in (await ask(model, GIVEN)).tool_calls] == ["look_up"]
    with pytest.raises(ModelFailed):
        await ask(model, GIVEN)
    assert "Elbe" in (await ask(model, GIVEN, QUESTION)).text


async def test_a_new_script_starts_at_its_beginning(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(script=[ScriptedReply(text="one"), ScriptedReply(text="two")], fixed_usage=[(1, 1, 2), (2, 2, 4)])
    texts = [(await ask(model, GIVEN)).text]
    server.change(window_tokens=9000)
    texts.append((await ask(model, GIVEN)).text)
    server.change(script=[ScriptedReply(text="new")])
    texts.append((await ask(model, GIVEN)).text)
    assert texts == ["one", "two", "new"]


async def test_a_summary_can_fail_while_answers_succeed(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(summary_behaviour="fail")
    with pytest.raises(ModelFailed) as caught:
        await ask(model, GIVEN, SUMMARISE)
    assert caught.value.http_status == 500
    assert (await ask(model, GIVEN)).text
    assert [request.is_summary for request in server.requests] == [True, False]


@pytest.mark.parametrize("cut_style", ["connection", "end_of_stream"])
@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_stream_is_cut_after_the_configured_chunks(
    server: RehearsalServer, model: OpenAIModel, cut_style: str, chunks: int
) -> None:
    server.change(cut_after_chunks=chunks, cut_style=cut_style)
    with pytest.raises(ModelStreamCut) as caught:
        await ask(model, GIVEN)
    assert caught.value.chunks == chunks
    assert not server.requests[-1].is_complete
    server.change(cut_after_chunks=None)
    assert (await ask(model, GIVEN)).finish_reason == "stop"
    assert server.requests[-1].is_complete


async def test_the_served_model_may_differ_from_the_requested_one(server: RehearsalServer, model: OpenAIModel) -> None:
    server.change(served_model="rehearsal-2")
    assert (await ask(model, GIVEN)).served_model == "rehearsal-2"


async def test_every_listing_describes_the_rehearsal_model(server: RehearsalServer, http: httpx2.AsyncClient) -> None:
    assert "rehearsal model" in (await http.get("/")).text
    assert (await http.get("/health")).json() == {"status": "ok", "model": "rehearsal"}
    (listed,) = (await http.get("/v1/models")).json()["data"]
    assert listed["id"] == "rehearsal"
    assert "rehearsal model" in listed["owned_by"]
    assert listed["meta"]["n_ctx"] == server.options.window_tokens


async def test_the_counter_counts_a_whole_body(http: httpx2.AsyncClient) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": GIVEN.content}],
        "tools": [{"function": {"name": "x"}}],
    }
    counted = await http.post("/v1/chat/completions/input_tokens", json=body)
    assert counted.json() == {"input_tokens": count_request(body["messages"], body["tools"])}


async def test_requests_without_the_key_are_refused(server: RehearsalServer, http: httpx2.AsyncClient) -> None:
    server.change(api_key="right")
    body = {"messages": [{"role": "user", "content": "x"}]}
    answers = [
        await http.get("/v1/models"),
        await http.post("/v1/chat/completions", json=body),
        await http.post("/v1/chat/completions/input_tokens", json=body, headers={"authorization": "Bearer wrong"}),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401]
    assert all(answer.json()["error"]["code"] == "invalid_api_key" for answer in answers)


async def test_recorded_requests_are_served_without_keys(model: OpenAIModel, http: httpx2.AsyncClient) -> None:
    await ask(model, GIVEN)
    (recorded,) = (await http.get("/rehearsal/requests")).json()
    assert recorded["body"]["messages"][0]["content"] == GIVEN.content
    assert recorded["authorization"] is None
    assert recorded["is_complete"]


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{broken", None),
        (b"[]", None),
        (b"{}", "messages"),
        (json.dumps({"messages": []}).encode(), "messages"),
        (json.dumps({"messages": ["x"]}).encode(), "messages"),
        (json.dumps({"messages": [{"role": "user", "content": None}]}).encode(), "messages"),
        (json.dumps({"messages": [USER], "tools": "x"}).encode(), "tools"),
        (json.dumps({"messages": [USER], "max_tokens": 0}).encode(), "max_tokens"),
        (json.dumps({"messages": [USER], "max_completion_tokens": True}).encode(), "max_completion_tokens"),
    ],
)
async def test_an_invalid_request_gets_an_openai_error(
    http: httpx2.AsyncClient, content: bytes, param: str | None
) -> None:
    answer = await http.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]


async def test_a_stream_without_include_usage_has_none(server: RehearsalServer, http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json={"messages": [USER], "stream": True})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["usage"] is None for event in events[:-1])
    assert server.requests[-1].reported is None


@pytest.mark.parametrize(("bound", "limit"), [("KEPT_REQUESTS", 3), ("KEPT_REQUEST_BYTES", 500)])
async def test_only_the_newest_requests_are_kept(
    server: RehearsalServer, model: OpenAIModel, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int
) -> None:
    monkeypatch.setattr(rehearsal_service, bound, limit)
    for _ in range(10):
        async with aclosing(model.stream(ModelRequest((QUESTION,)))) as events:
            async for _ in events:
                pass
    assert [recorded.number for recorded in server.requests][-1] == 10
    assert 1 <= len(server.requests) <= 3
