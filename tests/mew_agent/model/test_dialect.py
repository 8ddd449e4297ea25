"""Request bodies, and how rejected arguments change them."""

import pytest

from mew_agent.model.dialect import EARLIER, Dialect, Names, adapted, dialect_for, request_body
from mew_agent.model.image import Image
from mew_agent.model.interface import Message, ModelRequest, ToolCall, ToolSpec

FULL = Dialect()
ASK = ModelRequest((Message("user", "hello"),))


def test_a_request_asks_for_a_stream_with_usage() -> None:
    assert request_body(ASK, "gpt", FULL) == {
        "model": "gpt",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_request_body_has_the_shape_of_openai() -> None:
    call = ToolCall("call_1", "add", '{"a": 1}')
    request = ModelRequest(
        messages=(
            Message("system", "Be exact."),
            Message("user", "1 and 1?", name="ada"),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "2", tool_call_id="call_1"),
        ),
        tools=(ToolSpec("add", "Adds.", {"type": "object"}),),
        response_format={"type": "json_object"},
    )
    body = request_body(request, "gpt", FULL)
    assert body["messages"][1:] == [
        {"role": "user", "content": "1 and 1?", "name": "ada"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
    ]
    assert body["response_format"] == {"type": "json_object"}


def test_content_is_always_a_string() -> None:
    request = ModelRequest((Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)), Message("tool", "")))
    assert [message["content"] for message in request_body(request, "m", FULL)["messages"]] == ["", ""]


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("api.openai.com", "max_completion_tokens"),
        ("eu.api.openai.com", "max_completion_tokens"),
        ("me.openai.azure.com", "max_completion_tokens"),
        ("localhost", "max_tokens"),
        ("openrouter.ai", "max_tokens"),
    ],
)
def test_the_output_limit_has_the_key_of_the_host(host: str, key: str) -> None:
    request = ModelRequest((Message("user", "x"),), max_output_tokens=50)
    assert request_body(request, "m", dialect_for(host))[key] == 50


def test_without_streaming_no_stream_keys_are_sent() -> None:
    body = request_body(ASK, "m", Dialect(is_streaming=False))
    assert "stream" not in body
    assert "stream_options" not in body


@pytest.mark.parametrize(
    ("status", "param", "text", "expected"),
    [
        (400, None, "Unrecognized request argument supplied: stream_options", Dialect(has_stream_options=False)),
        (422, None, '[{"loc": ["body", "stream_options"], "msg": "extra"}]', Dialect(has_stream_options=False)),
        (400, "stream_options.include_usage", "include_usage is unknown", Dialect(has_stream_options=False)),
        (400, "stream", "Your organization must be verified to stream this model.", Dialect(is_streaming=False)),
        (400, None, "Streaming is not supported for this model", Dialect(is_streaming=False)),
        (501, None, "unsupported: streaming", Dialect(is_streaming=False)),
        (
            400,
            "max_tokens",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            Dialect(limit_key="max_completion_tokens"),
        ),
    ],
)
def test_a_rejected_argument_is_removed(status: int, param: str | None, text: str, expected: Dialect) -> None:
    assert adapted(FULL, status, param, text) == expected


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "stream_options are for members only"),
        (500, "stream_options crashed the server"),
        (400, "temperature must be below 2"),
        (400, "the upstream answered with an error"),
        (404, "The model `m` does not exist"),
    ],
)
def test_other_errors_change_nothing(status: int, text: str) -> None:
    assert adapted(FULL, status, None, text) is None


def test_an_argument_is_removed_once() -> None:
    bare = Dialect(is_streaming=False, has_stream_options=False)
    assert adapted(bare, 400, "stream", "stream_options are not supported, streaming is not supported") is None


def test_a_rejected_limit_key_is_exchanged() -> None:
    learned = adapted(Dialect(limit_key="max_completion_tokens"), 400, None, "unknown field max_completion_tokens")
    assert learned == FULL


NAMED = ModelRequest((Message("user", "Hi.", name="ada.l <x>" + "y" * 60), Message("assistant", "Hello.")))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("any", {"role": "user", "content": "Hi.", "name": "ada.l <x>" + "y" * 60}),
        ("plain", {"role": "user", "content": "Hi.", "name": "ada_l__x_" + "y" * 55}),
        ("none", {"role": "user", "content": "ada.l <x>" + "y" * 60 + ": Hi."}),
    ],
)
def test_names_have_the_form_that_the_server_accepts(names: Names, first: dict[str, str]) -> None:
    messages = request_body(NAMED, "m", Dialect(names=names))["messages"]
    assert messages == [first, {"role": "assistant", "content": "Hello."}]


