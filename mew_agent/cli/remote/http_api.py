"""A client of the gateway's HTTP interface, for one-shot commands.

Owns requests and their retries. Blocks on purpose: a command waits for one answer at a time. Opens no WebSocket, so it
never replaces a participant's connection.
"""

import json
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import httpx2
from mew_protocol.envelope import Envelope
from mew_protocol.errors import CAPABILITY_VIOLATION, OUTCOME_UNKNOWN
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.attention_items import Attention, AttentionItem
from mew_protocol.payloads.context_history import KEPT_SECONDS, ContextHistory
from mew_protocol.payloads.mcp import UndecidedProposal, UndecidedProposals
from mew_protocol.payloads.participant import Board
from mew_spaces.launch.run_file import RunFile, read_run_file

from mew_agent.cli.app import terminal
from mew_agent.errors import ConfigError, GatewayError, NotConnected, NotPermitted
from mew_agent.failed_connections import gateway_cause
from mew_agent.gateway_address import addresses, http_url
from mew_agent.gateway_http import (
    CallRefused,
    MessagePages,
    answer_object,
    connection_options,
    failure_of,
    messages_path,
    quoted,
    refusal_of,
)

T = TypeVar("T")

SILENCE_SECONDS: Final = 45.0
"""Timeout of an event stream without any data; the gateway sends at least a comment every 15 seconds."""

MAX_MINUTES: Final = KEPT_SECONDS // 60

MAX_REPORTS: Final = 10_000

RESTART_SECONDS: Final = 20.0
"""How long to wait for a gateway that is being restarted."""

_NOTICE_SECONDS: Final = 1.0
"""How long the supervisor may take to notice that the gateway has ended."""

_RETRY_SECONDS: Final = 0.1

_WAITING_EVENTS: Final = 1_000
"""How many events may wait for a reader before the gateway has to."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """A server-sent event: `board`, `envelope`, `attention` or `reset`, and its JSON value."""

    name: str
    body: Any
    id: str | None = None


class SpaceEvents(Protocol):
    """A source of a space's events."""

    def next(self, *, deadline: float | None = None) -> ServerSentEvent:
        """Wait for the next event; see `EventStream.next`."""


class EventStream:
    """A space's event stream, continued when the gateway restarts or at another gateway of the space."""

    def __init__(self, api: "GatewayApi", last: int = 0) -> None:
        self._api = api
        self._last_id: str | None = None
        self._answer = api.open_events(last=last)

    def close(self) -> None:
        """Close the connection."""
        self._answer.close()

    def next(self, *, deadline: float | None = None) -> ServerSentEvent:
        """Wait for the next event.

        `deadline` is a time of `time.monotonic()`. Raises `TimeoutError` past it, and `NotConnected` if the gateway
        closes the stream or stays silent too long, unless it is restarting.
        """
        while True:
            try:
                event = self._answer.next(deadline)
            except NotConnected:
                if not self._api.can_continue:
                    raise
                self._answer.close()
                self._answer = self._api.open_events(self._last_id, deadline=deadline)
            else:
                self._last_id = event.id or self._last_id
                return event


