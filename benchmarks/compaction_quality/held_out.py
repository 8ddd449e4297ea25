"""Facts in other words and in other languages, which nobody looked at while the extract was written.

The texts are in `held_out/`: facts, filler and replies. A session states each fact once, among filler, by three people
and the agent; the filler repeats, and after the first round only filler follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from uuid import UUID

from benchmarks.compaction_quality.session import Entry, Role

LANGUAGES = ("english", "german", "japanese")
_FOLDER = Path(__file__).with_name("held_out")
_SMALL_TALK_TURNS = 2


@dataclass(frozen=True, slots=True)
class HeldOutFact:
    """A fact that a line of the context states if it has all of `needs`, and not if only `stale` is there."""

    kind: str
    by: str | None
    text: str
    needs: tuple[str, ...]
    stale: str | None = None

    def is_in(self, context: str) -> bool:
        """Return whether a line of the context states it."""
        return any(all(need in line for need in self.needs) for line in context.lower().splitlines())


@dataclass(frozen=True, slots=True)
class HeldOutTexts:
    """The texts of one language."""

    facts: tuple[HeldOutFact, ...]
    filler: tuple[str, ...]
    replies: tuple[str, ...]


@cache
def read_texts(language: str) -> HeldOutTexts:
    """Read the texts of a language."""
    parts: list[list[str]] = []
    for line in (_FOLDER / f"{language}.txt").read_text("utf-8").splitlines():
        if line.startswith("# "):
            parts.append([])
        elif line:
            parts[-1].append(line)
    facts, filler, replies = parts
    return HeldOutTexts(tuple(map(_fact, facts)), tuple(filler), tuple(replies))


def _fact(line: str) -> HeldOutFact:
    kind, author, text, needs = (part.strip() for part in line.split(" | "))
    words = [need.strip() for need in needs.split(";")]
    stale = words.pop() if kind == "changed value" else None
    return HeldOutFact(kind, author or None, text, tuple(word.lower() for word in words), stale)


def rounds(language: str, seed: int, number: int) -> Iterator[list[list[Entry]]]:
    """Yield the turns of each round; the first one has all facts."""
    texts, rng = read_texts(language), Random(seed)
    filler, people = cycle(rng.sample(texts.filler, len(texts.filler))), sorted({f.by for f in texts.facts if f.by})

    def entry(role: Role, text: str, by: str | None = None) -> Entry:
        return Entry(role, text, str(UUID(int=rng.getrandbits(128), version=4)), by)

    def turn(asked: str, by: str | None = None, said: str = "") -> list[Entry]:
        reply = f"{rng.choice(texts.replies)} {said}".strip()
        return [entry("user", asked, by or rng.choice(people)), entry("assistant", reply)]

    stated = rng.sample(texts.facts, len(texts.facts))
    first: list[list[Entry]] = []
    for fact in stated:
        first += [turn(next(filler)), turn(f"{next(filler)} {next(filler)}")]
        if fact.stale:
            first.append(turn(fact.stale, fact.by))
        first.append(turn(f"{next(filler)} {fact.text}", fact.by) if fact.by else turn(next(filler), None, fact.text))
    yield first + [turn(next(filler)) for _ in range(_SMALL_TALK_TURNS)]
    for _ in range(number - 1):
        yield [turn(next(filler)) for _ in range(_SMALL_TALK_TURNS)]
