"""The archive of a context for people, programs and the model itself: list, show, undo, search.

Owns the answers to these requests, and their limits. Reports an unreadable store in the answer and continues. `hold`
blocks model calls while the context changes.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from mew_protocol.json_values import well_formed
from mew_protocol.payloads import retrieval

from mew_agent.context.archive import (
    ArchivedCompaction,
    Origin,
    entry_problem,
    extract_around,
    newest_undoable,
    refusal_of,
    returning_items,
    unknown_entry,
)
from mew_agent.context.history import Item
from mew_agent.context.store import StoreUnusable
from mew_agent.conversation.context_state import ContextState
from mew_agent.participant.controls import Archive

logger = logging.getLogger("mew_agent.conversation.conversation_archive")

PAGE_CHARS = 48_000
"""How much text of items one answer contains; a longer item is clipped to a third of it."""

EXTRACT_CHARS = 400
"""How much of an item an answer to a search contains."""


class ContextArchive(Archive):
    """The archive of one context."""

    def __init__(
        self, state: ContextState, hold: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    ) -> None:
        self._state = state
        self._hold = hold

    async def history(self, request: retrieval.RequestHistory) -> retrieval.CompactionHistory:
        """Return all entries, or the texts of one; see `CompactionHistory`."""
        store = self._state.store
        try:
            entries = await store.compactions()
            dropped = entries[0].number - 1 if entries else 0
            if request.number is None:
                return retrieval.CompactionHistory(entries=tuple(entries), dropped=dropped)
            archived = await store.archived(request.number)
        except StoreUnusable as error:
            logger.warning("archive not read: %s", error)
            return retrieval.CompactionHistory(error=str(error))
        if archived is None:
            return retrieval.CompactionHistory(dropped=dropped, error=unknown_entry(entries, request.number))
        return _shown(archived, dropped, request.after)

    async def recall(self, request: retrieval.Recall, extract_chars: int = EXTRACT_CHARS) -> retrieval.RecallDone:
        """Return the removed items that contain these words, each with an extract."""
        try:
            found = await self._state.store.search(request.words, request.limit)
        except StoreUnusable as error:
            logger.warning("archive not searched: %s", error)
            return retrieval.RecallDone(error=str(error))
        words = request.words
        shown = [(item, *extract_around(well_formed(item.text()), words, extract_chars)) for item in found]
        return retrieval.RecallDone(found=tuple(_as_archived(*one) for one in shown))

    async def undo(self, request: retrieval.Undo, asked_by: str | None = None) -> retrieval.UndoDone:
        """Undo a change of the context, or return the refusal. A refused undo interrupts nothing."""
        state, found = self._state, await self._find(request)
        if isinstance(found, retrieval.UndoDone):
            return found
        async with self._hold():
            found = await self._find(request)  # a compaction may have ended in the meantime
            if isinstance(found, retrieval.UndoDone):
                return found
            entry, outcome = await state.put_back(found, Origin(asked_by, request.reason))
        return retrieval.UndoDone(
            status="undone",
            number=found.entry.number,
            entry=entry,
            restored_messages=-outcome.freed_messages,
            restored_tokens=-outcome.freed_tokens,
            tokens_before=outcome.tokens_before,
            tokens_after=outcome.tokens_after,
            max_tokens=state.tracker.window.max_tokens,
        )

    async def _find(self, request: retrieval.Undo) -> ArchivedCompaction | retrieval.UndoDone:
        """Return the change to undo, or the refusal."""
        state = self._state
        try:
            entries = await state.store.compactions()
            refusal = refusal_of(entries, request.number)
            newest = newest_undoable(entries)
            number = request.number or (newest.number if newest else 0)
            archived = None if refusal else await state.store.archived(number)
        except StoreUnusable as error:
            logger.warning("archive not read: %s", error)
            return self._refused(request.number, str(error))
        if archived is None:
            return self._refused(request.number, refusal or unknown_entry(entries, number))
        if archived.entry.problem is not None:
            return self._refused(number, entry_problem(archived.entry))
        misfit = self._misfit(archived)
        return archived if misfit is None else self._refused(number, misfit)

    def _misfit(self, archived: ArchivedCompaction) -> str | None:
        """Return why the next request would not fit the window after an undo; None if it fits."""
        tracker, point = self._state.tracker, archived.point
        back, now = returning_items(archived.items, self._state.history.items), tracker.ledger.item_prices()
        grown = sum(point.prices.get(item.seq, 0) for item in (*back.returned, *back.replaced))
        grown += (
            point.summary_tokens - tracker.ledger.preamble.summary_tokens - sum(now[item.seq] for item in back.replaced)
        )
        if not tracker.would_overflow(grown):
            return None
        tokens, window = tracker.ledger.next_prompt_tokens + grown, tracker.window.max_tokens
        return f"the next request would take about {tokens:,} tokens and a reply, in a window of {window:,}"

    def _refused(self, number: int | None, reason: str) -> retrieval.UndoDone:
        tokens, window = self._state.tracker.measurement.tokens, self._state.tracker.window.max_tokens
        return retrieval.UndoDone(
            status="refused", number=number, reason=reason, tokens_before=tokens, tokens_after=tokens, max_tokens=window
        )


def _shown(archived: ArchivedCompaction, dropped: int, after: int) -> retrieval.CompactionHistory:
    """Return one entry with the items after a seq that fit into one answer."""
    items: list[retrieval.ArchivedItem] = []
    following: int | None = None
    room = PAGE_CHARS
    for item in archived.items:
        if item.seq <= after:
            continue
        text = well_formed(item.text())
        shown = text if len(text) <= PAGE_CHARS // 3 else text[: PAGE_CHARS // 3]
        if len(shown) > room:
            following = items[-1].seq
            break
        room -= len(shown)
        items.append(_as_archived(item, shown, len(text) - len(shown)))
    is_new = archived.after is not None and archived.after != archived.before
    return retrieval.CompactionHistory(
        entries=(archived.entry,),
        dropped=dropped,
        summary=archived.after.text if archived.after is not None and is_new else None,
        previous_summary=None if archived.before is None else archived.before.text,
        items=tuple(items),
        next=following,
    )


def _as_archived(item: Item, text: str, clipped_chars: int) -> retrieval.ArchivedItem:
    return retrieval.ArchivedItem(
        seq=item.seq,
        id=item.id,
        role=item.role,
        at=item.at,
        text=text,
        sender=item.name,
        turn=item.turn,
        clipped_chars=clipped_chars,
    )
