"""The rehearsal model as an ASGI app: routes, errors, records, faults; on a real port, or embedded as a `Model`.

It speaks OpenAI's chat completions and responses, and Anthropic's messages. Chunk shapes (`usage_on`) and the summary
behaviours `silent` and `endless` are those of chat completions only.
"""

import json
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
from mew_listener.http_connection import bearer_of
from mew_listener.listener_options import ListenerOptions
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.serving import break_connection, serving, while_connected
from mew_protocol.codec import parse_json
from mew_protocol.envelope import wire_timestamp
from mew_protocol.errors import DecodeError
from mew_protocol.json_values import objects_at, value_at
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_agent.parts.rehearsal import messages_api, responses_api
from mew_agent.parts.rehearsal import reply_bodies as wire
from mew_agent.parts.rehearsal.behaviour import SELF_DESCRIPTION, PlannedReply, plan_reply
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions, ReportedUsage
from mew_agent.parts.rehearsal.summaries import is_summary_request
from mew_agent.parts.rehearsal.tokenizer import count_request, render_request
from mew_agent.parts.shared.embedded_model import EmbeddedModel
from mew_agent.parts.shared.responses_format import DONE, event

KEPT_REQUESTS = 1_000
KEPT_REQUEST_BYTES = 8 * 1024 * 1024
"""How many of the newest requests are recorded, and how large their bodies may be together."""

CACHED_PROMPTS = 8
"""How many of the newest prompts the prefix cache keeps."""

_STATUS_CODES = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "permission_denied", "You are not allowed to use this model."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
}


@dataclass
class RecordedRequest:
    """One completion request and its outcome. Counts are true token counts, whatever was reported."""

    number: int  # from 1
    size_bytes: int
    body: Mapping[str, object]
    prompt_tokens: int
    is_summary: bool
    received_at: str
    authorization: str | None = None
    status: int | None = None  # None until the reply starts
    completion_tokens: int | None = None
    reported: Mapping[str, object] | None = None  # the usage object in the reply
    chunks_sent: int = 0
    is_complete: bool = False
    is_disconnected: bool = False
    left_out: int = 0  # number of messages after the system prompt that the model did not get


