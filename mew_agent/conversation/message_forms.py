"""The form of a message in one conversation: unread, read in a call, or changed by compactions.

Combines facts, history and archive into one answer. Does not know inboxes or the asker.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mew_protocol.payloads.read_receipts import InContext, PromptCall, ReceiptEvent, SummaryTrace

from mew_agent.compaction.traces import traces
from mew_agent.context.archive import UNDO, ArchivedCompaction, ItemLife
from mew_agent.context.history import Item, Summary
from mew_agent.context.message_facts import MessageEntry, MessageRecord, Prompted, ReceiptChange
from mew_agent.context.store import SessionChange
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.model_calls import ModelCalls

MAYBE_SENT: Final = "a call with it ended without output"
SENDING: Final = "a call with it has begun"
SHORTENED: Final = "the model's server shortened the prompt, and does not say what it left out"


@dataclass(frozen=True, slots=True)
class Holding:
    """The form of a message in a context; see `ReadReceipt` for the fields."""

    in_context: InContext = "no"
    call: PromptCall | None = None
    summary: SummaryTrace | None = None
    compaction: int | None = None
    reason: str | None = None
    events: tuple[ReceiptEvent, ...] = ()


NOT_HELD: Final = Holding()


ReadRecord = Callable[[], Awaitable[MessageRecord]]
"""Reads the stored forms of one message."""


class ContextReceipts:
    """Reads the forms of messages in one conversation."""

    def __init__(self, state: ContextState, calls: ModelCalls) -> None:
        self._state, self._calls = state, calls
        self._kept_call: str | None = None
        """The running call with a stored reading."""

    async def of(self, read: ReadRecord) -> Holding:
        """Return the form of a message in the next prompt, and the first call that read it."""
        while True:
            moment = self._moment
            found = await self._look(await read())
            # The store was read during a call, a cut or an undo: record, history and archive must be of one moment.
            if self._moment == moment:
                return found

    @property
    def _moment(self) -> tuple[int, Prompted | None]:
        """A value that changes with the context, and at the start, the first output and the end of each call."""
        return self._state.history.revision, self._calls.prompted

    async def _look(self, record: MessageRecord) -> Holding:
        entry = record.newest
        if entry is None or entry.seq is None:
            return NOT_HELD
        call, reason = record.read_in, None
        item = next((one for one in reversed(self._state.history.items) if one.seq == entry.seq), None)
        if call is None:
            call, reason = await self._in_running_call(entry, item)
        life = await self._state.store.life_of(entry.seq)
        if life is None:
            return Holding("gone", call, reason="its text was deleted (store limits)")
        steps = tuple(_steps(life, item))
        read = () if call is None else (ReceiptEvent(what="in_prompt", at=call.at, call=call.number),)
        events = (*read, *steps)
        if item is not None:
            if call is not None:
                form = _form_of(item, life.item)
                return self._unless_left_out(entry.seq, Holding(form, call, events=events))
            return Holding("no" if reason is None else "unknown", reason=reason, events=events)
        last = steps[-1].compaction if steps else None
        trace = _trace(life.item, self._state.history.summary)
        if trace is None:
            return Holding("recoverable", call, None, last, reason, events)
        return self._unless_left_out(entry.seq, Holding("summary", call, trace, last, reason, events))

    def _unless_left_out(self, seq: int, holding: Holding) -> Holding:
        """Return the form in the prompt; unknown if the server may have omitted the message."""
        if not self._state.may_be_left_out(seq):
            return holding
        return replace(holding, in_context="unknown", summary=None, reason=SHORTENED)

    async def _in_running_call(self, entry: MessageEntry, item: Item | None) -> tuple[PromptCall | None, str | None]:
        """Return the running call if its model has read the message, and otherwise why that is unknown, if it is."""
        running = self._calls.prompted
        if running is None or item is None or item.seq > running.last_seq:
            return None, MAYBE_SENT if entry.is_doubtful else None
        if not running.is_read:
            return None, SENDING
        if running.call.id != self._kept_call:  # so that a process killed now does not name another call later
            await self._state.save(SessionChange(receipts=ReceiptChange(prompted=running)))
            self._kept_call = running.call.id
        return running.call, None


def _steps(life: ItemLife, present: Item | None) -> Iterator[ReceiptEvent]:
    """Yield each change of an item's form in the context, oldest first."""
    form: InContext | None = None
    for change in life.changes:
        new = _form_after(change, life, form, present)
        if new == form:
            continue
        form = new
        entry = change.entry
        what = "undone" if entry.trigger == UNDO else new or "whole"
        yield ReceiptEvent(what=what, at=entry.at, compaction=entry.number, trigger=entry.trigger)


def _form_after(
    change: ArchivedCompaction, life: ItemLife, form: InContext | None, present: Item | None
) -> InContext | None:
    """Return the form after a change; None while the item is in the prompt."""
    if change.entry.undoes in life.took:
        return None
    if change.entry.number in life.took:
        if present is not None and present.stubbed:
            return "reference"
    elif form is None or form == "reference":
        return form
    return "recoverable" if _trace(life.item, change.after) is None else "summary"


def _form_of(item: Item, original: Item) -> InContext:
    """Return how an item in the prompt differs from its original text."""
    if item.stubbed:
        return "reference"
    if item.content == original.content:
        return "whole"
    return "reference" if item.role == "user" else "shortened"


def _trace(item: Item, summary: Summary | None) -> SummaryTrace | None:
    """Return the form of an item in a summary; None if it has none."""
    found = traces((item,), summary)[item.seq]
    return None if found == "absent" else found
