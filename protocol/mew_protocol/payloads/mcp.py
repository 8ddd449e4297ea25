"""[pure] `mcp/*`: Model Context Protocol messages in envelopes, and proposals to send them.

The TypeScript SDK omits `jsonrpc` and `id`. Both are optional here, because the envelope's `correlation_id` links
answers.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import canonical_json, objects_at, text_at, value_at
from mew_protocol.payloads.base import Payload, read_or_none

COMPACT_CONTEXT: Final = "compact_context"
"""The tool that an agent's proposal of a compaction names. Only an approver's request for it compacts; no list shows
it."""

MAX_NAME_CHARS: Final = 256
"""How long the method and the tool of a proposal may be."""

KEPT_SHORT: Final = 8
"""How many characters of a proposal's id a person has to type, unless an earlier id begins with the same."""


class Request(Payload, kind=kinds.MCP_REQUEST):
    """An MCP request, such as `tools/call`.

    An approval has the digest of the displayed proposal, see `digest_of`. `proposal_changed` says that the sender
    changed the call on purpose; without it, the gateway refuses differences.
    """

    method: str = Field(min_length=1)
    params: dict[str, Any] | None = None
    jsonrpc: str | None = None
    id: int | str | None = None
    proposal_digest: str | None = None
    proposal_changed: bool | None = None


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
    """A request that its sender may not make itself. A participant with the capability may fulfil it."""

    method: str = Field(min_length=1)
    params: dict[str, Any] | None = None


class UndecidedProposal(Envelope):
    """An `mcp/proposal` that needs a decision, as it was sent, and its age.

    `may_fulfil` are the participants that may send the request. `truncated`: its parameters are too large to be kept.
    `digest` covers the whole proposal. `short_id` is the shortest beginning of its id with which no earlier id began.
    It never names a later proposal. `rejected_by` are the participants that rejected it; others may still fulfil it.
    """

    age_seconds: float | None = None
    may_fulfil: tuple[str, ...] | None = None
    truncated: bool = False
    digest: str | None = None
    short_id: str | None = None
    rejected_by: tuple[str, ...] = ()

    @staticmethod
    def of(proposal: Envelope) -> "UndecidedProposal":
        """Return a proposal as sent, without forged keys of the gateway."""
        sent = {key: one for key, one in proposal.as_dict().items() if key not in GATEWAY_KEYS}
        return UndecidedProposal.model_validate(sent)

    def is_named(self, name: str) -> bool:
        """Return True if a typed name means this proposal: its id, or a sufficiently long beginning of it."""
        shortest = self.id[:KEPT_SHORT] if self.short_id is None else self.short_id
        return self.id.startswith(name) and name.startswith(shortest)

    def as_proposal(self) -> Envelope:
        """Return the original envelope, without the gateway's keys."""
        return Envelope.model_validate({key: one for key, one in self.as_dict().items() if key not in GATEWAY_KEYS})


GATEWAY_KEYS: Final = UndecidedProposal.model_fields.keys() - Envelope.model_fields.keys()
"""The gateway's additions to an undecided proposal. A proposer cannot set these keys."""


class UndecidedProposals(Payload):
    """`GET /spaces/{id}/proposals`: the proposals that need a decision, oldest first."""

    space: str
    at: str
    proposals: tuple[UndecidedProposal, ...] = ()


WithdrawalCause = Literal["proposer_left", "all_rejected"]
"""Why the gateway withdraws a proposal."""


class Withdraw(Payload, kind=kinds.MCP_WITHDRAW):
    """The proposer withdraws its proposal, or the gateway does, with a `cause`."""

    reason: str
    cause: WithdrawalCause | None = None


class Reject(Payload, kind=kinds.MCP_REJECT):
    """A participant declines a proposal."""

    reason: str


class Notification(Payload, kind=kinds.MCP_NOTIFICATION):
    """A one-way MCP message."""

    method: str | None = None
    params: dict[str, Any] | None = None


def proposals_in(welcome: Mapping[str, Any]) -> tuple[Envelope, ...]:
    """Return the undecided proposals of a welcome in their original form, without unreadable and truncated ones."""
    found: list[Envelope] = []
    listed = welcome.get("proposals")
    for value in listed if isinstance(listed, list | tuple) else ():
        one = read_or_none(UndecidedProposal, value)
        if one is not None and one.kind == kinds.MCP_PROPOSAL and not one.truncated:
            found.append(one.as_proposal())
    return tuple(found)


def proposal_ids_in(welcome: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the undecided proposals in a welcome, truncated ones included."""
    return frozenset(text_at(one, "id") for one in objects_at(welcome, "proposals"))


class CallSubject(NamedTuple):
    """The subject of a request or a proposal, without arguments. `tool` is None except for `tools/call`."""

    method: str
    tool: str | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "CallSubject":
        """Read the payload of a request or a proposal."""
        method = str(body.get("method"))
        name = value_at(body, "params", "name") if method == "tools/call" else None
        return cls(method, None if name is None else str(name))


def arguments_of(body: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool call, or the parameters of another method."""
    return body.get("params") if CallSubject.read(body).tool is None else value_at(body, "params", "arguments")


def is_for_call(fulfilment: Envelope, subject: CallSubject) -> bool:
    """Return True if a request is for the proposed call. A response never is.

    The arguments may differ, because a fulfiller may correct them.
    """
    return fulfilment.kind != kinds.MCP_REQUEST or CallSubject.read(fulfilment.body) == subject


def is_for_peers(fulfilment: Envelope, peers: Collection[str]) -> bool:
    """Return True if a request goes to proposed peers, or if a proposed peer answers or forwards it.

    A proposal without `peers` is for any peer.
    """
    asked = fulfilment.addressees if fulfilment.kind == kinds.MCP_REQUEST else ()
    return not peers or fulfilment.sender in peers or (bool(asked) and set(asked) <= set(peers))


def fulfils(fulfilment: Envelope, subject: CallSubject, peers: Collection[str]) -> bool:
    """Return True if a correlated request or response closes a proposal of this call to `peers`.

    TypeScript agents answer a proposal directly, without repeating it as a request.
    """
    is_to_some = bool(peers) or fulfilment.kind == kinds.MCP_REQUEST
    return is_to_some and is_for_call(fulfilment, subject) and is_for_peers(fulfilment, peers)


def is_same_call(request: Mapping[str, Any], proposal: Mapping[str, Any]) -> bool:
    """Return True if a request's payload is exactly the proposed call."""
    calls = [{"method": one.get("method"), "params": one.get("params")} for one in (request, proposal)]
    return canonical_json(calls[0]) == canonical_json(calls[1])


def digest_of(body: Mapping[str, Any], proposer: str, to: Iterable[str]) -> str:
    """Return the digest of a proposal: `sha256:` and the hash of method, params, proposer and addressees.

    A request with the same `body` and addressees has the same digest. Further keys of the payload are not part of
    a proposal.
    """
    covered = {"from": proposer, "to": sorted(set(to)), "method": body.get("method"), "params": body.get("params")}
    return f"sha256:{sha256(canonical_json(covered)).hexdigest()}"


def approval_of(proposal: Envelope, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the payload of the request that approves a proposal, with the digest of the proposal.

    `params` are the approver's changed parameters.
    """
    body = proposal.body
    given = body.get("params") if params is None else dict(params)
    request = {"method": body.get("method")} if given is None else {"method": body.get("method"), "params": given}
    changed = {} if params is None else {"proposal_changed": True}
    return {**request, "proposal_digest": digest_of(body, proposal.sender, proposal.addressees), **changed}
