"""Answers the MCP requests of peers from the participant's offers.

Owns the JSON-RPC form of answers, the running requests and their cancellation, and the notifications of changed lists.
`Offers` has the offers.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.json_values import value_at, well_formed
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.mcp import CallSubject, Request

from mew_agent import tracing
from mew_agent.errors import TooLarge, described
from mew_agent.participant.mcp_client import CANCELLED
from mew_agent.participant.messenger import Messenger
from mew_agent.tools.catalog import INTERNAL_ERROR, INVALID_REQUEST, UNAVAILABLE, LocalOffers, Offers, RequestFailed
from mew_agent.tools.peer_offers import LIST_CHANGED

logger = logging.getLogger(__name__)

RUNNING_REQUESTS: Final = 20
"""How many requests of one sender run at a time, half of the threads that functions run in; further ones wait."""

MAX_SENDERS: Final = 4_096

MAX_REQUESTS: Final = 500
"""How many requests of one sender may run and wait; further ones are refused."""

KEPT_PROPOSALS: Final = 100
"""For how many proposals of calls to us the trace context is remembered."""


class McpServer:
    """Answers the requests that name one participant."""

    received_kinds = (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL, kinds.MCP_NOTIFICATION)

    def __init__(self, messenger: Messenger, offers: Offers) -> None:
        self._messenger = messenger
        self.offers = offers
        self.own_requests: Callable[[Envelope], Awaitable[dict[str, Any] | None]] | None = None
        """Answers requests that no list shows, before `offers` is asked; None: not one of them."""
        self._in_progress: dict[anyio.CancelScope, Envelope] = {}
        self._places: BoundedDict[str, anyio.CapacityLimiter] = BoundedDict(MAX_SENDERS)
        """The places for running requests, by sender."""
        self._changed_lists: list[str] = []
        self._proposed_in: BoundedDict[str, str] = BoundedDict(KEPT_PROPOSALS)
        if isinstance(offers, LocalOffers):
            offers.toolbox.on_change = partial(self._list_changed, "tools")
            offers.resources.on_change = partial(self._list_changed, "resources")

    def receive(self, envelope: Envelope) -> None:
        """Answer a request to us, and follow proposals and cancellations."""
        me = self._messenger
        if envelope.kind == kinds.MCP_REQUEST and envelope.names(me.id) and envelope.sender != me.id:
            me.session.start_soon(self.respond, envelope)
        elif envelope.kind == kinds.MCP_PROPOSAL and (header := tracing.header_of(envelope)) is not None:
            self._proposed_in[envelope.id] = header
        elif envelope.kind == kinds.MCP_NOTIFICATION and envelope.body.get("method") == CANCELLED:
            self._cancel(envelope)

    async def respond(self, request: Envelope) -> None:
        """Carry out a request and send the response, unless its sender cancels it."""
        payload = await self.response_to(request)
        if payload is None:
            return
        send = partial(self._messenger.send, kinds.MCP_RESPONSE, to=(request.sender,), correlation_id=(request.id,))
        try:
            await send(payload)
        except TooLarge as error:
            await send(_error(payload.get("id"), RequestFailed(INTERNAL_ERROR, f"the result cannot be sent: {error}")))

    async def response_to(self, request: Envelope) -> dict[str, Any] | None:
        """Return the response's payload, even for a failed request; None for a cancelled one."""
        payload: dict[str, Any] | None = None
        # A plain function cannot be stopped in its thread; after a cancellation its result is ignored.
        with anyio.CancelScope() as scope:
            sender = request.sender
            if sum(one.sender == sender for one in self._in_progress.values()) >= MAX_REQUESTS:
                name = request.body.get("id")
                problem = f"{MAX_REQUESTS} of your requests are running or waiting already"
                return _error(name if isinstance(name, int | str) else None, RequestFailed(UNAVAILABLE, problem))
            self._in_progress[scope] = request
            try:
                places = self._places[sender] = self._places.get(sender) or anyio.CapacityLimiter(RUNNING_REQUESTS)
                async with places:
                    payload = await self._response_to(request)
            finally:
                del self._in_progress[scope]
        return payload

    async def _response_to(self, envelope: Envelope) -> dict[str, Any]:
        try:
            request = read_payload(envelope, Request)
        except PayloadError as error:
            return _error(None, RequestFailed(INVALID_REQUEST, f"{error.field}: {error.problem}"))
        if self._messenger.is_paused:
            return _error(request.id, RequestFailed(UNAVAILABLE, "paused"))
        try:
            proposed_in = next(filter(None, map(self._proposed_in.get, envelope.correlation_ids)), None)
            subject = CallSubject.read(envelope.body)
            ids = {"envelope_id": envelope.id, "participant": envelope.sender}
            # The approver may be a program without tracing; then the proposal has the trace context.
            header, facts = tracing.header_of(envelope) or proposed_in, subject._asdict()
            with tracing.span("request", ids, header, agent=self._messenger.id, **facts):
                own = None if self.own_requests is None else await self.own_requests(envelope)
                result = await self.offers.request(request.method, request.params or {}) if own is None else own
        except RequestFailed as error:
            return _error(request.id, error)
        except Exception as error:
            return _error(request.id, RequestFailed(INTERNAL_ERROR, well_formed(described(error))))
        return {"jsonrpc": "2.0", **_id(request.id), "result": result}

    def _cancel(self, notification: Envelope) -> None:
        """Stop the request that a notification cancels, by correlation or by `requestId`."""
        named = value_at(notification.body, "params", "requestId")
        for scope, request in tuple(self._in_progress.items()):
            if notification.correlation_ids:
                is_meant = notification.refers_to(request.id)
            else:
                is_meant = named is not None and named in (request.id, request.body.get("id"))
            if is_meant and request.sender == notification.sender:
                logger.info("'%s' cancelled its request '%s'", request.sender, request.body.get("method"))
                scope.cancel()

    def _list_changed(self, name: str) -> None:
        # Peers ask every participant that joins, so there is nothing to announce before that.
        if not self._messenger.session.client.is_joined or name in self._changed_lists:
            return
        self._changed_lists.append(name)
        if len(self._changed_lists) == 1:
            self._messenger.session.start_soon(self._announce_changed_lists)

    async def _announce_changed_lists(self) -> None:
        await anyio.lowlevel.checkpoint()  # code that adds one tool often adds more
        changed, self._changed_lists = self._changed_lists, []
        for name in changed:
            payload = {"method": LIST_CHANGED[name]}
            if self._messenger.may_send(kinds.MCP_NOTIFICATION, payload):
                await self._messenger.send(kinds.MCP_NOTIFICATION, payload)


def _error(request_id: int | str | None, error: RequestFailed) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    return {"jsonrpc": "2.0", **_id(request_id), "error": body if error.data is None else {**body, "data": error.data}}


def _id(request_id: int | str | None) -> dict[str, Any]:
    return {} if request_id is None else {"id": request_id}
