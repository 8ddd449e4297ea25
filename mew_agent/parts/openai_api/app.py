"""The HTTP side of the API: `/v1/models`, `/v1/chat/completions`, `/v1/responses`, and what monitoring reads.

Owns the routes, the API key check, the streams of server-sent events, and the server. A client that disconnects cancels
its request. Does not know how agents are found or asked (see `chat_participant`) or sessions chosen (see `sessions`).
"""

import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import anyio
from anyio import to_thread
from mew_listener.http import admit
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.server import serving, while_connected
from mew_protocol.metrics import Metric, context_metrics
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_agent.participant.answers.builder import Thinking, Writing
from mew_agent.participant.answers.context_notes import context_key
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.parts.openai_api.chat_participant import ChatParticipant, OfferedAgent
from mew_agent.parts.openai_api.format import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    KEEP_ALIVE,
    UNAUTHORIZED,
    ApiAnswer,
    CompletionFormat,
    Json,
    OpenAIApiError,
    ReplyFormat,
)
from mew_agent.parts.openai_api.request import ApiRequest, answer_in_background, read_request
from mew_agent.parts.openai_api.responses import ResponseFormat, read_responses_request
from mew_agent.parts.openai_api.sessions import ClientSessions, SessionPolicy
from mew_agent.tracing import TracedRequests

logger = logging.getLogger("mew_agent.parts.openai_api")

KEEP_ALIVE_SECONDS: Final = 15.0

CONVERSATION_HEADERS: Final = ("x-mew-session", "x-openwebui-chat-id")
"""Headers that name a conversation; the second is Open WebUI's."""

USER_HEADER: Final = "x-openwebui-user-id"
WriteMetrics = Callable[[Iterable[Metric], str], tuple[bytes, str]]
"""Returns metrics as text, and its media type, for an `Accept` header."""

_KEY_NAME: Final = "mew_agent.api_key_name"
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events and send them late
]


