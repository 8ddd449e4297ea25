"""The gateway's HTTP API: health, metrics, participants, messages, board, programs and events.

Owns the routes: each is declared once, above its handler; the router and `/openapi.json` are built from the
declarations. Messages over HTTP pass the same permission checks as those over WebSocket.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from anyio import to_thread
from mew_board.board_json import ShownBoard
from mew_board.conversation_lines import receipt as change_receipt
from mew_board.proposal_text import allowed_calls
from mew_board.text_changes import changes_in
from mew_listener.http_connection import STREAMING, authenticate, bearer_of
from mew_protocol import errors, kinds
from mew_protocol.codec import decode_envelope
from mew_protocol.envelope import PROTOCOL, Draft
from mew_protocol.errors import DecodeError
from mew_protocol.ids import ParticipantId, Position
from mew_protocol.payloads.attention_items import Attention
from mew_protocol.payloads.context_history import KEPT_SECONDS, ContextHistory
from mew_protocol.payloads.mcp import UndecidedProposals
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.text_fit import Fit, fit_in
from mew_settings.plugins import load_table
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from mew_spaces.gateway import http_bodies as bodies
from mew_spaces.gateway import programs
from mew_spaces.gateway.http_bodies import ApiError
from mew_spaces.gateway.operations import Operation, Parameter
from mew_spaces.gateway.registry import SpaceRegistry, client_of
from mew_spaces.gateway.server_sent_events import (
    MAX_LAST,
    EventReader,
    EventResponse,
    in_words,
    newest_before,
    page_bytes,
)
from mew_spaces.gateway.service import NOT_STORED_MESSAGE, SpaceService
from mew_spaces.log.figure_store import RAW_SECONDS
from mew_spaces.log.memory import Entry, SpaceLog

log = logging.getLogger("mew_spaces")

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
    errors.PROPOSAL_DIFFERS: 409,
    errors.TOO_LARGE: 413,
    errors.LIMIT_EXCEEDED: 429,
    errors.RATE_LIMITED: 429,
    errors.NOT_STORED: 503,
    errors.OUTCOME_UNKNOWN: 504,
}
"""The HTTP status of each error of the protocol; 400 for all others."""

LARGE_ANSWERS: Final = 16
"""How many large answers a token may be reading at the same time."""

_PIECE_BYTES: Final = 64 * 1024
"""An answer of more bytes is written in pieces of this size."""

_SPACE: Final = Parameter("space", "The space's id (default: the space that the token belongs to)")
_VIEW: Final = Parameter("view", "1 to get what there is in words too, as pages show it", 0, 1, 0)

DOCUMENTS: Final = "mew_spaces.documents"
"""The table of functions that write a document about the spaces, such as their metrics."""

WriteMetrics = Callable[[str], tuple[bytes, str]]
"""Writes metrics in the format that an `Accept` header asks for. Returns them with their media type."""

Handler = Callable[["HttpApi", "Call"], Awaitable[BaseModel | bytes | Response]]
"""Returns a model, its JSON, or a response."""

_HANDLERS: dict[Operation, Handler] = {}

OPERATIONS: Final = _HANDLERS.keys()
"""Every operation of the API."""


class serves(Operation):  # noqa: N801 - a decorator
    """Declares the operation that a method of `HttpApi` handles. The method's docstring is its summary."""

    def __call__(self, handler: Handler) -> Handler:
        """Register the handler."""
        _HANDLERS[self] = handler
        return handler


@dataclass(frozen=True, slots=True)
class Call:
    """One request with a checked token: its space, and its participant (None: an observer).

    An operation without a token gets the default space.
    """

    operation: Operation
    request: Request
    space: SpaceService
    sender: ParticipantId | None = None

    def text(self, name: str) -> str | None:
        """Return a parameter of the query, None without it."""
        return self.request.query_params.get(name)

    def number(self, name: str) -> int:
        """Return a number in the query. Raises `ApiError`."""
        parameter = next(one for one in self.operation.parameters if one.name == name)
        text = self.request.query_params.get(name, str(parameter.default))
        number = parameter.parse_number(text)
        if number is None:
            bounds = f"from {parameter.minimum} to {parameter.maximum}"
            raise ApiError(400, errors.INVALID_REQUEST, f"{name}: expected a whole number {bounds}, got '{text}'")
        return number


