"""`mew model serve`: runs the rehearsal model in the foreground."""

from typing import Annotated

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import DEFAULT_HOST, HostOption, PortOption, option
from mew_agent.errors import ConfigError
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.server import run_rehearsal
from mew_agent.rehearsal.service import RehearsalServer


def serve(
    *,
    port: PortOption = 8100,
    host: HostOption = DEFAULT_HOST,
    window: Annotated[int, option("--window N", "Context window in tokens.", min=1)] = 8192,
    model_name: Annotated[str, option("--model-name NAME", "Name of the model.")] = "rehearsal",
    reply_tokens: Annotated[int, option("--reply-tokens N", "Longest ordinary reply in tokens.", min=1)] = 120,
    chunk_delay: Annotated[float, option("--chunk-delay SECONDS", "Delay between streamed chunks.", min=0)] = 0.0,
    of_space: Annotated[bool, option("--of-space", hidden=True)] = False,
) -> None:
    """Run the rehearsal model: canned replies, no real model.

    An OpenAI-compatible server for demos and tests. It quotes the text it is given, counts tokens exactly with its own
    tokenizer, and refuses requests that exceed its window.
    """
    options = RehearsalOptions(
        model=model_name, window_tokens=window, reply_tokens=reply_tokens, chunk_delay_seconds=chunk_delay
    )

    def announce(server: RehearsalServer) -> None:
        terminal.print_line(
            f"rehearsal model '{model_name}' (canned replies, no real model) at {server.base_url},"
            f" window {window:,} tokens"
        )
        if not of_space:  # `mew up` configures its agents itself
            terminal.print_line(f"to use it: OPENAI_BASE_URL={server.base_url} OPENAI_MODEL={model_name}")

    try:
        run_rehearsal(options, host=host, port=port, on_ready=announce)
    except OSError as error:
        raise ConfigError("--port", f"cannot listen on {host}:{port}: {error.strerror or error}") from None
