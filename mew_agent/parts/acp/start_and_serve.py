"""`mew acp start`: an ACP agent as a participant. `mew serve acp`: an agent of a space for an editor."""

import logging
import os
import stat
from contextlib import AsyncExitStack
from typing import Annotated, Final

from mew_settings.plugins import load_table
from mew_settings.setting_problems import first_problem
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, LogLevelOption, ProgramConnection, TargetArgument, option
from mew_agent.cli.remote.identity import find_identity, require_person
from mew_agent.errors import ConfigError, unknown_name
from mew_agent.extras import has_extra, require_extra
from mew_agent.participant.participant import Participant
from mew_agent.parts.acp.profiles import profiles, unknown_agent
from mew_agent.parts.acp.settings import ACP_CONFIG, AcpConfig
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

TOOL_SERVERS: Final = "mew_agent.tool_servers"
"""The table of servers that offer a space to the program of an agent.

An entry is called with the participant and its `Identity`. It returns an async context manager that serves and yields
the server's entry of `session/new`.
"""


def start(
    *,
    profile: Annotated[str | None, option("--profile NAME", f"A known agent: {', '.join(profiles())}.")] = None,
    command: Annotated[list[str] | None, option("--command WORD", "Its program; repeat for each argument.")] = None,
    cwd: Annotated[str, option("--cwd FOLDER", "Its working folder.")] = ".",
    log_level: LogLevelOption = "info",
    connection: ProgramConnection,
) -> None:
    """Bring an ACP agent, such as Codex, into a space.

    ACP is the Agent Client Protocol. `mew up` passes the settings of `acp:` in MEW_ACP_CONFIG.
    """
    settings = _settings(profile, command or [], cwd)
    who = find_identity(connection)
    require_extra("acp", "an ACP agent")
    terminal.configure_logging(log_level)
    enable_by_environment()

    async def run() -> None:
        from mew_agent.parts.acp.acp_agent import AcpAgent  # needs the extra `acp`

        me = AcpAgent(settings, who.ws_url, space=who.space, id=who.participant, token=who.token)
        async with AsyncExitStack() as stack:
            if settings.space_tools and has_extra("mcp", "mcp_types"):
                servers = [
                    await stack.enter_async_context(serve(me, who)) for serve in load_table(TOOL_SERVERS).values()
                ]
                me.engine.mcp_servers = tuple(servers)
            await stack.enter_async_context(me)
            terminal.print_line(f"{who.participant} joined '{who.space}' at {who.gateway} with {settings.program[0]}")
            await me.run_forever()

    for noisy in ("acp", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    run_until_signal(run)


def _settings(profile: str | None, command: list[str], cwd: str) -> AcpConfig:
    """Return the settings from the options, else those from `mew up`. Raises `ConfigError`."""
    passed, more = os.environ.get(ACP_CONFIG), ", or --command"
    try:
        if profile is not None or command:
            program, *arguments = command or (None,)
            settings = AcpConfig(agent=profile, command=program, args=tuple(arguments), cwd=cwd)
        elif passed is not None:
            settings = AcpConfig.model_validate_json(passed)
        else:
            raise unknown_name("--profile", "no agent given", "", profiles(), more)
    except ValidationError as error:
        raise ConfigError(ACP_CONFIG if passed else "mew acp start", first_problem(error)) from None
    if settings.command is None and settings.agent not in profiles():
        raise unknown_agent("--profile", settings.agent or "", more)
    return settings


def serve(target: TargetArgument, connection: ConnectionOptions) -> None:
    """Serve an agent of a space to an editor that speaks ACP.

    It speaks the Agent Client Protocol on standard input and output. The editor acts as the space's person: it chats
    with the agent, sees how full its context is, and decides about its proposals.
    """
    require_extra("acp", "an ACP agent")
    require_pipe(0, "standard input")
    require_pipe(1, "standard output")
    who = find_identity(connection)
    require_person(who)
    terminal.configure_logging("warning")

    async def run() -> None:
        from mew_agent.parts.acp.agent_for_editors import AcpServer  # needs the extra `acp`

        async with Participant(
            who.ws_url, space=who.space, id=who.participant, token=who.token, reports_context=False
        ) as me:
            await AcpServer(me, target).serve()

    run_until_signal(run)


def require_pipe(descriptor: int, name: str) -> None:
    """Raise `ConfigError` for a file or /dev/null: asyncio can only wait for pipes, sockets and terminals."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        raise ConfigError(name, "no editor is connected to it", "a pipe; let an editor start `mew serve acp`")
