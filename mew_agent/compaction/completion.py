"""[pure] Builds a summary from a model's text and the extract: the most valuable sentences that fit into the budget.

Does not know models or token counting.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import mew_agent.compaction.language as language
from mew_agent.compaction.extract import Extract, is_alike
from mew_agent.compaction.ranking import BINDING, by_worth, is_strong, value_of
from mew_agent.compaction.summary import SECTIONS, citable_ids, cited_in, heading_of
from mew_agent.context.history import Fact, FactKind, Item, Summary

EXTRACT_LABEL: Final = "(No model wrote this summary.)"
RECALL_NOTE: Final = "(Left out, found by the tool recall: "
"""How the last line of a summary begins if facts had no room."""

_LEGEND: Final = "(Lines with > quote "

_OWN_LINES: Final = (RECALL_NOTE, _LEGEND, EXTRACT_LABEL.rstrip(")"))

_SECTION_OF: Final[dict[FactKind, str]] = {
    "goal": SECTIONS[0],
    "rule": SECTIONS[1],
    "preference": SECTIONS[1],
    "decision": SECTIONS[2],
    "fact": SECTIONS[3],
    "done": SECTIONS[4],
    "open": SECTIONS[5],
}
SAME: Final = 0.7
"""The share of a line's words that another line has if both say the same."""

_NOTE_PART = 32  # share of the budget for the words of the note, in addition to the remaining room
_FREE_PART = 4  # share of the budget that may stay free
_MOST_LEFT_OUT = 64  # words that the note of a later summary may keep
_WORD = re.compile(r"\w+")
_MARKS = re.compile(r"^(?:[-*+•>]+\s+)+")
_AUTHOR = re.compile(r"^(?:[-*+•>]+\s+)*([^\s:]{1,128}): +")
_CITATIONS_AT_END = re.compile(r"(?<!\s)\s*\[[^\[\]\n]{1,512}\]$")
_ROLES = frozenset({"user", "assistant", "me", "tool"})

Line = tuple[str, str]  # its section, and its text


def completed_summary(
    text: str,
    found: Extract,
    budget_tokens: int,
    size: Callable[[str], int],
    *,
    items: Sequence[Item],
    previous: Summary | None,
    staying: Sequence[Item] = (),
    may_recall: bool = True,
) -> Summary:
    """Complete a model's text from the extract; an empty text returns the labelled extract alone.

    Rules and preferences come first, word for word. The model's own lines follow, without outdated values, then the
    other facts by worth. Strong facts may take up to half of the room of the model's lines. `size` projects the tokens
    of a text. A fact needs no line if its author states it in the remaining messages, `staying`. With `may_recall`, the
    last line lists words with which the tool `recall` finds the omitted facts.
    """
    binding, strong, weak = _ranked(found.facts)
    before = previous.left_out if previous else ()
    draft = _Draft(budget_tokens, size, binding + strong, staying, is_short=bool(before))
    if not text:
        draft.room -= size(EXTRACT_LABEL)
    draft.add_facts(binding)
    if may_recall:
        draft.reserve_note(strong, before)
    own, repeated = _lines_of(text, found, items)
    draft.add_own_lines(own, strong)
    draft.add_facts(strong)
    # If strong facts had no room before, weak ones and repetitions leave a part free for later strong ones.
    free_tokens = budget_tokens // _FREE_PART if before else 0
    draft.room -= free_tokens
    draft.add_lines(repeated)
    draft.add_facts(weak)
    draft.room += free_tokens
    left_out = draft.add_note(before) if may_recall else ()
    whole = draft.text if text else f"{EXTRACT_LABEL}\n{draft.text}"
    return Summary(
        whole if draft.text else "",
        cited_ids=_cited_ids(whole, citable_ids(items, previous)),
        facts=tuple(draft.kept),
        written_by="model" if text else "extract",
        left_out=left_out,
    )


def _ranked(facts: Iterable[Fact]) -> tuple[list[Fact], list[Fact], list[Fact]]:
    """Return the binding, the other strong, and the weak facts, each sorted by worth."""
    binding: list[Fact] = []
    strong: list[Fact] = []
    weak: list[Fact] = []
    for fact in by_worth(facts):
        group = binding if fact.kind in BINDING else strong if is_strong(fact) else weak
        group.append(fact)
    return binding, strong, weak


@dataclass(frozen=True, slots=True)
class _Style:
    """The form of facts. Ids are long: if they leave no room for facts, only the stored facts keep their sources.

    Lines of the only `person` have a mark of their own instead of a name.
    """

    is_citing: bool = False
    person: str | None = None

    @property
    def legend(self) -> str:
        """The line that explains the mark, if there is one."""
        return f"{_LEGEND}{self.person}.)" if self.person else ""

    def line(self, fact: Fact) -> str:
        """Return a fact as a line of the summary."""
        if fact.by == self.person and fact.by:
            return f"> {fact.text}"
        author = f"{fact.by}: " if fact.by else ""
        return f"- {author}{fact.text}{f' [{fact.source}]' if self.is_citing else ''}"


