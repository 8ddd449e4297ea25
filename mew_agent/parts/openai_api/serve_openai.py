"""`mew serve openai`: offers the agents of a space to clients of the OpenAI API."""

import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final, Literal

from mew_protocol.payloads.participant import BoardEntry
from mew_settings.plugins import load_table

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import AllowedCallers, warn_if_reachable
from mew_agent.cli.app.options import DEFAULT_HOST, ConnectionOptions, HostOption, LogLevelOption, PortOption, option
from mew_agent.cli.remote.identity import configuration_at, find_identity
from mew_agent.errors import ConfigError
from mew_agent.parts.openai_api.openai_app import WriteMetrics, create_app, serve_app
from mew_agent.parts.openai_api.session_choice import SessionPolicy
from mew_agent.parts.shared.chat_participant import ChatOptions, ChatParticipant
from mew_agent.parts.shared.serving import REACHABLE, run_server, served_agents, silent_in
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

DEFAULT_SERVE_PORT: Final = 8190
KEY_VARIABLE: Final = "MEW_SERVE_API_KEY"


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
        configured=served_agents(config, who),
        silent=silent_in(config),
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
            write_metrics=metrics_of(who.space),
        )
        server = serve_app(app, participant, host=host, port=port, allowed=callers.as_allowed())
        await serve_until_ended(participant, server, f"{host}:{port}", generated_key=None if given else keys[""])

    run_until_signal(run)


def metrics_of(space: str) -> WriteMetrics | None:
    """Return the function that writes the figures of a space's agents and the number of open requests.

    None without the part `metrics` of the gateway.
    """
    of_board = load_table("mew_spaces.documents").get("board_metrics")
    if of_board is None:
        return None

    def write(open_requests: int, board: Sequence[BoardEntry], accept: str) -> tuple[bytes, str]:
        gauges = [("mew_serve_open_requests", "Requests that wait for an agent", open_requests)]
        written: tuple[bytes, str] = of_board(space, board, gauges, accept)
        return written

    return write


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
    """Serve until the connection to the space ends for good. Prints a generated key. Raises the errors of
    `run_server`.
    """

    def announce(base_url: str, agents: list[str]) -> None:
        terminal.print_line(f"agents of '{participant.space}' at {base_url}; clients act as {participant.id}")
        terminal.print_line(f"API key: {generated_key or f'from {KEY_VARIABLE} or --api-key'}")
        if generated_key:
            terminal.print_line(f"(generated for this run and not shown again; set {KEY_VARIABLE} to choose one)")
        terminal.print_line(f"models: {', '.join(agents) or 'none yet; agents appear when they join'}")

    await run_server(participant, server, address, announce)