class _OpenEvents:
    """An open event stream. A thread reads it, so that a wait for an event can end at any time."""

    def __init__(self, gateway: str, client: httpx2.Client, response: httpx2.Response) -> None:
        self._gateway, self._client, self._response = gateway, client, response
        self._arrived: queue.Queue[ServerSentEvent | NotConnected] = queue.Queue(_WAITING_EVENTS)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, deadline: float | None) -> ServerSentEvent:
        """Wait for the next event; see `EventStream.next`."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        try:
            event = self._arrived.get(timeout=left)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, NotConnected):
            self._arrived.put(event)
            raise event
        return event

    def close(self) -> None:
        """Close the connection, and wait for the thread."""
        wire = self._response.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
        while self._thread.is_alive():
            with suppress(queue.Empty):  # the thread may wait for room
                self._arrived.get(timeout=_RETRY_SECONDS)
        self._response.close()
        self._client.close()

    def _read(self) -> None:
        end = NotConnected(self._gateway, "the gateway closed the connection")
        try:
            for one in httpx2.EventSource(self._response, max_event_size=None):
                if one.data:
                    self._arrived.put(ServerSentEvent(one.event, json.loads(one.data), one.id or None))
        except httpx2.ReadTimeout:
            end = NotConnected(self._gateway, f"received nothing for {SILENCE_SECONDS:g} seconds")
        except httpx2.TransportError as error:
            end = NotConnected(self._gateway, gateway_cause(error))
        except ValueError:
            end = NotConnected(self._gateway, "received an event that cannot be read")
        self._arrived.put(end)


class GatewayApi:
    """A participant's access to one space over HTTP.

    `gateway` may be a ws:// or an http:// URL, since both use one port, or several URLs, separated by commas: if one
    does not answer, the next is asked. Every method raises `NotConnected` if no gateway answers, `CertificateRejected`
    if a certificate is not trusted, `Unauthorized` if the token is refused, and `GatewayError` if the request is
    refused. `run_path` is the run file of a space on this machine: while the file says that the gateway is restarting,
    requests are repeated. The gateway recognises envelopes that it already has by their ids.
    """

    def __init__(self, gateway: str, *, space: str, participant: str, token: str, run_path: Path | None = None) -> None:
        self._gateways = deque(addresses(http_url(gateway)))
        self.space = space
        self.participant = participant
        self.token = token
        self.run_path = run_path
        self._messages = messages_path(space, participant)

    @property
    def gateway(self) -> str:
        """The http:// or https:// URL of the current gateway."""
        return self._gateways[0]

    @property
    def can_continue(self) -> bool:
        """True if another gateway may answer, or if a supervisor on this machine will restart this one."""
        return self.run_path is not None or len(self._gateways) > 1

    def run(self) -> RunFile | None:
        """Return the current run file."""
        return read_run_file(self.run_path) if self.run_path is not None else None

    def is_complete(self) -> bool:
        """Return True if the gateway serves board, events and history over HTTP.

        A health answer without a protocol comes from the TypeScript gateway, which only accepts messages. A gateway
        that does not answer counts as complete: the next request reports the problem.
        """
        try:
            return "protocol" in self._object("GET", "/health")
        except GatewayError:
            return True

    def board(self) -> Board:
        """Return the last status of every participant."""
        return Board.model_validate(self._object("GET", f"/spaces/{quoted(self.space)}/context"))

    def context_history(self, seconds: int, participant: str | None = None) -> ContextHistory:
        """Return the reports of the last `seconds`, at most `MAX_REPORTS`."""
        path = f"/spaces/{quoted(self.space)}/context/history?seconds={seconds}&limit={MAX_REPORTS}"
        about = "" if participant is None else f"&participant={quoted(participant)}"
        return ContextHistory.model_validate(self._object("GET", path + about))

    def attention(self) -> tuple[AttentionItem, ...]:
        """Return the attention items."""
        return Attention.model_validate(self._object("GET", f"/spaces/{quoted(self.space)}/attention")).items

    def proposals(self) -> tuple[UndecidedProposal, ...]:
        """Return the open proposals."""
        found = self._object("GET", f"/spaces/{quoted(self.space)}/proposals")
        return UndecidedProposals.model_validate(found).proposals

    def send(self, envelope: Mapping[str, Any]) -> str:
        """Send an envelope as the participant. Returns its id. Raises `NotPermitted` without the capability."""
        return str(self.post(envelope)["id"])

    def post(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        """Send an envelope as the participant, and return the answer of the gateway; see `send`.

        Sends it again with the same id if the gateway cannot tell whether it is stored.
        """
        written = json.dumps({"id": str(uuid4()), **envelope}, ensure_ascii=False)
        post = partial(self._object, "POST", self._messages, written.encode())
        try:
            return post()
        except CallRefused as refusal:
            if refusal.code == OUTCOME_UNKNOWN:
                return post()
            if refusal.code == CAPABILITY_VIOLATION:
                raise NotPermitted(self.participant, str(envelope.get("kind"))) from None
            raise

    def participants(self) -> list[dict[str, Any]]:
        """Return all participants of the space, connected or not: `id`, `connected`, `capabilities`."""
        listed = self._object("GET", f"/participants?space={quoted(self.space)}").get("participants")
        return listed if isinstance(listed, list) else []

    def pages(self, pages: MessagePages) -> Iterator[dict[str, Any]]:
        """Read pages of stored messages, and yield each."""
        while pages.path is not None:
            yield pages.take(self._object("GET", pages.path))

    def events(self, last: int = 0) -> AbstractContextManager[SpaceEvents]:
        """Open the space's events: the board, the newest `last` envelopes except statuses, then later events."""
        return closing(EventStream(self, last))

    def newest(self, last: int) -> tuple[Board, list[Envelope]]:
        """Return the board, and the newest `last` envelopes except statuses, oldest first."""
        past: list[Envelope] = []
        with self.events(last) as events:
            while (event := events.next()).name != "board":
                if (one := read_or_none(Envelope, event.body)) is not None:
                    past.append(one)
        return Board.model_validate(event.body), past

    def open_events(self, since: str | None = None, *, last: int = 0, deadline: float | None = None) -> _OpenEvents:
        """Open the event stream after the event `since`; without it as in `events`. The caller closes it."""
        place = f"?since={quoted(since)}" if since is not None else f"?last={last}" if last else ""
        path = f"/spaces/{quoted(self.space)}/events{place}"

        def open_stream() -> _OpenEvents:
            client, response = self._request("GET", path, accept="text/event-stream")
            response.request.extensions["timeout"]["read"] = SILENCE_SECONDS  # from here on
            return _OpenEvents(self.gateway, client, response)

        return self._repeat(open_stream, deadline)

    def _object(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        def read() -> bytes:
            client, response = self._request(method, path, body=body)
            with closing(client), closing(response):
                try:
                    return response.read()
                except (httpx2.TransportError, httpx2.DecodingError) as error:
                    raise NotConnected(self.gateway, gateway_cause(error)) from None

        return answer_object(self.gateway, self._repeat(read))

    def _repeat(self, request: Callable[[], T], deadline: float | None = None) -> T:
        """Make a request, and repeat it while the gateway restarts. Raises `TimeoutError` past `deadline`."""
        begun = time.monotonic()
        is_announced = False
        others = len(self._gateways) - 1
        while True:
            try:
                return request()
            except NotConnected:
                if others:
                    others -= 1
                    self._gateways.rotate(-1)
                    continue
                now = time.monotonic()
                if self.run_path is None or now - begun > RESTART_SECONDS:
                    raise
                if (run := self.run()) is not None and run.is_gateway_restarting:
                    if not is_announced:
                        terminal.warn("gateway restarting; waiting for it")
                    is_announced = True
                elif now - begun > _NOTICE_SECONDS and not is_announced:
                    raise
                if deadline is not None and now >= deadline:
                    raise TimeoutError from None
                time.sleep(_RETRY_SECONDS)

    def _request(
        self, method: str, path: str, *, body: bytes | None = None, accept: str = "application/json"
    ) -> tuple[httpx2.Client, httpx2.Response]:
        """Send a request once. The caller reads the response, and closes both."""
        client = httpx2.Client(**connection_options(self.gateway))
        try:
            headers = {"Accept": accept, "Authorization": f"Bearer {self.token}"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            request = client.build_request(method, self.gateway.rstrip("/") + path, content=body, headers=headers)
            response = client.send(request, stream=True)
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                with suppress(httpx2.HTTPError):
                    response.read()
                raise refusal_of(response, self.participant)
        except BaseException as error:
            client.close()
            if isinstance(error, httpx2.LocalProtocolError | ValueError):
                raise ConfigError("MEW_TOKEN", "is not a token: it contains invalid characters") from None
            if isinstance(error, httpx2.TransportError):
                raise failure_of(self.gateway, error) from None
            raise
        return client, response
