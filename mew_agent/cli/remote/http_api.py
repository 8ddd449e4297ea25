"""The gateway's HTTP interface, as one-shot commands use it.

Owns requests, the reading of server-sent events and the translation of what can go wrong. Blocking on purpose:
a command waits for one answer at a time, and the standard library's client starts in a fraction of the time an
asynchronous one takes. It takes nobody's place in the space, because it opens no WebSocket.
"""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit

from mew_protocol.errors import CAPABILITY_VIOLATION, UNAUTHORIZED

from mew_agent.errors import ConfigError, GatewayError, NotConnected, NotPermitted, Unauthorized

ANSWER_SECONDS: Final = 10.0
"""How long a single answer may take."""

SILENCE_SECONDS: Final = 45.0
"""How long an event stream may be silent; the gateway says something every 15 seconds."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: `board`, `envelope` or `reset`, with its JSON value."""

    name: str
    body: Any
    id: str | None = None


class EventStream:
    """An open event stream. Reading blocks; what was read before a time-out is not given again."""

    def __init__(self, response: http.client.HTTPResponse, wire: socket.socket, gateway: str) -> None:
        self._response = response
        self._wire = wire
        self._gateway = gateway

    def next(self, *, deadline: float | None = None) -> Event:
        """The next event.

        `deadline` is a moment of `time.monotonic()`; past it TimeoutError is raised, after which the stream is of
        no more use. Raises `NotConnected` when the gateway closes the stream or falls silent.
        """
        name, event_id, lines = "message", None, list[str]()
        while True:
            line = self._line(deadline)
            if not line:
                if lines:
                    return Event(name, self._value("\n".join(lines)), event_id)
                name = "message"
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match field:
                case "event":
                    name = value
                case "data":
                    lines.append(value)
                case "id":
                    event_id = value
                case _:
                    pass  # a comment keeps the line alive; other fields are for browsers

    def _value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise NotConnected(self._gateway, "an unreadable event arrived") from None

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
            raise NotConnected(self._gateway, f"nothing heard for {SILENCE_SECONDS:g} seconds") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotConnected(self._gateway, _cause(error)) from None
        if not raw:
            raise NotConnected(self._gateway, "the gateway closed the connection")
        return raw.decode("utf-8", errors="replace").rstrip("\r\n")


class GatewayApi:
    """One participant's view of one space over HTTP.

    `gateway` may be given as ws:// or http://, they share a port. Every method raises `NotConnected` when nobody
    answers, `Unauthorized` when the token is refused, and `GatewayError` for what the gateway refuses otherwise.
    """

    def __init__(self, gateway: str, *, space: str, participant: str, token: str) -> None:
        self.gateway = http_url(gateway)
        self.space = space
        self.participant = participant
        self._token = token

    def health(self) -> dict[str, Any]:
        """What the gateway says of itself; needs no token."""
        return self._object("GET", "/health")

    def board(self) -> dict[str, Any]:
        """The board's JSON; `mew_protocol.payloads.participant.Board` reads it."""
        return self._object("GET", f"/spaces/{_part(self.space)}/context")

    def send(self, envelope: Mapping[str, Any]) -> str:
        """Send an envelope as the participant. Returns its id. Raises `NotPermitted` without the capability."""
        path = f"/participants/{_part(self.participant)}/messages?space={_part(self.space)}"
        try:
            answer = self._object("POST", path, json.dumps(envelope, ensure_ascii=False).encode())
        except _RefusedError as refusal:
            if refusal.code == CAPABILITY_VIOLATION:
                raise NotPermitted(self.participant, str(envelope.get("kind"))) from None
            raise
        return str(answer["id"])

    def participants(self) -> list[dict[str, Any]]:
        """Everybody who belongs to the space: `id`, `connected`, `capabilities`."""
        listed = self._object("GET", f"/participants?space={_part(self.space)}").get("participants")
        return listed if isinstance(listed, list) else []

    def messages(self, since: str | None = None) -> dict[str, Any]:
        """What was said since `since` (a `next` of before; else since ever): `messages`, `next`, `complete`, `more`."""
        place = f"&since={_part(since)}" if since is not None else ""
        return self._object("GET", f"/participants/{_part(self.participant)}/messages?space={_part(self.space)}{place}")

    @contextmanager
    def events(self) -> Iterator[EventStream]:
        """The space's events from now on; the first one is the board."""
        with self._request("GET", f"/spaces/{_part(self.space)}/events", accept="text/event-stream") as (answer, wire):
            yield EventStream(answer, wire, self.gateway)

    def _object(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        with self._request(method, path, body=body) as (answer, _):
            try:
                value = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                raise NotConnected(self.gateway, _cause(error)) from None
            except ValueError:
                value = None
        if not isinstance(value, dict):
            raise GatewayError(f"{self.gateway} does not answer like a MEW gateway")
        return value

    @contextmanager
    def _request(
        self, method: str, path: str, *, body: bytes | None = None, accept: str = "application/json"
    ) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
        connection = _connection(self.gateway)
        headers = {"Accept": accept, "Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.connect()
                wire = connection.sock
                connection.request(method, urlsplit(self.gateway).path.rstrip("/") + path, body, headers)
                answer = connection.getresponse()
            except (UnicodeEncodeError, ValueError):
                raise ConfigError("--token", "holds characters that no token has") from None
            except (OSError, http.client.HTTPException) as error:
                raise NotConnected(self.gateway, _cause(error)) from None
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise self._refusal(answer)
            yield answer, wire
        finally:
            connection.close()

    def _refusal(self, answer: http.client.HTTPResponse) -> GatewayError:
        try:
            said = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            said = None
        said = said if isinstance(said, dict) else {}
        code = str(said.get("error") or "")
        message = str(said.get("message") or code or f"HTTP {answer.status} {answer.reason}")
        if answer.status == HTTPStatus.UNAUTHORIZED or code == UNAUTHORIZED:
            return Unauthorized(self.participant)
        return _RefusedError(message, code)


class _RefusedError(GatewayError):
    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"the gateway refused this: {message}")
        self.code = code


def http_url(gateway: str) -> str:
    """The HTTP address of a gateway given in either scheme. Raises `ConfigError`."""
    scheme, mark, rest = gateway.strip().partition("://")
    swapped = {"ws": "http", "wss": "https", "http": "http", "https": "https"}.get(scheme.lower())
    try:
        usable = bool(mark and urlsplit(f"http://{rest}").hostname and urlsplit(f"http://{rest}").port != 0)
    except ValueError:
        usable = False
    if swapped is None or not usable:
        raise ConfigError("--gateway", f"'{gateway}' is no gateway", "a URL like ws://127.0.0.1:8080")
    return f"{swapped}://{rest}".rstrip("/")


def _connection(gateway: str) -> http.client.HTTPConnection:
    parts = urlsplit(gateway)
    make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if parts.scheme == "https":
        make = http.client.HTTPSConnection
    return make(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)


def _part(text: str) -> str:
    return quote(text, safe="")


def _cause(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror():
            return "no such host"
        case OSError() if error.strerror:
            return error.strerror.lower()
        case _:
            return str(error) or type(error).__name__
