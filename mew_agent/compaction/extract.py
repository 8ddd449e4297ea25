"""[pure] The facts of a conversation, found without a model, and carried from one summary to the next.

Sentences are kept as written, so an extract is in the conversation's language. Only participants can set or withdraw
rules and preferences, never a tool result. Does not know tokens or models.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import mew_agent.compaction.language as language
from mew_agent.compaction.ranking import BINDING, after_repeats, at_least, key_of, label_of, shape_of, value_of, worth
from mew_agent.context.history import Fact, FactKind, Item

MOST_FACTS = 2000  # of each kind
_LAST_TURNS = 2
_DONE_SENTENCES, _OPEN_ENDS = 3, 8
_ALIKE = 0.6
_FEWEST_WORDS = 3  # of a person's sentence without names; shorter ones are mostly courtesies
_ROUTINE = 2  # maximum number of sentences of one shape before they are a routine


@dataclass(frozen=True, slots=True)
class Extract:
    """Facts in order, and the facts that a later message replaced or withdrew."""

    facts: tuple[Fact, ...]
    replaced: tuple[tuple[Fact, Fact], ...] = ()  # the old and the new one


def extract(items: Sequence[Item], carried: Sequence[Fact] = ()) -> Extract:
    """Find the facts of these items, and merge them with the facts of the previous summary."""
    found = _Facts(carried)
    found.note_work(items)
    turns = sorted({item.turn for item in items})[-_LAST_TURNS:]
    for item in items:
        found.read(item, is_late=item.turn in turns)
    return found.result(items)


def important_names(items: Sequence[Item], facts: Sequence[Fact]) -> list[str]:
    """Return the identifiers that a summary must keep: those in rules and decisions, and those in several messages."""
    seen: dict[str, int] = {}
    for item in items:
        if item.role != "tool":
            for name in language.identifiers(item.own_text):
                seen[name] = seen.get(name, 0) + 1
    binding = (fact.text for fact in facts if fact.kind in ("rule", "decision"))
    named = (name for text in binding for name in language.identifiers(text))
    return list(dict.fromkeys([*named, *(name for name, count in seen.items() if count > 1)]))


def is_alike(words: frozenset[str], others: frozenset[str], share: float = _ALIKE) -> bool:
    """Return whether most of the first words are among the others."""
    return bool(words) and len(words & others) >= share * len(words)


class _Facts:
    """Collects facts in the order of the conversation."""

    def __init__(self, carried: Sequence[Fact]) -> None:
        self._kept: dict[str, Fact] = {}
        self._counts: Counter[str] = Counter()
        self._by_key: dict[frozenset[str], Fact] = {}
        self._replaced: list[tuple[Fact, Fact]] = []
        self._named = {name for fact in carried for name in language.identifiers(fact.text)}
        self._discussed: set[str] = set()
        self._work: dict[int, str] = {}
        self._shapes: Counter[tuple[str, str]] = Counter()
        self._said: Counter[str] = Counter()  # sentences and their shapes
        self._labels: dict[str, str] = {}
        self._carried = {fact.text for fact in carried}
        self._had_goal = any(fact.kind == "goal" for fact in carried)
        for fact in carried:
            self._keep(fact, is_from_tool=False)

    def note_work(self, items: Sequence[Item]) -> None:
        """Note the names that people and the agent use, and the agent's work in each turn."""
        for item in items:
            if item.role == "assistant":
                self._work[item.turn] = f"{self._work.get(item.turn, '')}\n{item.text()}"
            if item.role != "tool":
                self._discussed.update(language.identifiers(item.own_text))

    def read(self, item: Item, *, is_late: bool) -> None:
        """Add the sentences of one item. `is_late`: its turn is among the newest, so its open ends are still open."""
        if item.notice:
            return
        for line in language.whole_lines(item.own_text):
            label = ""
            for sentence in language.sentences(line):
                label = label_of(sentence) or label
                self._read_sentence(sentence, label, item, is_late=is_late)

    def _read_sentence(self, sentence: str, label: str, item: Item, *, is_late: bool) -> None:
        kind = _kind_of(f"{label}{sentence}", item.role, is_late=is_late)
        if kind is None:
            return
        shape = "" if item.role == "tool" else shape_of(sentence)
        self._said[sentence] += 1
        if shape != sentence:
            self._said[shape] += 1
        if kind == "fact" and sentence not in self._kept and not self._is_news(sentence, shape, item):
            return
        if label:
            self._labels[sentence] = label
        self._add(_fact(kind, sentence, item), is_from_tool=item.role == "tool")

    def _is_news(self, sentence: str, shape: str, item: Item) -> bool:
        """Return whether a plain sentence adds something to all earlier sentences."""
        names = set(language.identifiers(sentence))
        if item.role == "tool":
            # Tools return many lines; only lines with names that the conversation uses count.
            return not names.isdisjoint(self._discussed) and not self._named.issuperset(names)
        # Progress reports and pasted data repeat one shape with different names and numbers.
        within = (item.role if item.role == "assistant" else item.id, shape)
        self._shapes[within] += 1
        if self._shapes[within] > _ROUTINE and not key_of(sentence):
            return False
        is_new = bool(names) and (not self._named.issuperset(names) or bool(key_of(sentence)))
        self._named.update(names)
        if item.role == "user":
            return self._is_open_request(sentence, names, item)
        return is_new or bool(language.NEGATION.search(sentence))

    def _is_open_request(self, sentence: str, names: set[str], item: Item) -> bool:
        """Return whether a user's sentence has enough content, and requests nothing that the same turn did."""
        is_done = bool(names) and all(name in self._work.get(item.turn, "") for name in names)
        if is_done and language.REQUEST.match(sentence):
            return False
        return bool(names) or len(language.content_words(sentence)) >= _FEWEST_WORDS

    def result(self, items: Sequence[Item]) -> Extract:
        """Return all facts, with goal and last state."""
        users = [item for item in items if item.role == "user" and not item.notice]
        for item in [*([] if self._had_goal else users[:1]), *users[-1:]]:
            self._add_first("goal", item, 2)
        self._drop("goal", slice(2, -2))
        replies = [item for item in items if item.role == "assistant" and item.content.strip()]
        if replies:
            self._drop("done", slice(None))
            self._add_first("done", replies[-1], _DONE_SENTENCES)
        self._drop("open", slice(-_OPEN_ENDS))
        return Extract(tuple(map(self._with_worth, self._kept.values())), tuple(self._replaced))

    def _drop(self, kind: FactKind, which: slice) -> None:
        """Drop the facts of a kind in this slice."""
        for fact in [fact for fact in self._kept.values() if fact.kind == kind][which]:
            del self._kept[fact.text]

    def _with_worth(self, fact: Fact) -> Fact:
        """Return a fact with its worth after all repetitions. Rules may be repeated."""
        text = fact.text
        known = worth(text, self._labels.get(text, ""), fact.by) if fact.worth is None else fact.worth
        repeats = self._said[text if key_of(text) else shape_of(text)] - (text not in self._carried)
        return replace(fact, worth=known if fact.kind in BINDING else after_repeats(known, max(0, repeats)))

    def _add_first(self, kind: FactKind, item: Item, most: int) -> None:
        outdated = {old.text for old, _ in self._replaced}
        for sentence in islice(language.sentences("\n".join(language.whole_lines(item.own_text))), most):
            if sentence in outdated:
                continue
            known = self._kept.get(sentence)
            if known is None or not at_least(known.kind, kind):
                self._kept[sentence] = _fact(kind, sentence, item)

    def _add(self, fact: Fact, *, is_from_tool: bool) -> None:
        old = self._kept.get(fact.text)
        if (old is not None and at_least(old.kind, fact.kind)) or self._counts[fact.kind] >= MOST_FACTS:
            return
        if not is_from_tool:
            self._replace_value(fact)
            self._withdraw(fact)
        self._keep(fact, is_from_tool=is_from_tool)

    def _keep(self, fact: Fact, *, is_from_tool: bool) -> None:
        self._counts[fact.kind] += 1
        self._kept[fact.text] = fact
        key = frozenset() if is_from_tool else key_of(fact.text)
        if key:
            self._by_key[key] = fact

    def _replace_value(self, fact: Fact) -> None:
        """Remove an older value of this fact: one with the same key, or one that this sentence names."""
        old = self._by_key.get(key_of(fact.text)) or self._value_changed_by(fact)
        if old is not None and old.text != fact.text and (old.kind != "rule" or old.by == fact.by):
            self._remove(old, fact)

    def _value_changed_by(self, fact: Fact) -> Fact | None:
        """Return the fact that a sentence about a change replaces."""
        if not language.CHANGE.search(fact.text):
            return None
        words, names = language.content_words(fact.text), set(language.identifiers(fact.text))
        changed = (known for key, known in self._by_key.items() if key & words and value_of(known.text) in names)
        return next(changed, None) if len(names) > 1 else None

    def _withdraw(self, fact: Fact) -> None:
        """Remove the rules that their author withdraws. The withdrawal stays as an instruction."""
        if fact.kind != "rule" or language.WITHDRAWAL.search(fact.text) is None:
            return
        words = language.content_words(language.WITHDRAWAL.sub(" ", fact.text))
        rules = [known for known in self._kept.values() if known.kind in ("rule", "preference") and known.by == fact.by]
        for old in rules:
            if is_alike(language.content_words(language.RULE.sub(" ", old.text)), words):
                self._remove(old, fact)

    def _remove(self, old: Fact, new: Fact) -> None:
        if self._kept.pop(old.text, None) is not None:
            self._counts[old.kind] -= 1
            self._replaced.append((old, new))


_USER: Final = frozenset({"user"})
_SPEAKERS: Final = frozenset({"user", "assistant"})
_KINDS: Final[Sequence[tuple[FactKind, re.Pattern[str], Collection[str]]]] = (
    ("rule", language.RULE, _USER),
    ("rule", language.WITHDRAWAL, _USER),
    ("decision", language.DECISION, _SPEAKERS),
    ("preference", language.PREFERENCE, _USER),
    ("open", language.OPEN, _SPEAKERS),
)
"""Each kind of fact with its words, and the roles of its speakers; the first that applies."""


def _kind_of(sentence: str, role: str, *, is_late: bool) -> FactKind | None:
    """Return the kind of a sentence by its words; None if it need not be kept."""
    if language.is_question(sentence):
        return "open" if is_late and role == "user" else None
    for kind, pattern, roles in _KINDS:
        if role in roles and (is_late or kind != "open") and pattern.search(sentence):
            return kind
    return "fact"


def _fact(kind: FactKind, sentence: str, item: Item) -> Fact:
    return Fact(kind, sentence, item.envelope_id or item.id, item.name if item.role == "user" else None)