class _PacedResponse(StreamingResponse):
    """A large answer, written at its client's reading speed. Counts the running answers per token."""

    def __init__(self, whole: Response, reading: Counter[str | None], token: str | None) -> None:
        super().__init__(_pieces(bytes(whole.body)), whole.status_code)
        self.raw_headers = whole.raw_headers
        self._reading, self._token = reading, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._reading[self._token] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading[self._token] -= 1
            if not self._reading[self._token]:
                del self._reading[self._token]


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


def _document(name: str) -> Any:
    """Return the function that writes a document, from their table. Raises `ApiError` if no part has it."""
    found = load_table(DOCUMENTS).get(name)
    if found is None:
        raise ApiError(404, "not_found", f"no installed part of mew-agent serves this ('{name}' of '{DOCUMENTS}')")
    return found


class HttpApi:
    """The HTTP API of a gateway's spaces."""

    def __init__(self, registry: SpaceRegistry, *, version: str) -> None:
        self._registry = registry
        self._version = version
        self._scrapes = anyio.CapacityLimiter(1)
        self._comparisons = anyio.CapacityLimiter(1)
        self._large_answers = Counter[str | None]()
        """How many large answers each token is reading."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(one.path, partial(self._respond, one, handler), methods=[one.method])
            for one, handler in _HANDLERS.items()
        ]

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document. Raises `ApiError` without its part."""
        openapi_document = _document("openapi")
        summaries = {one: " ".join((handler.__doc__ or "").split()) for one, handler in _HANDLERS.items()}
        document: dict[str, Any] = openapi_document(summaries, version=self._version, error=bodies.ErrorAnswer)
        return document

    async def _respond(self, operation: Operation, handler: Handler, request: Request) -> Response:
        """Check the token, and return the answer of the handler."""
        if operation.needs_token:
            space, sender = self._authenticate(request, is_owner=operation.is_for_owner)
            call = Call(operation, request, space, sender)
        else:
            call = Call(operation, request, self._registry.default)
        answer = await handler(self, call)
        if not isinstance(answer, Response):
            content = answer if isinstance(answer, bytes) else answer.model_dump_json(by_alias=True, exclude_unset=True)
            answer = Response(content, media_type="application/json", headers={"cache-control": "no-store"})
        if isinstance(answer, StreamingResponse) or len(answer.body) <= _PIECE_BYTES:
            return answer
        token = bearer_of(request.headers)
        if self._large_answers[token] >= LARGE_ANSWERS:
            text = f"{LARGE_ANSWERS} large answers are still being read with this token; read them first"
            raise ApiError(429, errors.RATE_LIMITED, text)
        return _PacedResponse(answer, self._large_answers, token)

    @serves("GET", "/health", bodies.HealthAnswer, needs_token=False)
    async def _health(self, _call: Call) -> BaseModel:
        """Health check."""
        return bodies.HealthAnswer(
            status="ok",
            spaces=len(self._registry),
            clients=self._registry.connections,
            uptime=self._registry.default.uptime_seconds(),
            features=list(FEATURES),
            version=self._version,
            protocol=PROTOCOL,
        )

    @serves("GET", "/ready", bodies.ReadyAnswer, errors=(503,), needs_token=False)
    async def _ready(self, _call: Call) -> BaseModel:
        """Readiness check: 503 while envelopes cannot be stored."""
        if not all(service.storage.is_storing for service in self._registry):
            raise ApiError(503, errors.NOT_STORED, NOT_STORED_MESSAGE)
        return bodies.ReadyAnswer(status="ready")

    @serves("GET", "/metrics", media_type="text/plain")
    async def _metrics(self, call: Call) -> Response:
        """Read the metrics of every space that the token may read, in the format of Prometheus."""
        collect = _document("metrics")
        headers = call.request.headers
        token, accept = bearer_of(headers), headers.get("accept", "")
        write: WriteMetrics = collect([one for one in self._registry if one.tokens.may_read(token)])
        # In a thread, one at a time: thousands of participants must not delay envelopes.
        body, media_type = await to_thread.run_sync(write, accept, limiter=self._scrapes)
        return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})

    @serves("GET", "/openapi.json", needs_token=False)
    async def _openapi(self, _call: Call) -> Response:
        """This document."""
        return JSONResponse(self.document())

    @serves("GET", "/participants", bodies.ParticipantList, parameters=(_SPACE,))
    async def _participants(self, call: Call) -> Response:
        """List the participants of a space."""
        # Without models: the capabilities of thousands of participants are checked already.
        space = call.space.space
        listed = [{**space.describe(name), "connected": name in space.members} for name in space.names]
        for one in listed:
            if allowed := allowed_calls(one["id"], one["capabilities"]):
                one["allowed"] = [{"text": text, "pattern": pattern} for text, pattern in allowed]
        return JSONResponse({"participants": listed})

    @serves(
        "POST",
        "/participants/{participant}/messages",
        bodies.AcceptedEnvelope,
        parameters=(_SPACE,),
        body=bodies.PostedEnvelope,
        errors=(409, 503, 504),
        is_for_owner=True,
    )
    async def _post_message(self, call: Call) -> BaseModel:
        """Send an envelope as the participant that the token belongs to; missing headers are filled in."""
        space, sender = call.space, call.sender
        assert sender is not None
        draft = await self._read_envelope(call, sender)
        self._check_token_again(call)
        receipt = await space.post(sender, draft)
        if receipt.refused is not None:
            more = receipt.refused.model_dump(mode="json", exclude_none=True, exclude={"error", "message"})
            error, message = receipt.refused.error, receipt.refused.message or ""
            raise ApiError(_STATUS.get(error, 400), error, message, **more, **receipt.answer)
        envelope = receipt.accepted
        assert envelope is not None
        answer = {"id": envelope.id, "status": "accepted", "timestamp": envelope.ts, **receipt.answer}
        if (text := change_receipt(envelope.kind, envelope.body, receipt.answer)) is not None:
            answer["text"] = text
        return bodies.AcceptedEnvelope.model_validate(answer)

    async def _read_envelope(self, call: Call, sender: ParticipantId) -> Draft:
        """Read a posted envelope. A sender that has spent its time waits here."""
        body, client = await _read_body(call), client_of(call.space, sender)
        spend = self._registry.allowances.spend
        await anyio.sleep(spend(client, 0.0, len(body), anyio.current_time()))
        began = time.thread_time()
        try:
            return decode_envelope(body)
        except DecodeError as problem:
            raise ApiError(400, problem.error, problem.detail, code=problem.code) from None
        finally:
            spend(client, time.thread_time() - began, 0, anyio.current_time())

    @serves(
        "GET",
        "/participants/{participant}/messages",
        bodies.MessagePage,
        parameters=(
            _SPACE,
            Parameter("since", "The `next` of an earlier answer"),
            Parameter("before", "Instead of `since`: the last messages before this position, or `newest`; no statuses"),
            Parameter("limit", "How many messages to return at most", maximum=1_000, default=100),
            _VIEW,
        ),
        is_for_owner=True,
    )
    async def _poll_messages(self, call: Call) -> bytes:
        """Read the messages after or before a position, as the participant that the token belongs to."""
        history, limit, with_words = call.space.log, call.number("limit"), call.number("view") == 1
        if (before := call.text("before")) is not None:
            return _page_before(history, before, limit, with_words=with_words)
        since = call.text("since")
        wanted = history.start if since is None else Position.parse(since)
        most = page_bytes(with_words=with_words)
        entries = history.since(wanted, limit=limit, max_bytes=most) if wanted is not None else None
        is_complete = entries is not None
        if entries is None or wanted is None:
            wanted = history.start
            entries = history.since(wanted, limit=limit, max_bytes=most) or ()
        position = Position(history.epoch, entries[-1].sequence) if entries else wanted
        has_more = position.sequence < history.position.sequence
        return _message_page(entries, position, is_complete=is_complete, has_more=has_more, with_words=with_words)

    @serves("GET", "/spaces/{space}/context", Board)
    async def _context(self, call: Call) -> BaseModel:
        """Read the last status of every participant."""
        return call.space.board()

    @serves(
        "GET",
        "/spaces/{space}/context/history",
        ContextHistory,
        parameters=(
            Parameter("seconds", "How far back, in seconds", maximum=KEPT_SECONDS, default=RAW_SECONDS),
            Parameter("limit", "How many statuses to return at most, the newest", maximum=10_000, default=1_000),
            Parameter("participant", "Only this participant's"),
            _VIEW,
        ),
    )
    async def _context_history(self, call: Call) -> BaseModel:
        """Read the figures that participants reported over time, and their compactions."""
        participant = call.text("participant")
        participant = participant and (call.space.space.membership.resolve(participant) or participant)
        with_words = call.number("view") == 1
        return await call.space.figures_of(
            call.number("seconds"), call.number("limit"), participant, with_words=with_words
        )

    @serves(
        "GET",
        "/spaces/{space}/context/{participant}/fit",
        Fit,
        parameters=(Parameter("tokens", "Size of the text in tokens; the gateway counts none itself", 0, 10**9, 0),),
    )
    async def _fit(self, call: Call) -> BaseModel:
        """Ask whether a number of tokens fits into a participant's context, by its last report (not asking it)."""
        name = _participant_in_path(call.request, call.space)
        entry = next((one for one in call.space.board().participants if one.id == name), None)
        if entry is None:
            raise _no_participant(name)
        fit = fit_in(entry.status, call.number("tokens"), as_of=entry.received_at, outdated=entry.outdated)
        return Fit.model_validate({**fit.model_dump(exclude_none=True), "by_report": True})

    @serves("GET", "/spaces/{space}/view", ShownBoard)
    async def _view(self, call: Call) -> BaseModel:
        """Read the board as pages show it: every participant in words and figures, and totals."""
        await call.space.attention.refresh_views()
        return call.space.attention.views.since(None, call.space.now())

    @serves("GET", "/spaces/{space}/attention", Attention)
    async def _attention(self, call: Call) -> BaseModel:
        """List the attention items of the space, the most urgent first."""
        call.space.attention.refresh()
        return call.space.attention.for_reader(call.sender)

    @serves("GET", "/spaces/{space}/proposals", UndecidedProposals)
    async def _proposals(self, call: Call) -> BaseModel:
        """List the proposals that need a decision, with the participants that may make each request."""
        return call.space.space.proposals(now=call.space.now())

    @serves("POST", "/spaces/{space}/changes", bodies.CallChanges, body=bodies.CallArguments)
    async def _changes(self, call: Call) -> BaseModel:
        """Compute the changes that a call makes to a text, for a proposal that is decided already."""
        try:
            given = bodies.CallArguments.model_validate_json(await _read_body(call))
        except ValidationError as problem:
            raise ApiError(400, errors.INVALID_REQUEST, first_problem(problem)) from None
        return bodies.CallChanges(
            changes=await to_thread.run_sync(changes_in, given.arguments, limiter=self._comparisons)
        )

    @serves("GET", "/spaces/{space}/programs", bodies.ProgramList)
    async def _list_programs(self, call: Call) -> BaseModel:
        """List the participants whose programs run next to the gateway."""
        control = self._registry.programs.get(call.space.space.id)
        names = control.participants() if control is not None else None
        if control is None or names is None:
            return bodies.ProgramList(running=False, participants=[], startable=[], models=[], types=[])
        return bodies.ProgramList(
            running=True,
            participants=list(names),
            startable=list(await control.startable()),
            models=list(await control.models()),
            types=programs.addable_types(),
        )

    @serves(
        "GET",
        "/spaces/{space}/programs/{participant}/log",
        bodies.ProgramLog,
        parameters=(Parameter("lines", "How many lines to return at most", maximum=1_000, default=200),),
        errors=(409,),
    )
    async def _program_log(self, call: Call) -> BaseModel:
        """Read the end of the log of a participant's program; needs the capability `program/log`."""
        name, control = self._program(call, kinds.PROGRAM_LOG)
        lines = await control.log(name, call.number("lines"))
        if lines is None:
            raise ApiError(404, errors.PARTICIPANT_NOT_FOUND, f"no program of '{name}' runs here")
        return bodies.ProgramLog(participant=name, lines=list(lines))

    @serves("POST", "/spaces/{space}/programs/{participant}/restart", bodies.ProgramAnswer, errors=(409,))
    async def _restart_program(self, call: Call) -> BaseModel:
        """Start or restart a participant's program, and wait until it has joined; needs the capability
        `program/restart`."""
        name, control = self._program(call, kinds.PROGRAM_RESTART)
        return await control.restart(name)

    @serves("POST", "/spaces/{space}/programs", bodies.ProgramAnswer, body=programs.NewProgram, errors=(409,))
    async def _add_program(self, call: Call) -> BaseModel:
        """Add a participant to space.yaml, and start its program; needs the capabilities `program/add` and
        `space/invite`."""
        try:
            new = programs.NewProgram.model_validate_json(await _read_body(call))
        except ValidationError as problem:
            raise ApiError(400, errors.INVALID_REQUEST, first_problem(problem)) from None
        self._check_token_again(call)
        name = new.participant
        addition = Draft(kind=kinds.PROGRAM_ADD, to=(name,), payload=new.model_dump(exclude_none=True))
        invitation = Draft(kind=kinds.SPACE_INVITE, payload={"participant_id": name})
        return await self._control(call, addition, invitation).add(new)

    def _program(self, call: Call, kind: str) -> tuple[str, programs.ProgramControl]:
        """Return the participant in the path and its program's runner, if the sender may send it this kind."""
        name = _participant_in_path(call.request, call.space)
        control = self._control(call, Draft(kind=kind, to=(name,)))
        if name not in call.space.space.names:
            raise _no_participant(name)
        return name, control

    def _control(self, call: Call, *drafts: Draft) -> programs.ProgramControl:
        """Return the runner of a space's programs.

        `drafts` express the request as envelopes, so that capabilities and pauses apply. Raises `ApiError` if the
        sender may not send one of them, or if nothing runs programs.
        """
        sender, membership = call.sender, call.space.space.membership
        # An observer has no id, so no capability.
        missing = next((one.kind for one in drafts if sender is None or not membership.may_send(sender, one)), None)
        if sender is None or missing is not None:
            who = sender or "an observer"
            raise ApiError(403, errors.CAPABILITY_VIOLATION, f"{who} lacks the capability {missing}")
        silence = membership.silenced_because(drafts[0], sender, now=call.space.now())
        if silence:
            raise ApiError(403, errors.PAUSED, silence)
        control = self._registry.programs.get(call.space.space.id)
        if control is None:
            what = "this gateway does not run the programs of its participants; `mew up` starts one that does"
            raise ApiError(409, errors.INVALID_REQUEST, what)
        if drafts[0].kind != kinds.PROGRAM_LOG:
            log.info("%s by '%s' for %r", drafts[0].kind, call.sender, *drafts[0].addressees)
        return control

    @serves(
        "GET",
        "/spaces/{space}/events",
        media_type="text/event-stream",
        parameters=(
            Parameter("since", "The last event seen; the header Last-Event-ID takes precedence"),
            Parameter(
                "last", "Without `since`: how many envelopes other than statuses precede the board", 0, MAX_LAST, 0
            ),
            Parameter("frames", "1 to receive the text frames of streams too, as `frame` events", 0, 1, 0),
            Parameter("view", "1 for `view` events as of `/spaces/{space}/view`, instead of `board`", 0, 1, 0),
        ),
    )
    async def _events(self, call: Call) -> Response:
        """Follow a space: one `board` event, then each `envelope`, and `attention` whenever it changes."""
        request = call.request
        if request.method == "HEAD":  # it would wait for the end of a stream that has none
            return Response(media_type="text/event-stream")
        request.scope.setdefault("state", {})[STREAMING] = True
        # A browser reconnects to the URL it first opened, so the header has the newer position.
        since = request.headers.get("last-event-id") or call.text("since") or None
        streams, last = self._registry.event_streams, call.number("last")
        address, with_frames = _address_of(request), call.number("frames") == 1
        reader = EventReader(
            call.space, bearer_of(request.headers) or "", address, with_frames, call.number("view") == 1
        )
        if not streams.enter(reader):
            raise ApiError(429, errors.LIMIT_EXCEEDED, "this token or address has too many event streams; close one")
        return EventResponse(streams, reader, since, last=last)

    def _invalid_token(self, address: str, expected: str) -> ApiError:
        log.warning("request refused: invalid token from %s", address)
        if not self._registry.failed_tokens.try_spend(address):
            return ApiError(429, errors.RATE_LIMITED, "too many requests with invalid tokens; try again later")
        return ApiError(403, errors.UNAUTHORIZED, f"invalid token for this space; expected {expected}")

    def _check_token_again(self, call: Call) -> None:
        """Refuse a request if its token was revoked while its body arrived. Raises `ApiError`."""
        if call.space.tokens.identify(bearer_of(call.request.headers)) != call.sender:
            raise self._invalid_token(_address_of(call.request), "a token that is still valid")

    def _authenticate(self, request: Request, *, is_owner: bool) -> tuple[SpaceService, ParticipantId | None]:
        """Return the selected space and the token's participant (None: an observer).

        With `is_owner`, it must be the participant in the path, so not an observer. Raises `ApiError`: 401 without a
        token, 403 if the token is unknown or another participant's, 404 if the gateway has no such space, 429 after too
        many reads or wrong tokens.
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
            expected = f"the token of '{owner}'" if is_owner else "the token of a participant or an observer"
            raise self._invalid_token(_address_of(request), expected)
        if found is None:
            raise ApiError(404, errors.SPACE_NOT_FOUND, f"no space '{space}' on this gateway")
        is_message = is_owner and request.method == "POST"  # POST has its own rate
        if not is_message and not self._registry.reads.try_spend(f"{found.space.id}/{token}"):
            raise ApiError(429, errors.RATE_LIMITED, "too many requests; try again later or follow the event stream")
        authenticate(request.scope, f"{found.space.id}/{participant or 'observer'}")
        return found, participant


def _page_before(history: SpaceLog, before: str, limit: int, *, with_words: bool) -> bytes:
    end = history.position
    place = Position(end.epoch, end.sequence + 1) if before == "newest" else Position.parse(before)
    if place is None or place.epoch != history.epoch or place.sequence > end.sequence + 1:
        return _message_page((), history.start, is_complete=False, has_more=False, with_words=with_words)
    earlier = newest_before(history, place.sequence, limit, max_bytes=page_bytes(with_words=with_words))
    return _message_page(
        earlier.entries, earlier.place, is_complete=True, has_more=earlier.has_more, with_words=with_words
    )


def _message_page(
    entries: Sequence[Entry], place: Position, *, is_complete: bool, has_more: bool, with_words: bool
) -> bytes:
    # Stored envelopes are JSON already: joining them costs nothing, parsing a thousand would block the loop.
    return b'{"messages":[%s],"positions":[%s],"next":"%s","complete":%s,"more":%s%s}' % (
        b",".join(entry.data for entry in entries),
        b",".join(b'"%s"' % str(Position(place.epoch, entry.sequence)).encode() for entry in entries),
        str(place).encode(),
        b"true" if is_complete else b"false",
        b"true" if has_more else b"false",
        b',"said":[%s]' % b",".join(in_words(entry.data) or b"null" for entry in entries) if with_words else b"",
    )


def _no_participant(name: str) -> ApiError:
    return ApiError(404, errors.PARTICIPANT_NOT_FOUND, f"no participant '{name}' in this space")


def _address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _participant_in_path(request: Request, space: SpaceService) -> str:
    """Return the id of the participant in the path, which may be its display name."""
    name: str = request.path_params["participant"]
    return space.space.membership.resolve(name) or name


async def _read_body(call: Call) -> bytes:
    """Return a request's body. Raises `ApiError` if it is too large or too slow, without reading the rest."""
    limits = call.space.config.limits
    max_bytes, max_seconds = limits.http_body_bytes, limits.header_timeout_seconds
    chunks: list[bytes] = []
    left = max_bytes
    with anyio.move_on_after(max_seconds):
        try:
            async for chunk in call.request.stream():
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
