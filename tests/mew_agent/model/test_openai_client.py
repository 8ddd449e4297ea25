"""The client: what it sends, how it reads answers, and which error each failure is.

Well-behaved and misbehaving streams come over real HTTP, from the rehearsal model and from a provider of raw bytes.
"""

import inspect
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import openai
import pytest
from openai.types.chat import ChatCompletion

from mew_agent.errors import (
    ContextOverflow,
    ModelError,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelStreamCut,
    ModelUnreachable,
)
from mew_agent.model.interface import (
    Message,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolSpec,
    Window,
)
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.sdk_transport import transport
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

ChunkMaker = Callable[..., dict[str, Any]]
ASK = ModelRequest(
    (Message("user", "The Elbe is 1094 km long. Hamburg lies at it."), Message("user", "How long is the Elbe?"))
)
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


@pytest.fixture
async def rehearsal() -> AsyncIterator[RehearsalServer]:
    async with serve_rehearsal() as server:
        yield server


async def events_of(model: OpenAIModel, request: ModelRequest = ASK) -> list[ModelEvent]:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(model.stream(request)) as events:
            return [event async for event in events]


async def reply_of(model: OpenAIModel, request: ModelRequest = ASK) -> ModelReply:
    reply = (await events_of(model, request))[-1]
    assert isinstance(reply, ModelReply)
    return reply


async def error_of(base_url: str, request: ModelRequest = ASK, **options: Any) -> ModelError:
    model = OpenAIModel("m", base_url, **{"api_key": "sk-secret", "max_retries": 0, **options})
    try:
        with pytest.raises(ModelError) as caught:
            await events_of(model, request)
    finally:
        await model.aclose()
    assert "\n" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert caught.value.endpoint == base_url
    return caught.value


class Client:
    """Makes models of a provider and closes them after the test."""

    def __init__(self) -> None:
        self._opened: list[OpenAIModel] = []

    def __call__(self, base_url: str, **options: Any) -> OpenAIModel:
        model = OpenAIModel("m", base_url, **{"max_retries": 0, **options})
        self._opened.append(model)
        return model

    async def aclose(self) -> None:
        for model in self._opened:
            await model.aclose()


@pytest.fixture
async def connect() -> AsyncIterator[Client]:
    client = Client()
    yield client
    await client.aclose()


