"""[pure] The facts of a conversation, found without a model, and carried from one summary to the next.

Sentences are kept as written, so an extract is in the conversation's language. Rules, preferences and their withdrawal
count only if a participant said them: a text that a tool returned gives no orders. Does not know tokens or models.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import mew_agent.compaction.language as language
from mew_agent.context.history import Fact, FactKind, Item

MOST_FACTS = 300  # of each kind
_LAST_TURNS = 2
_DONE_SENTENCES, _OPEN_ENDS = 3, 8
_ALIKE = 0.6

# "The port is 8080", "timeout: 30 s", "Frist = Montag", "端口改为 9090"
_KEY_AND_VALUE = re.compile(
    r"^(?P<key>[^=:：]{2,80}?)"
    r"(?:\s+(?:is|are|was|will be|moves to|changes to|ist|sind|lautet|est|sont|es|son)\s+"
    r"(?:now\s+|jetzt\s+|nun\s+|maintenant\s+|ahora\s+)?"
    r"|\s*(?:=|→|->)\s*|\s*[:：]\s+|(?:改为|改成|是|为|は))"
    r"(?P<value>\S.{0,120})$"
)
_MOST_VALUE_WORDS = 6
_LABELS = frozenset(
    [
        "rule",
        "rules",
        "safety",
        "note",
        "important",
        "warning",
        "constraint",
        "decision",
        "regel",
        "regeln",
        "hinweis",
        "wichtig",
        "achtung",
        "entscheidung",
        "règle",
        "attention",
        "décision",
        "regla",
        "nota",
        "importante",
        "atención",
        "decisión",
        "规则",
        "注意",
        "重要",
        "決定",
    ]
)
_NOT_IN_KEY = frozenset({"new", "now", "neue", "neuer", "jetzt", "nouveau", "nouvelle", "nuevo", "nueva", "ahora"})


@dataclass(frozen=True, slots=True)
class Extract:
    """Facts in order, and those that a later message replaced or withdrew."""

    facts: tuple[Fact, ...]
    replaced: tuple[tuple[Fact, Fact], ...] = ()  # the old and the new one


def extract(items: Sequence[Item], carried: Sequence[Fact] = ()) -> Extract:
    """Find the facts of these items, and merge them with those of the previous summary, whose messages are gone."""
    found = _Facts(carried)
    turns = sorted({item.turn for item in items})[-_LAST_TURNS:]
    for item in items:
        found.read(item, is_late=item.turn in turns)
    return found.result(items)


def important_names(items: Sequence[Item], facts: Sequence[Fact]) -> list[str]:
    """Identifiers that a summary must not lose: in rules and decisions, or used by several messages."""
    seen: dict[str, int] = {}
    for item in items:
        if item.role != "tool":
            for name in language.identifiers(item.content):
                seen[name] = seen.get(name, 0) + 1
    binding = (fact.text for fact in facts if fact.kind in ("rule", "decision"))
    named = (name for text in binding for name in language.identifiers(text))
    return list(dict.fromkeys([*named, *(name for name, count in seen.items() if count > 1)]))


def is_alike(words: frozenset[str], others: frozenset[str], share: float = _ALIKE) -> bool:
    """Whether most of the first words are among the others."""
    return bool(words) and len(words & others) >= share * len(words)


class _Facts:
    """Collects facts in the order of the conversation."""

    def __init__(self, carried: Sequence[Fact]) -> None:
        self._kept: dict[str, Fact] = {}
        self._counts: Counter[str] = Counter()
        self._by_key: dict[frozenset[str], Fact] = {}
        self._replaced: list[tuple[Fact, Fact]] = []
        self._named = {name for fact in carried for name in language.identifiers(fact.text)}
        self._had_goal = any(fact.kind == "goal" for fact in carried)
        for fact in carried:
            self._keep(fact, is_from_tool=False)

    def read(self, item: Item, *, is_late: bool) -> None:
        """Add what one item says. `is_late`: it belongs to the newest turns, whose open ends are still open."""
        if item.notice:
            return
        for sentence in language.sentences(item.content):
            kind = _kind_of(sentence, item.role, is_late=is_late)
            if kind == "fact" and sentence not in self._kept:
                names = language.identifiers(sentence)
                if not names or (self._named.issuperset(names) and not _key_of(sentence)):
                    continue
                self._named.update(names)
            if kind is not None:
                self._add(_fact(kind, sentence, item), is_from_tool=item.role == "tool")

    def result(self, items: Sequence[Item]) -> Extract:
        """All facts, with goal and last state."""
        users = [item for item in items if item.role == "user" and not item.notice]
        for item in [*([] if self._had_goal else users[:1]), *users[-1:]]:
            self._add_first("goal", item, 2)
        goals = [fact for fact in self._kept.values() if fact.kind == "goal"]
        for old in goals[2:-2]:
            del self._kept[old.text]
        replies = [item for item in items if item.role == "assistant" and item.content.strip()]
        if replies:
            for fact in [fact for fact in self._kept.values() if fact.kind == "done"]:
                del self._kept[fact.text]
            self._add_first("done", replies[-1], _DONE_SENTENCES)
        for old in [fact for fact in self._kept.values() if fact.kind == "open"][:-_OPEN_ENDS]:
            del self._kept[old.text]
        return Extract(tuple(self._kept.values()), tuple(self._replaced))

    def _add_first(self, kind: FactKind, item: Item, most: int) -> None:
        for sentence in islice(language.sentences(item.content), most):
            known = self._kept.get(sentence)
            if known is None or _WEIGHT[known.kind] > _WEIGHT[kind]:
                self._kept[sentence] = _fact(kind, sentence, item)

    def _add(self, fact: Fact, *, is_from_tool: bool) -> None:
        old = self._kept.get(fact.text)
        if (old is not None and _WEIGHT[old.kind] <= _WEIGHT[fact.kind]) or self._counts[fact.kind] >= MOST_FACTS:
            return
        if not is_from_tool:
            self._replace_value(fact)
            self._withdraw(fact)
        self._keep(fact, is_from_tool=is_from_tool)

    def _keep(self, fact: Fact, *, is_from_tool: bool) -> None:
        self._counts[fact.kind] += 1
        self._kept[fact.text] = fact
        key = frozenset() if is_from_tool else _key_of(fact.text)
        if key:
            self._by_key[key] = fact

    def _replace_value(self, fact: Fact) -> None:
        """Remove the fact whose value this one changes: the same key, or a sentence that names the old value."""
        old = self._by_key.get(_key_of(fact.text))
        if old is None and language.CHANGE.search(fact.text):
            words, names = language.content_words(fact.text), set(language.identifiers(fact.text))
            changed = (known for key, known in self._by_key.items() if key & words and value_of(known.text) in names)
            old = next(changed, None) if len(names) > 1 else None
        if old is not None and old.text != fact.text and (old.kind != "rule" or old.by == fact.by):
            self._remove(old, fact)

    def _withdraw(self, fact: Fact) -> None:
        """Remove the rules that their author withdraws; the withdrawal itself stays as an instruction."""
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


def _kind_of(sentence: str, role: str, *, is_late: bool) -> FactKind | None:
    """What a sentence is, by its words; None if nothing in it has to be kept."""
    if language.is_question(sentence):
        return "open" if is_late and role == "user" else None
    if role == "user" and (language.RULE.search(sentence) or language.WITHDRAWAL.search(sentence)):
        return "rule"
    if role != "tool" and language.DECISION.search(sentence):
        return "decision"
    if role == "user" and language.PREFERENCE.search(sentence):
        return "preference"
    if role != "tool" and is_late and language.OPEN.search(sentence):
        return "open"
    return "fact"


_WEIGHT: dict[FactKind, int] = {
    "rule": 0,
    "preference": 1,
    "decision": 2,
    "goal": 3,
    "fact": 4,
    "open": 5,
    "done": 6,
}


def by_weight(facts: Iterable[Fact]) -> list[Fact]:
    """Facts with the most binding ones first: rules, preferences, decisions, then the rest."""
    return sorted(facts, key=lambda fact: _WEIGHT[fact.kind])


def _fact(kind: FactKind, sentence: str, item: Item) -> Fact:
    return Fact(kind, sentence, item.envelope_id or item.id, item.name if item.role == "user" else None)


def _key_of(sentence: str) -> frozenset[str]:
    """The words of a key whose short value the sentence sets; empty if it sets none."""
    match = _KEY_AND_VALUE.match(sentence)
    if match is None or len(match["value"].split()) > _MOST_VALUE_WORDS:
        return frozenset()
    words = language.content_words(match["key"]) - _NOT_IN_KEY
    return frozenset() if words <= _LABELS else words


def value_of(sentence: str) -> str:
    """The first identifier of the value that a sentence sets; "" without one."""
    match = _KEY_AND_VALUE.match(sentence)
    return next(iter(language.identifiers(match["value"])), "") if match else ""
