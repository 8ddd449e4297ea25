"""Let a participant answer chats with another library's agent, and report and carry out what its context needs.

Owns the order of one conversation: a chat, the report of its figures, the answer; and compactions between chats. Does
not know the library: `ask` calls it, and a function of `results` reads what it returned.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent.conversation.texts import EMPTY_ANSWER
from mew_agent.errors import InvalidReport
from mew_agent.participant.events import ChatReceived
from mew_agent.participant.participant import Participant
from mew_agent.parts.integrations.results import LibraryReply

Ask = Callable[[str, Sequence[Any]], Awaitable[Any]]
"""Asks the library: the text of a chat, and the history so far in the library's form. Returns its result."""


def answer_chats(
    me: Participant,
    ask: Ask,
    read: Callable[[Any], LibraryReply],
    *,
    window: int | None = None,
    model: str | None = None,
) -> list[Any]:
    """Answer every chat to `me` with what `read` finds in the result of `ask`; call it before `me` joins.

    After each turn it reports the usage of the last call, `unknown` if there is none. A compaction keeps the last turn,
    a clear nothing; both wait for a running turn. `window` is the size of the model's window in tokens. Returns the
    history, which your own handlers may change. An exception of `ask` is answered to the sender of the chat.
    """
    history: list[Any] = []
    last_turn = 0
    turn = anyio.Lock()

    @me.on_chat
    async def answer(chat: ChatReceived) -> None:
        nonlocal last_turn
        if not chat.is_to_me or chat.is_answer:
            return
        async with turn:
            reply = read(await ask(chat.text, tuple(history)))
            last_turn = len(history)
            history[:] = reply.history
            try:
                if reply.usage is None:
                    await me.report_context(unknown="usage_unavailable")
                else:
                    await me.report_context(usage=reply.usage, window=window, messages=len(history), model=model)
            except InvalidReport:  # the answer counts, whatever the provider reported
                await me.report_context(unknown="usage_implausible")
        await chat.reply(reply.text or EMPTY_ANSWER)

    @me.on_compact
    async def compact(_request: Compact) -> CompactDone:
        nonlocal last_turn
        async with turn:
            if not last_turn:
                return CompactDone.as_skipped("no_history")
            freed, last_turn = last_turn, 0
            del history[:freed]
        return CompactDone(status="compacted", freed_messages=freed)

    @me.on_clear
    async def clear() -> None:
        nonlocal last_turn
        async with turn:
            history.clear()
            last_turn = 0

    return history