OPENAI_NAME = "Invalid 'messages[1].name': string does not match pattern '^[^\\s<|\\\\/>]+$'."
AZURE_NAME = "'ada.l' does not match '^[a-zA-Z0-9_-]{1,64}$' - 'messages.1.name'"
MISTRAL_NAME = '{"type": "extra_forbidden", "loc": ["body", "messages", 0, "user", "name"], "msg": "Extra inputs"}'
VLLM_NAME = "1 validation error for ChatCompletionRequest\nmessages.0.user.name\n  Extra inputs are not permitted"
GROQ_NAME = "the following must be satisfied[('messages.0' : property 'name' is unsupported)]"


@pytest.mark.parametrize(
    ("status", "text", "before", "after"),
    [
        (400, OPENAI_NAME, "any", "plain"),
        (400, AZURE_NAME, "any", "plain"),
        (400, OPENAI_NAME, "plain", "none"),
        (422, MISTRAL_NAME, "any", "none"),
        (400, VLLM_NAME, "any", "none"),
        (400, GROQ_NAME, "any", "none"),
        (400, GROQ_NAME, "none", None),
        (400, "Invalid 'messages[1].tool_calls[0].function.name': empty string.", "any", None),
        (401, OPENAI_NAME, "any", None),
    ],
)
def test_a_rejected_name_is_written_otherwise(status: int, text: str, before: Names, after: Names | None) -> None:
    other = adapted(Dialect(names=before), status, None, text)
    assert (other.names if other else None) == after


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (
            "Invalid schema for function 'bob__odd': In context=('properties', 'x'), array schema missing items.",
            "bob__odd",
        ),
        ("Invalid 'tools[1].function.parameters': object schema missing properties.", "bob__odd"),
        (
            "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties[x].items: missing",
            "bob__odd",
        ),
        ("Invalid schema for function 'another': missing items.", None),
        ("Invalid 'tools[7].function.parameters': object schema missing properties.", None),
        ("Invalid 'tools': array too long.", None),
    ],
)
def test_a_tool_with_a_rejected_schema_is_left_out(text: str, tool: str | None) -> None:
    other = adapted(FULL, 400, None, text, tools=("add", "bob__odd"))
    assert (sorted(other.refused_tools) if other else None) == (None if tool is None else [tool])


def test_refused_tools_are_not_offered() -> None:
    request = ModelRequest((Message("user", "Hi."),), (ToolSpec("add", "", {}), ToolSpec("bob__odd", "", {})))
    some, none = frozenset({"bob__odd"}), frozenset({"add", "bob__odd"})
    (left,) = request_body(request, "m", Dialect(refused_tools=some))["tools"]
    assert left["function"]["name"] == "add"
    assert "tools" not in request_body(request, "m", Dialect(refused_tools=none))
    text = "Invalid 'tools[0].function.parameters': object schema missing properties."
    other = adapted(Dialect(refused_tools=frozenset({"add"})), 400, None, text, tools=("add", "bob__odd"))
    assert other == Dialect(refused_tools=none), "a place among the tools that were sent"


THOUGHT = (
    Message("user", "Add 1."),
    Message("assistant", "", tool_calls=(ToolCall("a", "add", "{}"),), reasoning="I add."),
    Message("tool", "2", tool_call_id="a"),
    Message("assistant", "", tool_calls=(ToolCall("b", "add", "{}"),)),
    Message("tool", "3", tool_call_id="b"),
    Message("assistant", "3."),
)


def test_reasoning_returns_only_to_servers_that_require_it() -> None:
    for dialect, expected in (
        (FULL, [None, None, None]),
        (Dialect(sends_reasoning=True), ["I add.", " ", None]),
    ):
        messages = request_body(ModelRequest(THOUGHT), "m", dialect)["messages"]
        assert [one.get("reasoning_content") for one in messages if one["role"] == "assistant"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "Missing `reasoning_content` field in the assistant message at message index 2.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
    ],
)
def test_a_server_that_requires_the_reasoning_gets_it(text: str) -> None:
    other = adapted(FULL, 400, None, text)
    assert other == Dialect(sends_reasoning=True)
    assert adapted(other, 400, None, text) is None


