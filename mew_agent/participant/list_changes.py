"""Telling peers that what we offer changed after we had joined, so that nobody works with an old list.

Owns when that is worth an envelope: several changes at once are told once, and whoever joins is asked anyway.
"""

from typing import Final

import anyio.lowlevel
from mew_protocol import kinds

from mew_agent.participant.messenger import Voice
from mew_agent.tools.catalog import LocalOffers

LIST_CHANGED: Final = "notifications/{what}/list_changed"


class ListChanges:
    """Watches the offers of one participant. Without a capability for `mcp/notification` nobody is told."""

    def __init__(self, me: Voice, offers: LocalOffers) -> None:
        self._me = me
        self._untold: list[str] = []
        offers.toolbox.on_change = lambda: self._changed("tools")
        offers.resources.on_change = lambda: self._changed("resources")

    def _changed(self, what: str) -> None:
        if not self._me.is_joined or what in self._untold:
            return
        self._untold.append(what)
        if len(self._untold) == 1:
            self._me.start_soon(self._tell)

    async def _tell(self) -> None:
        await anyio.lowlevel.checkpoint()  # whoever adds one tool often adds more
        untold, self._untold = self._untold, []
        for what in untold:
            told = {"method": LIST_CHANGED.format(what=what)}
            if self._me.may_send(kinds.MCP_NOTIFICATION, told):
                await self._me.send(kinds.MCP_NOTIFICATION, told)
