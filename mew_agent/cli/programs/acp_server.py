"""`mew acp serve`: an agent of a space for editors that speak the Agent Client Protocol."""

import os
import stat

from mew_agent.acp.settings import require_acp
from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, LogLevel, TargetArgument, with_option_groups
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.remote.session import find_identity, require_person
from mew_agent.errors import ConfigError
from mew_agent.participant.participant import Participant


@with_option_groups
def serve(
    target: TargetArgument,
    *,
    connection: ConnectionOptions,
) -> None:
    """Serve an agent of a space to an editor that speaks ACP.

    It speaks the Agent Client Protocol on standard input and output. The editor acts as the space's person: it chats
    with the agent, sees how full its context is, and decides about what the agent proposes.
    """
    require_acp()
    require_pipe(0, "standard input")
    require_pipe(1, "standard output")
    who = find_identity(connection)
    require_person(who)
    terminal.configure_logging(LogLevel.WARNING)

    async def run() -> None:
        from mew_agent.acp.server import serve_agent  # needs the extra `acp`

        await serve_agent(Participant(who.ws_url, space=who.space, id=who.participant, token=who.token), target)

    run_until_terminated(run)


def require_pipe(descriptor: int, name: str) -> None:
    """Raise `ConfigError` for a file or /dev/null: asyncio can wait for pipes, sockets and terminals only."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        raise ConfigError(name, "no editor is connected to it", "a pipe; let an editor start `mew acp serve`")