def test_signatures_of_a_reply_are_sent_until_a_server_rejects_them() -> None:
    request = ModelRequest((Message("assistant", "", extra='{"reasoning_details": [{"data": "c2ln"}]}'),))
    (sent,) = request_body(request, "m", FULL)["messages"]
    assert sent["reasoning_details"] == [{"data": "c2ln"}]
    other = adapted(FULL, 422, None, '"loc": ["body", "messages", 0, "assistant", "reasoning_details"]')
    assert other == Dialect(sends_extra=False)
    assert "reasoning_details" not in request_body(request, "m", other)["messages"][0]


def test_what_a_server_wants_back_is_sent_until_one_rejects_it() -> None:
    call = ToolCall("a", "add", "{}", '{"google": {"thought_signature": "c2ln"}}')
    request = ModelRequest((Message("assistant", "", tool_calls=(call, ToolCall("b", "add", "{}"))),))
    first, second = request_body(request, "m", FULL)["messages"][0]["tool_calls"]
    assert first["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    assert "extra_content" not in second
    other = adapted(FULL, 400, None, "Unknown parameter: 'messages[1].tool_calls[0].extra_content'.")
    assert other == Dialect(sends_extra=False)
    assert "extra_content" not in str(request_body(request, "m", other))


TURNS = (
    Message("system", "Be brief."),
    Message("assistant", "Hello."),
    Message("user", "A remark.", name="bob"),
    Message("user", "Add 1.", name="ada"),
    Message("assistant", "", tool_calls=(ToolCall("a", "add", "{}"),)),
    Message("tool", "2", tool_call_id="a"),
    Message("tool", "3", tool_call_id="a"),
    Message("assistant", "2."),
    Message("assistant", "Or 3."),
)


def test_roles_alternate_where_the_template_requires_it() -> None:
    messages = request_body(ModelRequest(TURNS), "m", Dialect(takes_same_roles=False, names="none"))["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [
        ("system", "Be brief."),
        ("user", EARLIER),
        ("assistant", "Hello."),
        ("user", "bob: A remark.\n\nada: Add 1."),
        ("assistant", ""),
        ("tool", "2"),
        ("tool", "3"),
        ("assistant", "2.\n\nOr 3."),
    ]


def test_images_stay_messages_of_their_own() -> None:
    seen = ModelRequest((Message("user", "Look."), *SEEN.messages[:2], Message("user", "Well?")))
    messages = request_body(seen, "m", Dialect(takes_same_roles=False))["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "user", "user"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        (500, "Conversation roles must alternate user/assistant/user/assistant/..."),
        (400, "After the (optional) system message(s), user and assistant roles should be alternating."),
    ],
)
def test_a_template_that_wants_alternating_roles_gets_them(status: int, text: str) -> None:
    other = adapted(FULL, status, None, text)
    assert other == Dialect(takes_same_roles=False, names="none")
    assert adapted(other, status, None, text) is None


PICTURE = Image("image/png", "aGk=")
SEEN = ModelRequest(
    (
        Message("assistant", "", tool_calls=(ToolCall("a", "look", "{}"), ToolCall("b", "add", "{}"))),
        Message("tool", "[image of type image/png]", tool_call_id="a", images=(PICTURE,)),
        Message("tool", "2", tool_call_id="b"),
        Message("assistant", "I see."),
    )
)


def test_images_follow_all_results_of_a_reply() -> None:
    messages = request_body(SEEN, "m", FULL)["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "assistant"]
    assert messages[1]["content"] == "[image of type image/png]"
    assert messages[3]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def test_a_model_that_takes_no_images_reads_that_they_are_missing() -> None:
    messages = request_body(SEEN, "m", Dialect(takes_images=False))["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "assistant"]
    assert "takes no images" in messages[1]["content"]


@pytest.mark.parametrize(
    ("status", "text", "has_images", "takes_images"),
    [
        (400, "unknown variant `image_url`, expected `text`", True, False),
        (500, "image input is not supported - hint: provide the mmproj", True, False),
        (400, "messages[1].content must be a string", True, False),
        (400, "images are not supported", False, None),
        (400, "temperature is out of range", True, None),
        (401, "no access to vision models", True, None),
    ],
)
def test_rejected_images_are_left_out(status: int, text: str, has_images: bool, takes_images: bool | None) -> None:
    other = adapted(FULL, status, None, text, has_images=has_images)
    assert (other.takes_images if other else None) == takes_images
