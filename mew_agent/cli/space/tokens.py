"""`mew token`: the secret by which a participant is known to its space."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mew_agent.cli.app.options import FolderFlag, help_when_alone

app = typer.Typer(help="Tokens of participants.", invoke_without_command=True, callback=help_when_alone)


class Output(StrEnum):
    """How to print a token."""

    TEXT = "text"
    JSON = "json"
    ENV = "env"


@app.command()
def create(
    participant: Annotated[str, typer.Option("--participant", "-p", help="An id of space.yaml.")],
    output: Annotated[Output, typer.Option("--output", "-o", help="text, json, or env to be sourced.")] = Output.TEXT,
    space_dir: FolderFlag = None,
    config: Annotated[Path | None, typer.Option("--config", help="The space.yaml.")] = None,
    capabilities: Annotated[
        str | None, typer.Option("--capabilities", "-c", help="JSON list: let somebody new into the running space.")
    ] = None,
) -> None:
    """Make a participant's token if it has none, and print it. It is kept in .mew/tokens, readable by you alone.

    A running space learns of it at once, also of a participant that space.yaml got after its start. With
    --capabilities the participant need not be in space.yaml: it is invited into the running space.
    """
    import json
    import shlex

    from mew_spaces.config.loading import load_space
    from mew_spaces.gateway.auth import ensure_token, state_dir, token_variable

    from mew_agent.cli.app import terminal
    from mew_agent.cli.space import add
    from mew_agent.cli.space.locate import space_config_path
    from mew_agent.errors import ConfigError, did_you_mean

    path = space_config_path(config, space_dir)
    space = load_space(path)
    state = state_dir(path)
    known = participant in space.participants
    if known and capabilities is not None:
        raise ConfigError("--capabilities", f"'{participant}' has those of {path}")
    if capabilities is None and not known:
        hint = did_you_mean(participant, space.participants)
        problem = f"'{participant}' is not in {path}{hint}"
        raise ConfigError("--participant", problem, None if hint else ", ".join(space.participants))
    wanted = add.patterns_of(capabilities) if capabilities is not None else [*space.patterns_of(participant)]
    is_person = not known or space.is_person(participant)
    if not add.let_into_running(participant, wanted, path, is_person=is_person) and not known:
        raise ConfigError("--capabilities", "no space runs here that could let anybody in; `mew up` starts it")
    token = ensure_token(state, participant)
    match output:
        case Output.TEXT:
            terminal.say(token)
        case Output.JSON:
            terminal.say(json.dumps({"participant": participant, "space": space.space.id, "token": token}))
        case Output.ENV:
            terminal.say(f"export {token_variable(participant)}={shlex.quote(token)}")
