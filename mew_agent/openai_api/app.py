"""The HTTP side: OpenAI's `/v1/models` and `/v1/chat/completions` over a door.

Owns routes, the key, and the stream of server-sent events; a client that goes away ends its question. What is
asked and answered is the door's matter.
"""

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
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

from mew_agent.openai_api.background import BackgroundAnswer, answer_in_background
from mew_agent.openai_api.chat_participant import Door, OfferedAgent
from mew_agent.openai_api.problems import BAD_REQUEST, TOO_LARGE, UNAUTHORIZED, Problem
from mew_agent.openai_api.request import Question, read_question
from mew_agent.openai_api.shapes import DONE, KEEP_ALIVE, Json, Reply, event, model_entry, model_list
from mew_agent.participant.answers.builder import Thinking, Writing
from mew_agent.participant.answers.context_notes import context_key
from mew_agent.participant.answers.exchange import Exchange

logger = logging.getLogger("mew_agent.openai_api")

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Clients send the whole conversation each time, with its pictures."""

KEEP_ALIVE_SECONDS: Final = 15.0
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def create_app(
    door: Door,
    *,
    api_key: str,
    answer_background: bool = True,
    allow_origins: Sequence[str] = (),
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> Starlette:
    """The ASGI application. `allow_origins` are web pages' origins that browsers may call from; none by default."""
    routes = _Routes(door, answer_background=answer_background, keep_alive_seconds=keep_alive_seconds)
    middleware = [Middleware(_KeyCheck, api_key=api_key)]
    if allow_origins:
        cors = Middleware(
            CORSMiddleware, allow_origins=list(allow_origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
        middleware.insert(0, cors)
    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name}", routes.model),
            Route("/v1/chat/completions", _Completions(routes), methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers={Problem: _as_problem, HTTPException: _as_http_problem, Exception: _as_failure},
    )


class _KeyCheck:
    """Everything under /v1 wants the key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode(errors="replace")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            given = key.strip().encode(errors="replace")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._key):
                said = "this is not the key that `mew serve` was started with" if given else "no API key was given"
                problem = Problem(UNAUTHORIZED, "invalid_api_key", f"{said} (expected `Authorization: Bearer KEY`)")
                await _problem_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Routes:
    """What the routes share."""

    def __init__(self, door: Door, *, answer_background: bool, keep_alive_seconds: float) -> None:
        self.door = door
        self.answer_background = answer_background
        self.keep_alive_seconds = keep_alive_seconds

    async def health(self, _: Request) -> Response:
        """Whether questions can be asked now."""
        return JSONResponse({"status": "ok" if self.door.is_joined else "no_gateway", "space": self.door.space})

    async def models(self, _: Request) -> Response:
        return JSONResponse(model_list([self._entry(agent) for agent in self.door.agents()]))

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._entry(self.door.agent(request.path_params["name"])))

    def _entry(self, agent: OfferedAgent) -> Json:
        context = agent.context
        mew = {**context_key(agent.name, context), "is_here": agent.is_here, "status": context.status or None}
        return model_entry(
            agent.name,
            created=agent.since,
            owner=self.door.space,
            context_window=context.max_tokens,
            mew={name: value for name, value in mew.items() if value is not None},
        )


class _Completions:
    """`POST /v1/chat/completions`. Plain ASGI: the question must end in the task that began it."""

    def __init__(self, routes: _Routes) -> None:
        self._routes = routes
        self._door = routes.door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        question = read_question(await _body(Request(scope, receive)))
        self._door.agent(question.model)
        background = answer_in_background(question.text, question.system) if self._routes.answer_background else None
        if background is not None:
            await self._answer_in_background(question, background, scope, receive, send)
            return

        async def converse() -> None:
            sending = _Sending(send)
            try:
                await self._answer(question, sending, scope, receive)
            except Problem as problem:
                await self._fail(problem, sending, scope, receive)

        await _while_connected(receive, converse)

    async def _answer(self, question: Question, sending: "_Sending", scope: Scope, receive: Receive) -> None:
        async with self._door.exchange_with(question.model, question.text) as exchange:
            reply = _reply(question, exchange.chat_id)
            if question.is_streamed:
                await self._stream(question, reply, exchange, sending)
            else:
                whole = await self._gather(question, reply, exchange)
                await JSONResponse(whole)(scope, receive, sending.send)

    async def _stream(self, question: Question, reply: Reply, exchange: Exchange, sending: "_Sending") -> None:
        await sending.begin_stream()
        await sending.event(reply.role())
        while True:
            piece, is_waiting = None, True
            with anyio.move_on_after(self._routes.keep_alive_seconds):
                piece, is_waiting = await exchange.next_event(), False
            if is_waiting:
                await sending.raw(KEEP_ALIVE)
                continue
            if piece is None:
                break
            if isinstance(piece, Thinking | Writing):
                key = "reasoning_content" if isinstance(piece, Thinking) else "content"
                await sending.event(reply.delta(key, piece.text))
        for chunk in reply.last(exchange.usage.usage, _mew(question, exchange)):
            await sending.event(chunk)
        await sending.end_stream()

    async def _gather(self, question: Question, reply: Reply, exchange: Exchange) -> Json:
        """Everything at once: the content is the agent's answer alone, notices are in the `mew` key."""
        reasoning: list[str] = []
        while (piece := await exchange.next_event()) is not None:
            if isinstance(piece, Thinking):
                reasoning.append(piece.text)
        answer = exchange.answer.text
        return reply.whole(answer, "".join(reasoning), exchange.usage.usage, _mew(question, exchange))

    async def _answer_in_background(
        self, question: Question, answer: BackgroundAnswer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        reply = _reply(question, f"background-{answer.task}")
        mew = {"participant": question.model, "background": answer.task}
        if not question.is_streamed:
            await JSONResponse(reply.whole(answer.text, "", None, mew))(scope, receive, send)
            return
        sending = _Sending(send)
        await sending.begin_stream()
        for chunk in (reply.role(), reply.delta("content", answer.text), *reply.last(None, mew)):
            await sending.event(chunk)
        await sending.end_stream()

    async def _fail(self, problem: Problem, sending: "_Sending", scope: Scope, receive: Receive) -> None:
        """As a response, or as the last event of a stream that has begun."""
        logger.info("no answer: %s", problem)
        if not sending.has_begun:
            await _problem_response(problem)(scope, receive, sending.send)
            return
        await sending.event(problem.as_dict())
        await sending.end_stream()


class _Sending:
    """One response on its way to one client."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.has_begun = False

    async def begin_stream(self) -> None:
        self.has_begun = True
        await self.send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def event(self, value: Json) -> None:
        await self.raw(event(value))

    async def raw(self, data: bytes) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do something as long as the client is there; when it goes away, the work is cancelled."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await work()
        tasks.cancel_scope.cancel()


async def _body(request: Request) -> Any:
    """The JSON of a request. Raises `Problem`."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise Problem(TOO_LARGE, "too_large", f"body: is larger than {MAX_BODY_BYTES:,} bytes")
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise Problem(BAD_REQUEST, "invalid_request", f"body: is no JSON: {error} (expected a JSON object)") from None


def _reply(question: Question, name: str) -> Reply:
    return Reply(f"chatcmpl-{name}", question.model, int(time.time()), question.include_usage)


def _mew(question: Question, exchange: Exchange) -> Json:
    return context_key(exchange.agent, exchange.context, notices=exchange.answer.notices, ignored=question.ignored)


def _problem_response(problem: Problem) -> Response:
    headers = {"x-should-retry": "true" if problem.is_repeatable else "false"}
    if problem.status == UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(problem.as_dict(), status_code=problem.status, headers=headers)


async def _as_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _problem_response(error)


async def _as_http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    here = "here are GET /v1/models, GET /v1/models/{agent} and POST /v1/chat/completions"
    said = f"{request.method} {request.url.path}: {error.detail.lower()}; {here}"
    return _problem_response(Problem(error.status_code, "no_such_route", said))


async def _as_failure(_: Request, error: Exception) -> Response:
    logger.error("a request failed", exc_info=error)
    return _problem_response(Problem(500, "internal_error", f"something failed inside: {type(error).__name__}"))
