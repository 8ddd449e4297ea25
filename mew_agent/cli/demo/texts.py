"""[pure] Cuts the demo's files into parts that fit into a chat."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

PART_CHARS = 900


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text, small enough for one chat."""

    source: str
    number: int
    text: str


def split_text(source: PurePath, text: str, *, part_chars: int = PART_CHARS) -> list[TextPart]:
    """Cut a text at paragraphs, else at sentences, else anywhere, into parts of at most `part_chars`."""
    parts: list[str] = []
    for piece in _pieces(text, part_chars):
        if parts and len(parts[-1]) + len(piece) + 2 <= part_chars:
            parts[-1] = f"{parts[-1]}\n\n{piece}"
        else:
            parts.append(piece)
    return [TextPart(source.name, number, part) for number, part in enumerate(parts, start=1)]


def _pieces(text: str, part_chars: int) -> Iterable[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        rest = paragraph.strip()
        while len(rest) > part_chars:
            cut = _cut(rest, part_chars)
            yield rest[:cut].strip()
            rest = rest[cut:].strip()
        if rest:
            yield rest


def _cut(text: str, part_chars: int) -> int:
    """Where to cut: after the last full stop, line or word that leaves a part of reasonable size."""
    for mark in (". ", "。", "\n", " "):
        place = text.rfind(mark, 0, part_chars)
        if place > part_chars // 4:
            return place + 1
    return part_chars
