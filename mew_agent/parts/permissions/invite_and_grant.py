"""`mew invite`, `grant` and `revoke`: the members of a running space and their capabilities.

Prints the answers. `mew_settings.roles` defines the roles; the gateway checks invitations and grants.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from mew_board import conversation_lines as notes
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.ids import typed_id_problem
from mew_settings.roles import ROLE_PATTERNS, invitation

from mew_agent.cli.app import terminal
from mew_agent.cli.app.capabilities import read_capabilities, warn_of_unknown_kinds
from mew_agent.cli.app.locate import dashboard_url
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, ReasonOption, TargetArgument, option
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import check_known
from mew_agent.errors import ConfigError


def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Id of the new participant.")],
    rights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE|CAPABILITY",
            help="A role (person, agent, tool or observer), or kinds or patterns that it may send (default: person).",
        ),
    ] = None,
    reason: ReasonOption = None,
    *,
    connection: ConnectionOptions,
) -> None:
    """Invite a participant into the running space and print its token.

    Your participant needs `space/invite` and every capability that it gives. The invitation lasts until `mew agent
    remove`. `mew agent add` writes a participant to space.yaml and starts its program.
    """
    if (problem := typed_id_problem(name)) is not None:
        raise ConfigError("NAME", problem)
    payload = invitation(name, _given(rights or ()))
    api = find_gateway(connection)
    answer = api.post({"kind": kinds.SPACE_INVITE, "payload": {**payload, "reason": reason} if reason else payload})
    token = answer.get("token")
    url = dashboard_url(api.gateway, api.space, name, token) if isinstance(token, str) else None
    status = "duplicate" if _was_repeated(answer) else "created"
    terminal.print_outcome(
        f"{name}: invited", {"participant": name, "status": status, "token": token, "dashboard": url}
    )
    if _was_repeated(answer):
        command = f"{terminal.own_command()} token {name} --replace"
        terminal.warn(f"the answer with the token was lost; `{command}` in the folder of the space prints a new one")
    if OUTPUT.is_json or url is None:
        return
    terminal.print_line(f"  token      {token}")
    what = "mew run COMMAND"
    if payload["several_sockets"]:
        terminal.print_line(f"  browser    {url}")
        what = "mew connect"
    given = f"MEW_GATEWAY={api.gateway} MEW_SPACE={api.space} MEW_PARTICIPANT_ID={name} MEW_TOKEN={token}"
    terminal.print_line(f"  terminal   {given} {what}")


def _was_repeated(answer: Mapping[str, Any]) -> bool:
    """Return whether the gateway had already accepted the envelope, so that its first answer, with the details, was
    lost.
    """
    return answer.get("status") == "duplicate"


def _given(rights: Sequence[str]) -> list[str | dict[str, Any]]:
    """Read roles, kinds and patterns. Raises `ConfigError`."""
    roles = [one for one in rights if one in ROLE_PATTERNS]
    patterns = read_capabilities("CAPABILITY", *(one for one in rights if one not in roles))
    warn_of_unknown_kinds(patterns)
    return [*roles, *patterns]


@dataclass(frozen=True, slots=True)
class CapabilityChange:
    """A change of capabilities, as given on the command line."""

    recipient: TargetArgument
    written: Annotated[
        list[str], typer.Argument(metavar="CAPABILITY", help="Kind such as `mcp/proposal`, or a pattern in JSON.")
    ]
    to: Annotated[list[str] | None, option("--to ID", "Only envelopes to this participant; repeatable.")] = None
    tool: Annotated[str | None, option("--tool NAME", "Only calls of this tool, for `mcp/request`.")] = None
    reason: ReasonOption = None

    def send(self, api: GatewayApi, kind: str, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Send the change as a grant or a revocation; return its patterns, and the answer. Raises `ConfigError`."""
        patterns = read_capabilities("CAPABILITY", *self.written, to=self.to or ())
        if self.tool is not None:
            call = {"method": "tools/call", "params": {"name": self.tool}}
            patterns = [{**pattern, "payload": call} for pattern in patterns]
        payload = {"recipient": self.recipient, "capabilities": patterns, **more}
        answer = api.post({"kind": kind, "payload": {**payload, "reason": self.reason} if self.reason else payload})
        return patterns, answer


def grant(change: CapabilityChange, connection: ConnectionOptions) -> None:
    """Grant capabilities to a participant.

    A grant ends when the participant has been away for five seconds. To make it permanent, write it in space.yaml.
    """
    api, recipient = find_gateway(connection), change.recipient
    check_known(api, api.board(), recipient)
    patterns, _ = change.send(api, kinds.CAPABILITY_GRANT)
    warn_of_unknown_kinds(patterns)
    outcome = {"participant": recipient, "granted": patterns}
    terminal.print_outcome(f"{recipient}: may now send {notes.rights(patterns)}", outcome)
    if OUTPUT.is_json:
        return
    terminal.print_line(f"  until {recipient} leaves; to keep it, add this to its capabilities in space.yaml:")
    terminal.print_lines(f"  - {json.dumps(pattern)}" for pattern in patterns)


def revoke(
    change: CapabilityChange,
    *,
    keep_passed_on: Annotated[bool, option("--keep-passed-on", "Do not revoke grants that were passed on.")] = False,
    connection: ConnectionOptions,
) -> None:
    """Revoke capabilities granted to a participant.

    Also revokes the grants that the participant passed on. Capabilities from space.yaml or an invitation stay.
    """
    api, recipient = find_gateway(connection), change.recipient
    check_known(api, api.board(), recipient)
    keep = {"keep_passed_on": True} if keep_passed_on else {}
    patterns, answer = change.send(api, kinds.CAPABILITY_REVOKE, **keep)
    ended = None if _was_repeated(answer) else answer.get("ended") or []  # None: not known
    if ended == [] and not answer.get("revoked"):
        raise ConfigError(
            recipient,
            f"has no grant for {notes.rights(patterns)}; to remove capabilities of space.yaml, edit that file",
        )
    outcome = {"participant": recipient, "revoked": patterns, "ended": ended}
    terminal.print_outcome(f"{recipient}: {notes.rights(patterns)} revoked", outcome)
    if OUTPUT.is_json:
        return
    for line in notes.ended_rights(answer):
        terminal.print_line(f"  ended too: {clean(line)}")
