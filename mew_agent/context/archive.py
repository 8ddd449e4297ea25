"""[pure] The archive of a context: compactions with the items they removed, and their undo.

Owns the rules of an undo: the newest change first, and never half of a tool call. Does not know tokens or stores.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from mew_protocol.context_report import LastCompaction
from mew_protocol.payloads.retrieval import CompactionEntry
from pydantic import BaseModel, ConfigDict

from mew_agent.context.history import Item, Summary
from mew_agent.context.persisted_state import PromptAnchor

UNDO: Final = "undo"
"""The trigger of an entry that undid another one."""


class RestorePoint(BaseModel):
    """The figures that a cut removed, for its undo, in tokens."""

    model_config = ConfigDict(frozen=True)

    prices: dict[int, int] = {}  # prices of the items, by seq
    booked_until: int = -1  # the newest reported seq; later items were not sent yet
    summary_tokens: int = 0
    tokens: int | None = None  # the size of the context before
    reply: tuple[int, int, int] | None = None  # the kept reply, if it left: seq, its share of the total, hidden tokens
    anchor: PromptAnchor | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The requester of a context change, and the reason. `asked_by` None: the agent itself.

    `approval` names the approver, or why it ran without one; None if no approval was needed.
    """

    asked_by: str | None = None
    reason: str | None = None
    approval: str | None = None


ITSELF: Final = Origin()


@dataclass(frozen=True, slots=True)
class ArchivedCompaction:
    """One change of a context: the removed items as they were in context, and both summaries."""

    entry: CompactionEntry
    items: tuple[Item, ...] = ()
    before: Summary | None = None
    after: Summary | None = None
    point: RestorePoint = field(default_factory=RestorePoint)


@dataclass(frozen=True, slots=True)
class ItemLife:
    """An item as added, and the context changes since it first left, oldest first.

    `took` are the numbers of the changes that removed this item.
    """

    item: Item
    changes: tuple[ArchivedCompaction, ...] = ()
    took: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LeavingItems:
    """The items about to leave the context, with the current summary."""

    items: tuple[Item, ...]
    summary: Summary | None
    point: RestorePoint

    def archived(self, outcome: LastCompaction, after: Summary | None, origin: Origin) -> ArchivedCompaction:
        """Return the archived change, with its outcome and its summary."""
        entry = entry_of(outcome, len(self.items), origin)
        return ArchivedCompaction(entry, self.items, self.summary, after, self.point)


@dataclass(frozen=True, slots=True)
class ReturningItems:
    """The result of an undo: `merged` is the whole history afterwards; `returned` and `replaced` are parts of it."""

    merged: tuple[Item, ...]
    returned: tuple[Item, ...]  # items from outside the context
    replaced: tuple[Item, ...]  # texts that replace their notes


def entry_of(outcome: LastCompaction, items: int, origin: Origin, *, undoes: int | None = None) -> CompactionEntry:
    """Return the entry of a change with this outcome; a store gives it its number."""
    about = {"number": 0, "items": items, "asked_by": origin.asked_by, "reason": origin.reason, "undoes": undoes}
    return CompactionEntry.model_validate({**outcome.model_dump(), **about})


def newest_undoable(entries: Sequence[CompactionEntry]) -> CompactionEntry | None:
    """Return the newest entry that is not undone; None if there is none."""
    return next((one for one in reversed(entries) if one.trigger != UNDO and one.undone_by is None), None)


def refusal_of(entries: Sequence[CompactionEntry], number: int | None) -> str | None:
    """Return why this entry (None: the newest) cannot be undone; None if it can."""
    newest = newest_undoable(entries)
    if number is None:
        return "there is nothing to undo" if newest is None else _refusal_of(newest, newest)
    entry = next((one for one in entries if one.number == number), None)
    return unknown_entry(entries, number) if entry is None else _refusal_of(entry, newest)


def _refusal_of(entry: CompactionEntry, newest: CompactionEntry | None) -> str | None:
    if entry.trigger == UNDO:
        return f"{entry.number} is an undo itself; compact again instead"
    if entry.undone_by is not None:
        return f"{entry.number} was undone already, by {entry.undone_by}"
    if newest is not None and newest.number != entry.number:
        return f"{newest.number} came after it; undo {newest.number} first"
    if entry.problem is not None:
        return entry_problem(entry)
    return None


def entry_problem(entry: CompactionEntry) -> str:
    """Describe the damage of an incomplete entry."""
    if entry.problem == "damaged":
        return f"{entry.number} is damaged in the session file"
    return f"part of what {entry.number} removed was deleted (store_max_days, store_max_megabytes)"


