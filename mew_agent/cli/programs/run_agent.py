"""`mew agent run`: runs one agent in the foreground."""

import os
from pathlib import Path
from typing import Annotated, Any

from mew_spaces.gateway.auth import read_token

from mew_agent.agent.agent import run_agent
from mew_agent.cli.app import terminal
from mew_agent.cli.app.commands import COMMANDS
from mew_agent.cli.app.groups import AgentProgram, RunnableAgent, entries_of
from mew_agent.cli.app.locate import find_run, is_same_gateway
from mew_agent.cli.app.options import (
    GatewayOption,
    LogLevel,
    SpaceOption,
    TokenOption,
    option,
    participant_option,
    read_log_level,
)
from mew_agent.cli.programs.shared_process import check_settings, serve_agents
from mew_agent.config.agent_config import Source, load_agent_config
from mew_agent.errors import ConfigError, unknown_name
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment


def run(
    gateway: GatewayOption = None,
    space: SpaceOption = None,
    agent_id: Annotated[str | None, participant_option("Participant id (default: MEW_PARTICIPANT_ID).")] = None,
    token: TokenOption = None,
    agent_type: Annotated[
        str | None,
        option("--type TYPE", "Run a participant that needs no model: an echo, a calculator or a fulfiller."),
    ] = None,
    config: Annotated[
        Path | None, option("--config, -c FILE", "YAML or JSON file of settings; of a fulfiller: its policy.")
    ] = None,
    model: Annotated[str | None, option("--model, -m NAME", "Model (default: OPENAI_MODEL).")] = None,
    base_url: Annotated[
        str | None, option("--base-url, --openai-url URL", "Model server (default: OPENAI_BASE_URL).")
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        option("--log-level, -l LEVEL", "Log at debug, info, warning or error (default: info).", parser=read_log_level),
    ] = None,
    from_stdin: Annotated[bool, option("--from-stdin", hidden=True)] = False,  # how `mew up` runs several agents
) -> None:
    """Run an agent until it is shut down.

    Settings come from the options, then MEW_AGENT_CONFIG (JSON), then the file, then the environment (MEW_GATEWAY,
    MEW_SPACE, MEW_PARTICIPANT_ID, MEW_TOKEN, OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_MODEL). Gateway, space and token
    default to the running space of this folder.

    With --type, `echo` repeats chats, `calculator` offers tools, and `fulfiller` fulfils the proposals of others. The
    policy of a fulfiller has patterns to allow and to deny, and where to ask (docs/how-to/approve.md); without one it
    fulfils all proposals. Their id is TYPE-agent by default.
    """
    if from_stdin:
        serve_agents()
        return
    if agent_type is not None:
        program = AgentProgram(agent_type, gateway, space, agent_id, token, config, log_level or "info")
        _type_called(agent_type).run(program)
        return
    options = {
        "gateway": gateway,
        "space": space,
        "id": agent_id,
        "token": token,
        "model": model,
        "base_url": base_url,
        "log_level": log_level,
    }
    running = _running_space(agent_id or os.environ.get("MEW_PARTICIPANT_ID"))
    settings, notices = load_agent_config(flags=options, environ=os.environ, file=config, fallback=running)
    stored = running.values.get("token") if running is not None else None
    is_stored = settings.token == stored and stored not in (token, os.environ.get("MEW_TOKEN"))
    if is_stored and running is not None and not is_same_gateway(settings.gateway, running.values["gateway"]):
        # Never send the token of this folder's space to another gateway, unless the user gave it for that gateway.
        raise ConfigError("--token or MEW_TOKEN", f"'token' is missing for {settings.gateway}")
    check_settings(settings, notices)
    terminal.configure_logging(settings.log_level)
    enable_by_environment()
    run_until_signal(lambda: run_agent(settings))


def _type_called(name: str) -> RunnableAgent:
    known = entries_of(COMMANDS, RunnableAgent)
    if name not in known:
        raise unknown_name("--type", f"no agent type '{name}'", name, known)
    return known[name]


def _running_space(agent_id: str | None) -> Source | None:
    """Return settings from the running space of this folder; None if none runs."""
    found = find_run(None)
    if found is None:
        return None
    path, run_file = found
    values: dict[str, Any] = {"gateway": run_file.ws, "space": run_file.space}
    stored = read_token(path.parent, agent_id) if agent_id else None
    if stored is not None:
        values["token"] = stored
    return Source(f"the running space ({path})", values)
