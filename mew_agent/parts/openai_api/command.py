"""`mew serve` and `mew a2a serve`: offer the agents of a space to clients of the OpenAI API and of the A2A protocol."""

import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from mew_protocol.kinds import CHAT
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.metrics import write_metrics

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import listening_failures, warn_if_reachable
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    AllowedCallers,
    ConnectionOptions,
    HostOption,
    LogLevelOption,
    PortOption,
    option,
    participant_argument,
    with_option_groups,
)
from mew_agent.cli.remote.session import Identity, configuration_at, find_identity, require_person
from mew_agent.errors import ConfigError, NotPermitted, require_extra
from mew_agent.parts.openai_api.app import create_app, serve_app
from mew_agent.parts.openai_api.chat_participant import ChatOptions, ChatParticipant
from mew_agent.parts.openai_api.sessions import SessionPolicy
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

DEFAULT_SERVE_PORT: Final = 8190
DEFAULT_A2A_PORT: Final = 8193
KEY_VARIABLE: Final = "MEW_SERVE_API_KEY"
A2A_KEY_VARIABLE: Final = "MEW_A2A_API_KEY"
REACHABLE: Final = "anyone with the API key can talk to your agents"
"""The risk of a server that other machines can reach."""


@with_option_groups
def serve(
    *,
    port: PortOption = DEFAULT_SERVE_PORT,
    host: HostOption = DEFAULT_HOST,
    api_key: Annotated[
        str | None,
        option(
            "--api-key KEY",
            f"API key clients send, or NAME=KEY,NAME=KEY (default: {KEY_VARIABLE}, else generated).",
            envvar=KEY_VARIABLE,
        ),
    ] = None,
    sessions: Annotated[
        SessionPolicy,
        option("--sessions HOW", "One session per chat, per client (key and user), or shared by all."),
    ] = "chat",
    notices: Annotated[
        Literal["content", "reasoning", "off"],
        option("--notices WHERE", "Where to report compactions: content, reasoning or off."),
    ] = "content",
    timeout: Annotated[float, option("--timeout SECONDS", "Inactivity timeout in seconds.", min=0.1)] = 300.0,
    hold: Annotated[int, option("--hold N", "Characters to hold back in case a tool call follows.", min=0)] = 400,
    pass_background: Annotated[
        bool, option("--pass-background", "Send clients' background prompts, such as titles, to agents.")
    ] = False,
    log_level: LogLevelOption = "warning",
    callers: AllowedCallers,
    connection: ConnectionOptions,
) -> None:
    """Offer the agents as models to OpenAI clients.

    Serves `/v1/models`, `/v1/chat/completions` and `/v1/responses` until Ctrl-C, and `/metrics` for Prometheus. Clients
    act as the space's person. Each of their conversations is a session of the agent, with a context of its own.
    """
    terminal.configure_logging(log_level)
    enable_by_environment()
    who = find_identity(connection)
    config = configuration_at(who.run_path)
    given = (api_key or "").strip()
    keys = read_keys(given or f"mew-{secrets.token_hex(20)}")
    options = ChatOptions(
        configured=agents_of(config, who),
        inactivity_seconds=timeout,
        hold_characters=hold,
        notices=notices,
        clients=len(keys),
    )
    warn_if_reachable(host, REACHABLE)

    async def run() -> None:
        participant = ChatParticipant(
            who.ws_url, space=who.space, person=who.participant, token=who.token, options=options
        )
        app = create_app(
            participant,
            api_key=keys,
            sessions=sessions,
            answer_background=not pass_background,
            write_metrics=write_metrics,
        )
        server = serve_app(app, participant, host=host, port=port, allowed=callers.as_allowed())
        await serve_until_ended(participant, server, f"{host}:{port}", generated_key=None if given else keys[""])

    run_until_signal(run)


