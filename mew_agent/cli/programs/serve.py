"""`mew serve`: the agents of a space as models of an OpenAI-compatible server, for chat clients and SDKs."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.app.options import DEFAULT_HOST, Flags, HostFlag, LogLevel, LogLevelFlag, PortFlag, with_flags

if TYPE_CHECKING:
    from mew_spaces.config.loading import SpaceConfig
    from starlette.applications import Starlette

    from mew_agent.cli.remote.identity import Identity
    from mew_agent.openai_api.chat_participant import ChatParticipant

DEFAULT_SERVE_PORT = 8190
KEY_VARIABLE = "MEW_SERVE_API_KEY"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NoticesIn(StrEnum):
    """Where an answer tells of compactions."""

    CONTENT = "content"
    REASONING = "reasoning"
    OFF = "off"


@with_flags
def serve(
    flags: Flags,
    *,
    port: PortFlag = DEFAULT_SERVE_PORT,
    host: HostFlag = DEFAULT_HOST,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar=KEY_VARIABLE, help="What clients must show; else one is made for this run."),
    ] = None,
    notices: Annotated[
        NoticesIn, typer.Option("--notices", help="Where a streamed answer tells of compactions.")
    ] = NoticesIn.CONTENT,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that an agent may show no sign of working.")
    ] = 300.0,
    hold: Annotated[
        int,
        typer.Option("--hold", min=0, help="Characters held back until it is clear that no tool call follows them."),
    ] = 400,
    pass_background: Annotated[
        bool, typer.Option("--pass-background", help="Let agents hear clients' own prompts, such as for titles.")
    ] = False,
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", help="A web page's origin that browsers may call from.")
    ] = None,
    log_level: LogLevelFlag = LogLevel.WARNING,
) -> int:
    """Offer every agent of a space as a model: `/v1/models` and `/v1/chat/completions`, as OpenAI has them.

    Runs until Ctrl-C. Clients speak as the person of the space, and agents keep one conversation with all of them:
    what counts of a request is its last user message.
    """
    import secrets

    from mew_agent.cli.app import terminal
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.cli.remote.identity import config_of, find_identity
    from mew_agent.openai_api.app import create_app
    from mew_agent.openai_api.chat_participant import ChatOptions, ChatParticipant

    terminal.configure_logging(log_level)
    who = find_identity(flags)
    config = config_of(who)
    given = (api_key or "").strip()
    key = given or f"mew-{secrets.token_hex(20)}"
    options = ChatOptions(
        configured=agents_of(config, who), inactivity_seconds=timeout, hold_characters=hold, notices=notices.value
    )
    if host not in _LOOPBACK:
        terminal.warn(f"{host} can be reached from other machines: whoever has the key can talk to your agents")

    async def run() -> None:
        participant = ChatParticipant(
            who.ws_url, space=who.space, person=who.participant, token=who.token, options=options
        )
        app = create_app(
            participant, api_key=key, answer_background=not pass_background, allow_origins=allow_origin or ()
        )
        await hold_open(participant, app, host, port, made_key=None if given else key)

    run_until_terminated(run)
    return terminal.DONE


async def hold_open(
    participant: "ChatParticipant", app: "Starlette", host: str, port: int, *, made_key: str | None
) -> None:
    """Serve until the connection to the space ends for good, and raise what ended it. `made_key` is shown.

    Raises `ConfigError` for a port that is taken, `NotPermitted` for a person who may talk to none of the agents.
    """
    from mew_protocol.kinds import CHAT

    from mew_agent.cli.app import terminal
    from mew_agent.errors import ConfigError, NotPermitted
    from mew_agent.openai_api.app import serve_app

    async with participant:
        agents = [agent.name for agent in participant.agents()]
        if agents and not any(participant.may_send(CHAT, {"text": "?"}, to=(name,)) for name in agents):
            raise NotPermitted(participant.id, CHAT)
        try:
            async with serve_app(app, participant, host=host, port=port) as base_url:
                terminal.say(f"agents of '{participant.space}' at {base_url}, asked by {participant.id}")
                terminal.say(f"API key: {made_key}" if made_key else f"API key: the one in {KEY_VARIABLE} or --api-key")
                if made_key:
                    terminal.say(f"(made for this run and not shown again; {KEY_VARIABLE} keeps one of your own)")
                terminal.say(f"models: {', '.join(agents) or 'none yet; they appear as they join'}")
                await participant.until_ended()
        except OSError as error:
            raise ConfigError("--port", f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    await participant.run_forever()


def agents_of(config: "SpaceConfig | None", who: "Identity") -> frozenset[str]:
    """The agents that the configuration names. Raises `ConfigError` when the asker is a program's place."""
    from mew_agent.errors import ConfigError

    if config is None:
        return frozenset()
    asker = config.participants.get(who.participant)
    if asker is not None and not asker.is_person:
        people = ", ".join(name for name, one in config.participants.items() if one.is_person) or "nobody"
        raise ConfigError(
            "--participant", f"'{who.participant}' is a program, and would lose its place", f"a person: {people}"
        )
    return frozenset(name for name, one in config.participants.items() if one.agent is not None)
