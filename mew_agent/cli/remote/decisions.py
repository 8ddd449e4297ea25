"""`mew proposals`, `approve` and `reject`.

Shows proposals, and finds them by the first characters of their ids. The gateway stores the proposals and decides who
may approve them.
"""

import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Final

import typer
from mew_board import words
from mew_board.figures import compaction_sizes, span
from mew_board.proposal_text import (
    allowed_calls,
    argument_lines,
    ending,
    further_params,
    is_compaction,
    proposed,
    rejections,
)
from mew_board.quoting import clean, mew_command
from mew_board.visible import visible
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, value_at
from mew_protocol.payloads.mcp import (
    COMPACT_CONTEXT,
    KEPT_SHORT,
    CallSubject,
    UndecidedProposal,
    approval_of,
    arguments_of,
)

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, option
from mew_agent.cli.remote.http_api import GatewayApi, SpaceEvents
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import SentRequest, new_envelope
from mew_agent.compaction.approval import read_approval
from mew_agent.errors import ConfigError, MewAgentError, PeerFailed
from mew_agent.participant.event_handlers import MAX_SHOWN_CHARS

_SHOWN_OF_COMPACTION: Final = frozenset(
    {"trigger", "requested_by", "session", "reason", "cleared_results", "cost_tokens", "leaves", "stays"}
    | {"present_tokens", "freed_tokens", "goes_on_at", "approvers", "target_tokens", "basis"}
)

ANSWER_SECONDS: Final = 5.0
"""How long to wait for a proposer's word on whether a decision counts."""


