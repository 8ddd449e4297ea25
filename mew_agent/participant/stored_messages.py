"""Reads the envelopes that a gateway keeps of a space, over HTTP. Its configuration decides how long it keeps them."""

import sys
from collections import deque
from collections.abc import Collection
from contextlib import suppress

import httpx2
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.patterns import Steps, compile_text

from mew_agent.errors import NotConnected
from mew_agent.gateway_address import http_url
from mew_agent.gateway_http import MessagePages, answer_object, connection_options, failure_of, refusal_of
from mew_agent.participant.client import Client, Credentials


async def stored_messages(
    client: Client,
    patterns: Collection[str],
    peer: str | None,
    last: int,
    *,
    most_messages: int = sys.maxsize,
    most_pages: int = sys.maxsize,
) -> list[Envelope]:
    """Return the newest `last` envelopes of kinds that match `patterns`, from or to `peer` if given, oldest first.

    If a gateway does not answer, asks the next one. Searches at most `most_messages`, on at most `most_pages`: the
    newest, unless `patterns` match statuses. Pages with large messages have fewer. Raises `NotConnected`,
    `CertificateRejected`, `Unauthorized` and `GatewayError`.
    """
    wanted = patterns, peer, last, most_messages, most_pages
    *others, final = map(http_url, client.gateways)
    for gateway in others:
        with suppress(NotConnected):
            return await _stored_at(gateway, client.credentials, *wanted)
    return await _stored_at(final, client.credentials, *wanted)


async def _stored_at(
    gateway: str,
    who: Credentials,
    patterns: Collection[str],
    peer: str | None,
    last: int,
    most_messages: int,
    most_pages: int,
) -> list[Envelope]:
    newest: deque[Envelope] = deque(maxlen=last)
    tests = [compile_text(one, in_kind=True) for one in patterns]
    headers = {"Accept": "application/json", "Authorization": f"Bearer {who.token}"}
    has_statuses = any(test(kinds.PARTICIPANT_STATUS, Steps()) for test in tests)
    pages = MessagePages(who.space, who.participant, newest_first=not has_statuses)  # this order has no statuses
    async with httpx2.AsyncClient(**connection_options(gateway, who.ca_file), headers=headers) as client:
        while pages.path and most_messages > 0 and most_pages > 0 and (has_statuses or len(newest) < last):
            most_pages -= 1
            try:
                answer = await client.get(gateway + pages.path)
            except httpx2.HTTPError as error:
                raise failure_of(gateway, error) from None
            if answer.is_error:
                raise refusal_of(answer, who.participant)
            page = pages.take(answer_object(gateway, answer.content))["messages"]
            searched = page if has_statuses else page[::-1]
            for body in searched[:most_messages]:
                if any(test(str(body.get("kind")), Steps()) for test in tests):
                    envelope = Envelope.model_validate(body)
                    if peer not in (None, envelope.sender, *envelope.addressees):
                        continue
                    if has_statuses:
                        newest.append(envelope)
                    elif len(newest) < last:
                        newest.appendleft(envelope)
            most_messages -= len(page)
    return [*newest]
