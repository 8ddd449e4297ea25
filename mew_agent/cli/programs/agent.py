"""`mew agent`: run one agent, or one of the simple participants, in the foreground."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mew_agent.cli.app.options import (
    Flags,
    FolderFlag,
    LogLevel,
    OwnGatewayFlag,
    OwnSpaceFlag,
    OwnTokenFlag,
    help_when_alone,
)

if TYPE_CHECKING:
    from mew_agent.config.agent_config import Source

app = typer.Typer(help="Run an agent, or add a participant.", invoke_without_command=True, callback=help_when_alone)


class SimpleType(StrEnum):
    """Participants that need no model."""

    ECHO = "echo"
    CALCULATOR = "calculator"
    FULFILLER = "fulfiller"


@app.command(short_help="Run an echo, a calculator or a fulfiller of proposals.")
def start(
    simple_type: Annotated[SimpleType, typer.Option("--type", "-t", help="What it does.")],
    gateway: OwnGatewayFlag = None,
    space: OwnSpaceFlag = None,
    agent_id: Annotated[str | None, typer.Option("--id", "-i", help="Its participant id; else TYPE-agent.")] = None,
    token: Annotated[str | None, typer.Option("--token", help="Its token; MEW_TOKEN keeps it off `ps`.")] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to tell.")] = LogLevel.INFO,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="What a fulfiller fulfils: a YAML or JSON file.")
    ] = None,
) -> None:
    """Run a participant without a model: `echo` repeats chats, `calculator` has tools, `fulfiller` fulfils proposals.

    What is not given comes from the environment, or from the running space of this folder. A fulfiller's file has
    patterns to allow and to deny, and whom to ask (docs/how-to/approve.md); without one it fulfils whatever it may.
    """
    from mew_agent.cli.app import terminal
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.cli.chat.fulfilling import fulfilling, policy_from
    from mew_agent.cli.remote.identity import find_identity
    from mew_agent.participant.participant import Participant
    from mew_agent.simple_agents.behaviours import BEHAVIOURS

    flags = Flags(agent_id, token, gateway, space)
    who = find_identity(flags, participant=f"{simple_type}-agent", token="")
    terminal.configure_logging(log_level)

    policy = policy_from(config, is_fulfiller=simple_type is SimpleType.FULFILLER)

    async def live() -> None:
        me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token)
        if policy is None:
            BEHAVIOURS[simple_type](me)
        async with fulfilling(me, policy), me:
            terminal.say(f"{who.participant} has joined '{who.space}' at {who.gateway}")
            await me.run_forever()

    run_until_terminated(live)


@app.command(short_help="Add a participant to a space, also to one that runs.")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new participant's id.")],
    *,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name; else OPENAI_MODEL's.")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="Its server; else OPENAI_BASE_URL's.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Its system prompt.")] = None,
    command: Annotated[str | None, typer.Option("--command", help="Another program instead, with arguments.")] = None,
    person: Annotated[bool, typer.Option("--person", help="Nobody's program: a person.")] = False,
    capabilities: Annotated[
        str | None, typer.Option("--capabilities", "-c", help="JSON list of patterns or kinds; else the usual ones.")
    ] = None,
    start_now: Annotated[bool, typer.Option("--start/--no-start", help="Start it with the space, and now.")] = True,
    space_dir: FolderFlag = None,
    config: Annotated[Path | None, typer.Option("--config", help="The space.yaml.")] = None,
) -> int:
    """Add a participant to a space, also to one that runs: no restart, and nobody else notices more than its coming."""
    from mew_agent.cli.space.add import Newcomer
    from mew_agent.cli.space.add import add as let_in

    newcomer = Newcomer(
        name,
        model=model,
        base_url=base_url,
        system_prompt=prompt,
        command=command,
        capabilities=capabilities,
        is_person=person,
        starts=start_now,
    )
    return let_in(newcomer, space_dir, config)


@app.command()
def run(
    gateway: OwnGatewayFlag = None,
    space: OwnSpaceFlag = None,
    agent_id: Annotated[str | None, typer.Option("--id", "-i", help="The agent's participant id.")] = None,
    token: OwnTokenFlag = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML or JSON file of settings.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name.")] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", "--openai-url", help="An OpenAI-compatible server.")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="Session file; without one, memory only.")] = None,
    log_level: Annotated[LogLevel | None, typer.Option("--log-level", "-l", help="How much to tell.")] = None,
) -> None:
    """Run an agent until it is shut down.

    What is not given comes from MEW_AGENT_CONFIG (JSON), the file, or the environment (MEW_GATEWAY, MEW_SPACE,
    MEW_PARTICIPANT_ID, MEW_TOKEN, OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_MODEL); gateway, space and token at last
    from the running space of this folder.
    """
    import os

    from mew_protocol.agent_settings import REHEARSAL

    from mew_agent.agent.agent import run_agent
    from mew_agent.cli.app import terminal
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.config.agent_config import check_model_source, load_agent_config
    from mew_agent.errors import ConfigError

    flags = {
        "gateway": gateway,
        "space": space,
        "id": agent_id,
        "token": token,
        "model": model,
        "base_url": base_url,
        "store": store,
        "log_level": log_level,
    }
    here = _running_space(agent_id or os.environ.get("MEW_PARTICIPANT_ID"))
    settings, notices = load_agent_config(flags=flags, environ=os.environ, file=config, fallback=here)
    if here is not None and settings.token == here.values.get("token") and settings.gateway != here.values["gateway"]:
        # The token of this folder's space is nobody else's business.
        raise ConfigError("--token or MEW_TOKEN", f"'token' is missing for {settings.gateway}")
    for notice in notices:
        terminal.warn(notice)
    check_model_source(settings, where="mew agent run")
    if settings.base_url == REHEARSAL:
        raise ConfigError("base_url", "only `mew up` starts a rehearsal model; give the URL of `mew model serve`")
    terminal.configure_logging(settings.log_level)
    run_until_terminated(lambda: run_agent(settings))


def _running_space(agent_id: str | None) -> "Source | None":
    """What the running space of this folder says of the agent; None when none runs."""
    from mew_spaces.gateway.auth import read_token

    from mew_agent.cli.remote.identity import find_run
    from mew_agent.config.agent_config import Source

    found = find_run(None)
    if found is None:
        return None
    path, run = found
    values: dict[str, Any] = {"gateway": run.ws, "space": run.space}
    stored = read_token(path.parent, agent_id) if agent_id else None
    if stored is not None:
        values["token"] = stored
    return Source(f"the running space ({path})", values)
