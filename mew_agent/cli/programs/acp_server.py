"""`mew acp serve`: an agent of a space for editors that speak the Agent Client Protocol."""

from mew_agent.acp.settings import require_acp
from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, LogLevel, TargetArgument, with_option_groups
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.remote.session import find_identity, require_person
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
    who = find_identity(connection)
    require_person(who)
    terminal.configure_logging(LogLevel.WARNING)

    async def run() -> None:
        from mew_agent.acp.server import serve_agent  # needs the extra `acp`

        await serve_agent(Participant(who.ws_url, space=who.space, id=who.participant, token=who.token), target)

    run_until_terminated(run)
