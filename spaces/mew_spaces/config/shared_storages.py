"""[pure] The table of storages for spaces with several gateways. `backplane` in space.yaml configures one.

Owns the interface of such a storage. Finds storages by entry points of the group `mew_spaces.storages`. Names no
storage.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Union

from mew_settings.plugins import load_table
from mew_settings.values import LateType, SettingsModel
from pydantic import BeforeValidator

GROUP: Final = "mew_spaces.storages"

_NONE_INSTALLED: Final = "no installed part of mew-agent has a storage for several gateways"


class StorageType(ABC):
    """A storage for several gateways. Others extend it."""

    settings: ClassVar[type[SettingsModel]]
    """The model of `backplane` in space.yaml."""
    extra: ClassVar[str | None] = None
    """The extra of mew-agent that it needs."""

    @abstractmethod
    def with_addresses(self, options: Any, text: str) -> SettingsModel:
        """Return the options with the addresses of `--backplane`. `options` are those of space.yaml, or None.

        Raises `ValueError` with the accepted forms.
        """

    @abstractmethod
    def open(self, config: Any, *, folder: Path, state: Path) -> AbstractAsyncContextManager[Any]:
        """Open the storage of a configuration while the block runs. Yields the gateway's `OpenStorage`.

        `folder` is the space's folder, `state` its state folder. Imports the packages of `extra`. Raises `SpacesError`.
        """


@cache
def shared_storages() -> Mapping[str, StorageType]:
    """Return the installed storages by name."""
    return load_table(GROUP)


def storage_for(options: SettingsModel) -> StorageType:
    """Return the storage that these options configure."""
    return next(one for one in shared_storages().values() if isinstance(options, one.settings))


def with_addresses(options: SettingsModel | None, text: str) -> SettingsModel:
    """Return the options for `--backplane` from the first storage that accepts the text. Raises `ValueError`."""
    problem = ValueError(_NONE_INSTALLED)
    for one in shared_storages().values():
        try:
            return one.with_addresses(options if isinstance(options, one.settings) else None, text)
        except ValueError as error:
            problem = error
    raise problem


def _refuse(_: object) -> None:
    raise ValueError(_NONE_INSTALLED)


def _settings() -> Any:
    found = tuple(one.settings for one in shared_storages().values())
    return Union[found] if found else Annotated[None, BeforeValidator(_refuse)]  # noqa: UP007


BackplaneSettings = Annotated[SettingsModel, LateType(_settings)]
"""The type of `backplane` in space.yaml. The module of a storage may import this one, and that of the settings."""
