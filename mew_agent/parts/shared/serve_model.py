"""`mew serve model`: runs the rehearsal model, or a real one from a GGUF file, in the foreground."""

from pathlib import Path
from typing import Annotated, Final

import anyio

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import AllowedCallers, listening_failures
from mew_agent.cli.app.options import DEFAULT_HOST, HostOption, PortOption, option
from mew_agent.errors import ConfigError
from mew_agent.model.builtin import BUILTIN_WINDOW_TOKENS, ServeOptions, builtin_model
from mew_agent.program import run_until_signal

LOCAL: Final = "local"
REHEARSAL: Final = "rehearsal"
"""Names of models in the table `mew_agent.models`."""


def serve(
    *,
    port: PortOption = 8100,
    host: HostOption = DEFAULT_HOST,
    window: Annotated[int, option("--window N", "Context window in tokens.", min=1)] = BUILTIN_WINDOW_TOKENS,
    model_name: Annotated[
        str | None, option("--model-name NAME", "Name of the model (default: rehearsal, or that of the file).")
    ] = None,
    reply_tokens: Annotated[
        int | None,
        option("--reply-tokens N", "Longest ordinary reply in tokens (default: 120).", min=1),
    ] = None,
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
    kind, where = (LOCAL, "--local" if gguf is None else "--gguf") if local or gguf else (REHEARSAL, "mew serve model")
    model = builtin_model(kind)
    if model is None:
        raise ConfigError(where, f"the part '{kind}' of mew-agent is not installed")
    serves = model.serves(str(gguf or kind), where)
    options = ServeOptions(serves, host, port, callers.as_allowed(), window, model_name or "", reply_tokens, threads)

    async def run() -> None:
        with terminal.ProgressLine() as progress, listening_failures("--port", f"{host}:{port}"):
            if model.loads_slowly:
                progress.show(f"loading {serves}")
            async with model.serve(options) as server:
                progress.clear()
                terminal.print_line(f"{server.description} at {server.base_url}")
                if not of_space:  # `mew up` configures its agents itself
                    terminal.print_line(f"to use it: OPENAI_BASE_URL={server.base_url} OPENAI_MODEL={server.name}")
                await anyio.sleep_forever()

    run_until_signal(run)
