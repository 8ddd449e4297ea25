"""[pure] Drawing sentences and identifiers out of text: all that the rehearsal model can say comes from here.

Owns sentence splitting, scoring and the recognition of names worth keeping; knows no conversation.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

# A sentence ends at a mark followed by space, at CJK marks, and at a line break.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])|\n+")
_HEADING = re.compile(r"^[ \t]*#{1,6}[ \t][^\n]*$", re.MULTILINE)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LIST_MARK = re.compile(r"^(?:[>*+-]+|\d+[.)])\s+|\*\*|^\|")
_IDENTIFIER = re.compile(
    r"https?://[^\s<>\"')\]]+"  # addresses
    r"|(?<![\w./])(?:~?/)?[\w.-]+(?:/[\w.-]+)+/?"  # paths
    r"|\b[\w-]+\.(?:py|md|txt|json|ya?ml|toml|js|ts|rs|go|c|h|sh|cfg|ini|log|csv|html|sql)\b"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b"
    r"|\b[A-Za-z]+(?:[-_][A-Za-z0-9]+)*[-_#]\d[\w-]*\b"  # env-42, JIRA-7
)
_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*\d\s?%?|(?<![\w.])\d\s?%?")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a about after all also an and any are as at be been before but by can could did do does for from had has"
        " have he her his how i if in into is it its just may me more most my no not of on one or our out over she"
        " should so some such than that the their them then there these they this those to up us was we were what"
        " when where which who why will with would you your please tell"
    )
)
_SHORTEST_SENTENCE = 12
_LONGEST_SENTENCE = 320


@lru_cache(maxsize=4096)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of `text` in their order, without list marks; headings and the very short ones are left out."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(_HEADING.sub("", text)):
        sentence = " ".join(_LIST_MARK.sub("", piece.strip()).split())
        if len(sentence) >= _SHORTEST_SENTENCE:
            found.append(sentence if len(sentence) <= _LONGEST_SENTENCE else _clipped(sentence))
    return tuple(found)


@lru_cache(maxsize=65536)
def content_words(sentence: str) -> frozenset[str]:
    """The words that carry meaning, in lower case; CJK runs count by pairs of characters."""
    words: set[str] = set()
    for word in _WORD.findall(sentence.lower()):
        if not word.isascii() and any("\u3040" <= character <= "\u9fff" for character in word):
            words.update(word[place : place + 2] for place in range(max(1, len(word) - 1)))
        elif len(word) > 1 and word not in _STOP_WORDS:
            words.add(word)
    return frozenset(words)


def identifiers(texts: Iterable[str]) -> list[str]:
    """Paths, addresses and ids, each once, in the order they first appear."""
    found = (match.rstrip(".,;:") for text in texts for match in _IDENTIFIER.findall(text))
    return list(dict.fromkeys(found))


def has_number(sentence: str) -> bool:
    """Whether a sentence states a figure."""
    return _NUMBER.search(sentence) is not None


def best_for(query: frozenset[str], candidates: Sequence[str]) -> list[str]:
    """Candidates that share words with `query`, best first; rare words weigh more. Equal ones keep their order."""
    commonness = Counter(word for sentence in candidates for word in content_words(sentence) & query)
    scored: list[tuple[float, int]] = []
    for place, sentence in enumerate(candidates):
        shared = content_words(sentence) & query
        score = sum(1 / commonness[word] for word in shared) + 0.1 * len(shared)
        if shared:
            scored.append((-score, place))
    return _unique(candidates[place] for _, place in sorted(scored))


def most_central(candidates: Sequence[str]) -> list[str]:
    """Candidates ordered by how much they share with the rest: what the text is about comes first."""
    frequency = Counter(word for sentence in candidates for word in content_words(sentence))
    scored: list[tuple[float, int]] = []
    for place, sentence in enumerate(candidates):
        words = content_words(sentence)
        # The root keeps long sentences from winning by length alone.
        weight = sum(frequency[word] - 1 for word in words) / (len(words) ** 0.5 or 1.0)
        scored.append((-weight, place))
    return _unique(candidates[place] for _, place in sorted(scored))


def _unique(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))


def _clipped(sentence: str) -> str:
    head = sentence[:_LONGEST_SENTENCE]
    return head[: head.rfind(" ")] if " " in head[_LONGEST_SENTENCE // 2 :] else head
