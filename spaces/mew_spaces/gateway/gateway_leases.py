"""Which gateways of a space run: each renews its own lease, and one of them holds the lease `ticker`.

Says which gateways are gone. Does not know what follows from that.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing

import anyio

from mew_spaces.backplane.interface import Backplane, BackplaneError

LEASE_PREFIX = "gateway."
_TICKER = "ticker"


class GatewayLeases:
    """The leases of the gateways of one space, as one of them sees them."""

    def __init__(self, backplane: Backplane, *, unseen_seconds: float) -> None:
        """A gateway of which no lease was ever seen is gone after `unseen_seconds`."""
        self._backplane = backplane
        self._unseen_seconds = unseen_seconds
        self._leases: Mapping[str, bytes] | None = None
        self._seen: set[int] = set()
        self._unseen_since: dict[int, float] = {}
        self.is_ticker = False
        """Whether this gateway does the work that only one may do: it holds the lease `ticker`."""

    async def renew(self, gateway: int) -> None:
        """Renew the lease of this gateway. Raises `BackplaneError`."""
        await self._backplane.renew(f"{LEASE_PREFIX}{gateway}", b"")

    async def claim_ticker(self, gateway: int) -> None:
        """Become or stay the ticker if no other gateway is. Raises `BackplaneError`."""
        try:
            self.is_ticker = await self._backplane.claim(_TICKER, b"%d" % gateway)
        except BackplaneError:
            self.is_ticker = False
            raise

    async def release(self, gateway: int) -> None:
        """End the leases of this gateway. Raises `BackplaneError`."""
        await self._backplane.release(f"{LEASE_PREFIX}{gateway}")
        if self.is_ticker:
            self.is_ticker = False
            await self._backplane.release(_TICKER)

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Follow all leases until cancelled."""
        async with aclosing(self._backplane.leases()) as changes:
            async for leases in changes:
                self._leases = leases
                on_change()

    def gone(self, others: AbstractSet[int]) -> list[int]:
        """Return which of the other gateways are gone: each once, and again only if it stays for long."""
        if self._leases is None:
            return []
        now = anyio.current_time()
        present = {number for number in others if f"{LEASE_PREFIX}{number}" in self._leases}
        self._seen = (self._seen & others) | present
        # Of one that was never seen, the lease may come late, or it ended before this gateway started.
        self._unseen_since = {number: self._unseen_since.get(number, now) for number in others - self._seen}
        late = {name for name, since in self._unseen_since.items() if now - since >= self._unseen_seconds}
        found = sorted((self._seen - present) | late)
        self._seen.difference_update(found)
        self._unseen_since.update(dict.fromkeys(found, now))
        return found