@dataclass(eq=False)
class _ApiError(Exception):
    """An HTTP error, in the form of OpenAI's APIs."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Api:
    """One API: its paths, and the conversion of its JSON from and to chat completions."""

    path: str
    count_path: str
    as_chat: Callable[[Mapping[str, Any]], Mapping[str, object]]
    body_of: Callable[[wire.Completion, wire.Json | None], wire.Json]
    chunks_of: Callable[[wire.Completion, RehearsalOptions, wire.Json | None], Iterable[wire.Json]]
    ends_with: bytes = b""


_CHAT = _Api(
    path="chat/completions",
    count_path="chat/completions/input_tokens",
    as_chat=lambda body: body,
    body_of=wire.body_of,
    chunks_of=wire.chunks_of,
    ends_with=DONE,
)
_RESPONSES = _Api(
    path="responses",
    count_path="responses/input_tokens",
    as_chat=responses_api.as_chat,
    body_of=responses_api.body_of,
    chunks_of=responses_api.events_of,
)
_MESSAGES = _Api(
    path="messages",
    count_path="messages/count_tokens",
    as_chat=messages_api.as_chat,
    body_of=messages_api.body_of,
    chunks_of=messages_api.events_of,
)


class RehearsalServer:
    """State and routes of one rehearsal model.

    `base_url` is the URL for an OpenAI client while it is served, for instance `http://127.0.0.1:40123/v1`. Replaced
    `options` apply from the next request on. `requests` lists the newest completion requests.
    """

    def __init__(self, options: RehearsalOptions) -> None:
        self.base_url = ""
        self._options = options
        self._script, self._fixed_usage = deque(options.script), deque(options.fixed_usage)
        self._summary_script = deque(options.summary_script)
        self._changed = anyio.Event()
        self.stopping = anyio.Event()
        self.requests: list[RecordedRequest] = []
        self._request_bytes = 0
        self._requests_seen = 0
        self._cached_prompts: deque[array[int]] = deque(maxlen=CACHED_PROMPTS)
        """The hashes of their tokens: texts would take eight times the memory."""
        self.app = Starlette(
            routes=[
                Route("/", self._describe),
                Route("/health", self._health),
                Route("/v1/models", self._models),
                *(
                    Route(f"/v1/{path}", partial(endpoint, api), methods=["POST"])
                    for api in (_CHAT, _RESPONSES, _MESSAGES)
                    for path, endpoint in ((api.path, self._completions), (api.count_path, self._input_tokens))
                ),
                Route("/rehearsal/requests", self._recorded),
            ],
            exception_handlers={_ApiError: _respond_to_error},
        )

    @property
    def options(self) -> RehearsalOptions:
        return self._options

    @options.setter
    def options(self, options: RehearsalOptions) -> None:
        # A new list starts at its beginning; an unchanged list keeps its position.
        if options.script != self._options.script:
            self._script = deque(options.script)
        if options.fixed_usage != self._options.fixed_usage:
            self._fixed_usage = deque(options.fixed_usage)
        if options.summary_script != self._options.summary_script:
            self._summary_script = deque(options.summary_script)
        self._options = options

    def change(self, **changes: Any) -> None:
        """Replace options by name. Raises `ValidationError` for invalid values and changes nothing then."""
        self.options = RehearsalOptions.model_validate({**self.options.model_dump(), **changes})

    @property
    def port(self) -> int:
        """The port that the service listens on."""
        return urlsplit(self.base_url).port or 0

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` is true. It is checked after every change of `requests`."""
        while not condition():
            await self._changed.wait()

    def notify_change(self) -> None:
        """Wake the callers of `wait_until` after a change of `requests`."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _describe(self, _request: Request) -> Response:
        lines = [
            f"mew-agent rehearsal model '{self._options.model}': an OpenAI-compatible server for rehearsals and tests.",
            SELF_DESCRIPTION,
            f"Window: {self._options.window_tokens} tokens of its own tokenizer. Base URL: /v1",
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self._options.model})

    async def _models(self, request: Request) -> Response:
        self._check_key(request)
        options = self._options
        model: dict[str, object] = {"id": options.model, "object": "model", "created": 0}
        model["owned_by"] = "mew-agent rehearsal model"
        if options.report_window:
            model["meta"] = {"n_ctx": options.window_tokens, "n_ctx_train": options.window_tokens}
        return JSONResponse({"object": "list", "data": [model]})

    async def _recorded(self, _request: Request) -> Response:
        return JSONResponse([{**vars(recorded), "authorization": None} for recorded in self.requests])

    async def _input_tokens(self, api: "_Api", request: Request) -> Response:
        self._check_key(request)
        if not self._options.counts_prompts:
            raise _ApiError(404, "invalid_request_error", "not_found", "This model does not count prompts.")
        body = api.as_chat(await _json_object(request))
        return JSONResponse({"input_tokens": count_request(*_messages_and_tools(body))})

    async def _completions(self, api: "_Api", request: Request) -> ASGIApp:
        recorded: RecordedRequest | None = None
        try:
            sent = await _json_object(request)
            body = api.as_chat(sent)
            size_bytes = len(await request.body())
            messages, tools = _messages_and_tools(body)
            recorded = RecordedRequest(
                number=self._requests_seen + 1,
                size_bytes=size_bytes,
                body=sent,
                prompt_tokens=count_request(messages, tools),
                is_summary=is_summary_request(messages),
                received_at=wire_timestamp(datetime.now(UTC)),
                authorization=request.headers.get("authorization") or request.headers.get("x-api-key"),
            )
            self._record(recorded)
            self._check_key(request)
            self._check_options(sent, recorded)
            return self._answer(api, body, messages, tools, recorded)
        except _ApiError as error:
            if recorded is not None:
                recorded.status = error.status
            self.notify_change()
            raise

    def _record(self, recorded: RecordedRequest) -> None:
        """Add a request and drop the oldest, so that memory does not grow for days."""
        self.requests.append(recorded)
        self._requests_seen += 1
        self._request_bytes += recorded.size_bytes
        while len(self.requests) > KEPT_REQUESTS or (
            len(self.requests) > 1 and self._request_bytes > KEPT_REQUEST_BYTES
        ):
            self._request_bytes -= self.requests.pop(0).size_bytes
        self.notify_change()

    def _answer(
        self,
        api: "_Api",
        body: Mapping[str, object],
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        recorded: RecordedRequest,
    ) -> ASGIApp:
        options = self._options
        is_streamed = body.get("stream") is True
        recorded.status = 200
        if options.shortens_prompts:
            messages = self._fitting(body, messages, tools, recorded)
        if recorded.prompt_tokens >= options.window_tokens:
            return self._overflowed(recorded, is_streamed=is_streamed)
        max_tokens = _max_tokens(body)
        plan = self._scripted(recorded) or plan_reply(messages, tools, options, max_tokens)
        completion = wire.complete(
            plan,
            options,
            number=recorded.number,
            prompt_tokens=recorded.prompt_tokens,
            max_tokens=max_tokens,
            cached_tokens=self._read_cache(messages, tools) if options.prefix_cache else None,
        )
        never_ends = recorded.is_summary and options.summary_behaviour in ("silent", "endless")
        if is_streamed and api is _CHAT and never_ends:
            return _ChunkStream(self, recorded, wire.unlimited_chunks(completion))
        recorded.completion_tokens = completion.completion_tokens
        wants_usage = not is_streamed or value_at(body, "stream_options", "include_usage") is True
        usage = self._usage(completion, recorded, is_requested=wants_usage)
        if not is_streamed or api is not _CHAT:
            recorded.reported = usage
        if is_streamed:
            return _ChunkStream(self, recorded, api.chunks_of(completion, options, usage), ends_with=api.ends_with)
        recorded.is_complete = True
        self.notify_change()
        return JSONResponse(api.body_of(completion, usage))

    def _fitting(
        self,
        body: Mapping[str, object],
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        recorded: RecordedRequest,
    ) -> Sequence[Mapping[str, object]]:
        """Return the messages, without the oldest if they fill the window, and note the number of omitted ones."""
        options = self._options
        if recorded.prompt_tokens < options.window_tokens:
            return messages
        messages = _shortened(messages, tools, options.window_tokens - options.reply_tokens)
        recorded.left_out = len(objects_at(body, "messages")) - len(messages)
        recorded.prompt_tokens = count_request(messages, tools)
        return messages

    def _read_cache(self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]]) -> int:
        """Return the number of cached tokens at the start of this prompt, and add the prompt to the cache."""
        prompt = array("q", map(hash, render_request(messages, tools)))
        cached = max((_common_tokens(prompt, earlier) for earlier in self._cached_prompts), default=0)
        self._cached_prompts.append(prompt)
        return min(cached, len(prompt) - 1)  # servers evaluate at least one token

    def _scripted(self, recorded: RecordedRequest) -> PlannedReply | None:
        if recorded.is_summary:
            return PlannedReply(self._summary_script.popleft()) if self._summary_script else None
        if not self._script:
            return None
        reply = self._script.popleft()
        if reply.status is not None:
            raise _status_error(reply.status, self._options)
        return PlannedReply(reply.text, reply.tool_calls)

    def _usage(
        self, completion: wire.Completion, recorded: RecordedRequest, *, is_requested: bool
    ) -> dict[str, object] | None:
        fixed: ReportedUsage | None = None
        is_reported = is_requested and self._options.usage_on != "none"
        if not recorded.is_summary and self._fixed_usage:
            fixed = self._fixed_usage.popleft()
            is_reported = is_reported and fixed is not None
        return wire.usage_of(completion, self._options, fixed) if is_reported else None

    def _check_key(self, request: Request) -> None:
        key = self._options.api_key
        given = (bearer_of(request.headers), request.headers.get("x-api-key"))
        if key is not None and key not in given:
            raise _status_error(401, self._options)

    def _overflowed(self, recorded: RecordedRequest, *, is_streamed: bool) -> ASGIApp:
        """Refuse a prompt that fills the window, with an error or, if configured, with an empty stream."""
        if is_streamed and self._options.empty_stream_on_overflow:
            return _ChunkStream(self, recorded, (), ends_with=b"")
        raise _overflow(self._options.window_tokens, recorded.prompt_tokens)

    def _check_options(self, body: Mapping[str, object], recorded: RecordedRequest) -> None:
        options = self._options
        if options.status is not None:
            raise _status_error(options.status, options)
        if options.reject_stream_options and "stream_options" in body:
            raise _invalid("Unrecognized request argument supplied: stream_options", "stream_options")
        if options.refuse_streaming and body.get("stream") is True:
            raise _invalid("Streaming is not supported by this server.", "stream")
        if options.refuse_tools and body.get("tools"):
            raise _invalid(f"{options.model} does not support tools", None)
        if options.refuse_images and '"image_url"' in json.dumps(body):
            raise _invalid(f"{options.model} does not support image input", None)
        if recorded.is_summary and options.summary_behaviour == "fail":
            message = "The rehearsal model is configured to fail summaries."
            # Without the header the openai package retries, and a test waits for its backoff.
            headers = {"x-should-retry": "false"}
            raise _ApiError(500, "server_error", "summary_failed", message, headers=headers)


@dataclass(frozen=True)
class _ChunkStream:
    """A response of server-sent events, one per chunk, cut as the options say."""

    server: RehearsalServer
    recorded: RecordedRequest
    chunks: Iterable[Mapping[str, Any]]
    ends_with: bytes = DONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_whole = False
        async with while_connected(receive) as gone:
            is_whole = await self._send_chunks(send)
        if gone.is_set():
            self.recorded.is_disconnected = True
            self.server.notify_change()
            return
        if not is_whole and self.server.options.cut_style == "connection":
            await break_connection(scope, receive)
            return
        # The record must be complete before the client sees the end of the reply.
        self.recorded.is_complete = is_whole
        self.server.notify_change()
        await send({"type": "http.response.body", "body": self.ends_with if is_whole else b"", "more_body": False})

    async def _send_chunks(self, send: Send) -> bool:
        """Send the chunks. Returns False if the stream was cut."""
        options = self.server.options
        if self.recorded.is_summary and options.summary_behaviour == "silent":
            await self.server.stopping.wait()
            return False
        for chunk in self.chunks:
            if self.recorded.chunks_sent == options.cut_after_chunks:
                return False
            if options.chunk_delay_seconds and self.recorded.chunks_sent:
                with anyio.move_on_after(options.chunk_delay_seconds):
                    await self.server.stopping.wait()
                    return False
            self.recorded.chunks_sent += 1
            usage = chunk.get("usage")
            if isinstance(usage, Mapping):
                self.recorded.reported = usage
            body = event(chunk, chunk.get("type", ""))  # the other two APIs have named events
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self.server.notify_change()
            await anyio.lowlevel.checkpoint()
        return self.recorded.chunks_sent != options.cut_after_chunks


@asynccontextmanager
async def serve_rehearsal(
    options: RehearsalOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allowed: Allowed = ONLY_OWN,
) -> AsyncIterator[RehearsalServer]:
    """Serve until the block exits, which breaks open streams. Port 0 picks a free port; a taken one raises
    `OSError`.
    """
    server = RehearsalServer(options or RehearsalOptions())
    async with serving(
        server.app,
        host=host,
        port=port,
        stopping=server.stopping.set,
        options=ListenerOptions(is_open=True),
        allowed=allowed,
    ) as url:
        server.base_url = f"{url}/v1"
        yield server


class EmbeddedRehearsal(EmbeddedModel):
    """The rehearsal model as a `Model` for a program without a model server. Starts at the first call."""

    def __init__(self, window_tokens: int | None = None) -> None:
        options = RehearsalOptions() if window_tokens is None else RehearsalOptions(window_tokens=window_tokens)

        @asynccontextmanager
        async def serve() -> AsyncIterator[str]:
            async with serve_rehearsal(options) as server:
                yield server.base_url

        super().__init__("rehearsal", "rehearsal", serve)


async def _respond_to_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, _ApiError)
    body: object = {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    if request.url.path.startswith(f"/v1/{_MESSAGES.path}"):
        body = messages_api.error_of(error.type, error.message)
    return JSONResponse(body, error.status, headers=dict(error.headers))


async def _json_object(request: Request) -> Mapping[str, object]:
    try:
        body = parse_json(await request.body())
    except ClientDisconnect:
        raise _invalid("The client closed the connection before the body ended.", None) from None
    except DecodeError as error:
        raise _invalid(f"The body is not JSON: {error.detail}", None) from error
    if not isinstance(body, dict):
        raise _invalid("The body is not a JSON object.", None)
    return body


def _is_list_of_objects(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _messages_and_tools(body: Mapping[str, object]) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
    messages, tools = body.get("messages"), body.get("tools") or []
    if not _is_list_of_objects(messages) or not messages:
        raise _invalid("'messages' must be a list of at least one message.", "messages")
    if not _is_list_of_objects(tools):
        raise _invalid("'tools' must be a list of tools.", "tools")
    if any(message.get("content") is None and not message.get("tool_calls") for message in messages):
        raise _invalid("A message without tool calls needs 'content'.", "messages")
    return messages, tools


def _shortened(
    messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]], most_tokens: int
) -> Sequence[Mapping[str, object]]:
    """Return the system prompt and the newest messages that fit, from a message of a user on."""
    first = next((place for place, one in enumerate(messages) if one.get("role") != "system"), 0)
    starts = [place for place, one in enumerate(messages) if place >= first and one.get("role") == "user"]
    kept: Sequence[Mapping[str, object]] = messages
    for start in starts:
        kept = (*messages[:first], *messages[start:])
        if count_request(kept, tools) <= most_tokens:
            break
    return kept


def _max_tokens(body: Mapping[str, object]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _invalid(f"'{key}' must be a whole number of at least 1.", key)
        return value
    return None


def _common_tokens(prompt: Sequence[int], earlier: Sequence[int]) -> int:
    pairs = zip(prompt, earlier, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(prompt), len(earlier)))


def _invalid(message: str, param: str | None) -> _ApiError:
    return _ApiError(400, "invalid_request_error", "invalid_request", message, param)


def _overflow(window_tokens: int, prompt_tokens: int) -> _ApiError:
    message = (
        f"This model's maximum context length is {window_tokens} tokens. However, your messages resulted in"
        f" {prompt_tokens} tokens. Please reduce the length of the messages."
    )
    return _ApiError(400, "invalid_request_error", "context_length_exceeded", message, "messages")


def _status_error(status: int, options: RehearsalOptions) -> _ApiError:
    fallback = ("server_error", "server_error", f"The rehearsal model is configured to answer {status}.")
    kind, code, message = _STATUS_CODES.get(status, fallback)
    headers = {} if options.retry_after_seconds is None else {"retry-after": f"{options.retry_after_seconds:g}"}
    return _ApiError(status, kind, code, message, None, headers)
