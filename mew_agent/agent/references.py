"""How a chat enters the context if its sender chose to deliver it as a reference or a digest.

Owns the words that replace the whole text; the store keeps that, and the tool `read_reference` reads it. A digest
quotes sentences and is made without a model, because the text may not fit into a request. Does not decide the form.
"""

from typing import Final
from uuid import uuid4

import anyio.to_thread

from mew_agent.compaction.extract import by_weight, extract
from mew_agent.context.history import Item
from mew_agent.context.store import StoredChat
from mew_agent.conversation.context_state import ContextState

EDGE_CHARS: Final = 600
"""How much of the start and of the end of a text is shown: requests usually stand at one of them."""

DIGEST_CHARS: Final = 4_000

REFERENCE: Final = (
    "[A message of {chars:,} characters, about {tokens:,} tokens (projected), is too long for your context and is kept"
    ' as "{id}". Read the parts that you need with the tool read_reference.{what} Its start and its end:]\n'
    "{start}\n[...]\n{end}"
)
QUOTED: Final = " Sentences that it contains, quoted in order:\n{sentences}\n"


def text_as_read(chat: StoredChat) -> str:
    """Return about as much text as a chat brings into the context, for measuring."""
    text = str(chat.envelope.body.get("text") or "")
    shown = {"whole": len(text), "reference": 2 * EDGE_CHARS, "digest": 2 * EDGE_CHARS + DIGEST_CHARS}
    return text[: shown[chat.form]]


async def add_question(state: ContextState, chat: StoredChat, prefix: str) -> Item:
    """Add a chat to the history, in the form that was chosen for it."""
    asked = chat.envelope
    text = str(asked.body.get("text") or "")
    whole: tuple[str, str] | None = None
    if chat.form != "whole" and len(text) > 2 * EDGE_CHARS:
        whole = (str(uuid4()), text)
        sentences = await anyio.to_thread.run_sync(lambda: important_sentences(text)) if chat.form == "digest" else ()
        what = QUOTED.format(sentences="\n".join(sentences)) if sentences else ""
        tokens = await anyio.to_thread.run_sync(lambda: state.project(text))
        start, end = text[:EDGE_CHARS], text[-EDGE_CHARS:]
        text = REFERENCE.format(chars=len(text), tokens=tokens, id=whole[0], what=what, start=start, end=end)
    return await state.add_user_message(prefix + text, sender=asked.sender, envelope_id=asked.id, whole=whole)


def important_sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text with rules, decisions and facts, in order, as many as a digest may contain."""
    found = extract([Item(0, "user", text, 0, "", "")]).facts
    room, kept = DIGEST_CHARS, set[str]()
    for fact in by_weight(found):
        if len(fact.text) < room:
            room -= len(fact.text) + 1
            kept.add(fact.text)
    return tuple(dict.fromkeys(fact.text for fact in found if fact.text in kept))
