"""Asks peers about their past compactions: list and show them, undo one, search what left their context.

Owns how the answer to each request is read. Participants inherit these methods.
"""

from mew_protocol import kinds
from mew_protocol.payloads.compactions import (
    ARCHIVE_ANSWERS,
    ArchivedItem,
    CompactionHistory,
    Recall,
    RecallDone,
    RequestHistory,
    Undo,
    UndoDone,
)
from pydantic import BaseModel

from mew_agent.errors import ControlRefused
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.requests import Answer, ArchiveRequest, read_answer

TIMEOUT_SECONDS = 60.0


class PeerArchive:
    """The requests about past compactions that a participant sends to its peers.

    All raise `NotPermitted` without the capability, `ControlRefused` if the peer refuses, for instance because it lacks
    the capability for the answer, and what `ask` raises.
    """

    messenger: Messenger

    async def compaction_history(self, peer: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> CompactionHistory:
        """List a peer's compactions, oldest first: trigger, sizes, cost and who asked. `dropped` are not kept."""
        return await self._page(peer, RequestHistory(), timeout_seconds)

    async def show_compaction(
        self, peer: str, number: int, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> CompactionHistory:
        """Read one compaction of a peer: its `summary`, and the `items` that it replaced.

        Raises `ControlRefused` if there is no such compaction.
        """
        shown = await self._page(peer, RequestHistory(number=number), timeout_seconds)
        items = list(shown.items)
        following = shown.next
        while following is not None:
            page = await self._page(peer, RequestHistory(number=number, after=following), timeout_seconds)
            items += page.items
            following = page.next
        return shown.model_copy(update={"items": tuple(items), "next": None})

    async def undo(
        self,
        peer: str,
        number: int | None = None,
        *,
        reason: str | None = None,
        timeout_seconds: float = 120.0,
    ) -> UndoDone:
        """Undo a peer's compaction (default: the newest) and wait until that is done. Check `status` and `reason`."""
        return await self._ask(
            peer, kinds.PARTICIPANT_UNDO, Undo(number=number, reason=reason), UndoDone, timeout_seconds
        )

    async def recall(
        self, peer: str, words: str, *, limit: int = 10, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> tuple[ArchivedItem, ...]:
        """Search what left a peer's context: an extract of each item that matches, the best match first.

        Raises `ControlRefused` if its archive cannot be searched.
        """
        request = Recall(words=words, limit=limit)
        done = await self._ask(peer, kinds.PARTICIPANT_RECALL, request, RecallDone, timeout_seconds)
        if done.error is not None:
            raise ControlRefused(peer, kinds.PARTICIPANT_RECALL, done.error)
        return done.found

    async def _page(self, peer: str, request: RequestHistory, timeout_seconds: float) -> CompactionHistory:
        kind = kinds.PARTICIPANT_REQUEST_HISTORY
        history = await self._ask(peer, kind, request, CompactionHistory, timeout_seconds)
        if history.error is not None:
            raise ControlRefused(peer, kind, history.error)
        return history

    async def _ask(
        self, peer: str, kind: str, payload: BaseModel, model: type[Answer], timeout_seconds: float
    ) -> Answer:
        request = ArchiveRequest(self.messenger.draft(kind, payload, to=(peer,)), peer, ARCHIVE_ANSWERS[kind])
        await self.messenger.send_and_wait(request, timeout_seconds)
        return read_answer(request.reply_or_raise(timeout_seconds), model)