def unknown_entry(entries: Sequence[CompactionEntry], number: int) -> str:
    """Return the refusal for an unknown entry number."""
    if entries and number < entries[0].number:
        return f"{number} was deleted (store_max_compactions); the oldest is {entries[0].number}"
    return f"there is no entry {number}; the newest is {entries[-1].number}" if entries else "there is no entry yet"


def returning_items(archived: Iterable[Item], present: Sequence[Item]) -> ReturningItems:
    """Return the items that an undo restores. Leaves out incomplete tool calls and results without a call."""
    in_context = {item.seq: item for item in present}
    replaced = _texts_of_stubs(archived, in_context)
    returned = _with_own_call_ids([item for item in archived if item.seq not in in_context], present)
    candidates = {item.seq: item for item in returned}
    merged = sorted(({**in_context, **replaced, **candidates}).values(), key=lambda item: item.seq)
    split = _split_calls(merged) & candidates.keys()
    return ReturningItems(
        tuple(item for item in merged if item.seq not in split),
        tuple(item for item in returned if item.seq not in split),
        tuple(replaced.values()),
    )


def _texts_of_stubs(archived: Iterable[Item], in_context: Mapping[int, Item]) -> dict[int, Item]:
    """Return, by seq, the archived items that the context holds only as notes."""
    # Its call may have another id now.
    return {
        item.seq: replace(item, tool_call_id=in_context[item.seq].tool_call_id)
        for item in archived
        if item.seq in in_context and in_context[item.seq].stubbed
    }


def _split_calls(items: Iterable[Item]) -> set[int]:
    """Return the seqs of calls with missing results, of those calls' results, and of results without a call."""
    asked: dict[str, int] = {}
    parts: dict[int, set[int]] = {}
    alone: set[int] = set()
    for item in items:
        if item.role == "tool":
            owner = asked.pop(item.tool_call_id or "", None)
            (alone if owner is None else parts[owner]).add(item.seq)
        elif item.tool_calls:
            parts[item.seq] = {item.seq}
            asked.update((call.id, item.seq) for call in item.tool_calls)
    return alone.union(*(parts[owner] for owner in asked.values()))


def _with_own_call_ids(returned: Sequence[Item], present: Sequence[Item]) -> list[Item]:
    """Give restored calls new ids if later calls use the same ones; providers refuse duplicate ids."""
    taken = {call.id for item in present for call in item.tool_calls}
    new: dict[str, str] = {}
    items: list[Item] = []
    for item in returned:
        new.update((call.id, f"{call.id}-{item.seq}") for call in item.tool_calls if call.id in taken)
        if item.tool_call_id in new:
            item = replace(item, tool_call_id=new[item.tool_call_id])
        elif any(call.id in new for call in item.tool_calls):
            calls = tuple(replace(call, id=new.get(call.id, call.id)) for call in item.tool_calls)
            item = replace(item, tool_calls=calls)
        items.append(item)
    return items


# -- search -----------------------------------------------------------------------------------------------

_MOST_WORDS, _MOST_WORD_CHARS = 16, 32
"""Of words that are looked for in a text: the search takes time for each character of each word."""

_PART_BEFORE = 4  # a quarter of an extract's characters come before the word

_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af])")
"""Scripts without spaces between words: each character is a word of the index."""


def searchable(text: str) -> str:
    """Return a text in the form of the full-text index, for storing and searching."""
    return _UNSPACED.sub(r" \1 ", text.encode("utf-8", "replace").decode())


def query_of(words: str, *, every: bool = True) -> str:
    """Return the full-text query for typed words and quoted phrases; empty without a word.

    An item must contain every word, or any of them. A word also matches longer words that begin with it.
    """
    phrases = [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|([^\s"]+)', words)]
    terms = [" ".join(re.findall(r"\w+", searchable(phrase).replace("_", " "))) for phrase in phrases]
    return (" " if every else " OR ").join(f'"{term}"*' for term in terms if term)


def extract_around(text: str, words: str, chars: int) -> tuple[str, int]:
    """Return at most `chars` of a text around the first of these words, and the number of omitted characters."""
    if len(text) <= chars:
        return text, 0
    wanted = (word[0][:_MOST_WORD_CHARS] for word in islice(re.finditer(r"\w+", words), _MOST_WORDS))
    pattern = "|".join(map(re.escape, wanted))
    found = re.search(pattern, text, re.IGNORECASE) if pattern else None
    before = chars // _PART_BEFORE
    start = max(0, min((found.start() if found else 0) - before, len(text) - chars))
    part = text[start : start + chars]
    shown = f"{'...' if start else ''}{part}{'...' if start + chars < len(text) else ''}"
    return shown, len(text) - len(part)
