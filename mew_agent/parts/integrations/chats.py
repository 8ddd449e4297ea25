"""Let a participant answer chats with another library's agent, report its context, and compact it.

Owns the engine: one turn of the library, the report of its figures, and compactions between turns. `ask` calls the
library, and a function of `library_results` reads its result.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent.agent.address_filter import AddressFilter, AnswerBroadcasts
from mew_agent.agent.engine import AgentSide, Answering, Engine
from mew_agent.agent.runtime import AgentRuntime
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore, Store
from mew_agent.context.store import ChatRefusal, InboxChange, StoredChat
from mew_agent.conversation.texts import EMPTY_ANSWER
from mew_agent.errors import InvalidReport, described
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.parts.integrations.library_results import LibraryReply
from mew_agent.prompt_tags import spoken
from mew_agent.settings import LoopLimits

Ask = Callable[[str, Sequence[Any]], Awaitable[Any]]
"""Asks the library: the text of a chat, and the history so far in the library's form. Returns its result."""


def answer_chats(
    me: Participant,
    ask: Ask,
    read: Callable[[Any], LibraryReply],
    *,
    window: int | None = None,
    model: str | None = None,
    answer_broadcasts: AnswerBroadcasts = "never",
    limits: LoopLimits | None = None,
    store: Path | None = None,
) -> list[Any]:
    """Answer chats to `me` with the text that `read` finds in the result of `ask`. Use it before `me` joins.

    After each turn it reports the usage of the last call, `unknown` if there is none. A compaction keeps the last turn,
    a clear nothing; both wait for a running turn. `window` is the size of the model's window in tokens. Returns the
    history, which your own handlers may change. An exception of `ask` is answered to the sender of the chat.

    `answer_broadcasts` `rules` also answers questions to everyone. `limits` are those of agents. `store` is a file that
    keeps waiting chats across restarts.
    """
    engine = LibraryEngine(me, ask, read, window, model, MemoryStore() if store is None else SqliteStore(store))
    chosen = AddressFilter((me.id,), answer_broadcasts)
    AgentRuntime(me, engine, engine.store, chosen, limits or LoopLimits(), shows_reasoning=False)
    return engine.history


class LibraryEngine(Engine):
    """Answers with another library and keeps the messages in `history`."""

    def __init__(
        self,
        me: Participant,
        ask: Ask,
        read: Callable[[Any], LibraryReply],
        window: int | None,
        model: str | None,
        store: Store,
    ) -> None:
        super().__init__(me)
        self.store = store
        self.history: list[Any] = []
        self._ask, self._read, self._window, self._model = ask, read, window, model
        self._last_turn = 0
        self._turn = anyio.Lock()
        me.on_compact(self._compact)
        me.on_clear(self._clear)

    async def load(self) -> None:
        """See `Engine`."""
        await self.store.load()

    async def aclose(self) -> None:
        """Close the store of the inbox."""
        await self.store.aclose()

    async def answering(self, question: StoredChat, reasoning: Reasoning) -> Answering:
        """See `Engine`."""
        return LibraryAnswer(question, self._answer, self.agent)

    async def _answer(self, text: str) -> LibraryReply:
        """Run one turn, and report its figures."""
        async with self._turn:
            reply = self._read(await self._ask(text, tuple(self.history)))
            self._last_turn = len(self.history)
            self.history[:] = reply.history
            messages = len(self.history)
            try:
                if reply.usage is None:
                    await self.me.report_context(unknown="usage_unavailable")
                else:
                    await self.me.report_context(
                        usage=reply.usage, window=self._window, messages=messages, model=self._model
                    )
            except InvalidReport:  # keep the answer even with an invalid report
                await self.me.report_context(unknown="usage_implausible")
        return reply

    async def _compact(self, _request: Compact) -> CompactDone:
        async with self._turn:
            if not self._last_turn:
                return CompactDone.as_skipped("no_history")
            freed, self._last_turn = self._last_turn, 0
            del self.history[:freed]
        return CompactDone(status="compacted", freed_messages=freed)

    async def _clear(self) -> None:
        async with self._turn:
            self.history.clear()
            self._last_turn = 0


class LibraryAnswer(Answering):
    """One answer of a library."""

    def __init__(
        self, question: StoredChat, answer: Callable[[str], Awaitable[LibraryReply]], agent: AgentSide
    ) -> None:
        self._chat, self._answer, self._agent = question.envelope, answer, agent
        self._remarks: list[Envelope] = []
        self._tokens, self._unreported = 0, 0

    @property
    def spent(self) -> tuple[int, int]:
        return self._tokens, self._unreported

    async def add_remark(self, remark: Any, removed: InboxChange) -> bool:
        self._remarks.append(remark)
        return False

    async def make(self) -> str:
        self._unreported = 1
        remarks = (spoken(text_at(one.body, "text"), one.sender) for one in self._remarks)
        reply = await self._answer("\n".join((*remarks, text_at(self._chat.body, "text"))))
        await self._agent.prompt_read((*self._remarks, self._chat))
        if reply.usage is not None:
            self._tokens, self._unreported = reply.usage.total_tokens, 0
        return reply.text or EMPTY_ANSWER

    async def failed(self, error: Exception) -> ChatRefusal:
        self.failure = type(error).__name__
        return ChatRefusal(f"its program failed: {described(error)}", "program_failed")
