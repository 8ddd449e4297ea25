"""The HTTP side of the API: `/v1/models`, `/v1/chat/completions`, `/v1/responses`, metrics and health.

Owns the routes, the API key check, the streams of server-sent events, and the server. A client that disconnects cancels
its request. `questions` asks agents, `session_choice` chooses sessions.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

import anyio
from anyio import to_thread
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.serving import serving, while_connected
from mew_protocol.payloads.participant import BoardEntry
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_agent.participant.answers.agent_answers import Exchange
from mew_agent.participant.answers.builder import Thinking, Writing
from mew_agent.parts.openai_api.format import KEEP_ALIVE, ApiAnswer, CompletionFormat, Json, ReplyFormat
from mew_agent.parts.openai_api.questions import Questions
from mew_agent.parts.openai_api.request import ApiRequest, answer_in_background, read_request
from mew_agent.parts.openai_api.responses import ResponseFormat, read_responses_request
from mew_agent.parts.openai_api.session_choice import ClientSessions, SessionPolicy
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.chat_participant import ChatParticipant, OfferedAgent
from mew_agent.parts.shared.http_servers import (
    FAILURE_HANDLERS,
    KEY_NAME,
    KeyCheck,
    TracedRequests,
    error_response,
    health_routes,
    read_json,
)
from mew_agent.parts.shared.reported_usage import context_key

logger = logging.getLogger("mew_agent.parts.openai_api")

KEEP_ALIVE_SECONDS: Final = 15.0

CONVERSATION_HEADERS: Final = ("x-mew-session", "x-openwebui-chat-id")
"""Headers that name a conversation; the second is Open WebUI's."""

USER_HEADER: Final = "x-openwebui-user-id"
WriteMetrics = Callable[[int, Sequence[BoardEntry], str], tuple[bytes, str]]
"""Returns metrics as text, and its media type, for the open requests, the board, and an `Accept` header."""

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx collects the events and sends them late
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
    """Return the ASGI application. `api_key` may be several named keys; clients with different keys never share a
    session.

    Without `write_metrics` there is no `/metrics`.
    """
    questions, known = Questions(participant), ClientSessions(sessions)
    models = _Models(questions, write_metrics)
    completions, responses = (
        _Answers(api, questions, known, answer_background, keep_alive_seconds) for api in (CHAT_COMPLETIONS, RESPONSES)
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

    Accepts its address, `localhost`, `host` and the allowed hosts as host names, and pages of the allowed origins.
    """
    async with serving(
        app,
        host=host,
        port=port,
        stopping=participant.close,
        allowed=allowed,
    ) as url:
        yield f"{url}/v1"


@dataclass(frozen=True)
class _Models:
    """The routes, except for completions."""

    questions: Questions
    write_metrics: WriteMetrics | None

    async def metrics(self, request: Request) -> Response:
        """Return the agents' figures and the number of open requests, for monitoring."""
        assert self.write_metrics is not None
        me, accept = self.questions.participant, request.headers.get("accept", "")
        body, media_type = await to_thread.run_sync(self.write_metrics, len(me.answers), me.board(), accept)
        return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})

    async def all(self, _: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [self._entry(agent) for agent in self.questions.participant.agents()]}
        )

    async def one(self, request: Request) -> Response:
        return JSONResponse(self._entry(self.questions.agent(request.path_params["name"])))

    def _entry(self, agent: OfferedAgent) -> Json:
        context = agent.context
        mew = {**context_key(agent.name, context), "is_here": agent.is_present, "status": context.status or None}
        window = {} if context.max_tokens is None else {"context_window": context.max_tokens}
        about = {"created": agent.since, "owned_by": self.questions.participant.space, **window}
        known = {name: value for name, value in mew.items() if value is not None}
        return {"id": agent.name, "object": "model", **about, "mew": known}


@dataclass(frozen=True)
class Api:
    """One of the APIs: functions that read its requests and create its answer formats (request, name, seconds since
    1970).
    """

    read: Callable[[object], ApiRequest]
    write: Callable[[ApiRequest, str, int], ReplyFormat]


CHAT_COMPLETIONS: Final = Api(
    read_request,
    lambda request, name, at: CompletionFormat(f"chatcmpl-{name}", request.model, at, request.include_usage),
)
RESPONSES: Final = Api(read_responses_request, lambda request, name, at: ResponseFormat(f"resp_{name}", request, at))


@dataclass(frozen=True)
class _Answers:
    """`POST` of one API. Uses plain ASGI, because an exchange must end in the task that opened it."""

    api: Api
    questions: Questions
    sessions: ClientSessions
    answer_background: bool
    keep_alive_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _with_headers(self.api.read(await read_json(Request(scope, receive))), Headers(scope=scope))
        self.questions.agent(request.model)
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
                await self._answer(request, scope.get(KEY_NAME, ""), response)
            except AnswerFailed as error:
                logger.info("request failed: %s", error)
                await response.fail(error)

    async def _answer(self, request: ApiRequest, key: str, response: "_Response") -> None:
        chosen = self.sessions.choose(request, key, uuid4().hex[:12])
        async with AsyncExitStack() as stack:
            try:
                question = self.questions.question_for(request, chosen)
                exchange = await stack.enter_async_context(
                    self.questions.participant.open_exchange(request.model, question)
                )
            except BaseException:
                self.sessions.forget(chosen, request)
                raise
            written = self.api.write(request, exchange.chat_id, int(time.time()))
            await response.begin(written)
            shown = await self._follow(exchange, response)
            answer = self.questions.answer_of(exchange, request, question, shown)
            # Clients send back the displayed text as the history, including notices.
            self.sessions.remember(chosen, request, shown.text or answer.text, written.id)
            await response.finish(answer)

    async def _follow(self, exchange: Exchange, response: "_Response") -> ApiAnswer:
        """Read the answer to its end, and stream it. Returns the text that the client saw."""
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
        # Without streaming the text has no notices; they are in `mew`.
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

    async def fail(self, error: AnswerFailed) -> None:
        if self.is_streamed and self.written is not None:
            await self._send(self.written.fail(error), is_end=True)
        else:
            await error_response(error)(self.scope, self.receive, self.send)

    async def _send(self, events: Sequence[bytes], *, is_end: bool = False) -> None:
        for number, one in enumerate(events, start=1):
            is_last = is_end and number == len(events)
            await self.send({"type": "http.response.body", "body": one, "more_body": not is_last})


def _with_headers(request: ApiRequest, headers: Headers) -> ApiRequest:
    conversation = next((headers[name] for name in CONVERSATION_HEADERS if headers.get(name)), request.conversation)
    return replace(request, user=request.user or headers.get(USER_HEADER, ""), conversation=conversation)
