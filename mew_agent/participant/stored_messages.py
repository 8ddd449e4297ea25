"""Reads the envelopes that a gateway keeps of a space, over HTTP.

Owns paging and the translation of errors. How long the gateway keeps them is its configuration.
"""

import json
from collections import deque
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

import httpx2
from mew_protocol.envelope import Envelope
from mew_protocol.errors import UNAUTHORIZED
from mew_protocol.json_values import value_at
from mew_protocol.patterns import Steps, compile_text

from mew_agent.errors import GatewayError, NotConnected, Unauthorized
from mew_agent.gateway_address import addresses, cause_of, http_url, tls_failure, trust
from mew_agent.participant.client import Credentials

PAGE_MESSAGES: Final = 1_000
"""How many messages to read at once: as many as the gateway allows."""

ANSWER_SECONDS: Final = 10.0
"""Timeout of a page."""


async def stored_messages(who: Credentials, patterns: Collection[str], peer: str | None, last: int) -> list[Envelope]:
    """Return the newest `last` envelopes of kinds like `patterns`, from or to `peer` if given, oldest first.

    Raises `NotConnected`, `CertificateRejected`, `Unauthorized` and `GatewayError`.
    """
    newest: deque[Envelope] = deque(maxlen=last)
    tests = [compile_text(one, in_kind=True) for one in patterns]
    base = http_url(addresses(who.gateway)[0])
    verify = trust(who.ca_file) if base.startswith("https:") else False
    headers = {"Accept": "application/json", "Authorization": f"Bearer {who.token}"}
    path = f"{base}/participants/{quote(who.participant, safe='')}/messages"
    async with httpx2.AsyncClient(verify=verify, timeout=ANSWER_SECONDS, trust_env=False, headers=headers) as client:
        since: dict[str, str] = {}
        while True:
            page = await _page(client, path, who, {"space": who.space, "limit": str(PAGE_MESSAGES), **since})
            for body in page["messages"]:
                if any(test(str(body.get("kind")), Steps()) for test in tests):
                    envelope = Envelope.model_validate(body)
                    if peer is None or peer in (envelope.sender, *envelope.addressees):
                        newest.append(envelope)
            if not page.get("more"):
                return [*newest]
            since = {"since": str(page["next"])}


async def _page(client: httpx2.AsyncClient, path: str, who: Credentials, query: dict[str, str]) -> dict[str, Any]:
    try:
        answer = await client.get(path, params=query)
    except httpx2.TransportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise tls_failure(who.gateway, cause) or NotConnected(who.gateway, cause_of(cause)) from None
    try:
        value = json.loads(answer.content)
    except ValueError:
        value = None
    if value_at(value, "error") == UNAUTHORIZED:
        raise Unauthorized(who.participant)
    if answer.is_error or not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        problem = value_at(value, "message") or f"HTTP {answer.status_code}"
        raise GatewayError(f"{who.gateway} does not list its messages: {problem}")
    return value
