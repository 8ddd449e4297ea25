"""[pure] Determines how much of each removed message a summary still contains.

Works for any removed messages and any later summary. Does not search the session store.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import mew_agent.compaction.language as language
from mew_agent.compaction.completion import RECALL_NOTE, says
from mew_agent.compaction.summary import CITATION, cited_in
from mew_agent.context.history import Item, Summary

Trace = Literal["quoted", "mentioned", "absent"]
"""`quoted`: the summary holds the text or a sentence of it word for word. `mentioned`: it cites the message at a line
with a word of it, or states a fact of it in other words. `absent`: neither."""

_GRAM = 8  # characters
_STOPS = ".!?。！？"
_START = re.compile(r"(?:\n|[-*+•>]\s|[.!?。！？:：;\"'“”„«「『(*\]]\s?)\Z")
_END = re.compile(r"[。！？」』]|[.!?;\"'”“»)*]+(?!\w)|\s*[\[\n]")


def traces(removed: Iterable[Item], summary: Summary | None) -> dict[int, Trace]:
    """Return the trace of each message by `seq`, in time linear in the text. A summary's length is limited."""
    if summary is None:
        return {item.seq: "absent" for item in removed}
    stated = _Stated(summary.text, summary.cited_ids)
    # The facts of a summary include those that messages after it stated when it was written.
    removed = tuple(removed)
    asked = {name for item in removed for name in (item.id, item.envelope_id)}
    facts = (fact for fact in summary.facts if fact.source in asked)
    mentioned = {fact.source for fact in facts if stated.tells(fact.text)}
    found: dict[int, Trace] = {}
    for item in removed:
        if any(stated.holds(sentence) for sentence in language.sentences(item.own_text)):
            found[item.seq] = "quoted"
        elif not mentioned.isdisjoint((item.id, item.envelope_id)) or stated.cites(item):
            found[item.seq] = "mentioned"
        else:
            found[item.seq] = "absent"
    return found


class _Stated:
    """The lines of a summary without headings, prepared for searching."""

    def __init__(self, text: str, cited_ids: Iterable[str]) -> None:
        lines = "\n".join(_flat(line) for line in text.splitlines() if not line.startswith(("#", RECALL_NOTE)))
        self._text = f"\n{lines}\n"
        self._grams = {self._text[at : at + _GRAM] for at in range(len(self._text))}
        self._cited = frozenset(cited_ids)
        self._known: dict[str, bool] = {}
        """Results of earlier searches: otherwise a repeated short sentence would be compared at every place with its
        beginning."""

    @cached_property
    def _words(self) -> list[frozenset[str]]:
        """The content words of each line."""
        return [language.content_words(line) for line in self._text.splitlines()]

    def holds(self, sentence: str) -> bool:
        """Return whether the summary contains the whole sentence, not only within another one."""
        sentence = _flat(sentence)
        if sentence not in self._known:
            self._known[sentence] = self._find(sentence)
        return self._known[sentence]

    def tells(self, fact: str) -> bool:
        """Return whether a line states a fact in any words: with all its numbers and names."""
        return says(fact, self._text.splitlines(), lambda: self._words)

    @cached_property
    def _words_at(self) -> dict[str, set[str]]:
        """The content words of the lines that cite an id, by id."""
        found = defaultdict[str, set[str]](set)
        for line in self._text.splitlines():
            for name in self._cited.intersection(cited_in(line)):
                found[name] |= language.content_words(CITATION.sub("", line))
        return found

    def cites(self, item: Item) -> bool:
        """Return whether a line cites a message and shares a word with it: a citation alone says nothing."""
        cited = [words for name in (item.id, item.envelope_id) if (words := self._words_at.get(name or ""))]
        return any(not language.content_words(item.own_text).isdisjoint(words) for words in cited)

    def _find(self, sentence: str) -> bool:
        words = sentence.rstrip(_STOPS) or sentence
        # Most sentences of a long history end here, without a search.
        if any(words[at : at + _GRAM] not in self._grams for at in range(0, len(words) - _GRAM + 1, _GRAM)):
            return False
        at = self._text.find(words)
        while at >= 0:
            end = at + len(words)
            if _START.search(self._text[max(0, at - 3) : at]) and _END.match(self._text[end : end + 8]):
                return True
            at = self._text.find(words, end)
        return False


def _flat(line: str) -> str:
    return " ".join(line.split())