@with_option_groups
def serve_a2a(
    participants: Annotated[
        list[str] | None, participant_argument("Ids of the participants to offer (default: all).")
    ] = None,
    *,
    port: PortOption = DEFAULT_A2A_PORT,
    host: HostOption = DEFAULT_HOST,
    api_key: Annotated[
        str | None,
        option(
            "--api-key KEY", "Bearer token clients send (default: the person's own token).", envvar=A2A_KEY_VARIABLE
        ),
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
    require_extra("a2a", "`mew a2a serve`")
    terminal.configure_logging(log_level)
    enable_by_environment()
    who = find_identity(connection)
    config = configuration_at(who.run_path)
    configured = agents_of(config, who)
    named = {} if config is None else config.participants
    # How each participant answers. Observers and meters do not.
    roles = {name: role for name, one in named.items() if one.meter is None and (role := one.acts_as) != "observer"}
    key = (api_key or "").strip()
    warn_if_reachable(host, REACHABLE)

    async def run() -> None:
        from mew_agent.parts.a2a.server import A2AServer  # needs the extra `a2a`

        # A task has its own place for notices.
        options = ChatOptions(configured=configured, inactivity_seconds=timeout, notices="events")
        participant = ChatParticipant(
            who.ws_url, space=who.space, person=who.participant, token=who.token, options=options, discover=True
        )
        server = A2AServer(participant, key or who.token, participants or (), roles, _public_url(public_url))

        def announce(base_url: str, _: list[str]) -> None:
            terminal.print_line(f"participants of '{who.space}' at {base_url}; clients act as {who.participant}")
            own = f"that of {who.participant} (`mew token create --participant {who.participant}` prints it)"
            terminal.print_line(f"bearer token: {f'from {A2A_KEY_VARIABLE} or --api-key' if key else own}")
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


def read_keys(given: str) -> dict[str, str]:
    """API keys by name: one key without a name, or several as `NAME=KEY,NAME=KEY`. Raises `ConfigError`."""
    if "," not in given:
        return {"": given}
    pairs = [one.strip().partition("=") for one in given.split(",")]
    keys = {name: key for name, _, key in pairs if name and key}
    if len(set(keys.values())) != len(pairs):
        raise ConfigError("--api-key", "several keys need different names and values", "NAME=KEY,NAME=KEY")
    return keys


async def serve_until_ended(
    participant: ChatParticipant,
    server: AbstractAsyncContextManager[str],
    address: str,
    *,
    generated_key: str | None,
) -> None:
    """Serve until the connection to the space ends for good. Prints a generated key. Raises what `run_server` does."""

    def announce(base_url: str, agents: list[str]) -> None:
        terminal.print_line(f"agents of '{participant.space}' at {base_url}; clients act as {participant.id}")
        terminal.print_line(f"API key: {generated_key or f'from {KEY_VARIABLE} or --api-key'}")
        if generated_key:
            terminal.print_line(f"(generated for this run and not shown again; set {KEY_VARIABLE} to choose one)")
        terminal.print_line(f"models: {', '.join(agents) or 'none yet; agents appear when they join'}")

    await run_server(participant, server, address, announce)


async def run_server(
    participant: ChatParticipant,
    server: AbstractAsyncContextManager[str],
    address: str,
    announce: Callable[[str, list[str]], None],
) -> None:
    """Run a server until the connection to the space ends for good, and raise what ended it.

    `announce` is called with the base URL and the agents. Raises `ConfigError` if the port of `address` is taken, and
    `NotPermitted` if the participant may chat with none of the agents.
    """
    async with participant:
        agents = [agent.name for agent in participant.agents()]
        if agents and not any(participant.may_send(CHAT, {"text": "?"}, to=(name,)) for name in agents):
            raise NotPermitted(participant.id, CHAT)
        with listening_failures("--port", address):
            async with server as base_url:
                announce(base_url, agents)
                await participant.until_ended()
    await participant.run_forever()


def agents_of(config: SpaceConfig | None, who: Identity) -> frozenset[str]:
    """The agents of space.yaml that answer chats.

    Raises `ConfigError` if `who` is a program, whose connection would be taken over.
    """
    if config is None:
        return frozenset()
    require_person(who, config)
    agents = (name for name, one in config.participants.items() if one.acts_as == "agent" and one.meter is None)
    return frozenset(agents)
