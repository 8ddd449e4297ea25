"""What is said in a space, sorted for an agent: chats to answer in their order, and remarks to remember.

Owns how many of both are kept, and that whoever asked may take a question back. Whether a chat is for us is the matter
of `concerns`; it answers none, and tells nobody anything.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import anyio
from mew_protocol.envelope import Envelope

from mew_agent.agent.address_filter import Concerns

MAX_QUEUED_CHATS = 100

MAX_OVERHEARD_CHATS = 200
"""Beyond it the oldest of what was said around us is not remembered."""


class Inbox:
    """See the module. Where it `answers` nothing, everything is a remark. Its length is how many chats wait."""

    def __init__(self, me: str, concerns: Concerns, *, answers: bool) -> None:
        self._me = me
        self._concerns = concerns
        self._answers = answers
        self._waiting: deque[Envelope] = deque()
        self._overheard: deque[Envelope] = deque(maxlen=MAX_OVERHEARD_CHATS)
        self._came = anyio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, chat: Envelope, *, is_busy: bool) -> str | None:
        """Sort a chat. Returns what its sender is to be told at once: that it waits, or that there is no room."""
        text = chat.body.get("text")
        if not isinstance(text, str) or not text:
            return None
        is_full = len(self._waiting) >= MAX_QUEUED_CHATS
        verdict = self._concerns.by_rules(chat) if self._answers else False
        if verdict is None and is_full:
            verdict = False
        if verdict is False:
            if chat.is_for(self._me):
                self._overheard.append(chat)
            return None
        if is_full:
            return f"refused: {MAX_QUEUED_CHATS} chats are waiting already"
        has_to_wait = is_busy or len(self._waiting) > 0
        self._waiting.append(chat)
        self._came.set()
        return "queued" if verdict and has_to_wait else None

    def take_back(self, cancel: Envelope) -> None:
        """Whoever asked does not want the answer any more."""
        self._waiting = deque(chat for chat in self._waiting if not is_about(cancel, chat))

    async def next(self, until_active: Callable[[], Awaitable[None]]) -> Envelope:
        """The next chat that is for us, once there is one and we are active. Until it is decided on, it waits."""
        while True:
            while not self._waiting:
                self._came = anyio.Event()
                await self._came.wait()
            await until_active()
            if not self._waiting:
                continue
            chat = self._waiting[0]
            is_for_us = await self._concerns.confirmed(chat)
            if not self._waiting or self._waiting[0] is not chat:
                continue  # taken back meanwhile
            self._waiting.popleft()
            if is_for_us:
                return chat
            self._overheard.append(chat)

    def overheard(self) -> Iterator[Envelope]:
        """What was said around us since the last time, in order; each is given once."""
        while self._overheard:
            yield self._overheard.popleft()


def is_about(cancel: Envelope, chat: Envelope) -> bool:
    """Whether a `chat/cancel` takes this chat back: only its sender may."""
    return cancel.refers_to(chat.id) and chat.sender == cancel.sender
