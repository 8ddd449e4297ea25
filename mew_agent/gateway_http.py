"""The client side of the gateways' HTTP API: pages of stored messages, and errors of failed requests.

Sends nothing. `cli.remote.http_api` (blocking) and `participant.stored_messages` (async) send the requests.
"""

import json
import sys
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypedDict
from urllib.parse import quote

import httpx2
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.errors import UNAUTHORIZED
from mew_protocol.json_values import value_at

from mew_agent.certificates import tls_failure, trust
from mew_agent.errors import CertificateRejected, GatewayError, NotConnected, Unauthorized
from mew_agent.failed_connections import gateway_cause

PAGE_MESSAGES: Final = 1_000
"""Messages of one page: as many as the gateway allows."""

ANSWER_SECONDS: Final = 10.0
"""Timeout of a single answer."""


class ApiConnection(TypedDict):
    """Arguments of an HTTP client."""

    verify: Any
    timeout: float
    trust_env: bool


def connection_options(url: str, ca_file: str | Path | None = None) -> ApiConnection:
    """Return how to connect to a gateway; see `gateway_address.trust`."""
    verify = trust(ca_file) if url.startswith("https:") else False
    return {"verify": verify, "timeout": ANSWER_SECONDS, "trust_env": False}


def messages_path(space: str, participant: str) -> str:
    """Return the path of the messages that a participant reads and posts."""
    return f"/participants/{quoted(participant)}/messages?space={quoted(space)}"


class MessagePages:
    """The pages of stored messages: request `path` and `take` the answer, until `path` is None.

    Pages come oldest first; pages without statuses can come newest first. Messages within a page are oldest first.
    """

    def __init__(self, space: str, participant: str, *, newest_first: bool) -> None:
        self._start = f"{messages_path(space, participant)}&limit={PAGE_MESSAGES}"
        self._key = "before" if newest_first else "since"
        self.path: str | None = self._path_from("newest") if newest_first else self._start

    def take(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return the page, with `messages` and `next`. Raises `GatewayError` for any other answer."""
        if not isinstance(page.get("messages"), list) or "next" not in page:
            raise GatewayError("the gateway does not list its messages")
        self.path = self._path_from(str(page["next"])) if page.get("more") else None
        return page

    def _path_from(self, place: str) -> str:
        return f"{self._start}&{self._key}={quoted(place)}"


class NewestMessages(MessagePages):
    """The pages with the newest `last` messages of kinds that match `patterns`, from or to `peer` if given.

    Searches at most `most_messages`, on at most `most_pages`: the newest, unless `patterns` match statuses, which a
    gateway lists from the beginning only. Pages with large messages have fewer.
    """

    def __init__(
        self,
        space: str,
        participant: str,
        patterns: Collection[str],
        peer: str | None,
        last: int,
        *,
        most_messages: int = sys.maxsize,
        most_pages: int = sys.maxsize,
    ) -> None:
        self._kinds = CapabilitySet({"kind": one} for one in patterns)
        self._is_backwards = not self._kinds.allows(Draft(kind=kinds.PARTICIPANT_STATUS))
        super().__init__(space, participant, newest_first=self._is_backwards)
        self._peer, self._last = peer, last
        self._most_messages, self._most_pages = most_messages, most_pages
        self.found: list[dict[str, Any]] = []
        """Those found so far, oldest first."""

    def take(self, page: dict[str, Any]) -> dict[str, Any]:
        """Search a page, and return it. Raises `GatewayError` for any other answer."""
        messages = super().take(page)["messages"]
        searched = messages[-self._most_messages :] if self._is_backwards else messages[: self._most_messages]
        wanted = [one for one in searched if self._is_wanted(one)]
        found = wanted + self.found if self._is_backwards else self.found + wanted
        self.found = found[max(0, len(found) - self._last) :]
        self._most_messages -= len(messages)
        self._most_pages -= 1
        is_complete = self._is_backwards and len(self.found) == self._last
        if is_complete or self._most_messages <= 0 or self._most_pages <= 0:
            self.path = None
        return page

    def _is_wanted(self, message: dict[str, Any]) -> bool:
        is_of_kind = self._kinds.allows(Draft(kind=str(message.get("kind"))))
        return is_of_kind and self._peer in (None, message.get("from"), *(message.get("to") or ()))


class CallRefused(GatewayError):
    """The gateway refused a request. `code` is a code of the protocol; empty without one."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"the gateway refused the request: {message}")
        self.code = code


def answer_object(gateway: str, content: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises `GatewayError`."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):  # another server may nest without end
        value = None
    if not isinstance(value, dict):
        raise GatewayError(f"{gateway} is not a MEW gateway")
    return value


def refusal_of(response: httpx2.Response, participant: str) -> GatewayError:
    """Return the error for the answer to a request that failed."""
    try:
        said = json.loads(response.content)
    except (httpx2.StreamError, ValueError, RecursionError):  # the connection broke, or it is not JSON
        said = None
    code = str(value_at(said, "error") or "")
    message = str(value_at(said, "message") or code or f"HTTP {response.status_code} {response.reason_phrase}")
    if response.status_code == HTTPStatus.UNAUTHORIZED or code == UNAUTHORIZED:
        return Unauthorized(participant)
    return CallRefused(message, code)


def failure_of(gateway: str, error: httpx2.HTTPError) -> CertificateRejected | NotConnected:
    """Return the error for a request without an answer."""
    return tls_failure(gateway, _root(error)) or NotConnected(gateway, gateway_cause(error))


def quoted(text: str) -> str:
    """Return a text as a part of a path or a query."""
    return quote(text, safe="")


def _root(error: BaseException) -> Exception:
    """Return the cause of an httpx2 error: an error of the system or of TLS, else the error itself."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    found = next((one for one in causes if isinstance(one, OSError)), error)
    assert isinstance(found, Exception)
    return found
