"""`mew proposals`, `approve` and `reject`: decide about what participants propose.

Owns how a proposal is shown and found by its id. The gateway keeps the proposals and knows who may make their requests.
"""

import json
from typing import Annotated, Final

import typer
from mew_protocol import kinds
from mew_protocol.context_report import Waiting
from mew_protocol.payloads.mcp import CallSubject, Reject, UndecidedProposal, UndecidedProposals

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, JsonOption, option, with_option_groups
from mew_agent.cli.board import words
from mew_agent.cli.remote.request import new_envelope
from mew_agent.cli.remote.session import ApiSession, open_session
from mew_agent.errors import ConfigError

_SHORT: Final = 8

ProposalArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the proposal, or its beginning.")]


@with_option_groups
def show_proposals(
    *,
    as_json: Annotated[bool, option("--json", "Print JSON Lines, one object per proposal.")] = False,
    connection: ConnectionOptions,
) -> None:
    """List the proposals that need a decision."""
    proposals = _open(open_session(connection))
    for one in proposals:
        if as_json:
            terminal.print_json(one.as_dict())
            continue
        age = words.span(one.age_seconds or 0.0)
        terminal.print_line(f"{short_id(one.id)}  {one.sender} proposes {_call(one)}, {age} ago; {_deciders(one)}")
        terminal.print_line(f"  {_parameters(one)}")
    if not proposals and not as_json:
        terminal.print_line("no proposal is open")


@with_option_groups
def approve(proposal: ProposalArgument, *, as_json: JsonOption = False, connection: ConnectionOptions) -> None:
    """Approve a proposal: make its request.

    Your participant needs the capability for the request.
    """
    session = open_session(connection)
    one = _find(session, proposal)
    if one.truncated:
        problem = "its parameters are too large to be kept; only a participant that received it can approve it"
        raise ConfigError(short_id(one.id), problem)
    me = session.api.participant
    if one.may_fulfil is not None and me not in one.may_fulfil:
        raise ConfigError("--participant", f"'{me}' may not call {_call(one)}; {_deciders(one)}")
    request = new_envelope(session, kinds.MCP_REQUEST, one.body, *one.addressees, correlation_id=(one.id,))
    outcome = {"id": one.id, "decision": "approved", "request": session.api.send(request.as_dict())}
    terminal.print_outcome(f"approved: {one.sender} gets the answer of {_call(one)}", outcome, as_json=as_json)


@with_option_groups
def reject(
    proposal: ProposalArgument,
    reason: Annotated[str, option("--reason TEXT", "Reason to send to the proposer.")] = "disagree",
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> None:
    """Reject a proposal."""
    session = open_session(connection)
    one = _find(session, proposal)
    payload = Reject(reason=reason)
    session.api.send(new_envelope(session, kinds.MCP_REJECT, payload, one.sender, correlation_id=(one.id,)).as_dict())
    outcome = {"id": one.id, "decision": "rejected"}
    terminal.print_outcome(f"rejected: {one.sender} may not call {_call(one)}", outcome, as_json=as_json)


def short_id(name: str) -> str:
    """The beginning of an id, by which a person names a proposal."""
    return words.clean(name[:_SHORT])


def how_to_decide(connection: ConnectionOptions, wait: Waiting) -> str:
    """Who may approve a proposal, connected or not, and the commands for it."""
    known = {one.id: one for one in _open(open_session(connection))}
    one = known.get(wait.proposal or "")
    who = ", ".join(wait.who_may_answer if one is None else one.may_fulfil or ()) or "no participant"
    name = short_id(wait.proposal or "")
    return f"{who} can decide: `mew approve {name}` or `mew reject {name}`"


def _open(session: ApiSession) -> tuple[UndecidedProposal, ...]:
    return UndecidedProposals.model_validate(session.api.proposals()).proposals


def _find(session: ApiSession, name: str) -> UndecidedProposal:
    """The open proposal with this id, or the only one whose id begins so. Raises `ConfigError`."""
    proposals = _open(session)
    found = [one for one in proposals if one.id == name] or [one for one in proposals if one.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(short_id(one.id) for one in proposals) or "none is open"
    raise ConfigError(name, "is the beginning of several proposals" if found else "is no open proposal", listed)


def _deciders(proposal: UndecidedProposal) -> str:
    return f"{', '.join(proposal.may_fulfil or ()) or 'no participant'} may approve"


def _call(proposal: UndecidedProposal) -> str:
    method, tool = CallSubject.read(proposal.body)
    return words.clean(f"{'+'.join(proposal.addressees) or 'everyone'}/{tool or method}")


def _parameters(proposal: UndecidedProposal) -> str:
    """Everything that was proposed: a person must not approve what is not shown."""
    if proposal.truncated:
        return "(too large to be kept)"
    shown = proposal.body.get("params") or {}
    if CallSubject.read(proposal.body).tool is not None:
        shown = shown.get("arguments") or {}
    return words.clean(json.dumps(shown, ensure_ascii=False))
