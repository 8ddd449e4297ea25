"""The table of built-in models: `base_url` selects one by name instead of a URL.

Describes these models, and finds them by entry points of the group `mew_agent.models`. `mew up` starts one server for
all agents of a space; an agent alone opens the model in its own process.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

from mew_settings.plugins import Finding, entry_points, load_table

from mew_agent.model.interface import Model
from mew_agent.settings import BUILTIN_MODELS

if TYPE_CHECKING:  # a client needs no server
    from mew_listener.request_guard import Allowed

BUILTIN_WINDOW_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `mew serve model`. `serves` is the result of `BuiltinModel.serves`.

    `name` is the model's name for clients (default: its own). `reply_tokens` ends replies to requests without a limit
    (default: the model's limit). `threads` 0 is half of the cores.
    """

    serves: str
    host: str
    port: int
    allowed: "Allowed"
    window_tokens: int = BUILTIN_WINDOW_TOKENS
    name: str = ""
    reply_tokens: int | None = None
    threads: int = 0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A running model server: its description, the name of its model, and its base URL."""

    description: str
    name: str
    base_url: str


class BuiltinModel(ABC):
    """A model without a URL. Others extend it."""

    extra: ClassVar[str | None] = None
    """The extra of mew-agent that it needs."""
    notice: ClassVar[str | None] = None
    """The text for users at the start of a space with it."""
    loads_slowly: ClassVar[bool] = False
    model_suffix: ClassVar[str | None] = None
    """The suffix of the file that `model` names; None if it names none."""

    @abstractmethod
    def serves(self, model: str, where: str) -> str:
        """Return the object to serve, such as a file. Raises `ConfigError` and `MissingExtra`."""

    @abstractmethod
    def described(self, serves: str) -> str:
        """Return the server's name in an error."""

    @abstractmethod
    def name_of(self, serves: str) -> str:
        """Return the name of the model at the server."""

    def arguments(self, serves: str) -> tuple[str, ...]:
        """Return the arguments of `mew serve model`."""
        return ()

    @abstractmethod
    def open(self, model: str, window_tokens: int | None) -> Model:
        """Return the model inside this process. Raises the errors of `serves`."""

    @abstractmethod
    def serve(self, options: ServeOptions) -> AbstractAsyncContextManager[ServerAddress]:
        """Serve the model while the block runs. Raises `OSError` if the port is in use."""

    def findings(self) -> Iterator[Finding]:
        """Yield the model's lines of `mew doctor`."""
        return iter(())


def is_builtin(base_url: str | None) -> bool:
    """Return whether `base_url` names a model of the table. Loads no model."""
    return base_url in entry_points(BUILTIN_MODELS)


def keyless_model() -> str | None:
    """Return the name of a model that needs neither a key nor an extra; None if none is installed."""
    return next((name for name, model in load_table(BUILTIN_MODELS).items() if model.extra is None), None)


@cache
def builtin_model(base_url: str | None) -> BuiltinModel | None:
    """Return the model of this name; None for a URL. Raises `BrokenPlugin`."""
    entry = entry_points(BUILTIN_MODELS).get(base_url or "")
    found = entry.load() if entry is not None else None
    assert found is None or isinstance(found, BuiltinModel)
    return found