def create_app(
    participant: ChatParticipant,
    *,
    api_key: str | Mapping[str, str],
    sessions: SessionPolicy = "chat",
    answer_background: bool = True,
    write_metrics: WriteMetrics | None = None,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> Starlette:
    """Return the ASGI application. `api_key` may be several keys by name, whose clients never share a session.

    Without `write_metrics` there is no `/metrics`.
    """
    models, known = _Models(participant, write_metrics), ClientSessions(sessions)
    completions, responses = (
        _Answers(api, participant, known, answer_background, keep_alive_seconds)
        for api in (CHAT_COMPLETIONS, RESPONSES)
    )
    keys = {"": api_key} if isinstance(api_key, str) else api_key
    middleware = [
        Middleware(KeyCheck, api_keys=keys, requires_key=lambda path: path.startswith(("/v1", "/metrics"))),
        Middleware(TracedRequests),
    ]
    return Starlette(
        routes=[
            *health_routes(participant),
            *([Route("/metrics", models.metrics)] if write_metrics is not None else []),
            Route("/v1/models", models.all),
            Route("/v1/models/{name}", models.one),
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers=FAILURE_HANDLERS,
    )


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    participant: ChatParticipant,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allowed: Allowed = ONLY_OWN,
) -> AsyncIterator[str]:
    """Serve until the block exits; yields the base URL for OpenAI clients. Raises OSError if the port is in use.

    Clients reach it by its address, `localhost`, `host` and the allowed hosts; pages of the allowed origins may use it.
    """
    async with serving(
        app,
        host=host,
        port=port,
        stopping=participant.close,
        allowed=allowed,
    ) as url:
        yield f"{url}/v1"


def health_routes(participant: ChatParticipant) -> tuple[Route, Route]:
    """Return `/health` and `/ready` of a server that needs the space: `/ready` is 503 while it is not connected."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok" if participant.is_joined else "no_gateway", "space": participant.space})

    async def ready(_: Request) -> Response:
        is_ready = participant.is_joined
        return JSONResponse({"status": "ready" if is_ready else "no_gateway"}, status_code=200 if is_ready else 503)

    return Route("/health", health), Route("/ready", ready)


class KeyCheck:
    """Requires one of the named API keys for the paths that `requires_key` selects, and notes its name in the scope."""

    def __init__(self, app: ASGIApp, api_keys: Mapping[str, str], requires_key: Callable[[str], bool]) -> None:
        self._app, self._requires_key = app, requires_key
        self._keys = {name: key.encode(errors="replace") for name, key in api_keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._requires_key(scope["path"]):
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            given = key.strip().encode(errors="replace")
            # All keys are compared, so that the response time reveals nothing about them.
            matching = [name for name, known in self._keys.items() if hmac.compare_digest(given, known)]
            if scheme.lower() != "bearer" or not matching:
                problem = "wrong API key" if given else "missing API key"
                message = f"{problem}: send the key of this server as `Authorization: Bearer KEY`"
                await _error_response(OpenAIApiError(UNAUTHORIZED, "invalid_api_key", message))(scope, receive, send)
                return
            scope[_KEY_NAME] = matching[0]
            admit(scope)
        await self._app(scope, receive, send)


@dataclass(frozen=True)
class _Models:
    """The routes, except for completions."""

    participant: ChatParticipant
    write_metrics: WriteMetrics | None

    async def metrics(self, request: Request) -> Response:
        """Return the figures of the agents, and how many requests are open, for monitoring."""
        assert self.write_metrics is not None
        space, accept = self.participant.space, request.headers.get("accept", "")
        requests = Metric("mew_serve_open_requests", "Requests that wait for an agent", ("space",))
        requests.add(len(self.participant.answers), space)
        metrics = (requests, *context_metrics([(space, self.participant.board())]))
        body, media_type = await to_thread.run_sync(self.write_metrics, metrics, accept)
        return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})

    async def all(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry(agent) for agent in self.participant.agents()]})

    async def one(self, request: Request) -> Response:
        return JSONResponse(self._entry(self.participant.agent(request.path_params["name"])))

    def _entry(self, agent: OfferedAgent) -> Json:
        context = agent.context
        mew = {**context_key(agent.name, context), "is_here": agent.is_present, "status": context.status or None}
        window = {} if context.max_tokens is None else {"context_window": context.max_tokens}
        about = {"created": agent.since, "owned_by": self.participant.space, **window}
        known = {name: value for name, value in mew.items() if value is not None}
        return {"id": agent.name, "object": "model", **about, "mew": known}


@dataclass(frozen=True)
class Api:
    """One of the APIs: how its requests are read, and its answers written (request, name, seconds since 1970)."""

    read: Callable[[object], ApiRequest]
    write: Callable[[ApiRequest, str, int], ReplyFormat]


CHAT_COMPLETIONS: Final = Api(
    read_request,
    lambda request, name, at: CompletionFormat(f"chatcmpl-{name}", request.model, at, request.include_usage),
)
RESPONSES: Final = Api(read_responses_request, lambda request, name, at: ResponseFormat(f"resp_{name}", request, at))


@dataclass(frozen=True)
class _Answers:
    """`POST` of one API. Plain ASGI, because an exchange must end in the task that opened it."""

    api: Api
    participant: ChatParticipant
    sessions: ClientSessions
    answer_background: bool
    keep_alive_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _with_headers(self.api.read(await _body(scope, receive)), Headers(scope=scope))
        self.participant.agent(request.model)
        response = _Response(scope, receive, send, request.is_streamed)
        background = answer_in_background(request.text, request.system) if self.answer_background else None
        if background is not None:
            written = self.api.write(request, f"background-{background.task}", int(time.time()))
            mew = {"participant": request.model, "background": background.task}
            await response.begin(written)
            await response.piece(background.text, is_reasoning=False)
            await response.finish(ApiAnswer(background.text, mew=mew))
            return
        async with while_connected(receive):
            try:
                await self._answer(request, scope.get(_KEY_NAME, ""), response)
            except OpenAIApiError as error:
                logger.info("request failed: %s", error)
                await response.fail(error)

    async def _answer(self, request: ApiRequest, key: str, response: "_Response") -> None:
        chosen = self.sessions.choose(request, key, uuid4().hex[:12])
        question = self.participant.question_for(request, chosen)
        async with self.participant.open_exchange(request.model, question) as exchange:
            written = self.api.write(request, exchange.chat_id, int(time.time()))
            await response.begin(written)
            shown = await self._follow(exchange, response)
            answer = self.participant.answer_of(exchange, request, question, shown)
            # What a client was shown, notices included, is what it sends back as the history.
            self.sessions.remember(chosen, request, shown.text or answer.text, written.id)
            await response.finish(answer)

    async def _follow(self, exchange: Exchange, response: "_Response") -> ApiAnswer:
        """Read the answer to its end, and stream it. Returns what the client was shown of it."""
        text, reasoning = list[str](), list[str]()
        while True:
            piece = None
            with anyio.move_on_after(self.keep_alive_seconds) as wait:
                piece = await exchange.next_event()
            if isinstance(piece, Thinking | Writing):
                is_reasoning = isinstance(piece, Thinking)
                (reasoning if is_reasoning else text).append(piece.text)
                await response.piece(piece.text, is_reasoning=is_reasoning)
            elif wait.cancelled_caught:
                await response.keep_alive()
            elif piece is None:
                break
        # A whole answer contains only the agent's text; notices are in its `mew` key.
        return ApiAnswer("".join(text) if response.is_streamed else "", "".join(reasoning))


@dataclass
class _Response:
    """The response to one client: events as soon as there are any, or one body at the end."""

    scope: Scope
    receive: Receive
    send: Send
    is_streamed: bool
    written: ReplyFormat | None = None

    async def begin(self, written: ReplyFormat) -> None:
        self.written = written
        if self.is_streamed:
            await self.send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            await self._send(written.begin())

    async def piece(self, text: str, *, is_reasoning: bool) -> None:
        assert self.written is not None
        if self.is_streamed:
            await self._send(self.written.piece(text, is_reasoning=is_reasoning))

    async def keep_alive(self) -> None:
        if self.is_streamed:
            await self._send([KEEP_ALIVE])

    async def finish(self, answer: ApiAnswer) -> None:
        assert self.written is not None
        if self.is_streamed:
            await self._send(self.written.end(answer), is_end=True)
        else:
            await JSONResponse(self.written.as_json(answer))(self.scope, self.receive, self.send)

    async def fail(self, error: OpenAIApiError) -> None:
        if self.is_streamed and self.written is not None:
            await self._send(self.written.fail(error), is_end=True)
        else:
            await _error_response(error)(self.scope, self.receive, self.send)

    async def _send(self, events: Sequence[bytes], *, is_end: bool = False) -> None:
        for number, one in enumerate(events, start=1):
            is_last = is_end and number == len(events)
            await self.send({"type": "http.response.body", "body": one, "more_body": not is_last})


async def _body(scope: Scope, receive: Receive) -> Any:
    """Return the JSON body of a request. Raises `OpenAIApiError`."""
    try:
        return await Request(scope, receive).json()
    except (ValueError, RecursionError) as error:
        message = f"body: invalid JSON: {error} (expected a JSON object)"
        raise OpenAIApiError(BAD_REQUEST, "invalid_request", message) from None


def _with_headers(request: ApiRequest, headers: Headers) -> ApiRequest:
    conversation = next((headers[name] for name in CONVERSATION_HEADERS if headers.get(name)), request.conversation)
    return replace(request, user=request.user or headers.get(USER_HEADER, ""), conversation=conversation)


def _error_response(error: OpenAIApiError) -> Response:
    # OpenAI's SDKs obey this header; without it they go by the status and would repeat, for example, every conflict.
    headers = {"x-should-retry": "true" if error.is_retryable else "false"}
    if error.status == UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.as_dict(), status_code=error.status, headers=headers)


async def _respond_to_failure(request: Request, error: Exception) -> Response:
    """Return the response to a request that raised `error`."""
    match error:
        case OpenAIApiError():
            return _error_response(error)
        case HTTPException():
            routes = [f"{'POST' if 'POST' in one.methods else 'GET'} {one.path}" for one in request.app.routes]
            message = f"{request.method} {request.url.path}: {error.detail.lower()}; routes: {', '.join(routes)}"
            return _error_response(OpenAIApiError(error.status_code, "no_such_route", message))
        case ClientDisconnect():
            message = "body: the client closed the connection before it ended"
            return _error_response(OpenAIApiError(BAD_REQUEST, "invalid_request", message))
        case _:
            logger.error("request failed", exc_info=error)
            problem = f"internal error: {type(error).__name__}"
            return _error_response(OpenAIApiError(INTERNAL_ERROR, "internal_error", problem))


FAILURE_HANDLERS: Final = dict.fromkeys(
    (OpenAIApiError, HTTPException, ClientDisconnect, Exception), _respond_to_failure
)
"""What Starlette calls for a request that raises one of these."""
