"""`mew invite`: admits a participant to a running space, without a change of space.yaml.

Owns how the answer is printed. What the roles may send is `mew_settings.roles`; who may invite is up to the gateway.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from mew_protocol import kinds
from mew_protocol.ids import new_id_problem
from mew_settings.roles import ROLE_PATTERNS, invitation

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import dashboard_url
from mew_agent.cli.app.options import ConnectionOptions, JsonOption, ReasonOption, with_option_groups
from mew_agent.cli.remote.permissions import read_capabilities, warn_of_unknown_kinds
from mew_agent.cli.remote.session import find_gateway
from mew_agent.errors import ConfigError


@with_option_groups
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
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> None:
    """Invite a participant into the running space and print its token.

    Your participant needs the capability `space/invite`, and what it gives. The invitation holds until `mew agent
    remove`. `mew agent add` writes a participant to space.yaml and starts its program.
    """
    if (problem := new_id_problem(name)) is not None:
        raise ConfigError("NAME", problem)
    payload = invitation(name, _given(rights or ()))
    api = find_gateway(connection)
    answer = api.post({"kind": kinds.SPACE_INVITE, "payload": {**payload, "reason": reason} if reason else payload})
    token = answer.get("token")
    url = dashboard_url(api.gateway, api.space, name, token) if isinstance(token, str) else None
    outcome = {"participant": name, "status": "created", "token": token, "dashboard": url}
    terminal.print_outcome(f"{name}: invited", outcome, as_json=as_json)
    if as_json or url is None:
        return
    terminal.print_line(f"  token      {token}")
    what = "mew run COMMAND"
    if payload["several_sockets"]:
        terminal.print_line(f"  browser    {url}")
        what = "mew connect"
    given = f"MEW_GATEWAY={api.gateway} MEW_SPACE={api.space} MEW_PARTICIPANT_ID={name} MEW_TOKEN={token}"
    terminal.print_line(f"  terminal   {given} {what}")


def _given(rights: Sequence[str]) -> list[str | dict[str, Any]]:
    """Read roles, kinds and patterns. Raises `ConfigError`."""
    roles = [one for one in rights if one in ROLE_PATTERNS]
    patterns = read_capabilities("CAPABILITY", *(one for one in rights if one not in roles))
    warn_of_unknown_kinds(patterns)
    return [*roles, *patterns]
