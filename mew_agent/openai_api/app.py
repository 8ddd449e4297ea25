"""The HTTP side of the API: `/v1/models` and `/v1/chat/completions`.

Owns the routes, the API key check, the streams of server-sent events, and the server. A client that disconnects cancels
its request. Does not know how agents are found or asked; see `chat_participant`.
"""

import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_agent.http_server import serving
from mew_agent.openai_api.chat_participant import ChatParticipant, OfferedAgent
from mew_agent.openai_api.format import (
    BAD_REQUEST,
    DONE,
    INTERNAL_ERROR,
    KEEP_ALIVE,
    TOO_LARGE,
    UNAUTHORIZED,
    CompletionFormat,
    Json,
    OpenAIApiError,
    event,
    model_entry,
    model_list,
)
from mew_agent.openai_api.request import BackgroundAnswer, CompletionRequest, answer_in_background, read_request
from mew_agent.participant.answers.builder import Thinking, Writing
from mew_agent.participant.answers.context_notes import context_key
from mew_agent.participant.answers.exchange import Exchange

logger = logging.getLogger("mew_agent.openai_api")

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Large, because clients send the whole conversation with its images each time."""

KEEP_ALIVE_SECONDS: Final = 15.0
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def create_app(
    participant: ChatParticipant,
    *,
    api_key: str,
    answer_background: bool = True,
    allow_origins: Sequence[str] = (),
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> Starlette:
    """The ASGI application. Browsers may call it from pages of `allow_origins` (default: none)."""
    models = _Models(participant)
    completions = _Completions(participant, answer_background, keep_alive_seconds)
    middleware = [Middleware(_KeyCheck, api_key=api_key)]
    if allow_origins:
        methods, headers = ("GET", "POST"), ("*",)
        cors = Middleware(CORSMiddleware, allow_origins=allow_origins, allow_methods=methods, allow_headers=headers)
        middleware.insert(0, cors)
    return Starlette(
        routes=[
            Route("/health", models.health),
            Route("/v1/models", models.all),
            Route("/v1/models/{name}", models.one),
            Route("/v1/chat/completions", completions, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers=dict.fromkeys((OpenAIApiError, HTTPException, Exception), _response_to_failure),
    )


@asynccontextmanager
async def serve_app(
    app: ASGIApp, participant: ChatParticipant, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve until the block exits; yields the base URL for OpenAI clients. Raises OSError if the port is in use."""
    async with serving(app, host=host, port=port, stopping=participant.close) as url:
        yield f"{url}/v1"


