"""[pure] Lists of tools that peers tell somebody else, which is what they would tell us.

Owns whose answer to which request that is. A list of several pages is nobody's but who asked for it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from mew_protocol.envelope import Envelope

from mew_agent.tools.peer_offers import Listing, Unreadable, read_page, tools_of

MAX_AWAITED: Final = 1_000
"""Requests of others whose answers are waited for; of more than that the oldest are forgotten."""


class Overhearing:
    """See the module. Fed with the requests and responses of others."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, str] = OrderedDict()

    def request(self, request: Envelope) -> None:
        """Somebody else asks, maybe one peer for its tools."""
        params = request.body.get("params")
        is_first_page = not isinstance(params, Mapping) or params.get("cursor") is None
        if request.body.get("method") == "tools/list" and is_first_page and len(request.addressees) == 1:
            self._asked[request.id] = request.addressees[0]
            if len(self._asked) > MAX_AWAITED:
                self._asked.popitem(last=False)

    def response(self, response: Envelope) -> Iterator[tuple[str, Listing]]:
        """The whole lists in an answer, each with the peer whose it is."""
        for name in response.correlation_ids:
            if self._asked.get(name) != response.sender:
                continue
            peer = self._asked.pop(name)
            try:
                page = read_page(response.body.get("result"), "tools")
            except Unreadable:
                return
            if page.cursor is None:
                yield peer, Listing(tools_of(peer, page.entries), page.others)
