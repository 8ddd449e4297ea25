"""[pure] Checks that a model's text is a summary of these messages."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import mew_agent.compaction.language as language
from mew_agent.compaction.extract import important_names, is_alike
from mew_agent.context.history import Fact, Item

_NAMED_SHARE = 0.125  # minimum share of the important identifiers; the rest is added from the extract
_MOST_NAMES, _FEWEST_NAMES = 24, 4
_SHARED_WORDS = 0.3  # minimum share of a summary's words that the messages contain
_FEWEST_WORDS = 8
_REPEATS = 3
_MOST_QUOTES = 64  # each search reads all messages
_OPENING_CHARS = 200

_TEMPLATE = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜\n]{1,40}｜>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_THINKING = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)
_LOOP = re.compile(r"(?=\S)([^\n]{6,80}?)\1{3}")
_QUOTE = re.compile(
    r"\"([^\"\n]{12,600})\"|“([^“”\n]{12,600})”|„([^„“”\n]{12,600})[“”]|«([^«»\n]{12,600})»|「([^「」\n]{6,300})」"
)
_ELLIPSIS = re.compile(r" ?\[?(?:\.\.\.|…)\]? ?")
_SPACE = re.compile(r"\s+")
_HEADING_MARK = re.compile(r"^#+\s*")
_UNFINISHED = re.compile(r"[,;:(\[{–—-]$|\b(?:and|or|the|of|to|und|oder|der|et|ou|le|y|o|el|de)$", re.IGNORECASE)
_CITATION_AT_END = re.compile(r"(?<!\s)\s*\[[^\[\]\n]{1,512}\]\.?$")


@dataclass(frozen=True, slots=True)
class SummarySource:
    """The sources of a summary: the messages, the previous summary, and all facts."""

    items: Sequence[Item]
    previous_text: str
    facts: Sequence[Fact]

    @property
    def text(self) -> str:
        """Everything a summary may quote."""
        calls = (call.arguments for item in self.items for call in item.tool_calls)
        facts = (fact.text for fact in self.facts)
        return "\n".join([self.previous_text, *(item.content for item in self.items), *calls, *facts])

    @property
    def names(self) -> set[str | None]:
        """The ids that a summary may cite: of messages and facts."""
        items = {name for item in self.items for name in (item.id, item.envelope_id)}
        return items | {fact.source for fact in self.facts}

    @property
    def statements(self) -> list[str]:
        """The texts of users and the previous summary."""
        said = [item.content for item in self.items if item.role == "user"]
        facts = [fact.text for fact in self.facts if fact.by is not None]
        return [*said, *facts, self.previous_text]


class _Text:
    """A candidate summary, with the words and names that the checks compare."""

    def __init__(self, text: str, headings: Sequence[str], source: SummarySource) -> None:
        self.text, self.expected_headings, self.source = text, headings, source
        self.given = source.text
        self.lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.headings = [_HEADING_MARK.sub("", line) for line in self.lines if line.startswith("#")]
        self.body_lines = [line for line in self.lines if not line.startswith("#")]
        self.body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def problem_of(text: str, headings: Sequence[str], source: SummarySource) -> str | None:
    """Return the reason to reject the text as a summary; None to accept it. Takes time linear in both texts."""
    read = _Text(text, headings, source)
    return next((problem for check in _CHECKS if (problem := check(read)) is not None), None)


def _broken_text(read: _Text) -> str | None:
    text, given = read.text, read.given
    if _CONTROL.search(text):
        return "it contains control characters"
    if _THINKING.search(text) and not _THINKING.search(given):
        return "it contains thinking that does not end"
    mark = _TEMPLATE.search(text)
    return "it contains tokens of a chat template" if mark and mark[0] not in given else None


def _repetition(read: _Text) -> str | None:
    lines = Counter(line for line in read.lines if len(line) > _FEWEST_WORDS)
    said = Counter(sentence for line in lines for sentence in language.sentences(line) if len(sentence) > 12)
    most = max((*lines.values(), *said.values()), default=0)
    return "it repeats itself" if most >= _REPEATS else None


def _loop(read: _Text) -> str | None:
    loop = _LOOP.search(read.text)
    is_ours = loop is not None and re.search(r"\w{2}", loop[1]) and loop[0] not in read.given
    return "it repeats itself" if is_ours else None


def _refusal(read: _Text) -> str | None:
    opening = " ".join(read.body_lines)[:_OPENING_CHARS]
    refusal = language.REFUSAL.search(opening)
    return "it is a refusal" if refusal and not opening[: refusal.start()].strip(" -*\"'") else None


def _wrong_headings(read: _Text) -> str | None:
    unknown = [heading for heading in read.headings if heading not in read.expected_headings]
    if len(unknown) == len(read.headings):
        return "it has none of the headings asked for"
    return "it has other headings than those asked for" if len(unknown) > len(read.headings) // 2 else None


def _unfinished(read: _Text) -> str | None:
    last = _CITATION_AT_END.sub("", read.body_lines[-1]) if read.body_lines else ""
    ends_with_heading = bool(read.lines) and read.lines[-1].startswith("#")
    is_cut = ends_with_heading or _UNFINISHED.search(last) or read.text.count("```") % 2
    return "it is cut off" if is_cut else None


def _other_language(read: _Text) -> str | None:
    spoken = "\n".join(item.content for item in read.source.items if item.role != "tool" and not item.notice)
    expected, written = language.language_of(spoken), language.language_of(read.body)
    if expected is None or written is None or expected == written:
        return None
    return f"it is in {written}, and the conversation in {expected}"


def _other_subject(read: _Text) -> str | None:
    words = language.content_words(read.body)
    if len(words) < _FEWEST_WORDS or is_alike(words, language.content_words(read.given), _SHARED_WORDS):
        return None
    return "it is about something else than the messages"


def _false_quote(read: _Text) -> str | None:
    flat = _SPACE.sub(" ", read.given)
    for match in islice(_QUOTE.finditer(read.body), _MOST_QUOTES):
        quote = next(group for group in match.groups() if group)
        if any(part not in flat for part in _ELLIPSIS.split(_SPACE.sub(" ", quote).strip(" .,;"))):
            return f"it quotes what no message says: {quote[:60]!r}"
    return None


def _claim_without_source(read: _Text) -> str | None:
    """Return the problem with a line about a user's question that has no citation and matches no message."""
    claims = [line for line in read.body.splitlines() if language.CLAIM.search(line)]
    if not claims:
        return None
    names, statements = read.source.names, [language.content_words(text) for text in read.source.statements]
    for line in claims:
        words = language.content_words(language.CLAIM.sub(" ", line))
        is_cited = not names.isdisjoint(re.findall(r"[^\[\],; ]+", line))
        if not is_cited and not any(is_alike(words, others, 0.5) for others in statements):
            return f"it names no source for {line.strip()[:80]!r}"
    return None


def _missing_names(read: _Text) -> str | None:
    names = important_names(read.source.items, read.source.facts)[:_MOST_NAMES]
    named = sum(name in read.text for name in names)
    if len(names) < _FEWEST_NAMES or named >= _NAMED_SHARE * len(names):
        return None
    return f"it names {named} of {len(names)} identifiers that matter, for example {', '.join(names[:5])}"


_CHECKS: Final[Sequence[Callable[[_Text], str | None]]] = (
    _broken_text,
    _repetition,
    _loop,
    _refusal,
    _wrong_headings,
    _unfinished,
    _other_language,
    _other_subject,
    _false_quote,
    _claim_without_source,
    _missing_names,
)
"""In this order; the first problem is the one that is reported."""