class _Draft:
    """The lines of a summary by section, within a budget."""

    def __init__(
        self,
        budget_tokens: int,
        size: Callable[[str], int],
        facts: Sequence[Fact],
        staying: Sequence[Item],
        *,
        is_short: bool,
    ) -> None:
        self.room = budget_tokens
        self.kept: list[Fact] = []
        self._size = size
        self._staying = _texts_by_author(staying)
        self._style = self._style_for(facts, is_short=is_short)
        self.room -= self._size(self._style.legend) + 1 if self._style.legend else 0
        self._left: list[Fact] = []
        self._sections: dict[str, list[str]] = {}
        self._own_words: list[frozenset[str]] = []  # words of each of the model's own lines
        self._note, self._note_tokens = "", 0

    def _style_for(self, facts: Sequence[Fact], *, is_short: bool) -> "_Style":
        """Return the most detailed style that fits all facts, else the shortest; with `is_short`, the shortest."""
        people = {fact.by for fact in facts if fact.by}
        styles = [_Style(is_citing=True), _Style()]
        styles += [_Style(person=person) for person in people if len(people) == 1]
        fitting = (one for one in styles if not is_short and self._cost(facts, one) <= self.room)
        return next(fitting, styles[-1])

    def _cost(self, facts: Iterable[Fact], style: "_Style | None" = None) -> int:
        style = style or self._style
        return sum(self._size(style.line(fact)) + 1 for fact in facts)

    def reserve_note(self, facts: Sequence[Fact], before: Sequence[str]) -> None:
        """Reserve room for the note about omissions, if facts were or will be omitted."""
        if before or self._cost(facts) > self.room:
            self._note_tokens = max(0, min(self._size(RECALL_NOTE) + self.room // _NOTE_PART, self.room // 2))
            self.room -= self._note_tokens

    def add(self, section: str, line: str) -> bool:
        """Add a line if there is room for it. Returns whether the line was added."""
        lines = self._sections.get(section)
        cost = self._size(line) + 1 + (self._size(f"## {section}") + 1 if lines is None else 0)
        if cost > self.room:
            return False
        self.room -= cost
        self._sections.setdefault(section, []).append(line)
        return True

    def add_facts(self, facts: Iterable[Fact]) -> None:
        """Add the facts missing from all lines and remaining messages."""
        stated = self.text
        lines = stated.splitlines()
        for fact in facts:
            is_stated = fact.kind not in BINDING and _is_said(fact, stated, lines, self._own_words)
            if (
                is_stated
                or fact.text in self._staying.get(fact.by, "")
                or self.add(_SECTION_OF[fact.kind], self._style.line(fact))
            ):
                self.kept.append(fact)
            elif is_strong(fact):
                self._left.append(fact)

    def add_own_lines(self, lines: Iterable[Line], strong: Iterable[Fact]) -> None:
        """Add the model's own lines. Half of the room is reserved for strong facts that these lines do not state."""
        lines = list(lines)
        own_text = "\n".join(line for _, line in lines)
        lacking = (fact for fact in strong if not _is_said(fact, own_text, own_text.splitlines(), ()))
        reserved = min(self._cost(lacking), max(0, self.room) // 2)
        binding_words = [language.content_words(fact.text) for fact in self.kept]
        self.room -= reserved
        for section, line in lines:
            words = language.content_words(line)
            is_repeated = section == SECTIONS[1] and any(is_alike(words, others, SAME) for others in binding_words)
            if not is_repeated and self.add(section, line):
                self._own_words.append(words)
        self.room += reserved

    def add_lines(self, lines: Iterable[Line]) -> None:
        """Add these lines while there is room."""
        for section, line in lines:
            self.add(section, line)

    def add_note(self, before: Sequence[str]) -> tuple[str, ...]:
        """Add the note about omitted facts. Returns the words that find them, including those from `before`."""
        stated = self.text
        names = (name for fact in self._left for name in _names_of(fact))
        words = [word for word in dict.fromkeys([*names, *before]) if word not in stated][:_MOST_LEFT_OUT]
        self.room += self._note_tokens
        shown = ""
        for word in words:
            longer = f"{shown}, {word}" if shown else f"{RECALL_NOTE}{word}"
            if self._size(longer) + 1 > self.room:
                break
            shown = longer
        self._note = f"{shown})" if shown else ""
        return tuple(words)

    @property
    def text(self) -> str:
        """All lines under their headings, in the order of the headings."""
        lines = [
            line
            for section in SECTIONS
            if section in self._sections
            for line in (f"## {section}", *self._sections[section])
        ]
        return "\n".join(line for line in (self._style.legend if lines else "", *lines, self._note) if line)


def _names_of(fact: Fact) -> Sequence[str]:
    """Return the search words for a fact: its names, or its longest word."""
    return (
        language.identifiers(fact.text)
        or sorted(language.content_words(fact.text), key=lambda one: (-len(one), one))[:1]
    )


def _texts_by_author(items: Iterable[Item]) -> dict[str | None, str]:
    """Return the texts of each author; None stands for the agent. Tool results have no author."""
    texts: dict[str | None, str] = {}
    for item in items:
        if item.role != "tool":
            author = item.name if item.role == "user" else None
            texts[author] = f"{texts.get(author, '')}\n{item.content}"
    return texts


def _cited_ids(text: str, citable: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in cited_in(text) if name in citable))


def _authors(found: Extract, items: Sequence[Item]) -> frozenset[str]:
    """Return the author names with which a line may begin."""
    return _ROLES.union((fact.by or "me" for fact in found.facts), (item.name or "me" for item in items))


def _lines_of(text: str, found: Extract, items: Sequence[Item]) -> tuple[list[Line], list[Line]]:
    """Return a model's own lines, and its lines that only repeat sentences of the messages, each once.

    Leaves out lines that repeat facts, because facts are placed by worth, and outdated values.
    """
    known = {fact.text for fact in found.facts}.union(language.sentences(EXTRACT_LABEL))
    authors = _authors(found, items)
    said = "\n".join(item.content for item in items) if text else ""
    old_values = [_OldValue(old, new) for old, new in found.replaced]
    own: dict[Line, None] = {}
    repeated: dict[Line, None] = {}
    for section, line in _lines_by_section(text):
        bare = _bare(line, authors)
        sentences = set(language.sentences(bare))
        if bare.startswith(_OWN_LINES) or sentences <= known or _is_outdated(line, old_values):
            continue
        group = repeated if all(one in said for one in sentences - known) else own
        group[section, _MARKS.sub("- ", line)] = None
    return list(own), list(repeated)


def _is_outdated(line: str, old_values: Iterable["_OldValue"]) -> bool:
    words = language.content_words(line)
    return any(value.is_stated_in(line, words) for value in old_values)


def _bare(line: str, authors: Collection[str]) -> str:
    """Return a line without list marks, authors at its start and citations at its end."""
    while (match := _AUTHOR.match(line)) and match[1] in authors:
        line = line[match.end() :]
    while match := _CITATIONS_AT_END.search(line):
        line = line[: match.start()]
    return _MARKS.sub("", line)


def _lines_by_section(text: str) -> Iterable[Line]:
    section = SECTIONS[0]
    for line in text.splitlines():
        heading = heading_of(line)
        if heading in SECTIONS:
            section = heading
        elif line.strip():
            yield section, line.rstrip()


class _OldValue:
    """A statement that a later message replaced or withdrew."""

    def __init__(self, old: Fact, new: Fact) -> None:
        self._old, self._new = old, new
        before, after = set(language.identifiers(old.text)), set(language.identifiers(new.text))
        # "From 8080 to 9090" names the old value too.
        self._gone = (before - after) | ({value_of(old.text)} - {""})
        self._current = after - before
        self._subject = language.content_words(old.text) & language.content_words(new.text)

    def is_stated_in(self, line: str, words: frozenset[str]) -> bool:
        """Return whether a line still states the old value."""
        if self._old.text in line:
            return self._new.text not in line
        if not self._gone or not self._subject & words:
            return False
        named = set(language.identifiers(line))
        return bool(self._gone & named) and not self._current & named


def _is_said(fact: Fact, text: str, lines: Sequence[str], own_words: Sequence[frozenset[str]]) -> bool:
    """Return whether the text states the fact: the same words, or (for a plain fact) all its names in one line."""
    if fact.text in text:
        return True
    return says(fact.text, lines, lambda: own_words)


def says(fact: str, lines: Iterable[str], words_of_lines: Callable[[], Iterable[frozenset[str]]]) -> bool:
    """Return whether a line says a fact in any words: all its names, or without names, most of its words."""
    if names := _names_in(fact):
        return any(_has_names(line, names) for line in lines)
    words = language.content_words(fact)
    return any(is_alike(words, others, SAME) for others in words_of_lines())


def _names_in(text: str) -> frozenset[str]:
    """Return the numbers and names that an equivalent line must contain, in lower case, without single digits."""
    words = (one for one in _WORD.findall(text) if any(map(str.isdigit, one)))
    return frozenset(one.lower() for one in (*words, *language.identifiers(text)) if len(one) > 1)


def _has_names(line: str, names: Iterable[str]) -> bool:
    """Return whether a line has all of these names."""
    line = line.lower()
    return all(one in line for one in names)
