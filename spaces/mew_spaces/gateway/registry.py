"""The spaces that one gateway serves. They share a port and nothing else."""

from collections.abc import Iterator, Sequence

from mew_spaces.errors import SpacesError
from mew_spaces.gateway.service import SpaceService

DEFAULT_NAME = "default"
"""What clients of the reference call a space when they do not know its name."""


class SpaceRegistry:
    """Spaces by name. The first is the one that is meant where nothing tells which."""

    def __init__(self, services: Sequence[SpaceService]) -> None:
        """Raises `SpacesError` when there is none, or two have one name."""
        self._by_name: dict[str, SpaceService] = {board.space.id: board for board in services}
        if not services or len(self._by_name) != len(services):
            names = ", ".join(board.space.id for board in services) or "none"
            raise SpacesError(f"a gateway serves at least one space, and each has a name of its own (given: {names})")
        self.default = services[0]

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[SpaceService]:
        return iter(self._by_name.values())

    def find(self, name: str | None, token: str | None = None) -> SpaceService | None:
        """The space of this name. Without one: the space that knows the token, else the default one."""
        named = self._by_name.get(name or DEFAULT_NAME)
        if named is not None or name not in (None, "", DEFAULT_NAME):
            return named
        knowing = (board for board in self if board.tokens.identify(token) is not None)
        return next(knowing, self.default)

    @property
    def connections(self) -> int:
        """How many connections are in any of the spaces."""
        return sum(board.connections for board in self)

    @property
    def message_bytes(self) -> int:
        """The largest message that any of them takes."""
        return max(board.config.limits.message_bytes for board in self)

    def expire(self) -> None:
        """Let time pass in all of them."""
        for board in self:
            board.expire()

    def reached_at(self, url: str) -> None:
        """Name the address that invited participants are told to connect to."""
        for board in self:
            board.reached_at(url)

    def connect_virtual_participants(self) -> None:
        """Let the logs that are configured so listen from the start."""
        for board in self:
            board.connect_virtual_participants()

    def close(self) -> None:
        """No more will happen in any of them."""
        for board in self:
            board.close()
