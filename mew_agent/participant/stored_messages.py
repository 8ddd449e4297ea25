"""Reads the envelopes that a gateway keeps of a space, over HTTP. Its configuration decides how long it keeps them."""

from collections.abc import Collection
from contextlib import suppress

import httpx2
from mew_protocol.envelope import Envelope

from mew_agent.errors import NotConnected
from mew_agent.gateway_address import http_url
from mew_agent.gateway_http import NewestMessages, answer_object, connection_options, failure_of, refusal_of
from mew_agent.participant.client import Client, Credentials


async def stored_messages(
    client: Client, patterns: Collection[str], peer: str | None, last: int, **bounds: int
) -> list[Envelope]:
    """Return the newest `last` envelopes of kinds that match `patterns`, from or to `peer` if given, oldest first.

    If a gateway does not answer, asks the next one. `bounds` are those of `NewestMessages`. Raises `NotConnected`,
    `CertificateRejected`, `Unauthorized` and `GatewayError`.
    """
    who = client.credentials

    def search() -> NewestMessages:
        return NewestMessages(who.space, who.participant, patterns, peer, last, **bounds)

    *others, final = map(http_url, client.gateways)
    for gateway in others:
        with suppress(NotConnected):
            return await _stored_at(gateway, who, search())
    return await _stored_at(final, who, search())


async def _stored_at(gateway: str, who: Credentials, newest: NewestMessages) -> list[Envelope]:
    headers = {"Accept": "application/json", "Authorization": f"Bearer {who.token}"}
    async with httpx2.AsyncClient(**connection_options(gateway, who.ca_file), headers=headers) as client:
        while newest.path is not None:
            try:
                answer = await client.get(gateway + newest.path)
            except httpx2.HTTPError as error:
                raise failure_of(gateway, error) from None
            if answer.is_error:
                raise refusal_of(answer, who.participant)
            newest.take(answer_object(gateway, answer.content))
    return [Envelope.model_validate(one) for one in newest.found]
