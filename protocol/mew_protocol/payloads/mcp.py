"""[pure] `mcp/*`: Model Context Protocol messages in envelopes, and proposals to send them.

The TypeScript SDK leaves out `jsonrpc` and `id`. Both are optional here: the envelope's `correlation_id` links answers.
"""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Request(Payload):
    """An MCP request, such as `tools/call`."""

    method: str = Field(min_length=1)
    params: dict[str, Any] | None = None
    jsonrpc: str | None = None
    id: int | str | None = None


class ErrorBody(Payload):
    """A JSON-RPC error."""

    code: int
    message: str
    data: Any = None


class Response(Payload):
    """The answer to a request; `correlation_id` names it. It has either `result` or `error`."""

    result: Any = None
    error: ErrorBody | None = None
    jsonrpc: str | None = None
    id: int | str | None = None


class Proposal(Payload):
    """A request that its sender may not send itself; a participant with the capability may fulfil it."""

    method: str = Field(min_length=1)
    params: dict[str, Any] | None = None


class Withdraw(Payload):
    """The proposer withdraws its proposal."""

    reason: str


class Reject(Payload):
    """A participant declines a proposal."""

    reason: str


class Notification(Payload):
    """A one-way MCP message."""

    method: str | None = None
    params: dict[str, Any] | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.MCP_REQUEST: Request,
    kinds.MCP_RESPONSE: Response,
    kinds.MCP_PROPOSAL: Proposal,
    kinds.MCP_WITHDRAW: Withdraw,
    kinds.MCP_REJECT: Reject,
    kinds.MCP_NOTIFICATION: Notification,
}
