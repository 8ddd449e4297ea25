"""`mew token`: the secret by which a participant is known to its space."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mew_agent.cli.options import FolderFlag, help_when_alone

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
) -> None:
    """Make a participant's token if it has none, and print it. It is kept in .mew/tokens, readable by you alone."""
    import difflib
    import json
    import shlex

    from mew_agent.cli import terminal
    from mew_agent.cli.locate import space_config_path
    from mew_agent.errors import ConfigError
    from spaces.auth import ensure_token, state_dir, token_variable
    from spaces.config import load_space

    path = space_config_path(config, space_dir)
    space = load_space(path)
    if participant not in space.participants:
        near = difflib.get_close_matches(participant, space.participants, n=1)
        hint = f"'{near[0]}'?" if near else ", ".join(space.participants)
        raise ConfigError("--participant", f"'{participant}' is not in {path}", hint)
    token = ensure_token(state_dir(path), participant)
    match output:
        case Output.TEXT:
            terminal.say(token)
        case Output.JSON:
            terminal.say(json.dumps({"participant": participant, "space": space.space.id, "token": token}))
        case Output.ENV:
            terminal.say(f"export {token_variable(participant)}={shlex.quote(token)}")