def test_asking_for_the_window_does_not_import_openai() -> None:
    script = """
import sys, anyio
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal

async def main():
    async with serve_rehearsal(RehearsalOptions(window_tokens=4096)) as server:
        print((await OpenAIModel("rehearsal", server.base_url).discover_window()).max_tokens, "openai" in sys.modules)

anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["4096", "False"], done.stderr


async def test_deltas_come_first_and_the_reply_last(rehearsal: RehearsalServer, connect: Client) -> None:
    rehearsal.change(visible_reasoning="Let me look it up.")
    *deltas, reply = await events_of(connect(rehearsal.base_url))
    assert isinstance(reply, ModelReply)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == reply.text
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Let me look it up."
    assert len(deltas) > 2
    assert reply.streamed
    assert reply.finish_reason == "stop"
    assert reply.served_model == "rehearsal"


async def test_the_key_and_the_model_reach_the_server(rehearsal: RehearsalServer, connect: Client) -> None:
    rehearsal.change(api_key="sk-right")
    await reply_of(connect(rehearsal.base_url, api_key="sk-right"))
    assert rehearsal.requests[-1].body["model"] == "m"
    assert isinstance(await error_of(rehearsal.base_url), ModelRefused)


async def test_the_environment_is_not_read(
    rehearsal: RehearsalServer, connect: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await reply_of(connect(rehearsal.base_url))
    assert rehearsal.requests[-1].authorization == "Bearer no-key"


async def test_a_request_id_is_kept(provider: RawProvider, connect: Client, chunk: ChunkMaker) -> None:
    provider.answers = [provider.events(chunk("x", finish="stop"))]
    assert (await reply_of(connect(provider.base_url))).request_id == "req-7"


@pytest.mark.parametrize("last", [[{"choices": []}], [{"choices": None}], [{"choices": [], "usage": None}], []])
@pytest.mark.parametrize("end", ["done", "body"])
async def test_usage_is_found_anywhere_in_the_stream(
    provider: RawProvider, connect: Client, chunk: ChunkMaker, last: list[object], end: str
) -> None:
    model = connect(provider.base_url)
    for stream in (
        [chunk("x"), chunk(finish="stop", usage=USAGE), *last],
        [chunk("x"), chunk(finish="stop"), {"choices": [], "usage": USAGE}, *last],
        [
            {"choices": [], "usage": None},
            chunk("x", usage={**USAGE, "total_tokens": 10}),
            chunk(finish="stop", usage=USAGE),
            *last,
        ],
        [chunk("x"), chunk(finish="stop"), b"data: [DONE]", {"choices": [], "usage": USAGE}, *last],
    ):
        provider.answers = [provider.events(*stream, end=end)]
        assert (await reply_of(model)).usage == Usage(9, 2, 11)


async def test_usage_before_the_last_text_is_provisional(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.answers = [provider.events(chunk("x", usage=USAGE), chunk("y"), chunk(finish="stop"))]
    reply = await reply_of(connect(provider.base_url))
    assert (reply.text, reply.usage) == ("xy", Usage(9, 2, 11, is_provisional=True))


async def test_unreported_usage_is_none_and_not_zero(provider: RawProvider, connect: Client, chunk: ChunkMaker) -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    provider.answers = [provider.events(chunk("x", finish="stop", usage=zeros))]
    assert (await reply_of(connect(provider.base_url))).usage is None


@pytest.mark.parametrize(
    ("end", "then", "chunks"),
    [("body", "keep", 0), ("body", "keep", 2), ("open", "close", 0), ("open", "close", 2), ("done", "keep", 0)],
)
async def test_a_stream_without_a_finish_reason_is_cut(
    provider: RawProvider, chunk: ChunkMaker, end: str, then: str, chunks: int
) -> None:
    provider.answers = [provider.events(*[chunk("x", usage=USAGE)] * chunks, end=end, then=then)]
    error = await error_of(provider.base_url)
    assert isinstance(error, ModelStreamCut)
    assert error.chunks == chunks


async def test_a_connection_lost_after_the_finish_reason_is_harmless(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.answers = [provider.events(chunk("x"), chunk(finish="stop", usage=USAGE), end="open", then="close")]
    reply = await reply_of(connect(provider.base_url))
    assert (reply.text, reply.usage) == ("x", Usage(9, 2, 11))


async def test_the_request_after_an_empty_stream_uses_a_new_connection(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.requests_per_connection = 1
    provider.answers = [provider.events(end="body"), provider.events(chunk("x", finish="stop"))]
    model = connect(provider.base_url)
    with pytest.raises(ModelStreamCut):
        await events_of(model)
    assert (await reply_of(model)).text == "x"
    assert [request.connection for request in provider.received] == [1, 2]


async def test_a_stream_connection_is_not_reused(provider: RawProvider, connect: Client, chunk: ChunkMaker) -> None:
    """llama.cpp's server closes it unannounced, and a request sent meanwhile is lost."""
    stream = provider.events(chunk("x", finish="stop"), then="close")
    provider.answers = [stream, provider.json({"input_tokens": 7}), stream, stream]
    model = connect(provider.base_url)
    await reply_of(model)
    assert await model.count_prompt(ASK) == 7
    await reply_of(model)
    await reply_of(model)
    assert [request.headers["connection"] for request in provider.received] == ["close", "keep-alive", "close", "close"]
    assert [request.connection for request in provider.received] == [1, 2, 3, 4]


@pytest.mark.parametrize(("scheme", "connection"), [("http", "close"), ("https", "keep-alive")])
async def test_a_tls_connection_is_reused(scheme: str, connection: str) -> None:
    received: list[str] = []

    def answer(request: transport.Request) -> transport.Response:
        received.append(request.headers["connection"])
        body = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
        return transport.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    async with transport.AsyncClient(transport=transport.MockTransport(answer)) as http_client:
        model = OpenAIModel("m", f"{scheme}://host/v1", http_client=http_client)
        assert (await reply_of(model)).text == "x"
        await model.aclose()
    assert received == [connection]


@pytest.mark.parametrize("error_event", [b'data: {"error": %b}', b'event: error\ndata: {"error": %b}'])
@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        (b'{"code": 500, "message": "The model produced output that does not fit"}', ModelFailed, "does not fit"),
        (b'{"code": 400, "message": "exceeds the available context size (2048 tokens)"}', ContextOverflow, "2048"),
        (b'{"code": 429, "message": "slow down"}', ModelRateLimited, "slow down"),
        (b'"it broke"', ModelFailed, "it broke"),
    ],
)
async def test_an_error_event_in_the_stream_raises(
    provider: RawProvider, chunk: ChunkMaker, error_event: bytes, body: bytes, kind: type[ModelError], detail: str
) -> None:
    provider.answers = [provider.events(chunk("x"), error_event % body, chunk(finish="stop"))]
    error = await error_of(provider.base_url)
    assert type(error) is kind
    assert detail in error.detail


