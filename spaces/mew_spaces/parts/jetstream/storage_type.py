"""JetStream in the table of storages that several gateways share: reads `--backplane`, and opens the storage."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from mew_protocol.expectations import expectation
from pydantic import ValidationError

from mew_spaces.config.shared_storages import StorageType
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions


class JetStream(StorageType):
    """NATS JetStream as the storage of several gateways."""

    settings = JetStreamOptions
    extra = "scale"

    def with_addresses(self, options: JetStreamOptions | None, text: str) -> JetStreamOptions:
        """Return the options with these servers; keeps the credentials of space.yaml."""
        try:
            read = JetStreamOptions.model_validate(text)
        except ValidationError as error:
            raise ValueError(expectation(error.errors()[0])) from None
        if options is None or options.is_embedded or read.is_embedded:
            return read
        return options.model_copy(update={"servers": read.servers})

    def open(self, config: Any, *, folder: Path, state: Path) -> AbstractAsyncContextManager[Any]:
        """Connect to the servers; see `opening.open_storage`."""
        from mew_spaces.parts.jetstream.opening import open_storage  # needs the extra

        return open_storage(config, folder=folder, state=state)


JETSTREAM = JetStream()
