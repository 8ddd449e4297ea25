"""A client of the gateway's HTTP interface, for one-shot commands.

Owns requests, reading server-sent events, and the translation of errors. Blocking on purpose: a command waits for one
answer at a time, and the standard library's client starts in a fraction of the time of an asynchronous one. It opens no
WebSocket, so it never takes over a participant's connection.
"""

import http.client
import json
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from mew_protocol.attention import Attention, AttentionItem
from mew_protocol.errors import CAPABILITY_VIOLATION, UNAUTHORIZED
from mew_protocol.json_values import value_at
from mew_protocol.payloads.figures import KEPT_SECONDS, ContextHistory
from mew_protocol.payloads.mcp import UndecidedProposal, UndecidedProposals
from mew_protocol.payloads.participant import Board
from mew_spaces.launch.run_file import RunFile, read_run_file

from mew_agent.cli.app import terminal
from mew_agent.errors import ConfigError, GatewayError, NotConnected, NotPermitted, Unauthorized
from mew_agent.gateway_address import addresses, cause_of, http_url, tls_failure, trust

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""Timeout of a single answer."""

SILENCE_SECONDS: Final = 45.0
"""Timeout of an event stream without any data; the gateway sends at least a comment every 15 seconds."""

PAGE_MESSAGES: Final = 1_000
"""How many messages to read at once: as many as the gateway allows."""

MAX_MINUTES: Final = KEPT_SECONDS // 60

MAX_REPORTS: Final = 10_000

RESTART_SECONDS: Final = 20.0
"""How long to wait for a gateway that is being restarted."""

_NOTICE_SECONDS: Final = 1.0
"""How long the supervisor may take to notice that the gateway has ended."""

_RETRY_SECONDS: Final = 0.1


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
    """A space's event stream, continued when the gateway restarts or at another gateway of the space.

    A partial event is lost when a read times out.
    """

    def __init__(self, api: "GatewayApi", last: int = 0) -> None:
        self._api = api
        self._last_id: str | None = None
        self._connection, self._response, self._wire = api.open_events(last=last)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def next(self, *, deadline: float | None = None) -> ServerSentEvent:
        """Wait for the next event.

        `deadline` is a time of `time.monotonic()`. Raises `TimeoutError` past it, after which the stream must not be
        used, and `NotConnected` when the gateway closes the stream or sends nothing for too long, and is not being
        restarted.
        """
        while True:
            try:
                event = self._read(deadline)
            except NotConnected:
                if not self._api.can_continue:
                    raise
                self._connection.close()
                self._connection, self._response, self._wire = self._api.open_events(self._last_id, deadline=deadline)
            else:
                self._last_id = event.id or self._last_id
                return event

    def _read(self, deadline: float | None) -> ServerSentEvent:
        name, event_id, lines = "message", None, list[str]()
        while True:
            line = self._line(deadline)
            if not line:
                if lines:
                    break
                name = "message"
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                lines.append(value)
            elif field == "id":  # comments keep the connection open; other fields are for browsers
                event_id = value
        try:
            return ServerSentEvent(name, json.loads("\n".join(lines)), event_id)
        except ValueError:
            raise NotConnected(self._api.gateway, "received an event that cannot be read") from None

    def _line(self, deadline: float | None) -> str:
        left = SILENCE_SECONDS if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        try:
            self._wire.settimeout(min(left, SILENCE_SECONDS))
            raw = self._response.readline()
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            raise NotConnected(self._api.gateway, f"received nothing for {SILENCE_SECONDS:g} seconds") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotConnected(self._api.gateway, cause_of(error)) from None
        if not raw:
            raise NotConnected(self._api.gateway, "the gateway closed the connection")
        return raw.decode("utf-8", errors="replace").rstrip("\r\n")


class GatewayApi:
    """A participant's access to one space over HTTP.

    `gateway` may be a ws:// or an http:// URL, since both use one port, or several URLs, separated by commas: if one
    does not answer, the next is asked. Every method raises `NotConnected` if no gateway answers, `CertificateRejected`
    if a certificate is not trusted, `Unauthorized` if the token is refused, and `GatewayError` if the request is
    refused. `run_path` is the run file of a space on this machine: while that says that the gateway is being restarted,
    requests are repeated; the gateway recognises the id of an envelope that it already has.
    """

    def __init__(self, gateway: str, *, space: str, participant: str, token: str, run_path: Path | None = None) -> None:
        self._gateways = deque(addresses(http_url(gateway)))
        self.space = space
        self.participant = participant
        self._token = token
        self.run_path = run_path
        self._messages = f"/participants/{_quoted(participant)}/messages?space={_quoted(space)}"

    @property
    def gateway(self) -> str:
        """The http:// or https:// URL of the gateway that is asked now."""
        return self._gateways[0]

    @property
    def can_continue(self) -> bool:
        """Whether another gateway may answer, or this one again: its supervisor, on this machine, restarts it."""
        return self.run_path is not None or len(self._gateways) > 1

    def run(self) -> RunFile | None:
        """The current run file."""
        return read_run_file(self.run_path) if self.run_path is not None else None

    def is_complete(self) -> bool:
        """Return whether the gateway serves what commands need over HTTP: board, events and history.

        A health answer without a protocol is that of the TypeScript gateway, which takes messages only. A gateway that
        does not answer counts as complete: the next request says what is wrong.
        """
        try:
            return "protocol" in self._object("GET", "/health")
        except GatewayError:
            return True

    def board(self) -> Board:
        """The last status of every participant."""
        return Board.model_validate(self._object("GET", f"/spaces/{_quoted(self.space)}/context"))

    def context_history(self, seconds: int, participant: str | None = None) -> ContextHistory:
        """What was reported in the last `seconds`, at most `MAX_REPORTS` reports."""
        path = f"/spaces/{_quoted(self.space)}/context/history?seconds={seconds}&limit={MAX_REPORTS}"
        about = "" if participant is None else f"&participant={_quoted(participant)}"
        return ContextHistory.model_validate(self._object("GET", path + about))

    def attention(self) -> tuple[AttentionItem, ...]:
        """What needs a person."""
        return Attention.model_validate(self._object("GET", f"/spaces/{_quoted(self.space)}/attention")).items

    def proposals(self) -> tuple[UndecidedProposal, ...]:
        """The open proposals."""
        found = self._object("GET", f"/spaces/{_quoted(self.space)}/proposals")
        return UndecidedProposals.model_validate(found).proposals

    def send(self, envelope: Mapping[str, Any]) -> str:
        """Send an envelope as the participant. Returns its id. Raises `NotPermitted` without the capability."""
        return str(self.post(envelope)["id"])

    def post(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        """Send an envelope as the participant, and return the answer of the gateway; see `send`."""
        try:
            return self._object("POST", self._messages, json.dumps(envelope, ensure_ascii=False).encode())
        except _RefusedError as refusal:
            if refusal.code == CAPABILITY_VIOLATION:
                raise NotPermitted(self.participant, str(envelope.get("kind"))) from None
            raise

    def participants(self) -> list[dict[str, Any]]:
        """All participants of the space, connected or not: `id`, `connected`, `capabilities`."""
        listed = self._object("GET", f"/participants?space={_quoted(self.space)}").get("participants")
        return listed if isinstance(listed, list) else []

    def messages(self, since: str | None = None) -> dict[str, Any]:
        """A page of messages after `since`, the last page's `next`: `messages`, `next`, `complete`, `more`."""
        place = f"&since={_quoted(since)}" if since is not None else ""
        return self._object("GET", f"{self._messages}&limit={PAGE_MESSAGES}{place}")

    def pages(self, since: str | None = None) -> Iterator[dict[str, Any]]:
        """The pages of messages that the gateway still keeps, oldest first; after `since`, the `next` of a page."""
        while True:
            page = self.messages(since)
            yield page
            since = str(page["next"])
            if not page.get("more"):
                return

    def events(self, last: int = 0) -> AbstractContextManager[SpaceEvents]:
        """The space's events: the newest `last` envelopes that are not statuses, the board, and what follows."""
        return closing(EventStream(self, last))

    def open_events(self, since: str | None = None, *, last: int = 0, deadline: float | None = None) -> "_OpenAnswer":
        """Open the event stream after the event with the id `since`, else see `events`. The caller closes it."""
        place = f"?since={_quoted(since)}" if since is not None else f"?last={last}" if last else ""
        path = f"/spaces/{_quoted(self.space)}/events{place}"
        return self._repeat(lambda: self._request("GET", path, accept="text/event-stream"), deadline)

    def _object(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        def read() -> Any:
            connection, answer, _ = self._request(method, path, body=body)
            try:
                return json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                raise NotConnected(self.gateway, cause_of(error)) from None
            except ValueError:
                return None
            finally:
                connection.close()

        value = self._repeat(read)
        if not isinstance(value, dict):
            raise GatewayError(f"{self.gateway} is not a MEW gateway")
        return value

    def _repeat(self, request: Callable[[], T], deadline: float | None = None) -> T:
        """Make a request, again while the gateway is being restarted. Raises `TimeoutError` past `deadline`."""
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
    ) -> "_OpenAnswer":
        """Send a request once. The caller reads the answer and closes the connection."""
        parts = urlsplit(self.gateway)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=ANSWER_SECONDS, context=trust()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        headers = {"Accept": accept, "Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            wire = connection.sock
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise self._refusal(answer)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise tls_failure(self.gateway, error) or NotConnected(self.gateway, cause_of(error)) from None
            if isinstance(error, ValueError):
                raise ConfigError("--token", "is not a token: it contains invalid characters") from None
            raise
        return connection, answer, wire

    def _refusal(self, answer: http.client.HTTPResponse) -> GatewayError:
        try:
            said = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            said = None
        code = str(value_at(said, "error") or "")
        message = str(value_at(said, "message") or code or f"HTTP {answer.status} {answer.reason}")
        if answer.status == HTTPStatus.UNAUTHORIZED or code == UNAUTHORIZED:
            return Unauthorized(self.participant)
        return _RefusedError(message, code)


class _RefusedError(GatewayError):
    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"the gateway refused the request: {message}")
        self.code = code


_OpenAnswer = tuple[http.client.HTTPConnection, http.client.HTTPResponse, socket.socket]
"""A connection, the answer that can be read from it, and its socket."""


def _quoted(text: str) -> str:
    return quote(text, safe="")
