"""[pure] Envelopes in words: participants' answers, their requests to each other, and membership changes.

Web pages have no words of their own: the gateway sends these as `said` events before the envelopes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from mew_protocol import kinds
from mew_protocol.envelope import Draft
from mew_protocol.json_values import value_at
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.chat import Acknowledge
from mew_protocol.payloads.participant import CompactDone, Status
from mew_protocol.payloads.read_receipts import ReadReceipt, ReadReceipts
from mew_protocol.payloads.retrieval import CompactionHistory, RecallDone, UndoDone
from mew_protocol.status_word import StatusWord
from pydantic import ValidationError

from mew_board import changes, conversation_lines, receipt_words, words
from mew_board.board_json import ShownPart, ShownPin, known_facts
from mew_board.composition import prefix_part
from mew_board.quoting import clean, one_line
from mew_board.view import pin_row
from mew_board.visible import MOST_CHARS, short

_MOST: Final = 200
"""How many parts, changes and steps of an answer are shown. Of a longer list, the rest is not even read."""

_FOUND_CHARS: Final = 10 * MOST_CHARS
"""How long the answer to a search is shown."""


Stage = Literal["begun", "calm", "done", "problem"]


class ShownChange(Payload):
    """A change of a context; `number` is that of the agent's list."""

    number: int
    line: str
    facts: tuple[tuple[str, str], ...] = ()


class ShownReceipt(Payload):
    """A read receipt. Each step of its `story` has a time, if known."""

    line: str
    story: tuple[tuple[str | None, str], ...] = ()


class ShownAnswer(Payload):
    """An envelope in words, and the participants that it is `about`.

    `stage` is `begun` if another answer follows, `calm` if there is nothing to report, and `problem` if the request was
    not carried out.
    """

    text: str
    about: tuple[str, ...] = ()
    stage: Stage = "done"
    parts: tuple[ShownPart, ...] = ()
    pins: tuple[ShownPin, ...] = ()
    changes: tuple[ShownChange, ...] = ()
    receipts: tuple[ShownReceipt, ...] = ()


def said(envelope: Draft) -> ShownAnswer | None:
    """Return an answer in words; None for other envelopes, and for an answer that cannot be read."""
    write = _ANSWERS.get(envelope.kind or "")
    try:
        return write(envelope) if write is not None else None
    except ValidationError:
        return None


def recalled(done: RecallDone) -> str:
    """Format the answer to a search: the number of matches, then one match per line."""
    if done.error:
        return clean(done.error)
    count = words.count_of(len(done.found), "match", "matches")
    return "\n".join([count, *(f"{clean(one.sender or one.role)}: {one_line(one.text)}" for one in done.found)])


def _compacted(envelope: Draft) -> ShownAnswer:
    done = CompactDone.model_validate(envelope.body)
    return ShownAnswer(text=short(words.compaction_answer(done)), stage="problem" if done.skipped else "done")


def _undone(envelope: Draft) -> ShownAnswer:
    done = UndoDone.model_validate(envelope.body)
    return ShownAnswer(text=short(words.undone(done)), stage="done" if done.status == "undone" else "problem")


def _recalled(envelope: Draft) -> ShownAnswer:
    return ShownAnswer(text=short(recalled(RecallDone.model_validate(envelope.body)), _FOUND_CHARS))


def _listed(envelope: Draft) -> ShownAnswer:
    found = CompactionHistory.model_validate(_cut(envelope.body, "entries", slice(-_MOST, None)))
    rows = [
        ShownChange(
            number=one.number,
            line=short(changes.line(one)),
            facts=known_facts(one),
        )
        for one in found.entries
    ]
    stage: Stage = "problem" if found.error else "done"
    return ShownAnswer(text=short(clean(found.error or "")), stage=stage, changes=tuple(rows))


def _acknowledged(envelope: Draft) -> ShownAnswer:
    answer = Acknowledge.model_validate(envelope.body)
    if answer.receipt is None:
        return ShownAnswer(text=short(f"{envelope.sender}: {words.state(answer.status or 'received')}"))
    return ShownAnswer(text=short(receipt_words.mark(_of_sender(answer.receipt, envelope))))


def _received(envelope: Draft) -> ShownAnswer:
    found = ReadReceipts.model_validate(_cut(envelope.body, "receipts", slice(_MOST))).receipts
    rows = [
        ShownReceipt(
            line=short(receipt_words.line(one)),
            story=tuple((at, short(step)) for at, step in receipt_words.steps(one)[-_MOST:]),
        )
        for one in (_of_sender(each, envelope) for each in found)
    ]
    return ShownAnswer(text="", receipts=tuple(rows))


def _cut(body: Mapping[str, Any], name: str, rows: slice) -> Mapping[str, Any]:
    """Return a body with only these rows of its list."""
    found = body.get(name)
    return {**body, name: found[rows]} if isinstance(found, list | tuple) else body


def _of_sender(receipt: ReadReceipt, envelope: Draft) -> ReadReceipt:
    """Return the sender's receipt, because an agent only reports its own."""
    return receipt.model_copy(update={"participant": envelope.sender or ""})


def _answered(envelope: Draft) -> ShownAnswer:
    status = Status.model_validate(envelope.body)
    prefix = (status.prefix or ())[:_MOST]
    return ShownAnswer(
        text=short(words.state(status.status or "")),
        stage=_stage(status.word),
        parts=tuple(prefix_part(one, status.max_tokens) for one in prefix),
        pins=tuple(map(pin_row, (status.pins or ())[:_MOST])),
    )


def _stage(word: StatusWord) -> Stage:
    if word.word == "refused":
        return "problem"
    return "begun" if word.has("begun") else "calm" if word.word == "active" else "done"


def _note(write: Callable[[Draft], str]) -> Callable[[Draft], ShownAnswer]:
    return lambda envelope: ShownAnswer(text=write(envelope), about=conversation_lines.concerned(envelope))


def _present(envelope: Draft) -> ShownAnswer:
    names = (str(value_at(envelope.body, "participant", "id") or "?"),)
    return ShownAnswer(text=conversation_lines.presence(envelope), about=names)


_ANSWERS: Final[Mapping[str, Callable[[Draft], ShownAnswer]]] = {
    kinds.PARTICIPANT_COMPACT_DONE: _compacted,
    kinds.PARTICIPANT_UNDO_DONE: _undone,
    kinds.PARTICIPANT_RECALL_DONE: _recalled,
    kinds.PARTICIPANT_HISTORY: _listed,
    kinds.PARTICIPANT_RECEIPTS: _received,
    kinds.PARTICIPANT_STATUS: _answered,
    kinds.CHAT_ACKNOWLEDGE: _acknowledged,
    kinds.SYSTEM_PRESENCE: _present,
    kinds.CAPABILITY_ENDED: _note(conversation_lines.ended),
    kinds.REASONING_CANCEL: _note(conversation_lines.cancelled),
    **dict.fromkeys((kinds.MCP_REJECT, kinds.MCP_WITHDRAW), _note(conversation_lines.decision)),
    **dict.fromkeys(conversation_lines.REQUEST_KINDS, _note(conversation_lines.request)),
    **dict.fromkeys(conversation_lines.CHANGE_KINDS, _note(conversation_lines.change)),
}

ANSWER_KINDS: Final = frozenset(_ANSWERS)
"""The kinds of envelopes that may have words."""
