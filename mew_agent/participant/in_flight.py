"""Requests of peers that are being worked on: whoever made one may take it back, as MCP has it.

Owns which notice is about which request. A plain function cannot be stopped in its thread: its result is thrown away.
"""

import logging
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.participant import mcp_answers
from mew_agent.tools.catalog import Offers

logger = logging.getLogger("mew_agent.offers")

CANCELLED: Final = "notifications/cancelled"


class Underway:
    """The requests that one participant is working on."""

    def __init__(self) -> None:
        self._running: dict[anyio.CancelScope, Envelope] = {}

    async def answer(self, request: Envelope, offers: Offers, *, is_paused: bool) -> dict[str, Any] | None:
        """The payload of the `mcp/response`; None where none is wanted any more. Never raises."""
        payload: dict[str, Any] | None = None
        with anyio.CancelScope() as scope:
            self._running[scope] = request
            try:
                payload = await mcp_answers.answer(request, offers, is_paused=is_paused)
            finally:
                del self._running[scope]
        return payload

    def receive(self, notice: Envelope) -> None:
        """A notice arrived: stop what its sender takes back. The envelope names it, or `requestId` does."""
        if notice.kind != kinds.MCP_NOTIFICATION or notice.body.get("method") != CANCELLED:
            return
        params = notice.body.get("params")
        told = params.get("requestId") if isinstance(params, dict) else None
        about = notice.correlation_ids
        for scope, request in tuple(self._running.items()):
            number = request.body.get("id")
            is_it = request.id in about or (not about and told is not None and told in (request.id, number))
            if request.sender == notice.sender and is_it:
                logger.info("'%s' took back its request of '%s'", notice.sender, request.body.get("method"))
                scope.cancel()
