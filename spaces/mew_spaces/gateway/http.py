"""The gateway's HTTP API: health, metrics, participants, messages, board and events.

Owns how each route of `http_operations` is handled. What a participant may do is decided where it is decided for
WebSocket connections: a message that arrives over HTTP takes the same path.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from mew_protocol import errors, kinds
from mew_protocol.codec import decode_envelope
from mew_protocol.envelope import PROTOCOL, Draft
from mew_protocol.errors import DecodeError
from mew_protocol.ids import ParticipantId
from mew_protocol.metrics import context_metrics
from mew_protocol.payloads.fit import Fit, fit_in
from mew_protocol.position import Position
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from mew_spaces.gateway import http_operations as operations
from mew_spaces.gateway import programs
from mew_spaces.gateway.acknowledgements import NOT_STORED_MESSAGE
from mew_spaces.gateway.api_error import ApiError
from mew_spaces.gateway.events import EventReader, EventResponse, newest_before
from mew_spaces.gateway.http_connection import STREAMING
from mew_spaces.gateway.metrics import gateway_metrics, write_metrics
from mew_spaces.gateway.openapi import Operation, Parameter, openapi_document
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.memory import Entry

log = logging.getLogger("spaces")

FEATURES = ("capabilities", "context", "validation", "http-io")

_STATUS = {
    errors.CAPABILITY_VIOLATION: 403,
    errors.IDENTITY_MISMATCH: 403,
    errors.UNAUTHORIZED: 403,
    errors.GRANT_EXCEEDS_OWN: 403,
    errors.PAUSED: 403,
    errors.STREAM_NOT_FOUND: 404,
    errors.PARTICIPANT_NOT_FOUND: 404,
    errors.ALREADY_EXISTS: 409,
    errors.ALREADY_DECIDED: 409,
    errors.TOO_LARGE: 413,
    errors.LIMIT_EXCEEDED: 429,
    errors.RATE_LIMITED: 429,
    errors.NOT_STORED: 503,
}
"""The HTTP status of each error of the protocol; 400 for all others."""


Handler = Callable[[Request], Awaitable[BaseModel | Response]]


class HttpApi:
    """The HTTP API over the spaces of a gateway."""

    def __init__(self, registry: SpaceRegistry, *, version: str) -> None:
        self._registry = registry
        self._version = version
        self._scrapes = anyio.CapacityLimiter(1)
        self._handlers: dict[Operation, Handler] = {
            operations.HEALTH: self._health,
            operations.READY: self._ready,
            operations.METRICS: self._metrics,
            operations.OPENAPI: self._openapi,
            operations.PARTICIPANTS: self._participants,
            operations.POST_MESSAGE: self._post_message,
            operations.POLL_MESSAGES: self._poll_messages,
            operations.CONTEXT: self._context,
            operations.CONTEXT_HISTORY: self._context_history,
            operations.FIT: self._fit,
            operations.ATTENTION: self._attention,
            operations.PROPOSALS: self._proposals,
            operations.PROGRAMS: self._list_programs,
            operations.PROGRAM_LOG: self._program_log,
            operations.RESTART_PROGRAM: self._restart_program,
            operations.ADD_PROGRAM: self._add_program,
            operations.EVENTS: self._events,
        }

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(operation.path, partial(_respond, handler), methods=[operation.method])
            for operation, handler in self._handlers.items()
        ]

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return openapi_document(self._handlers, version=self._version, error=operations.ErrorAnswer)

    async def _health(self, _request: Request) -> BaseModel:
        return operations.HealthAnswer(
            status="ok",
            spaces=len(self._registry),
            clients=self._registry.connections,
            uptime=self._registry.default.uptime_seconds(),
            features=list(FEATURES),
            version=self._version,
            protocol=PROTOCOL,
        )

    async def _ready(self, _request: Request) -> BaseModel:
        if not all(service.is_storing for service in self._registry):
            raise ApiError(503, errors.NOT_STORED, NOT_STORED_MESSAGE)
        return operations.ReadyAnswer(status="ready")

    async def _metrics(self, request: Request) -> Response:
        self._authenticate(request)
        token, accept = bearer_of(request.headers), request.headers.get("accept", "")
        readable = [service for service in self._registry if service.tokens.may_read(token)]
        own, boards = gateway_metrics(readable), [(one.space.id, one.snapshot().board) for one in readable]
        # In a thread, one at a time: thousands of participants must not delay envelopes.
        body, media_type = await to_thread.run_sync(
            lambda: write_metrics((*own, *context_metrics(boards)), accept), limiter=self._scrapes
        )
        return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(self.document())

    async def _participants(self, request: Request) -> Response:
        space, _ = self._authenticate(request)
        # Without models: the capabilities of thousands of participants are checked already.
        listed = [
            {"id": view.id, "connected": view.connected, "capabilities": list(view.capabilities)}
            for view in space.snapshot().participants
        ]
        return JSONResponse({"participants": listed})

    async def _post_message(self, request: Request) -> BaseModel:
        space, sender = self._authenticate(request, is_owner=True)
        assert sender is not None
        try:
            draft = decode_envelope(await _read_body(request, space), max_depth=space.config.limits.json_depth)
        except DecodeError as problem:
            raise ApiError(400, problem.error, problem.detail, code=problem.code) from None
        receipt = await space.post(sender, draft)
        if receipt.refused is not None:
            more = receipt.refused.model_dump(mode="json", exclude_none=True, exclude={"error", "message"})
            error, message = receipt.refused.error, receipt.refused.message or ""
            raise ApiError(_STATUS.get(error, 400), error, message, **more, **receipt.answer)
        envelope = receipt.accepted
        assert envelope is not None
        answer = {"id": envelope.id, "status": "accepted", "timestamp": envelope.ts, **receipt.answer}
        return operations.AcceptedEnvelope.model_validate(answer)

    async def _poll_messages(self, request: Request) -> Response:
        space, _ = self._authenticate(request, is_owner=True)
        limit = _number(request, operations.LIMIT)
        history = space.log
        if (before := request.query_params.get(operations.BEFORE.name)) is not None:
            place = Position.parse(before)
            if place is None or place.epoch != history.epoch or place.sequence > history.position.sequence + 1:
                return _message_page((), history.start, is_complete=False, has_more=False)
            earlier = newest_before(history, place.sequence, limit)
            return _message_page(earlier.entries, earlier.place, is_complete=True, has_more=earlier.has_more)
        since = request.query_params.get("since")
        wanted = history.start if since is None else Position.parse(since)
        # One more than wanted tells whether there are more.
        entries = history.since(wanted, limit=limit + 1) if wanted is not None else None
        is_complete = entries is not None
        if entries is None or wanted is None:
            wanted = history.start
            entries = history.since(wanted, limit=limit + 1) or ()
        shown = entries[:limit]
        position = Position(history.epoch, shown[-1].sequence) if shown else wanted
        return _message_page(shown, position, is_complete=is_complete, has_more=len(shown) < len(entries))

    async def _context(self, request: Request) -> BaseModel:
        space, _ = self._authenticate(request)
        return space.board()

    async def _fit(self, request: Request) -> BaseModel:
        space, _ = self._authenticate(request)
        name = _participant_in_path(request, space)
        entry = next((one for one in space.board().participants if one.id == name), None)
        if entry is None:
            raise ApiError(404, errors.PARTICIPANT_NOT_FOUND, f"no participant '{name}' in this space")
        fit = fit_in(entry.status, _number(request, operations.TOKENS), as_of=entry.received_at)
        return Fit.model_validate(fit.model_dump(exclude_none=True))

    async def _context_history(self, request: Request) -> BaseModel:
        space, _ = self._authenticate(request)
        seconds, limit = _number(request, operations.SECONDS), _number(request, operations.MOST)
        participant = request.query_params.get("participant")
        return await space.figures_of(seconds, limit, participant and (space.space.resolve(participant) or participant))

    async def _attention(self, request: Request) -> BaseModel:
        space, reader = self._authenticate(request)
        space.refresh_attention()
        return space.attention_for(reader)

    async def _proposals(self, request: Request) -> BaseModel:
        space, _ = self._authenticate(request)
        return space.space.proposals(now=space.snapshot().at)

    async def _list_programs(self, request: Request) -> BaseModel:
        space, _ = self._authenticate(request)
        control = self._registry.programs.get(space.space.id)
        names = control.participants() if control is not None else None
        if control is None or names is None:
            return operations.ProgramList(running=False, participants=[], startable=[])
        startable = list(await control.startable())
        return operations.ProgramList(running=True, participants=list(names), startable=startable)

    async def _program_log(self, request: Request) -> BaseModel:
        name, control = self._program(request, programs.READ_LOG)
        lines = await control.log(name, _number(request, operations.LINES))
        if lines is None:
            raise ApiError(404, errors.PARTICIPANT_NOT_FOUND, f"no program of '{name}' runs here")
        return operations.ProgramLog(participant=name, lines=list(lines))

    async def _restart_program(self, request: Request) -> BaseModel:
        name, control = self._program(request, programs.RESTART)
        return _program_answer(name, await control.restart(name))

    async def _add_program(self, request: Request) -> BaseModel:
        space, sender = self._authenticate(request)
        try:
            new = programs.NewProgram.model_validate_json(await _read_body(request, space))
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise ApiError(400, errors.INVALID_REQUEST, f"{where}: {first['msg']}") from None
        name = new.participant
        addition = Draft(kind=programs.ADD, to=(name,), payload=new.model_dump(exclude_none=True))
        invitation = Draft(kind=kinds.SPACE_INVITE, payload={"participant_id": name})
        return _program_answer(name, await self._control(space, sender, addition, invitation).add(new))

    def _program(self, request: Request, kind: str) -> tuple[str, programs.ProgramControl]:
        """Return the participant in the path, and what runs its program, if the sender may send this kind to it."""
        space, sender = self._authenticate(request)
        name = _participant_in_path(request, space)
        control = self._control(space, sender, Draft(kind=kind, to=(name,)))
        if all(view.id != name for view in space.snapshot().participants):
            raise ApiError(404, errors.PARTICIPANT_NOT_FOUND, f"no participant '{name}' in this space")
        return name, control

    def _control(self, space: SpaceService, sender: ParticipantId | None, *drafts: Draft) -> programs.ProgramControl:
        control = programs.permitted_control(space, self._registry.programs.get(space.space.id), sender, *drafts)
        if drafts[0].kind != programs.READ_LOG:
            log.info("%s by '%s' for %r", drafts[0].kind, sender, *drafts[0].addressees)
        return control

    async def _events(self, request: Request) -> Response:
        space, _ = self._authenticate(request)
        request.scope.setdefault("state", {})[STREAMING] = True
        # A browser reconnects to the URL it first opened, so the header has the newer position.
        since = request.headers.get("last-event-id") or request.query_params.get("since") or None
        streams = self._registry.event_streams
        last, with_frames = _number(request, operations.LAST), _number(request, operations.FRAMES) == 1
        reader = EventReader(space, bearer_of(request.headers) or "", _address_of(request), with_frames)
        if not streams.enter(reader):
            raise ApiError(429, errors.LIMIT_EXCEEDED, "this token or address has too many event streams; close one")
        return EventResponse(streams, reader, since, last=last)

    def _authenticate(self, request: Request, *, is_owner: bool = False) -> tuple[SpaceService, ParticipantId | None]:
        """Return the selected space and the participant that the token belongs to, None for an observer.

        With `is_owner`, that must be the participant in the path, so no observer. Raises `ApiError`: 401 without a
        token, 403 if the token is unknown or another participant's, 404 if the gateway has no such space,
        429 after too many reads or wrong tokens.
        """
        token = bearer_of(request.headers)
        if token is None:
            raise ApiError(401, errors.UNAUTHORIZED, "token missing; expected the header Authorization: Bearer <token>")
        space = request.path_params.get("space", request.query_params.get("space"))
        found = self._registry.find(space, token)
        # An unknown space is reported only to clients with a token of the default one.
        checked = found or self._registry.default
        participant = checked.tokens.identify(token)
        owner = _participant_in_path(request, checked) if is_owner else None
        is_allowed = participant == owner if is_owner else checked.tokens.may_read(token)
        if not is_allowed:
            address = _address_of(request)
            log.warning("request refused: invalid token from %s", address)
            if not self._registry.failed_tokens.try_spend(address):
                raise ApiError(429, errors.RATE_LIMITED, "too many requests with invalid tokens; try again later")
            expected = f"the token of '{owner}'" if is_owner else "the token of a participant or an observer"
            raise ApiError(403, errors.UNAUTHORIZED, f"invalid token for this space; expected {expected}")
        if found is None:
            raise ApiError(404, errors.SPACE_NOT_FOUND, f"no space '{space}' on this gateway")
        is_message = is_owner and request.method == "POST"  # which has its own rate
        if not is_message and not self._registry.reads.try_spend(f"{found.space.id}/{token}"):
            raise ApiError(429, errors.RATE_LIMITED, "too many requests; try again later or follow the event stream")
        return found, participant


def _message_page(entries: Sequence[Entry], place: Position, *, is_complete: bool, has_more: bool) -> Response:
    # Stored envelopes are JSON already: joining them costs nothing, parsing a thousand would block the loop.
    body = b'{"messages":[%s],"next":"%s","complete":%s,"more":%s}' % (
        b",".join(entry.data for entry in entries),
        str(place).encode(),
        b"true" if is_complete else b"false",
        b"true" if has_more else b"false",
    )
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def _program_answer(name: str, outcome: programs.ProgramOutcome) -> BaseModel:
    return operations.ProgramAnswer(participant=name, done=outcome.is_done, text=outcome.text)


async def _respond(handler: Handler, request: Request) -> Response:
    """Return what a handler answers; a model as JSON."""
    answer = await handler(request)
    if isinstance(answer, Response):
        return answer
    return Response(
        answer.model_dump_json(by_alias=True, exclude_unset=True),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def bearer_of(headers: Headers) -> str | None:
    """Return the token in an `Authorization: Bearer` header, None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _participant_in_path(request: Request, space: SpaceService) -> str:
    """Return the id of the participant in the path, which may be its display name."""
    name: str = request.path_params["participant"]
    return space.space.resolve(name) or name


def _number(request: Request, parameter: Parameter) -> int:
    """Return a number in the query. Raises `ApiError`."""
    text = request.query_params.get(parameter.name, str(parameter.default))
    number = parameter.parse_number(text)
    if number is None:
        raise ApiError(400, errors.INVALID_REQUEST, f"{parameter.name}: expected {parameter.expected}, got '{text}'")
    return number


async def _read_body(request: Request, space: SpaceService) -> bytes:
    """Return a request's body. Raises `ApiError` if it is too large or comes too slowly, without reading the rest."""
    max_bytes, max_seconds = space.config.limits.http_body_bytes, space.config.limits.header_timeout_seconds
    chunks: list[bytes] = []
    left = max_bytes
    with anyio.move_on_after(max_seconds):
        try:
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    raise ApiError(413, errors.TOO_LARGE, f"request body too large; the limit is {max_bytes:,} bytes")
                chunks.append(chunk)
        except ClientDisconnect:  # the client is gone
            raise ApiError(
                400, errors.INVALID_REQUEST, "the client closed the connection before its body ended"
            ) from None
        return b"".join(chunks)
    raise ApiError(408, errors.INVALID_REQUEST, f"the request body did not arrive within {max_seconds:g} seconds")
