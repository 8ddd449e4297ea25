"""Texts outside an agent's context: chats that entered as a reference or a digest, and the tools that read them.

Owns the notes that replace a chat's whole text; the store keeps the text. A digest quotes sentences without a model,
because the text may not fit into a request. Does not choose the form of a chat.

Offers each tool as soon as there is something to recall: earlier it would only confuse a model and lengthen prompts.
The tool then stays, so that a provider's cache loses the prefix only once.
"""

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import anyio.to_thread
from mew_protocol.payloads.retrieval import MAX_RECALLED, Recall

from mew_agent.compaction.extract import extract
from mew_agent.compaction.ranking import by_worth
from mew_agent.context.history import Item, ItemRole
from mew_agent.context.store import ChatForm
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation_archive import ContextArchive
from mew_agent.model.interface import ToolSpec
from mew_agent.prompt_tags import in_tag
from mew_agent.tools.bounds import beginning
from mew_agent.tools.functions import ToolCallFailed
from mew_agent.tools.sources import FunctionTools

RECALL: Final = "recall"
RECALL_RESULT: Final = "recall_result"
READ_REFERENCE: Final = "read_reference"
HEADING: Final = "[{id}, characters {start:,} to {end:,} of {whole:,}]\n"
NOTHING_FOUND: Final = "No message that left the context contains these words: {words}"
MAX_WORDS_CHARS: Final = 1_000
EXTRACT_CHARS: Final = 2_000  # of one message, at most
NO_SENTENCES: Final = "No sentence of it states a rule, a decision or a fact; read parts of it."
SLACK_TOKENS: Final = 8
"""The sizes of two texts do not add up exactly to the size of both together."""

EDGE_CHARS: Final = 600
"""How much of the start and of the end of a text is shown: requests usually stand at one of them."""

DIGEST_CHARS: Final = 4_000

REFERENCE: Final = (
    "[A message of {chars:,} characters, about {tokens:,} tokens (projected), is too long for your context and is kept"
    ' as "{id}". Read the parts that you need with the tool read_reference.'
)
QUOTED: Final = " Sentences that it contains, quoted in order:\n"
EDGES: Final = " Its start and its end:]\n"


READ_CHARS: Final[Mapping[ChatForm, int | None]] = {
    "whole": None,
    "reference": 2 * EDGE_CHARS,
    "digest": 2 * EDGE_CHARS + DIGEST_CHARS,
}
"""About how much of a chat's text enters the context in each form, for measuring; None: all of it."""


async def as_referred_to(text: str, form: ChatForm, state: ContextState) -> tuple[str, str, tuple[str, str] | None]:
    """Return the agent's note about a chat in this form, and the part of its text that enters the context.

    If a part is left out, also return the id and the text for the store.
    """
    if form == "whole" or len(text) <= 2 * EDGE_CHARS:
        return "", text, None
    name = str(uuid4())
    sentences = await anyio.to_thread.run_sync(important_sentences, text) if form == "digest" else ()
    tokens = await anyio.to_thread.run_sync(state.project, text)
    note = REFERENCE.format(chars=len(text), tokens=tokens, id=name)
    edges = f"{text[:EDGE_CHARS]}\n[...]\n{text[-EDGE_CHARS:]}"
    if not sentences:
        return f"{note}{EDGES}", edges, (name, text)
    return f"{note}{QUOTED}", "\n".join((*sentences, f"{EDGES}{edges}")), (name, text)


def important_sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text with rules, decisions and facts, in order, as many as a digest may contain."""
    found = extract([Item(0, "user", text, 0, "", "")]).facts
    room, kept = DIGEST_CHARS, set[str]()
    for fact in by_worth(found):
        if len(fact.text) < room:
            room -= len(fact.text) + 1
            kept.add(fact.text)
    return tuple(dict.fromkeys(fact.text for fact in found if fact.text in kept))


class RecallTools(FunctionTools):
    """The source of these tools; see `ToolSource`."""

    def __init__(self, state: ContextState, archive: ContextArchive) -> None:
        self._state, self._archive = state, archive
        self._offered: set[str] = set()
        super().__init__(self.recall_result, self.recall, self.read_reference)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. An offered tool stays, because prompts with different tools are not comparable."""
        state = self._state
        if "tool" in state.kept_outside or any(item.stubbed for item in state.history.items):
            self._offered.add(RECALL_RESULT)
        if state.history.summary is not None:
            self._offered.add(RECALL)
        if any(item.is_reference for item in state.history.items):
            self._offered.add(READ_REFERENCE)
        return tuple(spec for spec in self.methods if spec.name in self._offered)

    async def recall(self, words: str, limit: int = 5) -> str:
        """Search the earlier messages that the summary replaced, when it lacks a detail."""
        request = Recall(words=words[:MAX_WORDS_CHARS] or " ", limit=min(max(limit, 1), MAX_RECALLED))
        done = await self._archive.recall(request, EXTRACT_CHARS)
        if done.error is not None:
            raise ToolCallFailed(done.error)
        if not done.found:
            return NOTHING_FOUND.format(words=words)
        parts = (in_tag(one.text, {"from": one.sender or one.role, "at": one.at}) for one in done.found)
        shown, state = "\n\n".join(parts), self._state
        limits = state.result_bound.limits({RECALL: state.project(shown)}, state.room())
        return beginning(shown, limits[RECALL], state.project)

    async def recall_result(
        self,
        id: str,  # noqa: A002 - a model's word
        start: int = 0,
        find: str | None = None,
        digest: bool = False,
    ) -> str:
        """Read a part of a tool result that was cut or cleared to save context, by the id in the note about it.

        The part begins at character `start`, or at the first occurrence of the text `find` after it. With `digest`,
        read the sentences with rules, decisions and facts instead, quoted from all of it.
        """
        return await self._part(id, "tool", start, find, digest=digest)

    async def read_reference(self, id: str, start: int = 0, find: str | None = None) -> str:  # noqa: A002
        """Read a part of a message that is kept outside your context, by the id in the note that stands for it.

        The part begins at character `start`, or at the first occurrence of the text `find` after it.
        """
        return await self._part(id, "user", start, find)

    async def _part(
        self,
        id: str,  # noqa: A002
        role: ItemRole,
        start: int,
        find: str | None,
        *,
        digest: bool = False,
    ) -> str:
        state = self._state
        item = await state.store.recall(id)
        if item is None or item.role != role:
            raise ToolCallFailed(f"nothing is stored as '{id}'")
        whole = item.content
        if digest:
            whole = "\n".join(await anyio.to_thread.run_sync(important_sentences, item.content)) or NO_SENTENCES
        place = whole.find(find, max(0, start)) if find else max(0, start)
        if place < 0 or place >= len(whole):
            what = f"the text does not occur after character {start:,}" if find else "the start is past its end"
            raise ToolCallFailed(f"'{id}' has {len(whole):,} characters; {what}")
        room = state.room()

        def read() -> str:
            limits = state.result_bound.limits({id: state.project(whole)}, room)
            heading_tokens = state.project(HEADING.format(id=id, start=place, end=len(whole), whole=len(whole)))
            return beginning(whole[place:], limits[id] - heading_tokens - SLACK_TOKENS, state.project)

        part = await anyio.to_thread.run_sync(read)  # a result may have many megabytes
        return HEADING.format(id=id, start=place, end=place + len(part), whole=len(whole)) + part
