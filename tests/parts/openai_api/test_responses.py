"""The Responses API: its objects and events, read by the OpenAI client and checked against its own models."""

import json
from typing import Any

import pytest
from openai import BadRequestError
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from pydantic import TypeAdapter

from mew_agent.parts.openai_api.format import ApiAnswer
from mew_agent.parts.openai_api.request import ApiRequest
from mew_agent.parts.openai_api.responses import ResponseFormat, read_responses_request
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from mew_agent.parts.shared.api_limits import AnswerFailed
from tests.parts.openai_api.conftest import StartChatApi

ASK = "What do the harbour records say about the tide gauge?"
USAGE = {
    "prompt_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens": 2,
    "completion_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 5,
}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "coder", "input": "Hello", **more}


def test_a_request_is_read_like_a_completion() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "One"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
        {"role": "user", "content": "Three"},
    ]
    given = body(input=items, text={"format": form}, stream=True, user="ada", conversation={"id": "c1"}, tools=[{}])
    request = read_responses_request(given)
    assert request == ApiRequest(
        model="coder",
        text="Three",
        system="Be brief.",
        earlier=(("user", "One"), ("assistant", "Two")),
        is_streamed=True,
        ignored=("system messages", "tools"),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        user="ada",
        conversation="c1",
    )
    assert read_responses_request(body(instructions="Be brief.")).ignored == ("system messages",)


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        (body(input=None), "input", "is missing"),
        (body(input=[]), "input", "contains no message"),
        (body(input=[{"type": "function_call_output", "output": "1"}]), "input[0]", "type 'function_call_output'"),
        (body(input=[{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0]", "input_image"),
        (body(background=True), "background", "is on"),
        (body(prompt={"id": "p"}), "prompt", "is not supported"),
        (body(tool_choice="required"), "tool_choice", "requires a tool call"),
        (body(previous_response_id=1), "previous_response_id", "is not a string"),
        (body(text="json"), "text", "is not an object"),
        (body(text={"format": {"type": "grammar"}}), "text.format", "is not supported"),
        (body(conversation=3), "conversation", "is not a name"),
        (
            body(previous_response_id="r", input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
            *("input", "has earlier messages"),
        ),
    ],
)
def test_impossible_controls_of_an_agent_are_refused(given: Any, param: str, words: str) -> None:
    with pytest.raises(AnswerFailed, match=words.replace("[", r"\[")) as caught:
        read_responses_request(given)
    assert caught.value.param == param


def events_of(chunks: list[bytes]) -> list[Any]:
    """The events in a stream, each checked strictly against OpenAI's model of its type."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    return [adapter.validate_json(chunk.partition(b"data: ")[2]) for chunk in chunks]


def test_events_are_accepted_by_openai_in_order() -> None:
    written = ResponseFormat("resp_1", ApiRequest("coder", "Hello"), 1_700_000_000)
    chunks = [
        *written.begin(),
        *written.piece("hm", is_reasoning=True),
        *written.piece("He", is_reasoning=False),
        *written.piece("llo", is_reasoning=False),
        *written.end(ApiAnswer("Hello", "hm", None, {"basis": "reported"})),
    ]
    events = events_of(chunks)
    part = ["content_part.done", "output_item.done"]
    begun = ["output_item.added", "content_part.added"]
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *(*begun, "reasoning_text.delta", "reasoning_text.done", *part),
        *(*begun, "output_text.delta", "output_text.delta", "output_text.done", *part, "completed"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert all(chunk.startswith(f"event: {event.type}\n".encode()) for chunk, event in zip(chunks, events, strict=True))
    whole = events[-1].response
    assert whole.output_text == "Hello"
    assert [item.id for item in whole.output] == ["rs_resp_1_0", "msg_resp_1_1"]
    assert whole.usage is None


def test_usage_has_the_keys_of_openai_and_null_for_the_unknown() -> None:
    written = ResponseFormat("resp_1", ApiRequest("coder", "Hello"), 1).as_json(ApiAnswer("Hello", "", USAGE))
    usage = Response.construct(**written).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)
    assert usage.input_tokens_details.cached_tokens == 1
    assert usage.output_tokens_details.reasoning_tokens == 1
    assert ResponseUsage.model_fields.keys() == written["usage"].keys()
    assert written["usage"]["input_tokens_details"]["cache_write_tokens"] is None


def test_a_whole_response_equals_the_streamed_one() -> None:
    request, answer = ApiRequest("coder", "Hello"), ApiAnswer("Hello", "hm", None, {"basis": "reported"})
    streamed, whole = (ResponseFormat("resp_1", request, 1) for _ in range(2))
    streamed.piece("hm", is_reasoning=True)
    streamed.piece("Hello", is_reasoning=False)
    last = events_of(streamed.end(answer))[-1]
    assert last.response == Response.model_validate(whole.as_json(answer))


def test_an_empty_answer_and_a_failure_end_the_stream() -> None:
    empty = ResponseFormat("resp_1", ApiRequest("coder", "Hello"), 1)
    assert events_of(empty.end(ApiAnswer("")))[-1].response.output_text == ""
    failed = ResponseFormat("resp_1", ApiRequest("coder", "Hello"), 1)
    failed.piece("He", is_reasoning=False)
    last = failed.fail(AnswerFailed(502, "agent_left", "it left"))[-1]
    # OpenAI's model lists its own error codes only.
    event = ResponseFailedEvent.construct(**json.loads(last.partition(b"data: ")[2]))
    assert event.response.status == "failed"


# -- with an agent -----------------------------------------------------------------------------------------------


async def test_a_response_continues_from_an_earlier_one(chat: StartChatApi) -> None:
    async with chat() as built:
        first = await built.client.responses.create(model="coder", input="The valve is blue.")
        second = await built.client.responses.create(model="coder", input="What colour?", previous_response_id=first.id)
        messages: Any = built.driver.main_requests[-1].body["messages"]
        sent = [message["content"] for message in messages]
        prompt_tokens = built.driver.main_requests[-1].prompt_tokens
        with pytest.raises(BadRequestError, match="is not the newest of its conversation") as caught:
            await built.client.responses.create(model="coder", input="Again?", previous_response_id=first.id)
        with pytest.raises(BadRequestError, match="'resp_x' is not known"):
            await built.client.responses.create(model="coder", input="Hello?", previous_response_id="resp_x")
    assert sent[-3:] == ["The valve is blue.", first.output_text, "What colour?"]
    assert caught.value.code == "previous_response_not_found"
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert second.usage.input_tokens == prompt_tokens
    assert second.model_dump()["mew"]["last_call"]["prompt_tokens"] == prompt_tokens


async def test_a_session_deleted_by_the_agent_is_not_continued(chat: StartChatApi) -> None:
    async with chat(agent={"max_sessions": 1}) as built:
        first = await built.client.responses.create(model="coder", input="The valve is blue.")
        await built.client.responses.create(model="coder", input="Something else")
        with pytest.raises(BadRequestError, match="belongs to a session that the agent has deleted"):
            await built.client.responses.create(model="coder", input="And?", previous_response_id=first.id)


async def test_a_stream_has_reasoning_text_and_usage(chat: StartChatApi) -> None:
    def word_count(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    call = ScriptedToolCall(name="word_count", arguments='{"text": "a b"}')
    script = (ScriptedReply(text="Let me count.", tool_calls=(call,)), ScriptedReply(text="There are two words."))
    async with chat(tools=[word_count], script=script) as built:
        async with built.client.responses.stream(model="coder", input="Count a b") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        prompts = [request.prompt_tokens for request in built.driver.main_requests]
    text = "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent))
    assert text == final.output_text == "There are two words."
    assert "Let me count." in str(final.output[0].model_dump()["content"])
    assert any(isinstance(event, ResponseCompletedEvent) for event in events)
    assert final.usage is not None
    assert final.usage.input_tokens == sum(prompts)


async def test_a_stream_that_fails_ends_with_response_failed(chat: StartChatApi) -> None:
    form: Any = {"format": {"type": "json_object"}}
    async with chat(script=(ScriptedReply(text="It is blue."),)) as built:
        stream: Any = await built.client.responses.create(model="coder", input=ASK, text=form, stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert "did not keep to the format" in str(events[-1].response.error)