async def test_an_error_inside_a_choice_raises(provider: RawProvider) -> None:
    choice = {"delta": {}, "finish_reason": "error", "error": {"message": "upstream gone"}}
    provider.answers = [provider.events({"choices": [choice]})]
    error = await error_of(provider.base_url)
    assert isinstance(error, ModelFailed)
    assert error.detail == "upstream gone"


@pytest.mark.parametrize("line", [b"data: {broken", b'data: "text"', b"data: [1]", b"data: null", b"data: \xff\xfe"])
async def test_invalid_data_in_the_stream_raises(provider: RawProvider, chunk: ChunkMaker, line: bytes) -> None:
    provider.answers = [provider.events(chunk("x"), line, chunk(finish="stop"))]
    assert type(await error_of(provider.base_url)) is ModelFailed


async def test_a_whole_answer_to_a_stream_request_is_accepted(provider: RawProvider, connect: Client) -> None:
    body = {"model": "m", "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}], "usage": USAGE}
    provider.answers = [provider.json(body, x_request_id="r1")]
    *deltas, reply = await events_of(connect(provider.base_url))
    assert deltas == [TextDelta("whole")]
    assert reply == ModelReply("whole", (), "stop", Usage(9, 2, 11), "m", request_id="r1", streamed=False)


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        ({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, "application/json", ContextOverflow),
        ({"error": "no model loaded"}, "application/json", ModelFailed),
        ({"object": "chat.completion"}, "application/json", ModelFailed),
        ({"choices": []}, "application/json", ModelFailed),
        ([], "application/json", ModelFailed),
        (b"{broken", "application/json; charset=utf-8", ModelFailed),
        (b"<html>Welcome</html>", "text/html", ModelFailed),
    ],
)
async def test_http_200_without_a_completion_raises(
    provider: RawProvider, body: object, content_type: str, kind: type[ModelError]
) -> None:
    provider.answers = [provider.json(body, content_type=content_type)]
    assert type(await error_of(provider.base_url)) is kind


async def test_rejected_stream_options_are_not_sent_again(rehearsal: RehearsalServer, connect: Client) -> None:
    rehearsal.change(reject_stream_options=True)
    model = connect(rehearsal.base_url)
    for _ in range(2):
        reply = await reply_of(model)
        assert reply.usage is None
        assert reply.streamed
    assert [request.status for request in rehearsal.requests] == [400, 200, 200]


async def test_rejected_streaming_falls_back_to_whole_answers(rehearsal: RehearsalServer, connect: Client) -> None:
    rehearsal.change(refuse_streaming=True)
    model = connect(rehearsal.base_url)
    for _ in range(2):
        reply = await reply_of(model)
        assert not reply.streamed
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == rehearsal.requests[-1].prompt_tokens
    assert [request.status for request in rehearsal.requests] == [400, 200, 200]


