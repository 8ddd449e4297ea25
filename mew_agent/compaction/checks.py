"""[pure] Checks that a text by a model is a summary of these messages."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import mew_agent.compaction.language as language
from mew_agent.compaction.extract import important_names, is_alike
from mew_agent.context.history import Fact, Item

_NAMED_SHARE = 0.125  # minimum share of the important identifiers; the rest is added from the extract
_MOST_NAMES, _FEWEST_NAMES = 24, 4
_SHARED_WORDS = 0.3  # minimum share of a summary's words that the messages contain
_FEWEST_WORDS = 8
_REPEATS = 3
_MOST_QUOTES = 64  # looking for one reads all messages
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
    """Sources of a summary: the messages, the text of the previous summary, and all facts."""

    items: Sequence[Item]
    previous_text: str
    facts: Sequence[Fact]

    @property
    def text(self) -> str:
        """Everything a summary may quote."""
        calls = (call.arguments for item in self.items for call in item.tool_calls)
        facts = (fact.text for fact in self.facts)
        return "\n".join([self.previous_text, *(item.content for item in self.items), *calls, *facts])


def problem_of(text: str, headings: Sequence[str], source: SummarySource) -> str | None:
    """Return the reason to reject the text as a summary; None to accept it. Takes time linear in both texts."""
    given = source.text
    return _broken_text(text, given) or _wrong_form(text, headings) or _wrong_content(text, headings, source, given)


def _broken_text(text: str, given: str) -> str | None:
    if _CONTROL.search(text):
        return "it contains control characters"
    if _THINKING.search(text) and not _THINKING.search(given):
        return "it contains thinking that does not end"
    mark = _TEMPLATE.search(text)
    if mark and mark[0] not in given:
        return "it contains tokens of a chat template"
    lines = Counter(line.strip() for line in text.splitlines() if len(line.strip()) > _FEWEST_WORDS)
    said = Counter(sentence for line in lines for sentence in language.sentences(line) if len(sentence) > 12)
    if any(count >= _REPEATS for count in (*lines.values(), *said.values())):
        return "it repeats itself"
    loop = _LOOP.search(text)
    if loop and re.search(r"\w{2}", loop[1]) and loop[0] not in given:
        return "it repeats itself"
    return None


def _wrong_form(text: str, headings: Sequence[str]) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_HEADING_MARK.sub("", line) for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    opening = " ".join(body)[:_OPENING_CHARS]
    refusal = language.REFUSAL.search(opening)
    if refusal and not opening[: refusal.start()].strip(" -*\"'"):
        return "it is a refusal"
    if not any(heading in headings for heading in found):
        return "it has none of the headings asked for"
    unknown = [heading for heading in found if heading not in headings]
    if len(unknown) > len(found) // 2:
        return "it has other headings than those asked for"
    last = _CITATION_AT_END.sub("", body[-1]) if body else ""
    if (lines and lines[-1].startswith("#")) or _UNFINISHED.search(last) or text.count("```") % 2:
        return "it ends in the middle"
    return None


def _wrong_content(text: str, headings: Sequence[str], source: SummarySource, given: str) -> str | None:
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    spoken = "\n".join(item.content for item in source.items if item.role != "tool" and not item.notice)
    expected, written = language.language_of(spoken), language.language_of(body)
    if expected is not None and written is not None and expected != written:
        return f"it is in {written}, and the conversation in {expected}"
    words = language.content_words(body)
    if len(words) >= _FEWEST_WORDS and not is_alike(words, language.content_words(given), _SHARED_WORDS):
        return "it is about something else than the messages"
    flat = _SPACE.sub(" ", given)
    for match in islice(_QUOTE.finditer(body), _MOST_QUOTES):
        quote = next(group for group in match.groups() if group)
        if any(part not in flat for part in _ELLIPSIS.split(_SPACE.sub(" ", quote).strip(" .,;"))):
            return f"it quotes what no message says: {quote[:60]!r}"
    unsourced = _claim_without_source(body, source)
    if unsourced is not None:
        return f"it names no source for {unsourced[:80]!r}"
    names = important_names(source.items, source.facts)[:_MOST_NAMES]
    named = sum(name in text for name in names)
    if len(names) >= _FEWEST_NAMES and named < _NAMED_SHARE * len(names):
        return f"it names {named} of {len(names)} identifiers that matter, for example {', '.join(names[:5])}"
    return None


def _claim_without_source(body: str, source: SummarySource) -> str | None:
    """Return a line about a user's question that has no citation and matches no message; None if there is none."""
    claims = [line for line in body.splitlines() if language.CLAIM.search(line)]
    if not claims:
        return None
    ids = {name for item in source.items for name in (item.id, item.envelope_id) if name}
    ids |= {fact.source for fact in source.facts}
    said = [language.content_words(item.content) for item in source.items if item.role == "user"]
    said += [language.content_words(fact.text) for fact in source.facts if fact.by is not None]
    said.append(language.content_words(source.previous_text))
    for line in claims:
        words = language.content_words(language.CLAIM.sub(" ", line))
        is_cited = any(name in ids for name in re.findall(r"[^\[\],; ]+", line))
        if not is_cited and not any(is_alike(words, others, 0.5) for others in said):
            return line.strip()
    return None
