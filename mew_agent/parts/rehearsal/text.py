"""[pure] Extract text from messages, and sentences and identifiers from text. The model's replies consist of these."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mew_listener.bounded_dict import cached_by_text
from mew_protocol.json_values import objects_at

# A sentence ends at a punctuation mark followed by a space, at a CJK mark, and at a line break.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])|\n+")
_HEADING = re.compile(r"^[ \t]*#{1,6}[ \t][^\n]*$", re.MULTILINE)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LIST_MARK = re.compile(r"^(?:[>*+-]+|\d+[.)])\s+|\*\*|^\|")
_IDENTIFIER = re.compile(
    r"https?://[^\s<>\"')\]]+"  # addresses
    r"|(?<![\w./-])(?:~?/)?[\w.-]+(?:/[\w.-]+)+/?"  # paths
    r"|(?<![\w-])-*+[\w-]+\.(?:py|md|txt|json|ya?ml|toml|js|ts|rs|go|c|h|sh|cfg|ini|log|csv|html|sql)\b"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b"
    r"|(?<![\w-])[A-Za-z]+(?:[-_][A-Za-z0-9]+)*[-_#]\d[\w-]*\b"  # env-42, JIRA-7
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
CACHED_CHARS = 1_000_000
"""Maximum total length of the texts with cached results."""

_MIN_SENTENCE_CHARS = 12
_MAX_SENTENCE_CHARS = 320


def message_text(message: Mapping[str, object]) -> str:
    """Return the text of a message in the OpenAI shape: a string, or the text parts of a list; "" without content."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in objects_at(content))


@cached_by_text(CACHED_CHARS)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of `text` in order, without list marks. Headings and very short sentences are dropped."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(_HEADING.sub("", text)):
        sentence = " ".join(_LIST_MARK.sub("", piece.strip()).split())
        if len(sentence) >= _MIN_SENTENCE_CHARS:
            found.append(sentence if len(sentence) <= _MAX_SENTENCE_CHARS else _clipped(sentence))
    return tuple(found)


@cached_by_text(CACHED_CHARS)
def content_words(sentence: str) -> frozenset[str]:
    """Return the words of a sentence without stop words, in lower case. CJK runs are split into pairs of characters."""
    words: set[str] = set()
    for word in _WORD.findall(sentence.lower()):
        if not word.isascii() and any("\u3040" <= character <= "\u9fff" for character in word):
            words.update(word[place : place + 2] for place in range(max(1, len(word) - 1)))
        elif len(word) > 1 and word not in _STOP_WORDS:
            words.add(word)
    return frozenset(words)


def identifiers(texts: Iterable[str]) -> list[str]:
    """Return the paths, URLs and ids, each once, in order of first appearance."""
    found = (match.rstrip(".,;:") for text in texts for match in _IDENTIFIER.findall(text))
    return list(dict.fromkeys(found))


def has_number(sentence: str) -> bool:
    """Return True if a sentence contains a number."""
    return _NUMBER.search(sentence) is not None


def best_for(query: frozenset[str], candidates: Sequence[str]) -> list[str]:
    """Return the candidates that share words with `query`, best first. Rare words weigh more; ties keep their order."""
    shared = {sentence: content_words(sentence) & query for sentence in candidates}
    frequency = Counter(word for sentence in candidates for word in shared[sentence])
    scores = {sentence: sum(1 / frequency[word] for word in words) for sentence, words in shared.items() if words}
    return sorted(scores, key=lambda sentence: -scores[sentence] - 0.1 * len(shared[sentence]))


def most_central(candidates: Sequence[str]) -> list[str]:
    """Sort the candidates by the number of words they share with the others, so that the topic comes first."""
    frequency = Counter(word for sentence in candidates for word in content_words(sentence))
    weights: dict[str, float] = {}
    for sentence in candidates:
        words = content_words(sentence)
        # The square root keeps long sentences from winning only by length.
        weights[sentence] = sum(frequency[word] - 1 for word in words) / (len(words) ** 0.5 or 1.0)
    return sorted(weights, key=lambda sentence: -weights[sentence])


def _clipped(sentence: str) -> str:
    head = sentence[:_MAX_SENTENCE_CHARS]
    return head[: head.rfind(" ")] if " " in head[_MAX_SENTENCE_CHARS // 2 :] else head