class _KeyCheck:
    """Requires the API key for every path under /v1."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode(errors="replace")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            given = key.strip().encode(errors="replace")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._key):
                problem = "wrong API key" if given else "missing API key"
                message = f"{problem}: send the key of `mew serve` as `Authorization: Bearer KEY`"
                await _error_response(OpenAIApiError(UNAUTHORIZED, "invalid_api_key", message))(scope, receive, send)
                return
        await self._app(scope, receive, send)


@dataclass(frozen=True)
class _Models:
    """The routes, except for completions."""

    participant: ChatParticipant

    async def health(self, _: Request) -> Response:
        """Health check: whether the participant is connected to its space."""
        status = "ok" if self.participant.is_joined else "no_gateway"
        return JSONResponse({"status": status, "space": self.participant.space})

    async def all(self, _: Request) -> Response:
        return JSONResponse(model_list([self._entry(agent) for agent in self.participant.agents()]))

    async def one(self, request: Request) -> Response:
        return JSONResponse(self._entry(self.participant.agent(request.path_params["name"])))

    def _entry(self, agent: OfferedAgent) -> Json:
        context = agent.context
        mew = {**context_key(agent.name, context), "is_here": agent.is_present, "status": context.status or None}
        return model_entry(
            agent.name,
            created=agent.since,
            owner=self.participant.space,
            context_window=context.max_tokens,
            mew={name: value for name, value in mew.items() if value is not None},
        )


@dataclass(frozen=True)
class _Completions:
    """`POST /v1/chat/completions`. Plain ASGI, because an exchange must end in the task that opened it."""

    participant: ChatParticipant
    answer_background: bool
    keep_alive_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = read_request(await _body(Request(scope, receive)))
        self.participant.agent(request.model)
        background = answer_in_background(request.text, request.system) if self.answer_background else None
        if background is not None:
            await self._answer_in_background(request, background, scope, receive, send)
            return

        async def answer() -> None:
            response = _Response(send)
            try:
                await self._answer(request, response, scope, receive)
            except OpenAIApiError as error:
                logger.info("request failed: %s", error)
                if response.has_started:
                    await response.event(error.as_dict())
                    await response.end_stream()
                else:
                    await _error_response(error)(scope, receive, send)

        await _while_connected(receive, answer)

    async def _answer(self, request: CompletionRequest, response: "_Response", scope: Scope, receive: Receive) -> None:
        async with self.participant.open_exchange(request.model, request.text) as exchange:
            completion = _completion_format(request, exchange.chat_id)
            if request.is_streamed:
                await self._stream(request, completion, exchange, response)
            else:
                whole = await self._gather(request, completion, exchange)
                await JSONResponse(whole)(scope, receive, response.send)

    async def _stream(
        self, request: CompletionRequest, completion: CompletionFormat, exchange: Exchange, response: "_Response"
    ) -> None:
        await response.start_stream()
        await response.event(completion.role())
        while True:
            piece, is_waiting = None, True
            with anyio.move_on_after(self.keep_alive_seconds):
                piece, is_waiting = await exchange.next_event(), False
            if is_waiting:
                await response.raw(KEEP_ALIVE)
                continue
            if piece is None:
                break
            if isinstance(piece, Thinking | Writing):
                key = "reasoning_content" if isinstance(piece, Thinking) else "content"
                await response.event(completion.delta(key, piece.text))
        for chunk in completion.last(exchange.usage.usage, _mew(request, exchange)):
            await response.event(chunk)
        await response.end_stream()

    async def _gather(self, request: CompletionRequest, completion: CompletionFormat, exchange: Exchange) -> Json:
        """The whole answer: the content is the agent's answer only, notices are in the `mew` key."""
        reasoning: list[str] = []
        while (piece := await exchange.next_event()) is not None:
            if isinstance(piece, Thinking):
                reasoning.append(piece.text)
        answer = exchange.answer.text
        return completion.whole(answer, "".join(reasoning), exchange.usage.usage, _mew(request, exchange))

    async def _answer_in_background(
        self, request: CompletionRequest, answer: BackgroundAnswer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        completion = _completion_format(request, f"background-{answer.task}")
        mew = {"participant": request.model, "background": answer.task}
        if not request.is_streamed:
            await JSONResponse(completion.whole(answer.text, "", None, mew))(scope, receive, send)
            return
        response = _Response(send)
        await response.start_stream()
        for chunk in (completion.role(), completion.delta("content", answer.text), *completion.last(None, mew)):
            await response.event(chunk)
        await response.end_stream()


@dataclass
class _Response:
    """The response to one client."""

    send: Send
    has_started: bool = False

    async def start_stream(self) -> None:
        self.has_started = True
        await self.send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def event(self, value: Json) -> None:
        await self.raw(event(value))

    async def raw(self, data: bytes) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; cancel it when the client disconnects."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await work()
        tasks.cancel_scope.cancel()


async def _body(request: Request) -> Any:
    """The JSON body of a request. Raises `OpenAIApiError`."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise OpenAIApiError(TOO_LARGE, "too_large", f"body: exceeds {MAX_BODY_BYTES:,} bytes")
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        message = f"body: invalid JSON: {error} (expected a JSON object)"
        raise OpenAIApiError(BAD_REQUEST, "invalid_request", message) from None


def _completion_format(request: CompletionRequest, name: str) -> CompletionFormat:
    return CompletionFormat(f"chatcmpl-{name}", request.model, int(time.time()), request.include_usage)


def _mew(request: CompletionRequest, exchange: Exchange) -> Json:
    return context_key(exchange.agent, exchange.context, notices=exchange.answer.notices, ignored=request.ignored)


def _error_response(error: OpenAIApiError) -> Response:
    headers = {"x-should-retry": "true" if error.is_retryable else "false"}
    if error.status == UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.as_dict(), status_code=error.status, headers=headers)


async def _response_to_failure(request: Request, error: Exception) -> Response:
    match error:
        case OpenAIApiError():
            return _error_response(error)
        case HTTPException():
            routes = "routes: GET /v1/models, GET /v1/models/{agent}, POST /v1/chat/completions"
            message = f"{request.method} {request.url.path}: {error.detail.lower()}; {routes}"
            return _error_response(OpenAIApiError(error.status_code, "no_such_route", message))
        case _:
            logger.error("request failed", exc_info=error)
            problem = f"internal error: {type(error).__name__}"
            return _error_response(OpenAIApiError(INTERNAL_ERROR, "internal_error", problem))
