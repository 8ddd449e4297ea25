"""[pure] `mcp/*`: Model Context Protocol messages in envelopes, and proposals to send them.

The TypeScript SDK leaves out `jsonrpc` and `id`. Both are optional here: the envelope's `correlation_id` links answers.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import value_at
from mew_protocol.payloads.base import Payload

COMPACT_CONTEXT: Final = "compact_context"
"""The tool that an agent's proposal of a compaction names. Only an approver's request for it compacts; no list shows
it."""


_MAX_NAME_CHARS: Final = 256


class Request(Payload, kind=kinds.MCP_REQUEST):
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


class Response(Payload, kind=kinds.MCP_RESPONSE):
    """The answer to a request; `correlation_id` names it. It has either `result` or `error`."""

    result: Any = None
    error: ErrorBody | None = None
    jsonrpc: str | None = None
    id: int | str | None = None


class Proposal(Payload, kind=kinds.MCP_PROPOSAL):
    """A request that its sender may not send itself; a participant with the capability may fulfil it."""

    method: str = Field(min_length=1)
    params: dict[str, Any] | None = None


class UndecidedProposal(Envelope):
    """An `mcp/proposal` that needs a decision, as it was sent, and its age.

    `may_fulfil` are the participants that may send the request. `truncated`: its parameters are too large to be kept.
    """

    age_seconds: float | None = None
    may_fulfil: tuple[str, ...] | None = None
    truncated: bool = False

    def as_proposal(self) -> Envelope:
        """Return the envelope that was sent, without the keys of the gateway."""
        return Envelope.model_validate({key: one for key, one in self.as_dict().items() if key not in GATEWAY_KEYS})


GATEWAY_KEYS: Final = UndecidedProposal.model_fields.keys() - Envelope.model_fields.keys()
"""What the gateway adds to an undecided proposal. A proposer cannot set these keys."""


class UndecidedProposals(Payload):
    """`GET /spaces/{id}/proposals`: the proposals that need a decision, oldest first."""

    space: str
    at: str
    proposals: tuple[UndecidedProposal, ...] = ()


class Withdraw(Payload, kind=kinds.MCP_WITHDRAW):
    """The proposer withdraws its proposal."""

    reason: str


class Reject(Payload, kind=kinds.MCP_REJECT):
    """A participant declines a proposal."""

    reason: str


class Notification(Payload, kind=kinds.MCP_NOTIFICATION):
    """A one-way MCP message."""

    method: str | None = None
    params: dict[str, Any] | None = None


def proposals_in(welcome: Mapping[str, Any]) -> tuple[Envelope, ...]:
    """Return the undecided proposals in a welcome as they were sent, without those that are unreadable or truncated."""
    found: list[Envelope] = []
    listed = welcome.get("proposals")
    for value in listed if isinstance(listed, list | tuple) else ():
        try:
            one = UndecidedProposal.model_validate(value)
        except ValidationError:
            continue
        if one.kind == kinds.MCP_PROPOSAL and not one.truncated:
            found.append(one.as_proposal())
    return tuple(found)


class CallSubject(NamedTuple):
    """What a request or a proposal asks for, without the arguments. `tool` is None except for `tools/call`."""

    method: str
    tool: str | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "CallSubject":
        """Read the payload of a request or a proposal; longer names are cut."""
        method = str(body.get("method"))[:_MAX_NAME_CHARS]
        name = value_at(body, "params", "name") if method == "tools/call" else None
        return cls(method, None if name is None else str(name)[:_MAX_NAME_CHARS])


def arguments_of(body: Mapping[str, Any]) -> Any:
    """Return what a request or a proposal passes: the arguments of a tool call, the parameters of another method."""
    return body.get("params") if CallSubject.read(body).tool is None else value_at(body, "params", "arguments")


def fulfils(request: Envelope, proposal: Envelope) -> bool:
    """Return whether a request that refers to a proposal asks the proposed peers for the proposed call.

    The arguments may differ: a fulfiller may correct them. A proposal without addressees is for any peer.
    """
    is_same_call = CallSubject.read(request.body) == CallSubject.read(proposal.body)
    asked, proposed = set(request.addressees), set(proposal.addressees)
    return is_same_call and (not proposed or (bool(asked) and asked <= proposed))
