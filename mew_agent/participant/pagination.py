"""Asking a peer for a whole list of what it offers, page by page.

Owns how many pages are asked for, and that a peer which does not know a list has none. When a peer is asked is
`discovery`'s matter, how a request travels `proposals`'.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mew_agent.errors import BadAnswer, PeerFailed
from mew_agent.participant.proposals import PeerRequests, Waits
from mew_agent.tools.catalog import METHOD_NOT_FOUND
from mew_agent.tools.peer_offers import Listing, Unreadable, prompts_of, read_page, resources_of, tools_of

MAX_PAGES: Final = 50

Reader = Callable[[str, tuple[Mapping[str, Any], ...]], tuple[Any, ...]]
READERS: Final[Mapping[str, Reader]] = {"tools": tools_of, "resources": resources_of, "prompts": prompts_of}


async def listing_of(
    requests: PeerRequests, peer: str, name: str, answer_seconds: float, *, method: str = "", key: str = ""
) -> Listing:
    """The list `name` (`tools`, `resources`, `prompts`) of a peer, each page within `answer_seconds`.

    `method` and `key` where they are others than `NAME/list` and `NAME`. Raises `PeerError` and `NotPermitted`.
    """
    entries: list[Mapping[str, Any]] = []
    others: frozenset[str] = frozenset()
    cursor: str | None = None
    waits = Waits(answer_seconds, requests.waits.decision_seconds)
    for _ in range(MAX_PAGES):
        params = None if cursor is None else {"cursor": cursor}
        try:
            result = await requests.request(peer, method or f"{name}/list", params, waits=waits)
            page = read_page(result, key or name)
        except PeerFailed as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            break
        except Unreadable as error:
            raise BadAnswer(peer, str(error)) from None
        entries += page.entries
        others |= page.others
        if page.cursor is None or page.cursor == cursor:
            break
        cursor = page.cursor
    return Listing(READERS[name](peer, tuple(entries)), others)
