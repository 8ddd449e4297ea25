"""The chats that arrive at an agent: a queue of those to answer, and a memory of those to keep in mind.

Owns the limits of both, and that only the sender of a chat can cancel it. Does not decide which chats are for the agent
(see `AddressFilter`), and sends nothing.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import anyio
from mew_protocol.envelope import Envelope

from mew_agent.agent.address_filter import AddressFilter

MAX_QUEUED_CHATS = 100

MAX_OVERHEARD_CHATS = 200
"""Above this limit the oldest overheard chats are forgotten."""


class Inbox:
    """The inbox of one agent; its length is the number of queued chats. With `answers` False it queues none."""

    def __init__(self, agent_id: str, address_filter: AddressFilter, *, answers: bool) -> None:
        self._agent_id = agent_id
        self._filter = address_filter
        self._answers = answers
        self._queued: deque[Envelope] = deque()
        self._overheard: deque[Envelope] = deque(maxlen=MAX_OVERHEARD_CHATS)
        self._arrived = anyio.Event()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, chat: Envelope, *, is_busy: bool) -> str | None:
        """Queue or remember a chat. Returns the status to acknowledge it with: queued or refused; None for none."""
        text = chat.body.get("text")
        if not isinstance(text, str) or not text:
            return None
        is_full = len(self._queued) >= MAX_QUEUED_CHATS
        is_for_us = self._filter.check_rules(chat) if self._answers else False
        if is_for_us is None and is_full:
            is_for_us = False
        if is_for_us is False:
            if chat.is_for(self._agent_id):
                self._overheard.append(chat)
            return None
        if is_full:
            return f"refused: {MAX_QUEUED_CHATS} chats are waiting already"
        has_to_wait = is_busy or len(self._queued) > 0
        self._queued.append(chat)
        self._arrived.set()
        return "queued" if is_for_us and has_to_wait else None

    def cancel(self, cancel: Envelope) -> None:
        """Remove the queued chats that a `chat/cancel` refers to."""
        self._queued = deque(chat for chat in self._queued if not is_about(cancel, chat))

    async def next(self, until_active: Callable[[], Awaitable[None]]) -> Envelope:
        """Wait for the next chat that is for the agent, and until the agent is active.

        A chat stays in the queue, where it can be cancelled, until it is clear that it is for the agent.
        """
        while True:
            while not self._queued:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            await until_active()
            if not self._queued:
                continue
            chat = self._queued[0]
            is_for_us = await self._filter.is_for_us(chat)
            if not self._queued or self._queued[0] is not chat:
                continue  # cancelled meanwhile
            self._queued.popleft()
            if is_for_us:
                return chat
            self._overheard.append(chat)

    def take_overheard(self) -> Iterator[Envelope]:
        """Remove and return the overheard chats, oldest first."""
        while self._overheard:
            yield self._overheard.popleft()


def is_about(cancel: Envelope, chat: Envelope) -> bool:
    """Whether a `chat/cancel` cancels this chat; only the sender of the chat can."""
    return cancel.refers_to(chat.id) and chat.sender == cancel.sender
