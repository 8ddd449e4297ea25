"""[pure] Prompts that a chat client sends by itself: titles, tags, suggestions. The agent never hears them.

Open WebUI asks the model of a chat for the chat's title and more, over the same request as a question. To a
stateless model that is harmless; an agent would remember each of them as something it was told. So the door
answers them itself, as sparely as their client accepts.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

_HISTORY: Final = re.compile(r"<chat_history>(.*)</chat_history>", re.DOTALL)
_FIRST_SAID: Final = re.compile(r"^\s*user\s*:\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_KEYS: Final = ("title", "tags", "follow_ups", "queries", "prompt", "text")
_MAX_TITLE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """What a background prompt gets. `task` names what it asked for."""

    task: str
    text: str


def answer_in_background(text: str, system: str = "") -> BackgroundAnswer | None:
    """The answer to a client's own prompt, or None for what a person asked.

    A title is the start of what was said first; of everything else there is nothing to say: empty lists.
    """
    if system.lstrip().startswith("Available Tools:") and '"tool_calls"' in system:
        return BackgroundAnswer("tool_calls", json.dumps({"tool_calls": []}))
    history = _HISTORY.search(text)
    if history is None or not text.lstrip().startswith("### Task:"):
        return None
    order = text[: history.start()] + text[history.end() :]
    task = next((key for key in _KEYS if re.search(rf'"{key}"\s*:', order)), None)
    match task:
        case None:
            return None
        case "title":
            return BackgroundAnswer(task, json.dumps({"title": _title(history[1])}, ensure_ascii=False))
        case "prompt" | "text":
            return BackgroundAnswer(task, json.dumps({task: ""}))
        case _:
            return BackgroundAnswer(task, json.dumps({task: []}))


def _title(history: str) -> str:
    """The first words of the conversation, cut at a word."""
    said = _FIRST_SAID.search(history)
    title = " ".join(said[1].split()) if said else ""
    if len(title) <= _MAX_TITLE_CHARACTERS:
        return title
    cut = title[:_MAX_TITLE_CHARACTERS].rpartition(" ")[0] or title[:_MAX_TITLE_CHARACTERS]
    return f"{cut} ..."
