"""Chats that share a turn: how they join it, their progress, and the sections of its answer.

Works on stored chats. Does not know the store, the model, or which participants are agents.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mew_agent.context.store import StoredChat
from mew_agent.settings import BetweenSteps

INTRODUCTION: Final = (
    "[Several messages wait. Each begins with a line such as `### {first}`. Answer every message in a section of its"
    " own, in the same order: first its line, then the answer to this message alone. Write nothing before the first"
    " line.]"
)
"""Precedes the first of several messages that are answered together."""

Rank = tuple[bool, bool]
"""The order of senders while many chats wait: people before agents, those with one chat before those with several."""


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """One answer of a turn, and its chats."""

    text: str
    chats: tuple[StoredChat, ...]


# -- which chats ---------------------------------------------------------------------------------------------


def entering(waiting: Iterable[StoredChat], question: StoredChat, mode: BetweenSteps) -> tuple[StoredChat, ...]:
    """Return the waiting chats that may join a question's running turn, in order."""
    return _plain(one for one in waiting if _is_let_in(one, question, mode) and _is_same_session(one, question))


def _is_let_in(chat: StoredChat, question: StoredChat, mode: BetweenSteps) -> bool:
    match mode:
        case "never":
            return False
        case "all":
            return True
        case "asker" | "urgent":
            is_urgent = mode == "urgent" and chat.envelope.body.get("urgent") is True
            return is_urgent or chat.envelope.sender == question.envelope.sender


def _is_same_session(chat: StoredChat, question: StoredChat) -> bool:
    session = chat.envelope.body.get("session")
    is_own = session is None or chat.envelope.sender == question.envelope.sender
    return is_own and session == question.envelope.body.get("session")


def ranks_of(waiting: Sequence[StoredChat], is_agent: Callable[[str], bool]) -> dict[str, Rank]:
    """Return the rank of each sender."""
    counts = Counter(one.envelope.sender for one in waiting)
    return {sender: (is_agent(sender), count > 1) for sender, count in counts.items()}


def answered_together(
    waiting: Sequence[StoredChat], question: StoredChat, ranks: Mapping[str, Rank], turns: Mapping[str, int]
) -> list[StoredChat]:
    """Return the chats to answer with a question: people before agents, senders in turn.

    A person's single question is answered alone. `turns` has when each sender was answered last.
    """
    asker = question.envelope.sender
    if question.envelope.body.get("session") is not None or not _plain((question,)) or ranks[asker] == (False, False):
        return []
    rounds, places = Counter((asker,)), dict[int, tuple[bool, int, int, int]]()
    chats = _plain(one for one in waiting if one.envelope.body.get("session") is None)
    for one in chats:
        sender = one.envelope.sender
        places[one.number] = ranks[sender][0], rounds[sender], turns.get(sender, 0), one.number
        rounds[sender] += 1
    return sorted(chats, key=lambda one: places[one.number])


def _plain(chats: Iterable[StoredChat]) -> tuple[StoredChat, ...]:
    """Return the chats that need no turn of their own. Stop at a sender's first chat that does."""
    found, blocked = list[StoredChat](), set[str]()
    for one in chats:
        sender, body = one.envelope.sender, one.envelope.body
        if one.form != "whole" or one.chosen_by is not None or body.get("response_format") is not None:
            blocked.add(sender)
        elif sender not in blocked:
            found.append(one)
    return tuple(found)


# -- how far a turn has come ---------------------------------------------------------------------------------


def begun(chat: StoredChat, question: StoredChat) -> StoredChat:
    """Return a chat that joined a turn, with the progress of its question."""
    if question.first_seq < 0 or chat.state == "cancelled":
        return chat
    return replace(chat, state="answering", turn=question.turn, first_seq=question.first_seq)


def fresh(chat: StoredChat) -> StoredChat:
    """Return a chat that joined a turn, as it was before joining."""
    return replace(chat, state="queued", joined=None, section="", turn=-1, first_seq=-1)


def to_answer_next(question: StoredChat, joined: Sequence[StoredChat]) -> tuple[StoredChat, ...]:
    """Return the chats left after a turn in which only the question was cancelled or never began."""
    if question.state not in ("cancelled", "queued"):
        return ()
    return tuple(one for one in joined if one.state != "cancelled")


def continued(chats: Sequence[StoredChat]) -> tuple[StoredChat, ...]:
    """Return the chats of a turn without its question. If the turn had begun, the first becomes the question."""
    if not chats or chats[0].state == "queued":
        return tuple(fresh(one) for one in chats)
    return (replace(chats[0], joined=None), *(replace(one, joined=chats[0].number) for one in chats[1:]))


def cancelled_turn(
    question: StoredChat, joined: Sequence[StoredChat], by: str | None = None
) -> tuple[StoredChat, tuple[StoredChat, ...]]:
    """Return the cancelled chats of a turn: with `by`, a sender's own chats, or all for another participant."""
    is_asker = any(one.envelope.sender == by for one in (question, *joined))
    kept = (by is None or (is_asker and one.envelope.sender != by) for one in joined)
    rest = (one if stays else replace(one, state="cancelled") for one, stays in zip(joined, kept, strict=True))
    return replace(question, state="cancelled"), tuple(rest)


# -- one answer ----------------------------------------------------------------------------------------------


def heading(section: str) -> str:
    """Return the line above a section."""
    return f"### {section}"


def prompt_text(chat: StoredChat, text: str, *, is_first: bool) -> str:
    """Return a text with its heading, as the model reads it in a turn with several sections."""
    introduction = f"{INTRODUCTION.format(first=chat.section)}\n" if is_first else ""
    return f"{introduction}{heading(chat.section)}\n{text}"


def replies(question: StoredChat, joined: Sequence[StoredChat]) -> tuple[SharedAnswer, ...]:
    """Return the answers in a question's `answer`, the question's own last.

    An answer without all sections goes to all chats.
    """
    text, chats = question.answer or "", (question, *joined)
    parts = divided(text, [one.section for one in chats]) if question.section else None
    if parts is None:
        return (SharedAnswer(text, chats),)
    return tuple(SharedAnswer(parts[one.section], (one,)) for one in (*joined, question))


def divided(text: str, sections: Collection[str]) -> dict[str, str] | None:
    """Return the text of each section; None unless all sections exist, numbered from 1.

    Each heading is a line of its own. Nothing may precede the first one.
    """
    mark = min(sections).partition("-")[0]
    parts: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.split("\n"):
        if line.startswith(heading(f"{mark}-")):
            name = f"{mark}-{len(parts) + 1}"
            if line.rstrip() != heading(name):
                return None
            lines = parts[name] = []
        elif lines is not None:
            lines.append(line)
        elif line.strip():
            return None
    texts = {name: "\n".join(lines).strip() for name, lines in parts.items()}
    return texts if all(texts.get(section) for section in sections) else None
