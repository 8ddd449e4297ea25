"""[pure] The history of an agent: items in order, call/result pairs, turns, pins and the summary.

Items are only appended, except by `evict`, `stub`, `clear` and `put_back`, each of which raises `revision`. Does not
know tokens, models or time; ids and timestamps come as arguments.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Required, TypedDict, Unpack

from mew_protocol.context_report import SummaryWriter
from pydantic_core import from_json

from mew_agent.model.image import Image
from mew_agent.model.interface import Message, ToolCall, plain_name

INVALID_ARGUMENTS: Final = "INVALID_JSON"

ItemRole = Literal["user", "assistant", "tool"]

PINS_HEADING = "[Pinned texts. They hold until they are unpinned, whatever else leaves the conversation.]"
SUMMARY_HEADING = "[Summary of the conversation so far]"
CLEARED_RESULT = "[Tool result cleared to save context; it is kept as {id}]"


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the history."""

    seq: int  # grows by one per item and is never reused
    role: ItemRole
    content: str
    turn: int  # groups a question, the work on it and the answer
    id: str
    at: str
    name: str | None = None
    envelope_id: str | None = None  # the envelope of its text, so that a summary can cite it
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    known_tokens: int | None = None  # reported size of a text from a model
    thinking: bool = False
    stubbed: bool = False
    notice: bool = False  # a prompt of the agent itself in the role of a user
    images: tuple[Image, ...] = ()  # of a tool result
    frame_chars: int = 0  # length of the content's start that the agent wrote, such as the heading of a section
    reasoning: str = ""  # of a reply in a turn with tool calls
    extra: str = ""  # of a reply; see `ModelReply`

    @property
    def own_text(self) -> str:
        """The author's words: the content without the agent's note before it."""
        return self.content[self.frame_chars :]

    @property
    def is_reference(self) -> bool:
        """True if it refers to a longer stored message. Such an item has its own id."""
        return self.role == "user" and self.envelope_id not in (None, self.id)

    def text(self) -> str:
        """Return all text of the item that a model reads, for counting."""
        calls = "".join(f"{call.name}{call.arguments}" for call in self.tool_calls)
        return f"{self.content}{calls}"


class _ItemFields(TypedDict, total=False):
    id: Required[str]
    at: Required[str]
    name: str | None
    envelope_id: str | None
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str | None
    known_tokens: int | None
    thinking: bool
    notice: bool
    images: tuple[Image, ...]
    frame_chars: int
    reasoning: str
    extra: str


@dataclass(frozen=True, slots=True)
class Pin:
    """A text that is sent verbatim with every request and is never compacted."""

    id: str
    text: str
    origin: str = ""  # the participant or the settings that pinned it