async def test_a_server_that_accepts_no_names_answers(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    """Mistral's API, and vLLM with Mistral's tokenizer."""
    detail = [{"type": "extra_forbidden", "loc": ["body", "messages", 0, "user", "name"], "msg": "Extra inputs"}]
    refused = provider.json({"object": "error", "message": {"detail": detail}}, status=422)
    provider.answers = [refused, *[provider.events(chunk("x", finish="stop"))] * 2]
    model = connect(provider.base_url)
    for _ in range(2):
        await reply_of(model, ModelRequest((Message("user", "Hi.", name="ada"),)))
    assert [one.body["messages"] for one in provider.received] == [
        [{"role": "user", "content": "Hi.", "name": "ada"}],
        *[[{"role": "user", "content": "ada: Hi."}]] * 2,
    ]


async def test_one_tool_with_a_rejected_schema_does_not_end_the_others(
    provider: RawProvider, connect: Client, chunk: ChunkMaker, caplog: pytest.LogCaptureFixture
) -> None:
    error = {"message": "Invalid schema for function 'odd': array schema missing items.", "param": "tools"}
    answers = [provider.events(chunk("x", finish="stop"))] * 2
    provider.answers = [provider.json({"error": error}, status=400), *answers]
    model = connect(provider.base_url)
    for _ in range(2):
        await reply_of(model, ModelRequest(ASK.messages, (ToolSpec("odd", "", {}), ToolSpec("add", "", {}))))
    offered = [[tool["function"]["name"] for tool in one.body["tools"]] for one in provider.received]
    assert offered == [["odd", "add"], ["add"], ["add"]]
    assert "rejects the tool 'odd'" in caplog.text


async def test_a_server_that_rejects_everything_ends_the_retries(provider: RawProvider) -> None:
    text = "stream_options: unknown. max_completion_tokens: unknown. Streaming is not supported."
    provider.routes = {"/v1/chat/completions": provider.json({"error": {"message": text}}, status=400)}
    assert isinstance(await error_of(provider.base_url), ModelFailed)
    assert len(provider.received) <= 6


async def test_the_dialect_of_a_failed_call_is_forgotten(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    refused = provider.json({"error": {"message": "Streaming is not supported."}}, status=400)
    broken = provider.json({"error": {"message": "broken"}}, status=422)
    provider.answers = [refused, broken, provider.events(chunk("x", finish="stop"))]
    model = connect(provider.base_url)
    with pytest.raises(ModelFailed):
        await events_of(model)
    assert (await reply_of(model)).streamed


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ModelFailed), (401, ModelRefused), (403, ModelRefused), (404, ModelFailed), (409, ModelFailed),
        (422, ModelFailed), (429, ModelRateLimited), (500, ModelFailed), (503, ModelFailed),
    ],
)  # fmt: skip
async def test_each_status_has_its_error_class(rehearsal: RehearsalServer, status: int, kind: type[ModelError]) -> None:
    rehearsal.change(status=status, retry_after_seconds=7)
    error = await error_of(rehearsal.base_url)
    assert type(error) is kind
    assert error.detail.startswith(f"HTTP {status}: ")
    if isinstance(error, ModelFailed):
        assert error.http_status == status
    if isinstance(error, ModelRateLimited):
        assert error.retry_after_seconds == 7


async def test_error_messages_contain_no_html_and_no_key(provider: RawProvider) -> None:
    provider.routes = {"/v1/chat/completions": provider.json(b"<html>\n<h1>Bad</h1></html>", 502, "text/html")}
    assert (await error_of(provider.base_url)).detail == "HTTP 502: X"
    body = {"error": {"message": "Incorrect API key\nprovided: sk-secret"}}
    provider.routes = {"/v1/chat/completions": provider.json(body, 401)}
    assert (await error_of(provider.base_url)).detail == "HTTP 401: Incorrect API key provided: [key]"


async def test_a_refused_connection_is_reported() -> None:
    async with serve_rehearsal() as server:
        base_url = server.base_url
    error = await error_of(base_url)
    assert isinstance(error, ModelUnreachable)
    assert str(error) == f"I could not reach my model at {base_url} (connection refused)"


async def test_a_base_url_without_scheme_is_reported() -> None:
    error = await error_of("localhost")
    assert isinstance(error, ModelUnreachable)
    assert "http://" in error.detail


async def test_a_connection_closed_without_answer_is_unreachable(provider: RawProvider) -> None:
    error = await error_of(provider.base_url)
    assert isinstance(error, ModelUnreachable)
    assert error.detail == "the server closed the connection"


async def test_a_stream_without_chunks_times_out(provider: RawProvider) -> None:
    provider.routes = {"/v1/chat/completions": provider.events(end="open", then="hang")}
    error = await error_of(provider.base_url, first_chunk_timeout_seconds=2.0)
    assert isinstance(error, ModelStreamCut)
    assert error.detail == "no data for 2 s"
    with anyio.fail_after(PATIENCE_SECONDS):
        await provider.client_left.wait()


async def test_a_server_that_sends_nothing_is_unreachable(provider: RawProvider) -> None:
    provider.routes = {"/v1/chat/completions": provider.silence()}
    error = await error_of(provider.base_url, first_chunk_timeout_seconds=0.5)
    assert isinstance(error, ModelUnreachable)
    assert error.detail == "no answer in 0.5 s"
    with anyio.fail_after(PATIENCE_SECONDS):
        await provider.client_left.wait()


