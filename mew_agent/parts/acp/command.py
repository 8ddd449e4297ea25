"""`mew acp start`: an ACP agent as a participant, in the foreground."""

import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from mew_protocol.acp_settings import ACP_CONFIG
from mew_protocol.setting_problems import first_problem
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, LogLevelOption, ProgramConnection, option, with_option_groups
from mew_agent.cli.remote.session import Identity, find_identity
from mew_agent.errors import ConfigError, has_extra, require_extra, unknown_name
from mew_agent.participant.participant import Participant
from mew_agent.parts.acp.profiles import PROFILES
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment


@with_option_groups
def start(
    *,
    profile: Annotated[str | None, option("--profile NAME", f"A known agent: {', '.join(PROFILES)}.")] = None,
    command: Annotated[list[str] | None, option("--command WORD", "Its program; repeat for each argument.")] = None,
    cwd: Annotated[str, option("--cwd FOLDER", "Its working folder.")] = ".",
    log_level: LogLevelOption = "info",
    connection: ProgramConnection,
) -> None:
    """Bring an ACP agent, such as Codex, into a space.

    ACP is the Agent Client Protocol. `mew up` passes the settings of `acp:` in MEW_ACP_CONFIG.
    """
    passed, more = os.environ.get(ACP_CONFIG), ", or --command"
    try:
        if profile is not None or command:
            program, *arguments = command or (None,)
            settings = AcpConfig(agent=profile, command=program, args=tuple(arguments), cwd=cwd)
        elif passed is not None:
            settings = AcpConfig.model_validate_json(passed)
        else:
            raise unknown_name("--profile", "no agent given", "", PROFILES, more)
    except ValidationError as error:
        raise ConfigError(ACP_CONFIG if passed else "mew acp start", first_problem(error)) from None
    if settings.command is None and settings.agent not in PROFILES:
        agent = settings.agent or ""
        raise unknown_name("--profile", f"no agent '{agent}' is known", agent, PROFILES, more)
    who = find_identity(connection)
    require_extra("acp", "an ACP agent")
    terminal.configure_logging(log_level)
    enable_by_environment()

    async def run() -> None:
        from mew_agent.parts.acp.agent import AcpAgent  # needs the extra `acp`

        me = AcpAgent(settings, who.ws_url, space=who.space, id=who.participant, token=who.token)
        async with AsyncExitStack() as stack:
            if settings.space_tools and has_extra("mcp"):
                me.mcp_servers = (await stack.enter_async_context(serving_tools(me, who)),)
            await stack.enter_async_context(me)
            terminal.print_line(f"{who.participant} joined '{who.space}' at {who.gateway} with {settings.program[0]}")
            await me.run_forever()

    for noisy in ("acp", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    run_until_signal(run)


@asynccontextmanager
async def serving_tools(me: Participant, who: Identity) -> AsyncIterator[dict[str, Any]]:
    """Serve what `mew mcp serve` offers, as `me`, to its program only. Yields the server's entry of `session/new`.

    The program gets a token for this server, and never that of the participant.
    """
    from mew_agent.parts.mcp.server import serving_http  # needs the extra `mcp`
    from mew_agent.parts.mcp.space_offers import make_server

    token = secrets.token_urlsafe()
    connection = ConnectionOptions(who.participant, who.token, who.gateway, who.space)
    async with serving_http(make_server(connection, me), 0, token) as url:
        headers = [{"name": "Authorization", "value": f"Bearer {token}"}]
        yield {"type": "http", "name": "mew", "url": url, "headers": headers}
