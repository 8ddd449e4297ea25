"""Offer tools and a resource: typed functions whose annotations become the schema."""

from collections import Counter
from typing import Annotated

from pydantic import Field

from mew_agent import ChatReceived, Participant, run

me = Participant.from_environment()
spoken: Counter[str] = Counter()


@me.tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@me.tool
async def longest_words(text: str, how_many: Annotated[int, Field(ge=1, le=20)] = 3) -> list[str]:
    """The longest words of a text, longest first."""
    return sorted(set(text.split()), key=lambda word: (-len(word), word))[:how_many]


@me.on_chat
async def listen(chat: ChatReceived) -> None:
    """Count the words of every chat; all members receive all chats."""
    spoken[chat.sender] += count_words(chat.text)


@me.resource("words://spoken", description="How many words each participant has sent.")
def words_spoken() -> dict[str, int]:
    """Runs each time the resource is read."""
    return dict(spoken)


run(me.take_part)