async def test_silence_after_the_finish_reason_is_harmless(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.answers = [provider.events(chunk("x"), chunk(finish="stop", usage=USAGE), end="open", then="hang")]
    reply = await reply_of(connect(provider.base_url, idle_timeout_seconds=0.05))
    assert (reply.text, reply.usage) == ("x", Usage(9, 2, 11))


async def test_a_window_request_without_answer_times_out(provider: RawProvider, connect: Client) -> None:
    provider.routes = {"/v1/models": provider.silence()}
    assert await connect(provider.base_url, window_timeout_seconds=0.05).discover_window() is None


async def test_silence_between_chunks_ends_the_request(provider: RawProvider, chunk: ChunkMaker) -> None:
    provider.answers = [provider.events(chunk("x"), end="open", then="hang")]
    error = await error_of(provider.base_url, idle_timeout_seconds=0.05)
    assert isinstance(error, ModelStreamCut)
    assert error.chunks == 1
    with anyio.fail_after(PATIENCE_SECONDS):
        await provider.client_left.wait()


async def test_an_overflow_carries_the_figures_of_the_provider(rehearsal: RehearsalServer) -> None:
    rehearsal.change(window_tokens=20)
    error = await error_of(rehearsal.base_url)
    assert isinstance(error, ContextOverflow)
    assert (error.limit_tokens, error.requested_tokens) == (20, rehearsal.requests[-1].prompt_tokens)


async def test_an_overflow_as_an_empty_stream_is_a_cut(rehearsal: RehearsalServer) -> None:
    rehearsal.change(window_tokens=20, empty_stream_on_overflow=True)
    error = await error_of(rehearsal.base_url)
    assert isinstance(error, ModelStreamCut)
    assert error.chunks == 0


async def test_cancelling_between_chunks_ends_the_request_at_the_server(
    rehearsal: RehearsalServer, connect: Client
) -> None:
    rehearsal.change(chunk_delay_seconds=600)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(events_of, connect(rehearsal.base_url))
            await rehearsal.wait_until(lambda: any(request.chunks_sent for request in rehearsal.requests))
            tasks.cancel_scope.cancel()
        await rehearsal.wait_until(lambda: rehearsal.requests[-1].is_disconnected)
    assert not rehearsal.requests[-1].is_complete


async def test_leaving_after_the_first_delta_ends_the_request(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.answers = [
        provider.events(chunk("x"), end="open", then="hang"),
        provider.events(chunk("y", finish="stop")),
    ]
    model = connect(provider.base_url)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(model.stream(ASK)) as events:
            assert await anext(events) == TextDelta("x")
        await provider.client_left.wait()
    assert (await reply_of(model)).text == "y"


async def test_cancelling_the_caller_ends_the_request(
    provider: RawProvider, connect: Client, chunk: ChunkMaker
) -> None:
    provider.answers = [provider.events(chunk("x"), end="open", then="hang")]
    model = connect(provider.base_url)
    with anyio.fail_after(PATIENCE_SECONDS), anyio.CancelScope() as scope:
        async with aclosing(model.stream(ASK)) as events:
            async for _ in events:
                scope.cancel()
    assert scope.cancelled_caught
    with anyio.fail_after(PATIENCE_SECONDS):
        await provider.client_left.wait()


async def test_the_window_is_discovered_with_one_request(provider: RawProvider, connect: Client) -> None:
    provider.routes = {"/v1/models": provider.json({"data": [{"id": "m", "meta": {"n_ctx": 2048}}]})}
    assert await connect(provider.base_url).discover_window() == Window(2048, "loaded", "/v1/models meta.n_ctx")
    assert len(provider.received) == 1


async def test_a_closed_model_can_be_used_again(rehearsal: RehearsalServer, connect: Client) -> None:
    model = connect(rehearsal.base_url)
    await reply_of(model)
    await model.aclose()
    assert (await reply_of(model)).finish_reason == "stop"


def test_the_identity_hides_a_password_in_the_url() -> None:
    assert OpenAIModel("m", "http://me:secret@host:1/v1/").identity.endpoint == "http://host:1/v1"


class RaisingTransport(transport.AsyncBaseTransport):
    """A transport that raises a given exception."""

    def __init__(self, make: Callable[[transport.Request], Exception]) -> None:
        self._make = make

    async def handle_async_request(self, request: transport.Request) -> transport.Response:
        raise self._make(request)


def classes_under(*roots: type[Exception]) -> list[type[Exception]]:
    found: list[type[Exception]] = []
    for root in roots:
        found += [root, *classes_under(*root.__subclasses__())]
    return list(dict.fromkeys(found))


def instance_of(kind: type[Exception], request: transport.Request) -> Exception:
    """An exception of the package, made with the arguments of its constructor."""
    if kind.__init__ in (OSError.__init__, ValueError.__init__, Exception.__init__, RuntimeError.__init__):
        return kind("no")
    response = transport.Response(getattr(kind, "status_code", 418), request=request)
    completion = ChatCompletion(id="c", choices=[], created=0, model="m", object="chat.completion")
    offered: dict[str, object] = {
        "message": "no", "request": request, "response": response, "body": {"message": "no"}, "symbol": "x",
        "completion": completion, "unsent_messages": ["x"],
    }  # fmt: skip
    wanted = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in offered.items() if name in wanted})


