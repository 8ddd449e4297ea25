"""[pure] How much of a tool's result enters the context, and what stands there instead of the rest.

Sizes are projected by what was learnt of the model, and said to be so. Owns the bound and the cutting; where the whole
of a result is kept is the transcript's matter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

OnLong = Literal["cut", "refuse"]
Project = Callable[[str], int]
"""Tokens that a text will probably take."""

LEAST_TOKENS: Final = 64
"""What a result gets even where there is no room: less says nothing."""

SHARE_WHEN_FULL: Final = 4
"""Where the window is nearly full, results may take a quarter of it, for which older things have to go."""

CUT = "\n[... about {tokens:,} tokens (projected) of this result are left out; the whole is kept as {id} ...]\n"
REFUSED = (
    "Error: this result of about {tokens:,} tokens (projected) is longer than the {limit:,} that there is room for;"
    " it is kept as {id}."
)


@dataclass(frozen=True, slots=True)
class Room:
    """What there is room for, in tokens. `free_tokens` now; `most_tokens` if all that may go has gone."""

    window_tokens: int
    free_tokens: int
    most_tokens: int

    @property
    def for_results(self) -> int:
        """What all results of one reply may take together: half of what is free, and at least a quarter of the window
        unless that cannot be had.
        """
        wanted = max(self.free_tokens // 2, self.window_tokens // SHARE_WHEN_FULL)
        return max(0, min(wanted, self.most_tokens // 2))


@dataclass(frozen=True, slots=True)
class ResultBound:
    """The policy: `max_tokens` for one result (None: only the room bounds it), and what becomes of a longer one."""

    max_tokens: int | None = None
    on_long: OnLong = "cut"

    def limits(self, sizes: Mapping[str, int], room: Room) -> dict[str, int]:
        """How much each of several results may take, by their keys. Short ones leave room to long ones."""
        left, waiting = room.for_results, dict(sizes)
        limits: dict[str, int] = {}
        for key, size in sorted(sizes.items(), key=lambda one: one[1]):
            share = max(LEAST_TOKENS, left // len(waiting))
            limits[key] = share if self.max_tokens is None else min(share, self.max_tokens)
            left = max(0, left - min(size, limits[key]))
            del waiting[key]
        return limits

    def bounded(self, text: str, limit_tokens: int, project: Project, *, kept_as: str) -> str | None:
        """What enters in place of a result that is too long; None for one that is not."""
        tokens = project(text)
        if tokens <= limit_tokens:
            return None
        if self.on_long == "refuse":
            return REFUSED.format(tokens=tokens, limit=limit_tokens, id=kept_as)
        return cut_in_the_middle(text, tokens, limit_tokens, project, kept_as=kept_as)


def cut_in_the_middle(text: str, tokens: int, limit_tokens: int, project: Project, *, kept_as: str) -> str:
    """Beginning and end of a text of `tokens`, and between them a note of how much is missing, and where it is."""
    room = max(0, limit_tokens - project(CUT.format(tokens=tokens, id=kept_as)))
    kept_chars = min(len(text), len(text) * room // tokens)
    head, tail, kept_tokens = "", "", 0
    while kept_chars > 0:
        head, tail = text[: (kept_chars + 1) // 2], text[len(text) - kept_chars // 2 :]
        kept_tokens = project(head) + project(tail)
        if kept_tokens <= room:
            break
        kept_chars = min(kept_chars * room // kept_tokens, kept_chars - 1)
        head, tail, kept_tokens = "", "", 0
    return f"{head}{CUT.format(tokens=max(1, tokens - kept_tokens), id=kept_as)}{tail}".strip()


def beginning(text: str, limit_tokens: int, project: Project) -> str:
    """As much of a text from its beginning as takes no more than `limit_tokens`."""
    chars, tokens = len(text), project(text)
    while chars and tokens > limit_tokens:
        chars = min(chars * max(0, limit_tokens) // tokens, chars - 1)
        tokens = project(text[:chars])
    return text[:chars]
