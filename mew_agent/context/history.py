"""[pure] The conversation of an agent: items in order, call/result pairs, turns, pins and the summary.

An item is a user message, an assistant message or a tool result. Items are only ever appended, except by
`evict`, `stub` and `clear`, each of which raises `revision`. What the model is sent is derived by `request_messages`.
It does not know tokens, models or time; ids and timestamps come as arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mew_agent.model.interface import Message, ToolCall

ItemRole = Literal["user", "assistant", "tool"]

SUMMARY_HEADING = "[Summary of the conversation so far]"
CLEARED_RESULT = "[Tool result cleared to save context; it is kept as {id}]"


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the history. `seq` grows by one per item and is never reused.

    `envelope_id` names the envelope it came from or went out as, so that a summary can cite it. `turn` groups a
    question, the work on it and the answer. `known_tokens` is the reported size of a text a model wrote. `notice` marks
    what nobody said: a prompt of our own in the role of a user.
    """

    seq: int
    role: ItemRole
    content: str
    turn: int
    id: str
    at: str
    name: str | None = None
    envelope_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    known_tokens: int | None = None
    thinking: bool = False
    stubbed: bool = False
    notice: bool = False

    def text(self) -> str:
        """Everything of it that a model reads, for counting."""
        calls = "".join(f"{call.name}{call.arguments}" for call in self.tool_calls)
        return f"{self.content}{calls}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A text that stays verbatim in every request, whatever is compacted."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands in place of evicted items. `up_to_seq` is the newest item it covers."""

    text: str
    up_to_seq: int
    known_tokens: int | None = None
    cited_ids: tuple[str, ...] = ()


@dataclass
class History:
    """The conversation. Mutable, without I/O."""

    items: list[Item] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    summary: Summary | None = None
    revision: int = 0
    next_seq: int = 0
    turn: int = 0

    def __len__(self) -> int:
        """How many items there are: `messages_in_context` (no system prompt, pins or summary)."""
        return len(self.items)

    @property
    def last_seq(self) -> int:
        """The newest item's seq; -1 before the first item."""
        return self.items[-1].seq if self.items else -1

    def begin_turn(self) -> int:
        """A new question is going to be answered; items appended from now on belong to it."""
        self.turn += 1
        return self.turn

    def append(
        self,
        role: ItemRole,
        content: str,
        *,
        id: str,  # noqa: A002 - the wire's word
        at: str,
        name: str | None = None,
        envelope_id: str | None = None,
        tool_calls: Sequence[ToolCall] = (),
        tool_call_id: str | None = None,
        known_tokens: int | None = None,
        thinking: bool = False,
        notice: bool = False,
    ) -> Item:
        """Add an item to the current turn."""
        item = Item(
            seq=self.next_seq,
            role=role,
            content=content,
            turn=self.turn,
            id=id,
            at=at,
            name=name,
            envelope_id=envelope_id,
            tool_calls=tuple(tool_calls),
            tool_call_id=tool_call_id,
            known_tokens=known_tokens,
            thinking=thinking,
            notice=notice,
        )
        self.next_seq += 1
        self.items.append(item)
        return item

    def evict(self, first_seq: int, last_seq: int, summary: Summary | None) -> list[Item]:
        """Take the items first_seq..last_seq out; `summary` becomes the history's summary. Returns what left."""
        gone = [item for item in self.items if first_seq <= item.seq <= last_seq]
        self.items = [item for item in self.items if not first_seq <= item.seq <= last_seq]
        self.summary = summary
        self.revision += 1
        return gone

    def stub(self, seqs: Sequence[int]) -> list[Item]:
        """Replace the content of tool results by a short note that names where the full text is kept."""
        wanted = set(seqs)
        stubs = [
            replace(item, content=CLEARED_RESULT.format(id=item.id), stubbed=True, known_tokens=None)
            for item in self.items
            if item.seq in wanted and item.role == "tool"
        ]
        by_seq = {item.seq: item for item in stubs}
        self.items = [by_seq.get(item.seq, item) for item in self.items]
        self.revision += 1
        return stubs

    def clear(self) -> int:
        """Forget items and summary; pins stay. Returns how many items left."""
        count = len(self.items)
        self.items, self.summary = [], None
        self.revision += 1
        return count

    def request_messages(self, system_prompt: str, note: str = "") -> tuple[Message, ...]:
        """What the model is sent: system prompt, pins, summary, items; `note` stands before the newest turn.

        There it leaves all that came before it as it was sent last time, and the question is still what is answered.
        A tool result whose call is gone (cleared or forgotten while the tool ran) is left out: providers refuse it.
        """
        messages = [Message("system", system_prompt)] if system_prompt else []
        messages += [Message("system", pin.text) for pin in self.pins]
        if self.summary is not None:
            messages.append(Message("user", summary_text(self.summary.text)))
        asked: set[str] = set()
        for item in self.items:
            if note and item.turn == self.turn:
                messages.append(Message("user", note))
                note = ""
            asked.update(call.id for call in item.tool_calls)
            if item.role != "tool" or item.tool_call_id in asked:
                messages.append(Message(item.role, item.content, item.name, item.tool_calls, item.tool_call_id))
        if note:
            messages.append(Message("user", note))
        return tuple(messages)

    def open_calls(self) -> frozenset[str]:
        """Ids of tool calls that have no result yet; a request must not be sent while there are any."""
        waiting: set[str] = set()
        for item in self.items:
            waiting.update(call.id for call in item.tool_calls)
            waiting.discard(item.tool_call_id or "")
        return frozenset(waiting)


def summary_text(text: str) -> str:
    """The summary as the model reads it."""
    return f"{SUMMARY_HEADING}\n{text}"
