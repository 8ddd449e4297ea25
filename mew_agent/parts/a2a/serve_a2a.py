"""`mew serve a2a`: offers the participants of a space to A2A clients."""

from typing import Annotated, Final
from urllib.parse import urlsplit

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import AllowedCallers, warn_if_reachable
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    ConnectionOptions,
    HostOption,
    LogLevelOption,
    PortOption,
    option,
    participant_argument,
)
from mew_agent.cli.remote.identity import configuration_at, find_identity
from mew_agent.errors import ConfigError
from mew_agent.extras import require_extra
from mew_agent.parts.shared.chat_participant import ChatOptions, ChatParticipant
from mew_agent.parts.shared.serving import REACHABLE, run_server, served_agents, silent_in
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

DEFAULT_PORT: Final = 8193
KEY_VARIABLE: Final = "MEW_A2A_API_KEY"


def serve(
    participants: Annotated[
        list[str] | None, participant_argument("Ids of the participants to offer (default: all).")
    ] = None,
    *,
    port: PortOption = DEFAULT_PORT,
    host: HostOption = DEFAULT_HOST,
    api_key: Annotated[
        str | None,
        option("--api-key KEY", "Bearer token clients send (default: the person's own token).", envvar=KEY_VARIABLE),
    ] = None,
    public_url: Annotated[
        str | None, option("--public-url URL", "Address in cards, behind a proxy (default: the server's own address).")
    ] = None,
    timeout: Annotated[float, option("--timeout SECONDS", "Inactivity timeout in seconds.", min=0.1)] = 300.0,
    log_level: LogLevelOption = "warning",
    callers: AllowedCallers,
    connection: ConnectionOptions,
) -> None:
    """Offer agents, tools and people to A2A clients, each with a card.

    Serves `/agents/ID` and `/agents/ID/.well-known/agent-card.json` until Ctrl-C. Clients act as the space's person.
    Each of their contexts is a session of the agent. Tools answer calls; people answer when they have read the message.
    """
    require_extra("a2a", "`mew serve a2a`")
    terminal.configure_logging(log_level)
    enable_by_environment()
    who = find_identity(connection)
    config = configuration_at(who.run_path)
    configured, silent = served_agents(config, who), silent_in(config)
    named = {} if config is None else config.participants
    # The kind of answer of each participant.
    roles = {name: role for name, one in named.items() if name not in silent and (role := one.acts_as) != "observer"}
    key = (api_key or "").strip()
    warn_if_reachable(host, REACHABLE)

    async def run() -> None:
        from mew_agent.parts.a2a.a2a_server import A2AServer  # needs the extra `a2a`

        # A task has a separate place for notices.
        options = ChatOptions(configured, silent, inactivity_seconds=timeout, notices=None)
        participant = ChatParticipant(
            who.ws_url, space=who.space, person=who.participant, token=who.token, options=options, discover=True
        )
        server = A2AServer(participant, key or who.token, participants or (), roles, _public_url(public_url))

        def announce(base_url: str, _: list[str]) -> None:
            terminal.print_line(f"participants of '{who.space}' at {base_url}; clients act as {who.participant}")
            own = f"that of {who.participant} (`mew token {who.participant}` prints it)"
            terminal.print_line(f"bearer token: {f'from {KEY_VARIABLE} or --api-key' if key else own}")
            cards = [f"{base_url}/agents/{name}/.well-known/agent-card.json" for name in server.participants()]
            terminal.print_line("\n".join(cards) or "no participants yet; they appear when they join")

        await run_server(
            participant, server.serve(host=host, port=port, allowed=callers.as_allowed()), f"{host}:{port}", announce
        )

    run_until_signal(run)


def _public_url(given: str | None) -> str | None:
    parts = urlsplit(given or "http://localhost")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError("--public-url", f"'{given}' is not a URL", "such as https://agents.example.org")
    return given.rstrip("/") if given else None
