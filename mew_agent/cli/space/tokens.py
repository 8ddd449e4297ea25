"""`mew token create`: prints the secret that identifies a participant to its space."""

import json
import shlex
from enum import StrEnum
from typing import Annotated

from mew_spaces.config.loading import load_space
from mew_spaces.gateway.auth import ensure_token, state_dir, token_variable

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import space_config_path
from mew_agent.cli.app.options import ConfigFileOption, FolderOption, option
from mew_agent.cli.space.add import admit_to_running_space, parse_capabilities
from mew_agent.errors import ConfigError, did_you_mean


class TokenFormat(StrEnum):
    """How to print a token."""

    TEXT = "text"
    JSON = "json"
    ENV = "env"


def create(
    participant: Annotated[str, option("--participant, -p ID", "Id of a participant in space.yaml.")],
    output: Annotated[
        TokenFormat, option("--output, -o FORMAT", "Print text, json, or env for a shell.")
    ] = TokenFormat.TEXT,
    space_dir: FolderOption = None,
    config: ConfigFileOption = None,
    capabilities: Annotated[
        str | None, option("--capabilities, -c JSON", "Invite a new participant with this list of capabilities.")
    ] = None,
) -> None:
    """Print a participant's token; create it if needed.

    Tokens are stored in .mew/tokens, readable by you alone. A running space accepts a new token at once. With
    --capabilities the participant need not be in space.yaml: it is invited into the running space.
    """
    path = space_config_path(config, space_dir)
    space = load_space(path)
    known = participant in space.participants
    if known and capabilities is not None:
        raise ConfigError("--capabilities", f"'{participant}' already has capabilities in {path}")
    if capabilities is None and not known:
        hint = did_you_mean(participant, space.participants)
        problem = f"'{participant}' is not in {path}{hint}"
        raise ConfigError("--participant", problem, None if hint else ", ".join(space.participants))
    wanted = parse_capabilities(capabilities) if capabilities is not None else [*space.patterns_of(participant)]
    is_person = not known or space.is_person(participant)
    if not admit_to_running_space(participant, wanted, path, is_person=is_person) and not known:
        raise ConfigError("--capabilities", "requires a running space; `mew up` starts it")
    token = ensure_token(state_dir(path), participant)
    match output:
        case TokenFormat.TEXT:
            terminal.print_line(token)
        case TokenFormat.JSON:
            terminal.print_line(json.dumps({"participant": participant, "space": space.space.id, "token": token}))
        case TokenFormat.ENV:
            terminal.print_line(f"export {token_variable(participant)}={shlex.quote(token)}")
