"""A long working session with typed facts planted at all depths. Deterministic: a seed gives the same session.

Everything else in it is noise that looks alike: other sentences with paths, ids and numbers, and tool results.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pydoc_data.topics import topics
from random import Random
from typing import Literal
from uuid import UUID

Role = Literal["user", "assistant", "tool"]
Kind = Literal[
    "safety rule", "constraint", "preference", "decision", "negation", "who said what", "identifier", "path", "number",
    "changed value",
]  # fmt: skip
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
BINDING: tuple[Kind, ...] = ("safety rule", "constraint")
PEOPLE = ("ada", "bob", "carla")
TURNS_PER_ROUND = 36
COPIES = {1: 2, 2: 1}
"""Facts of each kind in the first round, and in each later one."""


@cache
def _prose() -> list[str]:
    """Sentences of Python's own documentation."""
    text = " ".join(topics[name] for name in sorted(topics)[:40])
    return re.findall(r"(?<=\. )[A-Z][^.]{30,200}\.(?= )", " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of the session. `by` is the participant who wrote it, None for the agent and its tools."""

    role: Role
    text: str
    id: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Planted:
    """A fact: all of `needs` in one line of the context is knowing it; `stale` is a value that no longer holds."""

    kind: Kind
    text: str
    needs: tuple[str, ...]
    round: int
    stale: str = ""

    def is_in(self, context: str) -> bool:
        """Whether a line of the context still says so."""
        return any(all(need in line for need in self.needs) for line in context.lower().splitlines())

    def is_contradicted_in(self, context: str) -> bool:
        """Whether a line still states the old value and not the new one."""
        lines = context.lower().splitlines()
        return bool(self.stale) and any(self.stale in line and self.needs[-1] not in line for line in lines)


@dataclass
class Session:
    """Turns of one session, a round at a time."""

    seed: int
    planted: list[Planted] = field(default_factory=list)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def round(self, number: int, turns: int = TURNS_PER_ROUND) -> Iterator[list[Entry]]:
        """The turns of round `number` (from 1), with its facts spread over all depths."""
        rng = self._random
        facts = [self._fact(kind, number) for kind in KINDS for _ in range(COPIES.get(number, 1))]
        rng.shuffle(facts)
        at = [(place * (turns - 2)) // len(facts) for place in range(len(facts))]
        later: dict[int, list[tuple[str | None, str]]] = {}
        for place, (fact, first, by) in zip(at, facts, strict=True):
            later.setdefault(place, []).append((by, first))
            if first != fact.text:
                later.setdefault(rng.randrange(place, turns - 2), []).append((by, fact.text))
            self.planted.append(fact)
        for turn in range(turns):
            yield self._turn(later.get(turn, []))

    def _turn(self, said: list[tuple[str | None, str]]) -> list[Entry]:
        rng = self._random
        own = [text for by, text in said if by is None]
        entries = [self._entry("user", f"{self._aside()} {text} {self._aside()}", by) for by, text in said if by]
        asked = self._path()
        if not entries:
            entries.append(self._entry("user", f"{self._aside()} {self._ask(asked)}", rng.choice(PEOPLE)))
        if rng.random() < 0.8:
            entries.append(self._entry("assistant", f"I read {asked} first."))
            entries.append(self._entry("tool", self._output()))
        mine = [self._finding(), *own, self._finding(), self._prose()]
        entries.append(self._entry("assistant", " ".join(mine)))
        return entries

    def _entry(self, role: Role, text: str, by: str | None = None) -> Entry:
        return Entry(role, text, str(UUID(int=self._random.getrandbits(128), version=4)), by)

    # -- noise ---------------------------------------------------------------------------------------------------

    def _number(self) -> str:
        return f"{self._random.randrange(1100, 99000):,}"

    def _word(self) -> str:
        rng = self._random
        return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))

    def _path(self) -> str:
        rng = self._random
        top, suffix = rng.choice(("src", "lib", "tools", "web")), rng.choice(("py", "ts", "sql"))
        return f"{top}/{self._word()}/{self._word()}.{suffix}"

    def _ask(self, path: str) -> str:
        return self._random.choice((
            f"Can you look at {path} again?",
            "What do you think of the next part?",
            f"Please go through {path} and tell me what it does.",
            "Is there anything odd in there?",
            "Please go on with the next file.",
            f"Now {path}.",
        ))  # fmt: skip

    def _aside(self) -> str:
        return self._random.choice((
            "The coffee machine on the second floor is broken again.",
            f"I had {self._number()} mails this morning.",
            "That took a while.",
            "Thanks for the last one.",
            "It looks tidy to me.",
            f"There is an old copy under {self._path()} somewhere.",
            "Good, that helps.",
            "I was in a meeting until now.",
            "The weather is awful today.",
            f"My train was {self._random.randrange(2, 60)} minutes late.",
            "Sorry for the late answer.",
            "This is more than I thought.",
        ))  # fmt: skip

    def _finding(self) -> str:
        return self._random.choice((
            f"I went through {self._path()}, which has {self._number()} lines and nothing unusual.",
            f"The loop in {self._path()} visits each record once.",
            "The structure is simple and the names are clear.",
            f"A run over the sample took {self._number()} steps.",
            f"The helper {self._word()}_{self._word()} only formats its input.",
            "I see no difference to the part before.",
        ))  # fmt: skip

    def _prose(self) -> str:
        """Two sentences of documentation, as an agent explains things."""
        return " ".join(self._random.sample(_prose(), 2))

    def _output(self) -> str:
        rng = self._random
        lines = [
            f"2026-11-{rng.randrange(1, 29):02} {rng.randrange(24):02}:{rng.randrange(60):02} "
            f"worker-{rng.randrange(40)} {self._word()} {rng.getrandbits(48):012x} took {rng.randrange(9000)} ms"
            for _ in range(rng.randrange(10, 26))
        ]
        return "\n".join(lines)

    # -- facts ---------------------------------------------------------------------------------------------------

    def _fact(self, kind: Kind, number: int) -> tuple[Planted, str, str | None]:
        """A fact, the sentence that states it first, and who says it."""
        rng = self._random
        word, other, path, count = self._word(), self._word(), self._path(), self._number()
        code = f"{word.upper()}-{rng.randrange(10_000, 99_999)}"
        who = rng.choice(PEOPLE)
        by: str | None = who
        first = ""
        stale = ""
        match kind:
            case "safety rule":
                text, needs = rng.choice((
                    (f"Never restart {word}-7 without asking ada first.", ("never", f"{word}-7", "ada")),
                    (f"Do not send the {word} addresses to anybody outside.", ("do not", word, "outside")),
                    (f"Credentials of {word} must not appear in any log.", (word, "must not", "log")),
                    (f"The {word} table is read only for you, no exceptions.", (word, "read only")),
                    (f"If {word} alarms, stop everything and call bob.", (word, "stop", "bob")),
                ))  # fmt: skip
            case "constraint":
                text, needs = rng.choice((
                    (f"The {word} page has to stay below {count} kB.", (word, count)),
                    (f"Only Python 3.11 is allowed on the {word} workers.", ("3.11", word)),
                    (f"We may spend {count} EUR on {word} and not a cent more.", (count, word)),
                    (f"Everything for {word} has to be done by 2027-02-{rng.randrange(10, 28)}.", (word, "2027-02")),
                ))  # fmt: skip
            case "preference":
                text, needs = rng.choice((
                    (f"I prefer short answers about {word}, without tables.", (word, "without tables")),
                    (f"Please write the {word} examples in Kotlin.", (word, "kotlin")),
                    (f"I would rather see {word} in metric units.", (word, "metric")),
                ))  # fmt: skip
            case "decision":
                text, needs = rng.choice((
                    (f"We decided to take {word} instead of {other} because of its licence.", (word, other)),
                    (f"Agreed: {word} releases are weekly.", (word, "weekly")),
                    (f"Let's settle on {word} for the queue.", (word, "queue")),
                    (f"Then {word} it is, {other} is off the table.", (word, other)),
                ))  # fmt: skip
                by = rng.choice((who, None))
            case "negation":
                text, needs = rng.choice((
                    (f"The {word} replica does not accept writes.", (word, "not", "writes")),
                    (f"There is no backup of the {word} table.", ("no backup", word)),
                    (f"It was not {word} that failed, it was {other}.", (f"not {word}", other)),
                    (f"Nobody has access to {word} any more.", ("nobody", word)),
                ))  # fmt: skip
                by = rng.choice((who, None))
            case "who said what":
                text = f"I saw the double booking only in {word} {rng.randrange(100, 200)}."
                needs = (who, text.removesuffix(".").partition("only in ")[2])
            case "identifier":
                text, needs = rng.choice((
                    (f"The customer behind {word} is {code}.", (word, code)),
                    (f"Use tenant {word}_{other} for the replay.", (f"{word}_{other}", "replay")),
                    (f"The ticket for {other} is {code}.", (other, code)),
                ))  # fmt: skip
            case "path":
                text, needs = rng.choice((
                    (f"The {word} schema lives in {path}.", (path, word)),
                    (f"Put the {word} report under {path}.", (path, word)),
                ))  # fmt: skip
                by = rng.choice((who, None))
            case "number":
                text, needs = rng.choice((
                    (f"The {word} export takes {count} ms with 12 workers.", (count, word)),
                    (f"We have {count} {word} subscribers.", (count, word)),
                ))  # fmt: skip
                by = rng.choice((who, None))
            case _:
                stale = self._number()
                first, text = f"The {word} limit is {stale}.", f"The {word} limit is now {count}."
                needs = (word, count)
        lowered = tuple(need.lower() for need in needs)
        return Planted(kind, text, lowered, number, stale), first or text, by
