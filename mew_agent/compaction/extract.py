"""[pure] The facts of a conversation, found without a model, and carried from one summary to the next.

Sentences are kept as written, so an extract is in the conversation's language. Rules, preferences and their withdrawal
count only if a participant said them: a text that a tool returned gives no orders. Does not know tokens or models.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args

import mew_agent.compaction.language as language
from mew_agent.context.history import Fact, FactKind, Item

MOST_FACTS = 2000  # of each kind
_LAST_TURNS = 2
_DONE_SENTENCES, _OPEN_ENDS = 3, 8
_ALIKE = 0.6
_FEWEST_WORDS = 3  # of a person's sentence without names; a shorter one is a courtesy
_ROUTINE = 2  # sentences of one shape that are not yet a routine
_TERSE_CHARS = 80
_STRONG = 2

# "The port is 8080", "timeout: 30 s", "Frist = Montag", "端口改为 9090"
_KEY_AND_VALUE = re.compile(
    r"^(?P<key>[^=:：]{2,80}?)(?:(?<!\s)|(?<=\A[\s\S]{2}))"  # at the end of a word, or of two characters
    r"(?:\s+(?:is|are|was|will be|moves to|changes to|ist|sind|lautet|est|sont|es|son)\s+"
    r"(?:now\s+|jetzt\s+|nun\s+|maintenant\s+|ahora\s+)?"
    r"|\s*(?:=|→|->)\s*|\s*[:：]\s+|\s*(?:改为|改成|是|为|は))"
    r"(?P<value>\S.{0,120})$"
)
_MOST_VALUE_WORDS, _MOST_PLAIN_WORDS = 6, 3  # with a name or number in it, and without
# "HARD CONSTRAINT: ...", and a few words before what is a sentence itself
_LABEL = re.compile(r"^(?:[A-Z][A-Z _-]+|\w+(?: \w+){0,2}(?=[:：]\s+(?:\S+\s+){4}))[:：]\s+")
_LABEL_WORDS = (
    "rule rules safety note important warning constraint decision decided agreed regel regeln hinweis wichtig achtung"
    " entscheidung règle attention décision regla nota importante atención decisión 规则 注意 重要 決定"
)
_LABELS = frozenset(_LABEL_WORDS.split())
_NOT_IN_KEY = frozenset({"new", "now", "neue", "neuer", "jetzt", "nouveau", "nouvelle", "nuevo", "nueva", "ahora"})


@dataclass(frozen=True, slots=True)
class Extract:
    """Facts in order, and those that a later message replaced or withdrew."""

    facts: tuple[Fact, ...]
    replaced: tuple[tuple[Fact, Fact], ...] = ()  # the old and the new one


def extract(items: Sequence[Item], carried: Sequence[Fact] = ()) -> Extract:
    """Find the facts of these items, and merge them with the facts carried from the previous summary."""
    found = _Facts(carried)
    found.note_work(items)
    turns = sorted({item.turn for item in items})[-_LAST_TURNS:]
    for item in items:
        found.read(item, is_late=item.turn in turns)
    return found.result(items)


def important_names(items: Sequence[Item], facts: Sequence[Fact]) -> list[str]:
    """Return the identifiers that a summary must not lose: in rules and decisions, or used by several messages."""
    seen: dict[str, int] = {}
    for item in items:
        if item.role != "tool":
            for name in language.identifiers(item.content):
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
        self._had_goal = any(fact.kind == "goal" for fact in carried)
        for fact in carried:
            self._keep(fact, is_from_tool=False)

    def note_work(self, items: Sequence[Item]) -> None:
        """Note the names that people and the agent use, and the agent's work in each turn."""
        for item in items:
            if item.role == "assistant":
                self._work[item.turn] = f"{self._work.get(item.turn, '')}\n{item.text()}"
            if item.role != "tool":
                self._discussed.update(language.identifiers(item.content))

    def read(self, item: Item, *, is_late: bool) -> None:
        """Add the sentences of one item. `is_late`: it belongs to the newest turns, so its open ends are still open."""
        if item.notice:
            return
        for sentence in language.sentences(item.content):
            kind = _kind_of(sentence, item.role, is_late=is_late)
            if kind == "fact" and sentence not in self._kept and not self._is_news(sentence, item):
                continue
            if kind is not None:
                self._add(_fact(kind, sentence, item), is_from_tool=item.role == "tool")

    def _is_news(self, sentence: str, item: Item) -> bool:
        """Return whether a plain sentence says something that no sentence before it says."""
        names = set(language.identifiers(sentence))
        if item.role == "tool":
            # Tools return many lines; only those with names that the conversation uses count.
            return not names.isdisjoint(self._discussed) and not self._named.issuperset(names)
        # Reports of progress, and pasted data, repeat one shape with other names and numbers.
        shape = (item.role if item.role == "assistant" else item.id, language.IDENTIFIER.sub("#", sentence))
        self._shapes[shape] += 1
        if self._shapes[shape] > _ROUTINE and not _key_of(sentence):
            return False
        if item.role == "user":
            is_done = bool(names) and all(name in self._work.get(item.turn, "") for name in names)
            self._named.update(names)
            if is_done and language.REQUEST.match(sentence):
                return False
            return bool(names) or len(language.content_words(sentence)) >= _FEWEST_WORDS
        is_new = bool(names) and (not self._named.issuperset(names) or bool(_key_of(sentence)))
        self._named.update(names)
        return is_new or bool(language.NEGATION.search(sentence))

    def result(self, items: Sequence[Item]) -> Extract:
        """Return all facts, with goal and last state."""
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
        outdated = {old.text for old, _ in self._replaced}
        for sentence in islice(language.sentences(item.content), most):
            if sentence in outdated:
                continue
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
        """Remove an older value of this fact: one with the same key, or one that this sentence names."""
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
    """Return the kind of a sentence, by its words; None if nothing in it has to be kept."""
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


