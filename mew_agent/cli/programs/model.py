"""`mew model`: run the rehearsal model in the foreground."""

from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.app.options import DEFAULT_HOST, HostFlag, PortFlag, help_when_alone

if TYPE_CHECKING:
    from mew_agent.rehearsal.server import RehearsalServer

app = typer.Typer(help="Run the rehearsal model.", invoke_without_command=True, callback=help_when_alone)


@app.command(short_help="Serve the rehearsal model, which quotes what it is given.")
def serve(
    *,
    port: PortFlag = 8100,
    host: HostFlag = DEFAULT_HOST,
    window: Annotated[int, typer.Option("--window", min=1, help="Context window in tokens.")] = 8192,
    model_name: Annotated[str, typer.Option("--model-name", help="The name it answers to.")] = "rehearsal",
    reply_tokens: Annotated[int, typer.Option("--reply-tokens", min=1, help="Longest ordinary answer.")] = 120,
    chunk_delay: Annotated[float, typer.Option("--chunk-delay", min=0, help="Seconds between chunks.")] = 0.0,
    of_space: Annotated[bool, typer.Option("--of-space", hidden=True)] = False,
) -> None:
    """Serve the rehearsal model: an OpenAI-compatible server without a language model behind it.

    It answers by quoting the text it was given, counts tokens exactly by its own tokenizer and refuses what does
    not fit its window. It is for trying things out and for tests; it does not think.
    """
    from mew_agent.cli.app import terminal
    from mew_agent.errors import ConfigError
    from mew_agent.rehearsal.options import RehearsalOptions
    from mew_agent.rehearsal.server import run_rehearsal

    options = RehearsalOptions(
        model=model_name, window_tokens=window, reply_tokens=reply_tokens, chunk_delay_seconds=chunk_delay
    )

    def announce(server: "RehearsalServer") -> None:
        terminal.say(
            f"rehearsal model '{model_name}' (no language model: it quotes what it is given) at {server.base_url},"
            f" window {window:,} tokens"
        )
        if not of_space:  # there `mew up` has told the agents
            terminal.say(f"use it: OPENAI_BASE_URL={server.base_url} OPENAI_MODEL={model_name}")

    try:
        run_rehearsal(options, host=host, port=port, on_ready=announce)
    except OSError as error:
        raise ConfigError("--port", f"cannot listen on {host}:{port}: {error.strerror or error}") from None
