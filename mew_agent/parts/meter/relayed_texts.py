"""[pure] Find chats of the space in the requests that a meter relays.

Owns the list of searched chats, the criterion (the whole text, word for word), and its limits: a text that is short or
part of another may be there for another reason. Keeps texts of chats, but not of requests. `main_line` decides which
calls belong to the agent's own conversation.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mew_listener.bounded_dict import BoundedDict, Shares
from mew_protocol.json_values import texts_in

from mew_agent.context.message_facts import MessageKey

MAX_CHATS: Final = 128
"""How many of the newest chats are looked for. With more, the sender with the most loses its oldest."""

MIN_CHARS: Final = 16
"""A shorter text occurs by chance."""

MAX_CHARS: Final = 20_000
"""A longer text is not looked for."""

MAX_MESSAGES: Final = 4_096
"""How many messages of requests are known, so that each is searched once for a chat."""

TOO_SHORT: Final = f"its text is too short to be recognised in a prompt (less than {MIN_CHARS} characters)"
TOO_LONG: Final = f"its text is too long to be looked for (more than {MAX_CHARS:,} characters)"
SAME_WORDS: Final = "another message holds the same words"
WAS_THERE: Final = "its words were in a prompt before it was sent"

NOTHING: Final[frozenset[int]] = frozenset()


@dataclass(eq=False, slots=True)
class TrackedChat:
    """A searched chat. `number` counts from 1. `problem`: why finding its words proves nothing."""

    key: MessageKey
    number: int
    forms: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The chats found in one request: their numbers, the numbers of those found in an older message, and per searched
    message its finds and the newest chat searched for.
    """

    held: frozenset[int] = NOTHING
    were_there: frozenset[int] = NOTHING
    searched: Sequence[tuple[str, frozenset[int], int]] = ()


NOT_SEARCHED: Final = Found()


def _unfit_length(chars: int) -> str | None:
    return TOO_SHORT if chars < MIN_CHARS else TOO_LONG if chars > MAX_CHARS else None


class RelayedTexts:
    """The newest chats, and the messages of requests that contain them."""

    def __init__(self) -> None:
        self._chats: dict[MessageKey, TrackedChat] = {}
        self._shares = Shares[MessageKey]()
        self._messages: BoundedDict[str, tuple[frozenset[int], int]] = BoundedDict(MAX_MESSAGES)
        """By the digest of a message and all before it: the chats that it holds, and the newest one looked for."""
        self._count = 0

    def add(self, key: MessageKey, text: str) -> None:
        """Search for a chat from now on."""
        self._count += 1
        text = text.strip()
        problem = _unfit_length(len(text))
        added = TrackedChat(key, self._count, () if problem else _forms_of(text), problem)
        for other in () if problem else self._chats.values():
            if any(text in form for form in other.forms):
                added.problem = SAME_WORDS
            if any(form in text for form in other.forms):
                other.problem = other.problem or SAME_WORDS
        self._chats.pop(key, None)  # a repeated chat becomes the newest
        self._chats[key] = added
        self._shares.add(key, key.sender)
        while (surplus := self._shares.surplus(MAX_CHATS)) is not None:
            self._shares.discard(surplus)
            del self._chats[surplus]

    def find(self, key: MessageKey) -> TrackedChat | None:
        """Return a searched chat; None if it is not, or no longer, searched for."""
        return self._chats.get(key)

    def numbered(self, numbers: frozenset[int]) -> list[TrackedChat]:
        """Return the chats with these numbers that are still searched for."""
        return [one for one in self._chats.values() if one.number in numbers] if numbers else []

    def senders_of(self, message_id: str) -> Iterator[str]:
        """Yield the senders of chats with this id, the newest first."""
        return (key.sender for key in reversed(self._chats) if key.id == message_id)

    def search(self, messages: Sequence[tuple[str, Mapping[str, Any]]]) -> Found:
        """Search the messages of one request, each with its digest. Changes nothing, so a thread may call it.

        Each message is searched once per chat, so the total time is linear in the new text.
        """
        chats = tuple(self._chats.values())
        newest = chats[-1].number if chats else 0
        held: set[int] = set()
        were_there: set[int] = set()
        searched: list[tuple[str, frozenset[int], int]] = []
        for digest, message in messages:
            known, last = self._messages.get(digest, (NOTHING, 0))
            if digest not in self._messages or last < newest:
                found = _held_by(message, [one for one in chats if one.number > last])
                if digest in self._messages:
                    were_there |= found
                    found = NOTHING
                known = known | found if found else known
                searched.append((digest, known, newest))
            held |= known
        return Found(frozenset(held), frozenset(were_there), searched)

    def note(self, found: Found) -> None:
        """Keep the result of a search."""
        for digest, held, newest in found.searched:
            self._messages[digest] = (held, newest)
        for chat in self._chats.values():
            if chat.number in found.were_there:
                chat.problem = chat.problem or WAS_THERE


def _held_by(message: Mapping[str, Any], chats: Sequence[TrackedChat]) -> frozenset[int]:
    """Return the numbers of the chats whose whole text is in a message."""
    if not chats:
        return NOTHING
    texts = [text for text in texts_in(message) if len(text) >= MIN_CHARS]
    found = (one.number for one in chats if any(form in text for form in one.forms for text in texts))
    return frozenset(found)


def _forms_of(text: str) -> tuple[str, ...]:
    """Return a text unchanged, and as it appears inside JSON tool results."""
    written = (json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))
    return tuple(dict.fromkeys((text, *written)))