_WEIGHT: dict[FactKind, int] = {kind: weight for weight, kind in enumerate(get_args(FactKind))}


def by_weight(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts with the most binding ones first: rules, preferences, decisions, then the rest, best first.

    Of equal ones the shorter come first, because more of them fit.
    """
    return sorted(facts, key=lambda fact: (_WEIGHT[fact.kind], -_worth_of(fact), len(fact.text)))


def is_strong(fact: Fact) -> bool:
    """Return whether a fact deserves room that a model's own words would otherwise take."""
    return fact.kind != "done" and (fact.kind != "fact" or _worth_of(fact) >= _STRONG)


def _worth_of(fact: Fact) -> int:
    """Return how likely a plain fact is to matter later.

    People write little, and what they write they mean. Of what an agent writes, short statements about the work count
    more than explanations, and those more than its reports of what it did.
    """
    text = fact.text
    signals = bool(_key_of(text)) + bool(language.NEGATION.search(text)) + bool(_LABEL.match(text))
    signals += any(character.isdigit() or character == "/" for character in text)
    if fact.by is not None:
        return signals + bool(language.identifiers(text)) + 2
    return signals + (len(text) <= _TERSE_CHARS) - bool(language.OWN_ACTIVITY.match(text))


def _fact(kind: FactKind, sentence: str, item: Item) -> Fact:
    return Fact(kind, sentence, item.envelope_id or item.id, item.name if item.role == "user" else None)


def _key_of(sentence: str) -> frozenset[str]:
    """Return the words of the key in a sentence that sets a short value; empty for other sentences."""
    match = _KEY_AND_VALUE.match(_LABEL.sub("", sentence))
    if match is None:
        return frozenset()
    most = _MOST_VALUE_WORDS if language.identifiers(match["value"]) else _MOST_PLAIN_WORDS
    if len(match["value"].split()) > most:
        return frozenset()
    words = language.content_words(match["key"]) - _NOT_IN_KEY
    return frozenset() if words <= _LABELS else words


def value_of(sentence: str) -> str:
    """Return the first identifier of the value that a sentence sets; "" without one."""
    match = _KEY_AND_VALUE.match(_LABEL.sub("", sentence))
    return next(iter(language.identifiers(match["value"])), "") if match else ""
