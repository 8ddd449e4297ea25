"""[pure] Limit how much of a tool result enters the context. Sizes are projected, and labelled so in notices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

OnLong = Literal["cut", "refuse"]
Project = Callable[[str], int]  # returns the projected tokens of a text

_STEP_PART: Final = 32
"""A text that does not fit loses at least 1/32, so that finding its size takes time linear in its length."""

MIN_RESULT_TOKENS: Final = 64  # limit of a result without any room; a shorter text would be useless

SHARE_WHEN_FULL: Final = 4
"""In a nearly full window results may take a quarter of it; a compaction then makes room for them."""

CUT = (
    "\n[... about {tokens:,} tokens (projected) of this result are omitted; the complete result is kept as {id} ...]\n"
)
REFUSED = (
    "Error: this result of about {tokens:,} tokens (projected) exceeds the {limit:,} tokens of room;"
    " it is kept as {id}."
)


@dataclass(frozen=True, slots=True)
class Room:
    """The room in a context window: `free_tokens` now, `most_tokens` after removing everything removable."""

    window_tokens: int
    free_tokens: int
    most_tokens: int

    @property
    def for_results(self) -> int:
        """Tokens for all results of one reply."""
        # Half of the free tokens, but at least a quarter of the window if a compaction can free that much.
        wanted = max(self.free_tokens // 2, self.window_tokens // SHARE_WHEN_FULL)
        return max(0, min(wanted, self.most_tokens // 2))


@dataclass(frozen=True, slots=True)
class ResultBound:
    """The size limit of a single result, and the handling of longer ones. None: limited only by the room."""

    max_tokens: int | None = None
    on_long: OnLong = "cut"

    def limits(self, sizes: Mapping[str, int], room: Room) -> dict[str, int]:
        """Return each result's limit in tokens, by key. Long results get the unused room of short ones."""
        return fair_shares(sizes, room.for_results, least=MIN_RESULT_TOKENS, most=self.max_tokens)

    def bounded(self, text: str, limit_tokens: int, project: Project, *, kept_as: str) -> str | None:
        """Return the replacement of a result that exceeds the limit; None if it fits. `kept_as`: its id."""
        tokens = project(text)
        if tokens <= limit_tokens:
            return None
        if self.on_long == "refuse":
            return REFUSED.format(tokens=tokens, limit=limit_tokens, id=kept_as)
        return cut_in_the_middle(text, tokens, limit_tokens, project, kept_as=kept_as)


def fair_shares(sizes: Mapping[str, int], room: int, *, least: int = 0, most: int | None = None) -> dict[str, int]:
    """Divide room by key: equally, but large shares get the unused room of small ones.

    Each share is between `least` and `most`.
    """
    shares: dict[str, int] = {}
    for done, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        share = max(least, room // (len(sizes) - done))
        shares[key] = share if most is None else min(share, most)
        room = max(0, room - min(size, shares[key]))
    return shares


def cut_in_the_middle(text: str, tokens: int, limit_tokens: int, project: Project, *, kept_as: str) -> str:
    """Return the start and the end of a text, with a notice about the missing part between them."""
    room = max(0, limit_tokens - project(CUT.format(tokens=tokens, id=kept_as)))
    kept_chars = min(len(text), len(text) * room // tokens)
    head, tail, kept_tokens = "", "", 0
    while kept_chars > 0:
        head, tail = text[: (kept_chars + 1) // 2], text[len(text) - kept_chars // 2 :]
        kept_tokens = project(head) + project(tail)
        if kept_tokens <= room:
            break
        kept_chars = min(kept_chars * room // kept_tokens, kept_chars - 1 - kept_chars // _STEP_PART)
        head, tail, kept_tokens = "", "", 0
    return f"{head}{CUT.format(tokens=max(1, tokens - kept_tokens), id=kept_as)}{tail}".strip()


def beginning(text: str, limit_tokens: int, project: Project) -> str:
    """Return the longest start of a text within `limit_tokens`."""
    chars, tokens = len(text), project(text)
    while chars and tokens > limit_tokens:
        chars = min(chars * max(0, limit_tokens) // tokens, chars - 1 - chars // _STEP_PART)
        tokens = project(text[:chars])
    return text[:chars]