FactKind = Literal["rule", "preference", "decision", "goal", "fact", "open", "done"]
"""The kinds of facts, the most binding one first."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence of a message that a summary quotes word for word."""

    kind: FactKind
    text: str
    source: str  # id of the envelope or item
    by: str | None = None  # the participant that said it; None for the agent itself and its tools
    worth: int | None = None  # probability that it matters later


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary that replaces evicted items."""

    text: str
    known_tokens: int | None = None
    cited_ids: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()  # facts for the next summary, unchanged
    written_by: SummaryWriter = "model"
    problem: str | None = None  # why no model wrote it
    left_out: tuple[str, ...] = ()  # words of facts that had no room, for a later search


@dataclass
class History:
    """The items in context, with pins and summary. Mutable; no I/O."""

    items: list[Item] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    summary: Summary | None = None
    revision: int = 0
    next_seq: int = 0
    turn: int = 0

    @property
    def last_seq(self) -> int:
        """The seq of the newest item; -1 if there are none."""
        return self.items[-1].seq if self.items else -1

    def begin_turn(self, resumed: int | None = None) -> int:
        """Begin a turn, or resume the newest one. Later items belong to it. Returns its number."""
        self.turn = self.turn + 1 if resumed is None or resumed < self.turn else resumed
        return self.turn

    def append(self, role: ItemRole, content: str, **fields: Unpack[_ItemFields]) -> Item:
        """Add an item to the current turn."""
        item = Item(self.next_seq, role, content, self.turn, **fields)
        self.next_seq += 1
        self.items.append(item)
        return item

    def evict(self, first_seq: int, last_seq: int, summary: Summary | None) -> list[Item]:
        """Remove the items first_seq..last_seq and set the summary. Returns the removed items."""
        gone = [item for item in self.items if first_seq <= item.seq <= last_seq]
        self.items = [item for item in self.items if not first_seq <= item.seq <= last_seq]
        self.summary = summary
        self.revision += 1
        return gone

    def stub(self, seqs: Sequence[int]) -> list[Item]:
        """Replace tool results by short notes with the ids of the full texts. Returns the new items."""
        wanted = set(seqs)
        stubs = [
            replace(item, content=CLEARED_RESULT.format(id=item.id), stubbed=True, known_tokens=None, images=())
            for item in self.items
            if item.seq in wanted and item.role == "tool"
        ]
        by_seq = {item.seq: item for item in stubs}
        self.items = [by_seq.get(item.seq, item) for item in self.items]
        self.revision += 1
        return stubs

    def clear(self) -> None:
        """Remove items and summary; pins stay."""
        self.items, self.summary = [], None
        self.revision += 1

    def put_back(self, items: Sequence[Item], summary: Summary | None) -> None:
        """Set all items and the summary, including removed ones."""
        self.items, self.summary = list(items), summary
        self.revision += 1

    def request_messages(self, system_prompt: str, note: str = "") -> tuple[Message, ...]:
        """Return a request's messages: system prompt, pins, summary, items. `note` comes before the newest turn."""
        # One system message: the templates of some models refuse a second one.
        system = "\n\n".join(filter(None, (system_prompt, pinned_text(self.pins))))
        messages = [Message("system", system)] if system else []
        if self.summary is not None:
            messages.append(Message("user", summary_text(self.summary.text)))
        asked: set[str] = set()
        for item in self.items:
            # A note here leaves the earlier texts unchanged, and the question stays the last message.
            if note and item.turn == self.turn:
                messages.append(Message("user", note))
                note = ""
            asked.update(call.id for call in item.tool_calls)
            # Providers refuse a result without its call, which may have been removed while the tool ran.
            if item.role != "tool" or item.tool_call_id in asked:
                known = (item.name, item.tool_calls, item.tool_call_id, item.images, item.reasoning, item.extra)
                messages.append(Message(item.role, item.content, *known))
        if note:
            messages.append(Message("user", note))
        return tuple(messages)

    @property
    def unaccepted(self) -> tuple[int, int] | None:
        """The first and last seq of the items that no answered request contained, with the calls of tool results; None
        without any.
        """
        place = next((at for at in range(len(self.items), 0, -1) if self.items[at - 1].role == "assistant"), 0)
        if place and self.items[place - 1].tool_calls:
            place -= 1
        return (self.items[place].seq, self.last_seq) if place < len(self.items) else None

    def open_calls(self) -> frozenset[str]:
        """Return the ids of tool calls without a result. No request may be sent while there are any."""
        waiting: set[str] = set()
        for item in self.items:
            waiting.update(call.id for call in item.tool_calls)
            waiting.discard(item.tool_call_id or "")
        return frozenset(waiting)


def pinned_text(pins: Sequence[Pin]) -> str:
    """Return the pins as they are sent, under their heading; empty if there are none."""
    return "\n".join((PINS_HEADING, *(pin_line(pin) for pin in pins))) if pins else ""


def pin_line(pin: Pin) -> str:
    """Return one pin as it is sent, with its id and origin."""
    return f"[{pin.id}, from {pin.origin}] {pin.text}" if pin.origin else f"[{pin.id}] {pin.text}"


def summary_text(text: str) -> str:
    """Return the summary as it is sent, under its heading."""
    return f"{SUMMARY_HEADING}\n{text}"


def replayable(call: ToolCall) -> ToolCall:
    """Return a model's tool call as later requests contain it.

    Many servers refuse every request whose history has a call with arguments that are no JSON object, or with a name of
    other characters than those of function names.
    """
    try:
        is_object = isinstance(from_json(call.arguments, allow_inf_nan=False), dict)
    except ValueError:
        is_object = False
    valid = call.arguments if is_object else json.dumps({INVALID_ARGUMENTS: call.arguments})
    return replace(call, name=plain_name(call.name), arguments=valid)
