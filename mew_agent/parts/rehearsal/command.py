"""`mew model serve`: runs the rehearsal model, or a real one from a GGUF file, in the foreground."""

import secrets
from pathlib import Path
from typing import Annotated

import anyio

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import listening_failures
from mew_agent.cli.app.options import DEFAULT_HOST, AllowedCallers, HostOption, PortOption, option, with_option_groups
from mew_agent.model.local_server import DEFAULT_WINDOW_TOKENS, LocalModelOptions, find_gguf, serve_local
from mew_agent.parts.rehearsal.options import RehearsalOptions
from mew_agent.parts.rehearsal.service import serve_rehearsal
from mew_agent.program import run_until_signal
from mew_agent.settings import LOCAL


@with_option_groups
def serve(
    *,
    port: PortOption = 8100,
    host: HostOption = DEFAULT_HOST,
    window: Annotated[int, option("--window N", "Context window in tokens.", min=1)] = DEFAULT_WINDOW_TOKENS,
    model_name: Annotated[
        str | None, option("--model-name NAME", "Name of the model (default: rehearsal, or that of the file).")
    ] = None,
    reply_tokens: Annotated[
        int | None,
        option("--reply-tokens N", "Longest ordinary reply in tokens (default: 120).", min=1),
    ] = None,
    chunk_delay: Annotated[
        float, option("--chunk-delay SECONDS", "Delay between streamed chunks of the rehearsal model.", min=0)
    ] = 0.0,
    local: Annotated[bool, option("--local", "Run the small real model that is installed.")] = False,
    gguf: Annotated[Path | None, option("--gguf FILE", "Run the real model in this GGUF file.")] = None,
    threads: Annotated[int, option("--threads N", "Threads of a real model; 0 is half of the cores.", min=0)] = 0,
    of_space: Annotated[bool, option("--of-space", hidden=True)] = False,
    callers: AllowedCallers,
) -> None:
    """Run the rehearsal model (canned replies), or a real one.

    An OpenAI-compatible server. The rehearsal model is for demos and tests: it quotes the text it is given, counts
    tokens exactly with its own tokenizer, and refuses requests that exceed its window. With --local or --gguf it is
    llama.cpp's server with a real model, which needs the extra `local`.
    """

    address = f"{host}:{port}"

    async def serve_rehearsal_model() -> None:
        name = model_name or "rehearsal"
        options = RehearsalOptions(
            model=name, window_tokens=window, reply_tokens=reply_tokens or 120, chunk_delay_seconds=chunk_delay
        )
        with listening_failures("--port", address):
            async with serve_rehearsal(options, host=host, port=port, allowed=callers.as_allowed()) as server:
                what = f"rehearsal model '{name}' (canned replies, no real model; window {window:,} tokens)"
                await announce(what, name, server.base_url)

    async def serve_gguf() -> None:
        found = find_gguf(gguf or LOCAL, where="--local" if gguf is None else "--gguf")
        options = LocalModelOptions(found, window, threads, model_name or "", reply_tokens or 0)
        with terminal.ProgressLine() as progress, listening_failures("--port", address):
            progress.show(f"loading {found} ({found.stat().st_size // 1_000_000:,} MB)")
            from mew_agent.serving.relay import serve_relay  # here, because the rehearsal model needs no HTTP client

            key = secrets.token_urlsafe()
            async with (
                serve_local(options, key) as own,
                serve_relay(own, None, host=host, port=port, allowed=callers.as_allowed(), api_key=key) as base_url,
            ):
                progress.clear()
                await announce(f"{found} on llama.cpp", options.model_name, base_url)

    async def announce(what: str, name: str, base_url: str) -> None:
        terminal.print_line(f"{what} at {base_url}")
        if not of_space:  # `mew up` configures its agents itself
            terminal.print_line(f"to use it: OPENAI_BASE_URL={base_url} OPENAI_MODEL={name}")
        await anyio.sleep_forever()

    run_until_signal(serve_gguf if local or gguf is not None else serve_rehearsal_model)