def complete_proposals(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return ids and proposers of the open proposals, for shell completion."""
    given = context.params
    options = {one.name: given.get(one.name) for one in fields(ConnectionOptions)}
    try:
        proposals = find_gateway(ConnectionOptions(**options)).proposals()
    except MewAgentError:
        return []
    found = [(short_id(one), f"{one.sender}: {_call(one)}") for one in proposals]
    found += [(one.sender, "its only open proposal") for one in proposals]
    return [(name, text) for name, text in dict(found).items() if name.startswith(incomplete)]


ProposalArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PROPOSAL",
        help="Id of the proposal or its first characters, or the proposer's id (default: the only open one).",
        autocompletion=complete_proposals,
    ),
]


def show_proposals(*, connection: ConnectionOptions) -> None:
    """List the proposals that need a decision."""
    api = find_gateway(connection)
    proposals = api.proposals()
    if OUTPUT.is_json:
        terminal.print_json([one.as_dict() for one in proposals])
        return
    for one in proposals:
        terminal.print_lines(_whole(one))
    if not proposals:
        terminal.print_line("no proposal is open")
    for participant in api.participants():
        name = str(participant.get("id"))
        for meaning, pattern in allowed_calls(name, participant.get("capabilities")):
            terminal.print_line(f"{meaning}; `{ending(name, pattern)}` ends it")


def _whole(proposal: UndecidedProposal) -> Iterator[str]:
    """Yield a complete proposal as lines."""
    age = span(proposal.age_seconds or 0.0)
    head = f"{short_id(proposal)}  {proposal.sender} proposes {_call(proposal)}, {age} ago; {_deciders(proposal)}"
    yield clean(head)
    yield from (f"  {line}" for line in _details(proposal))


def _is_confirmed(proposal: UndecidedProposal, name: str | None) -> bool:
    """Show a proposal that was not selected by its id. In a terminal, ask for confirmation."""
    if name not in (None, proposal.sender):
        return True
    terminal.print_lines(_whole(proposal))
    return not terminal.is_terminal(sys.stdin) or bool(typer.confirm("Approve?"))


def approve(
    proposal: ProposalArgument = None,
    target_tokens: Annotated[
        int | None, option("--target-tokens N", "For a compaction: compact to at most N tokens.", min=0)
    ] = None,
    pins: Annotated[
        list[str] | None, option("--pin TEXT", "For a compaction: pin this line first; repeatable.")
    ] = None,
    *,
    connection: ConnectionOptions,
) -> int:
    """Approve a proposal: make its request.

    Without an id, shows the whole proposal and, in a terminal, asks for confirmation. Your participant needs the
    capability for the request. The agent's setting `compaction: {approve: ...}` names the approvers of compactions.
    """
    api = find_gateway(connection)
    one = _find(api, proposal)
    if one.truncated:
        problem = "its parameters are too large to be kept; only a participant that received it can approve it"
        raise ConfigError(short_id(one), problem)
    me = api.participant
    if one.may_fulfil is not None and me not in one.may_fulfil:
        raise ConfigError("--participant", f"'{me}' may not call {_call(one)}; {_deciders(one)}")
    _check_decider(one, me)
    changes = _changes(one, target_tokens, pins or [])
    if not OUTPUT.is_json and not _is_confirmed(one, proposal):
        return ExitCode.SKIPPED
    # Only our changes: the agent keeps the rest of its plan.
    body = approval_of(one, {"name": COMPACT_CONTEXT, "arguments": changes} if changes else None)
    request = new_envelope(api, kinds.MCP_REQUEST, body, *one.addressees, correlation_id=(one.id,))
    with api.events() as events:
        outcome = {"id": one.id, "decision": "approved", "request": api.send(request.as_dict())}
        if one.addressees == (one.sender,):
            _check_counts(events, request, one.sender)
    what = "compacts" if is_compaction(one) else f"gets the answer of {_call(one)}"
    terminal.print_outcome(f"approved: {one.sender} {what}", outcome)
    return ExitCode.DONE


def reject(
    proposal: ProposalArgument = None,
    reason: Annotated[str, option("--reason TEXT", "Reason to send to the proposer.")] = "disagree",
    *,
    connection: ConnectionOptions,
) -> None:
    """Reject a proposal."""
    api = find_gateway(connection)
    one = _find(api, proposal)
    _check_decider(one, api.participant)
    about = {"to": [one.sender], "correlation_id": [one.id]}
    api.send({"kind": kinds.MCP_REJECT, **about, "payload": {"reason": reason}})
    outcome = {"id": one.id, "decision": "rejected"}
    what = "does not compact now" if is_compaction(one) else f"may not call {_call(one)}"
    terminal.print_outcome(f"rejected: {one.sender} {what}", outcome)


def _check_counts(events: SpaceEvents, request: Envelope, proposer: str) -> None:
    """Raise `PeerFailed` if another decision about the proposal was first."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            body = events.next(deadline=deadline).body
        except TimeoutError:
            return
        if value_at(body, "from") == proposer and request.id in (value_at(body, "correlation_id") or ()):
            if error := object_at(body, "payload", "error"):
                raise PeerFailed(proposer, None, str(error.get("message")))
            return


def short_id(proposal: UndecidedProposal) -> str:
    """Return the short form of a proposal's id."""
    return visible(_typed_id(proposal))


def _typed_id(proposal: UndecidedProposal) -> str:
    return proposal.id[:KEPT_SHORT] if proposal.short_id is None else proposal.short_id


def _find(api: GatewayApi, name: str | None) -> UndecidedProposal:
    """Find the open proposal for an id, a participant or no name. Raises `ConfigError`."""
    proposals = api.proposals()
    participants = {str(one.get("id")) for one in api.participants()} if name is not None else set[str]()
    found = _meant(proposals, name, participants)
    if len(found) == 1:
        return found[0]
    if found:
        which = "; ".join(f"{short_id(one)} of {one.sender}: {_call(one)}" for one in found)
        raise ConfigError(name or "PROPOSAL", f"several are open, type the id of one: {which}")
    if name is None:
        raise ConfigError("PROPOSAL", "no proposal is open")
    raise ConfigError(name, "has no open proposal" if name in participants else _why_none(proposals, name))


def _meant(
    proposals: Sequence[UndecidedProposal], name: str | None, participants: Collection[str]
) -> list[UndecidedProposal]:
    """Return the proposals that match an id, the beginning of an id, a participant, or no name.

    A participant's id only selects its proposals, because proposers choose the ids of their proposals.
    """
    if name is None:
        return list(proposals)
    if name in participants or any(one.sender == name for one in proposals):
        return [one for one in proposals if one.sender == name]
    return [one for one in proposals if one.id == name] or [one for one in proposals if one.is_named(name)]


def _why_none(proposals: Sequence[UndecidedProposal], name: str) -> str:
    """Return why no proposal matches a name, with the ids to choose from."""
    alike = [one for one in proposals if one.id.startswith(name)]
    problem = "no open proposal has this id"
    if alike:
        problem = "matches several proposals, decided ones included; type more of the id"
    listed = ", ".join(short_id(one) for one in alike or proposals) or "none"
    return f"{problem} (open: {listed})"


def announce_approvals(request: SentRequest) -> None:
    """Print who can approve the participant's proposals, now and after each change of its status."""
    announced: set[str] = set()

    def announce() -> None:
        for wait in words.approvals(request.last_status):
            if wait.proposal is None or wait.proposal in announced:
                continue
            announced.add(wait.proposal)
            one = next((one for one in request.api.proposals() if one.id == wait.proposal), None)
            if one is None or one.sender != request.participant:
                who = f"{words.approval(wait)}; {_may_approve(wait.who_may_answer)}: see `mew proposals`"
                terminal.warn(f"'{request.participant}' waits for {who}")
                continue
            # From the gateway, not the status: an approval runs the gateway's copy. It also knows disconnected
            # participants.
            what = words.approval(wait) if is_compaction(one) else f"approval of {proposed(one, MAX_SHOWN_CHARS)}"
            name = _typed_id(one)
            commands = f"`{mew_command('approve', name)}` or `{mew_command('reject', name)}`"
            terminal.warn(f"'{request.participant}' waits for {what}; {_deciders(one)}: {commands}")

    announce()
    request.on_status.append(announce)


def _deciders(proposal: UndecidedProposal) -> str:
    names = _arguments(proposal).get("approvers") if is_compaction(proposal) else proposal.may_fulfil
    return f"{_may_approve(names)}{rejections(proposal)}"


def _may_approve(names: Sequence[str] | None) -> str:
    return f"{', '.join(names or ()) or 'no participant'} may approve"


def _arguments(proposal: UndecidedProposal) -> Mapping[str, Any]:
    return object_at(arguments_of(proposal.body))


def _check_decider(proposal: UndecidedProposal, me: str) -> None:
    """Raise `ConfigError` if an agent asked others about its compaction: it would ignore our decision."""
    if is_compaction(proposal) and me not in _arguments(proposal).get("approvers", ()):
        raise ConfigError("--participant", f"'{me}' may not decide about this compaction; {_deciders(proposal)}")


def _changes(proposal: UndecidedProposal, target_tokens: int | None, pins: list[str]) -> dict[str, Any]:
    """Return an approver's changes to a proposed compaction. Raises `ConfigError`."""
    changes = {"target_tokens": target_tokens, "pins": pins or None}
    given = {key: value for key, value in changes.items() if value is not None}
    if given and not is_compaction(proposal):
        raise ConfigError("--target-tokens and --pin", f"only for compactions, not for {_call(proposal)}")
    try:
        read_approval(given)
    except ValueError as error:
        raise ConfigError("--pin", str(error).removeprefix("arguments.pins: ")) from None
    return given


def _occasion(given: Mapping[str, Any]) -> str:
    """Return the trigger of a proposed compaction, its requester and the reason."""
    labels = {"requested_by": ", requested by ", "session": ", session ", "reason": ": "}
    asked = "".join(f"{label}{given[key]}" for key, label in labels.items() if given.get(key))
    return f"trigger {given.get('trigger')}{asked}"


def _details(proposal: UndecidedProposal) -> list[str]:
    """Return the complete proposal: a person must not approve hidden parts."""
    if proposal.truncated:
        return ["(too large to be kept)"]
    if not is_compaction(proposal):
        return argument_lines(proposal.body)
    given = _arguments(proposal)
    cleared = f", {given['cleared_results']} tool results cleared" if given.get("cleared_results") else ""
    lines = [
        f"context{compaction_sizes(given)}, cost ~{_number(given.get('cost_tokens'))} tokens ({_occasion(given)})",
        f"leaves {_extent(given.get('leaves'))}{cleared}",
        f"stays {_extent(given.get('stays'))}",
        f"compacts at {given.get('goes_on_at')} unless rejected",
    ]
    further = {key: value for key, value in given.items() if key not in _SHOWN_OF_COMPACTION}
    further |= further_params(proposal.body)
    return [
        *map(visible, lines),
        *([visible(f"further: {json.dumps(further, ensure_ascii=False)}")] if further else []),
    ]


def _extent(given: object) -> str:
    extent = object_at(given)
    said = f': "{extent["first"]}" to "{extent["last"]}"' if "first" in extent and "last" in extent else ""
    pins = f", {extent['pins']} pins" if extent.get("pins") else ""
    return f"{_number(extent.get('messages'))} messages in {_number(extent.get('turns'))} turns{pins}{said}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _call(proposal: UndecidedProposal) -> str:
    method, tool = CallSubject.read(proposal.body)
    return visible(f"{'+'.join(proposal.addressees) or 'everyone'}/") + visible(f"{tool or method}")