@pytest.mark.parametrize(
    "kind",
    classes_under(
        openai.OpenAIError,
        openai.InvalidWebhookSignatureError,
        transport.HTTPError,
        transport.StreamError,
        transport.InvalidURL,
    ),
    ids=lambda kind: f"{kind.__module__.partition('.')[0]}.{kind.__name__}",
)
async def test_every_error_class_of_openai_is_translated(kind: type[Exception]) -> None:
    raising = RaisingTransport(lambda request: instance_of(kind, request))
    async with transport.AsyncClient(transport=raising) as http_client:
        error = await error_of("http://127.0.0.1:9/v1", http_client=http_client)
    assert error.detail
    # Some versions of openai wrap every exception of their HTTP client in a connection error.
    if isinstance(error.__cause__, openai.APIConnectionError | transport.RequestError):
        assert isinstance(error, ModelUnreachable)
    elif issubclass(kind, openai.AuthenticationError | openai.PermissionDeniedError):
        assert isinstance(error, ModelRefused)
    elif issubclass(kind, openai.RateLimitError):
        assert isinstance(error, ModelRateLimited)
    else:
        assert type(error) is ModelFailed


def caused_by(*causes: Exception) -> Callable[[transport.Request], Exception]:
    """A connection error like those of the transport, with the real cause inside."""

    def make(request: transport.Request) -> Exception:
        error = transport.ConnectError("All connection attempts failed", request=request)
        error.__cause__ = causes[0] if len(causes) == 1 else ExceptionGroup("several addresses", list(causes))
        return error

    return make


@pytest.mark.parametrize(
    ("make", "detail"),
    [
        (caused_by(socket.gaierror(-2, "Name or service not known")), "host name not found"),
        (
            caused_by(ConnectionRefusedError(111, "refused"), ConnectionRefusedError(111, "refused")),
            "connection refused",
        ),
        (caused_by(OSError(113, "No route to host")), "no route to host"),
        (caused_by(ssl.SSLCertVerificationError(1, "certificate verify failed")), "TLS: handshake failed"),
        (caused_by(ConnectionResetError(104, "reset")), "the server closed the connection"),
        (caused_by(TimeoutError()), "no answer in time"),
        (caused_by(ValueError("?")), "connection failed"),
        (lambda request: transport.ConnectTimeout("", request=request), "no connection in 5 s"),
        (lambda request: transport.ReadTimeout("", request=request), "no answer in 600 s"),
        (lambda request: transport.TooManyRedirects("Too many redirects.", request=request), "Too many redirects."),
    ],
)
async def test_a_failed_connection_names_its_cause(make: Callable[[transport.Request], Exception], detail: str) -> None:
    async with transport.AsyncClient(transport=RaisingTransport(make)) as http_client:
        error = await error_of("http://host/v1", http_client=http_client)
    assert isinstance(error, ModelUnreachable)
    assert error.detail == detail


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3), ("0.5", 0.5), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)]
)
async def test_a_numeric_retry_after_header_is_kept(value: str, seconds: float | None) -> None:
    answer = transport.Response(429, json={"error": {"message": "slow"}}, headers={"retry-after": value})
    async with transport.AsyncClient(transport=transport.MockTransport(lambda request: answer)) as http_client:
        error = await error_of("http://host/v1", http_client=http_client)
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after_seconds == seconds


async def test_a_given_http_client_stays_open() -> None:
    refusing = transport.MockTransport(lambda request: transport.Response(401, json={"error": {"message": "no"}}))
    async with transport.AsyncClient(transport=refusing) as http_client:
        await error_of("http://host/v1", http_client=http_client)
        assert not http_client.is_closed


async def test_options_may_be_changed_between_calls() -> None:
    async with serve_rehearsal(RehearsalOptions(status=500)) as server:
        assert isinstance(await error_of(server.base_url), ModelFailed)
        server.options = RehearsalOptions()
        model = OpenAIModel("m", server.base_url, max_retries=0)
        assert (await reply_of(model)).finish_reason == "stop"
        await model.aclose()
