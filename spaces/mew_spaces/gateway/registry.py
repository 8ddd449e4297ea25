"""The spaces of one gateway. They share a port, and the limits of expensive requests."""

import logging
from collections.abc import Iterator, Sequence

from mew_listener.time_share import Allowances
from mew_protocol.ids import ParticipantId

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.admission import RateLimit
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.clock import steady_seconds
from mew_spaces.gateway.programs import ProgramControl
from mew_spaces.gateway.server_sent_events import EventStreams
from mew_spaces.gateway.service import SpaceService

DEFAULT_NAME = "default"
"""The name that clients of the TypeScript gateway send when they do not know the name of a space."""

_SET_BY_FIRST = {
    "gateway": {"tls_cert", "tls_key"},
    "limits": {
        "event_streams_per_address",
        "event_streams_per_token",
        "failed_tokens_per_second",
        "joins_per_second",
        "ping_interval_seconds",
        "ping_timeout_seconds",
        "reads_per_second",
        "unjoined_connections",
        "unjoined_connections_per_address",
        "unjoined_message_bytes",
        "join_timeout_seconds",
    },
}
"""Keys of space.yaml that hold for a gateway and not for one space."""

log = logging.getLogger("mew_spaces")


def client_of(space: SpaceService, participant: ParticipantId) -> str:
    """Return a name that identifies a participant across all spaces."""
    return f"{space.space.id}/{participant}"


class SpaceRegistry:
    """Spaces by name. The first is the default one."""

    def __init__(self, services: Sequence[SpaceService]) -> None:
        """Raise `SpacesError` without a space, or if two spaces have the same name."""
        self._by_name: dict[str, SpaceService] = {service.space.id: service for service in services}
        if not services or len(self._by_name) != len(services):
            names = ", ".join(service.space.id for service in services) or "no space"
            raise SpacesError(f"a gateway needs at least one space, each with its own name (given: {names})")
        self.default = services[0]
        for service in services[1:]:
            self._warn_of_ignored_keys(service.config)
        limits = self.default.config.limits
        self.failed_tokens = RateLimit(clock=steady_seconds, per_second=limits.failed_tokens_per_second, burst=100)
        """By address."""
        self.joins = RateLimit(clock=steady_seconds, per_second=limits.joins_per_second, burst=200)
        """By space and participant."""
        self.reads = RateLimit(clock=steady_seconds, per_second=limits.reads_per_second, burst=500)
        """By space and token: observers have no participant."""
        self.allowances = Allowances()
        """By space and participant: `client_of`."""
        self.programs: dict[str, ProgramControl] = {}
        """The supervisor of the programs of each space."""
        self.event_streams = EventStreams(
            per_token=limits.event_streams_per_token, per_address=limits.event_streams_per_address
        )

    def _warn_of_ignored_keys(self, config: SpaceConfig) -> None:
        """Log ineffective keys of a further space, because the first space sets them for the whole gateway."""
        for section, shared in _SET_BY_FIRST.items():
            own, first = getattr(config, section), getattr(self.default.config, section)
            for key in sorted(shared & own.model_fields_set):
                if getattr(own, key) != getattr(first, key):
                    text = "%s.%s of space '%s' has no effect: the first space of the gateway, '%s', sets it"
                    log.warning(text, section, key, config.space.id, self.default.space.id)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[SpaceService]:
        return iter(self._by_name.values())

    def find(self, name: str | None, token: str | None = None) -> SpaceService | None:
        """Return the space with this name; without a name, the token's space, else the default one."""
        named = self._by_name.get(name or DEFAULT_NAME)
        if named is not None or name not in (None, "", DEFAULT_NAME):
            return named
        return next((service for service in self if service.tokens.may_read(token)), self.default)

    @property
    def connections(self) -> int:
        """Number of connections in all spaces."""
        return sum(service.connections for service in self)

    @property
    def message_bytes(self) -> int:
        """The largest message that any space accepts, in bytes."""
        return max(service.config.limits.message_bytes for service in self)

    def look_at_tokens(self) -> None:
        """Find the token files that changed, for the next `expire`. May run in a thread."""
        for service in self:
            service.tokens.look()

    def expire(self) -> None:
        """Check the timeouts of every space."""
        for service in self:
            service.expire()
        self.event_streams.end_revoked()

    def stop(self) -> None:
        """End every space's history, so that its readers' requests end."""
        for service in self:
            service.stop()
