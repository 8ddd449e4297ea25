"""[pure] The worth of a sentence: how likely it matters later, judged by its words and its repetitions.

Does not know messages, budgets or models.
"""

import re
from collections.abc import Iterable
from typing import Final, get_args

import mew_agent.compaction.language as language
from mew_agent.context.history import Fact, FactKind

BINDING: Final[tuple[FactKind, ...]] = ("rule", "preference")
"""Kinds of facts that come before everything else in a summary."""

_STRONG = 2
_OF_A_PERSON = 2  # people write little, and it is important
_OF_A_LABEL = 3  # in capitals: its author marks it as important
_OF_KIND: Final[dict[FactKind, int]] = {"decision": 2, "goal": 1, "open": 1}
_MOST_LOST = 2  # for repeating a sentence
_TERSE_CHARS = 80
_WEIGHT: Final[dict[FactKind, int]] = {kind: weight for weight, kind in enumerate(get_args(FactKind))}

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


def at_least(kind: FactKind, other: FactKind) -> bool:
    """Return whether a kind is at least as binding as another."""
    return _WEIGHT[kind] <= _WEIGHT[other]


def by_worth(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts in order of importance: rules, preferences, then the others by worth.

    Of equal ones the shorter come first, because more of them fit.
    """

    def rank(fact: Fact) -> tuple[int, int, int]:
        group = _WEIGHT[fact.kind] if fact.kind in BINDING or fact.kind == "done" else len(BINDING)
        return group, -_worth_of(fact), len(fact.text)

    return sorted(facts, key=rank)


def is_strong(fact: Fact) -> bool:
    """Return whether a fact deserves room taken from a model's own words."""
    return fact.kind in BINDING or (fact.kind != "done" and _worth_of(fact) >= _STRONG)


def shape_of(sentence: str) -> str:
    """Return a sentence with placeholders for names and numbers. Routine reports share one shape."""
    return language.IDENTIFIER.sub("#", sentence)


def label_of(sentence: str) -> str:
    """Return the label in capitals at the start of a sentence ("NOTE: "), or "". It applies to the rest of the line."""
    match = _LABEL.match(sentence)
    return match[0] if match and match[0].isupper() else ""


def worth(sentence: str, label: str, by: str | None) -> int:
    """Return the worth of a sentence by its words. `by` is its author; None for the agent and its tools.

    For an agent, short statements about the work rank above explanations, and these above reports of its own actions.
    """
    found = bool(key_of(sentence)) + bool(language.NEGATION.search(sentence))
    found += _OF_A_LABEL if label or label_of(sentence) else bool(_LABEL.match(sentence))
    found += any(character.isdigit() or character == "/" for character in sentence)
    if by is not None:
        return found + bool(language.identifiers(sentence)) + _OF_A_PERSON
    return found + (len(sentence) <= _TERSE_CHARS) - bool(language.OWN_ACTIVITY.match(sentence))


def after_repeats(known: int, repeats: int) -> int:
    """Lower the worth of a sentence by its repetitions: frequent sentences say little."""
    return known - min(repeats, _MOST_LOST)


def _worth_of(fact: Fact) -> int:
    return (fact.worth or 0) + _OF_KIND.get(fact.kind, 0)


def key_of(sentence: str) -> frozenset[str]:
    """Return the key's words in a sentence that sets a short value; empty for other sentences."""
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
