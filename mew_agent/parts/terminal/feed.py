"""[pure] The conversation of a space as entries: chats, the work of agents in progress, and notes.

Maps each envelope and frame to the entry that it changes. `TerminalChat` words the notes. Draws nothing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mew_board import words
from mew_board.quoting import clean
from mew_board.receipt_words import mark
from mew_board.shared_words import TURN_WORDS
from mew_listener.bounded_dict import FairDict, weight_of
from mew_protocol import kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.chat import Acknowledge

from mew_agent.participant.peers import StreamOwners

MAX_ENTRIES: Final = 400
MAX_WORK_CHARS: Final = 20_000
"""How much is kept of the text of a running call, which is drawn again with each piece. The answer is a chat."""

MAX_CALLS: Final = 1_000
"""How many tool calls of one work are kept, the newest ones."""

_CALL_CHARS: Final = 300


@dataclass(slots=True)
class FeedEntry:
    """One entry. A chat has a `text`. Work of an agent has its text so far, thoughts and tool calls."""

    key: str
    kind: Literal["chat", "work", "note"]
    sender: str = ""
    to: tuple[str, ...] = ()
    at: str = ""
    text: str = ""
    is_urgent: bool = False
    thoughts: str = ""
    calls: list[str] = field(default_factory=list)
    is_running: bool = False
    is_lost: bool = False
    """True if the agent left before the work ended."""
    id: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    """The newest receipt of a chat in a few words, by participant."""
    story: tuple[str, ...] | None = None
    """The history of a chat, step by step; None before the first request for it."""

    def go_on(self) -> None:
        """Note a sign of work that was lost: its program lives."""
        self.is_running, self.is_lost = self.is_running or self.is_lost, False

    @property
    def opens(self) -> bool:
        """Whether it can be expanded: to thoughts and calls, or to the story of a chat."""
        return self.kind == "work" or bool(self.marks)

    @property
    def summary(self) -> str:
        """The work in one line: `coder is working, 2 calls`."""
        if self.is_lost:
            return f"{clean(self.sender)}: {TURN_WORDS['lost']}"
        doing = "is working" if self.is_running else "worked on it"
        count = f", {words.count_of(len(self.calls), 'call')}" if self.calls else ""
        last = f": {self.calls[-1]}" if self.calls and self.is_running else ""
        return f"{clean(self.sender)} {doing}{count}{last}"

    @property
    def details(self) -> str:
        """The work in full: thoughts, then tool calls."""
        parts = [clean_text(self.thoughts).strip(), *(f"→ {one}" for one in self.calls)]
        return "\n".join(one for one in parts if one)


class ConversationFeed:
    """The newest `MAX_ENTRIES` entries, oldest first, by key; a long text counts as several (see `weight_of`)."""

    def __init__(self) -> None:
        self.entries: FairDict[str, FeedEntry] = FairDict(
            MAX_ENTRIES, lambda _key, _entry: "", weight=lambda _, entry: weight_of(len(entry.text))
        )
        self._streams = StreamOwners()
        self._notes = 0
        self._presence = ""

    def receive(self, envelope: Envelope) -> FeedEntry | None:
        """Return the entry that an envelope adds or changes; None if it changes none."""
        self._streams.receive(envelope)
        body, at = envelope.body, str(envelope.ts or "")
        work = self._work_of(envelope)
        match envelope.kind:
            case kinds.CHAT if isinstance(body.get("text"), str):
                key = f"chat:{envelope.sender}:{envelope.id}"
                if key in self.entries:
                    return None  # the history contained it already
                entry = FeedEntry(key, "chat", envelope.sender, envelope.addressees, at)
                entry.text, entry.id = str(body["text"]), envelope.id
                entry.is_urgent = body.get("urgent") is True
                return self._keep(entry)
            case kinds.CHAT_ACKNOWLEDGE:
                return self._mark(envelope)
            case kinds.REASONING_START:
                entry = FeedEntry(f"work:{envelope.id}", "work", envelope.sender, at=at)
                entry.is_running = True
                return self._keep(entry)
            case kinds.REASONING_THOUGHT if work is not None:
                work.go_on()
                if (call := _call_in(body)) is not None:
                    work.calls.append(call)
                    del work.calls[:-MAX_CALLS]
                return work
            case kinds.REASONING_CONCLUSION if work is not None:
                # The answer follows as a chat; its text would appear twice.
                work.is_running, work.is_lost, work.text = False, False, ""
                return work
            case _:
                return None

    def _work_of(self, envelope: Envelope) -> FeedEntry | None:
        """Return the work that an envelope belongs to, if the envelope is from the working agent."""
        work = self.entries.get(f"work:{envelope.context}")
        return work if work is not None and work.sender == envelope.sender else None

    def lose_work(self, is_away: Callable[[str], bool]) -> list[FeedEntry]:
        """Note that the running work of participants that are away is lost, unless its answer still arrives."""
        lost = [one for one in self.entries.values() if one.is_running and is_away(one.sender)]
        for one in lost:
            one.is_running, one.is_lost = False, True
        return lost

    def _mark(self, envelope: Envelope) -> FeedEntry | None:
        """Add the receipt of an acknowledgement to its chat."""
        told = read_or_none(Acknowledge, envelope.body)
        receipt = told.receipt if told is not None else None
        if receipt is None or receipt.participant != envelope.sender:
            return None
        entry = self.entries.get(f"chat:{receipt.sender}:{receipt.id}")
        if entry is not None and (entry.sender in envelope.addressees or not envelope.addressees):
            entry.marks[envelope.sender] = mark(receipt)
            return entry
        return None

    def receive_frame(self, frame: StreamFrame) -> FeedEntry | None:
        """Return the entry that a frame of a reasoning stream adds text to."""
        try:
            value = object_at(json.loads(frame.data))
        except ValueError:
            return None
        work, text = self.entries.get(f"work:{value.get('context')}"), value.get("value")
        if work is None or not isinstance(text, str):
            return None
        if self._streams.owner(frame.stream_id) != work.sender:
            return None  # another participant claims this work
        work.go_on()
        if not work.is_running:
            return None
        if value.get("type") == "token":
            work.text = f"{work.text}{text}"[-MAX_WORK_CHARS:]
        elif value.get("type") in ("thinking", "thought"):
            work.thoughts = f"{work.thoughts}{text}"[-MAX_WORK_CHARS:]
        else:
            return None
        return work

    def add_note(self, text: str) -> FeedEntry:
        """Add a line about something that happened."""
        self._notes += 1
        return self._keep(FeedEntry(f"note:{self._notes}", "note", text=text))

    def add_presence(self, name: str, verb: str) -> FeedEntry:
        """Add that a participant joined or left, on the previous line if that reports the same of others.

        After a gateway restart, all participants join again.
        """
        newest, tail = next(reversed(self.entries), None), f" {verb}"
        last = None if newest is None else self.entries[newest]
        if last is None or last.key != self._presence or not last.text.endswith(tail):
            last = self.add_note(f"{name}{tail}")
            self._presence = last.key
        elif name not in (known := last.text.removesuffix(tail).split(", ")):
            last.text = f"{', '.join((*known, name))}{tail}"
        return last

    def _keep(self, entry: FeedEntry) -> FeedEntry:
        self.entries[entry.key] = entry
        return entry


def clean_text(text: str) -> str:
    """Remove control characters from each line, so that a received text cannot control the terminal."""
    return "\n".join(clean(line.replace("\t", "    ")) for line in text.splitlines())


def _call_in(body: Mapping[str, Any]) -> str | None:
    """Return the tool call of a thought as `list_files {"path": "."}`; None for other thoughts."""
    call = object_at(body, "actionInput")
    if body.get("action") != "tool" or not call:
        return None
    arguments = call.get("arguments")
    shown = f" {arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)}"
    shown = shown if arguments else ""
    return words.clip(clean(f"{call.get('tool') or call.get('name') or 'a tool'}{shown}"), _CALL_CHARS)
