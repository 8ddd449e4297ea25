"""[pure] Recognising a request for a summary, and answering it by extraction.

Owns what counts as such a request: the first system message or the last user message orders it, in a sentence
of its own near its beginning or end (`Summarise ...`, `Please summarize ...`, `Write a summary ...`,
`You summarise ...`). Text that merely speaks of summaries does not count. Headings (`## Decisions`) in the
order become the sections of the reply, each filled with what fits its name. Knows no HTTP.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from mew_agent.model.rehearsal import text as texts
from mew_agent.model.rehearsal.content import text_of
from mew_agent.model.rehearsal.tokenizer import count

_COURTESY = r"(?:please\s+|now\s+|then\s+|(?:can|could|would|will)\s+you\s+(?:please\s+)?|@?[\w-]+[:,]\s+)*"
_ORDER = re.compile(
    rf"(?:^|[.!?:;>\n]\s*|\byou\s+|\b(?:task|job)\s+is\s+to\s+|\bare\s+to\s+){_COURTESY}"
    r"(?:(?:summari[sz]e|condense)\b"
    r"|(?:write|give|produce|create|make|update|return|extend)\s[^.\n]{0,60}\bsummary\b)"
    r"|\byou\s+are\s+an?\s[^.\n]{0,40}\bsummari[sz]er\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^[ \t]*(#{1,4}[ \t]+\S[^\n]{0,78})$", re.MULTILINE)
_BLOCK = re.compile(
    r"<(?P<tag>[A-Za-z][\w-]*)[^>\n]*>\n?(?P<text>.*?)</(?P=tag)>|^```\w*\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)
_NEAR_EDGE_CHARS = 400
_LONG_ORDER_CHARS = 1500
_MOST_IDENTIFIERS = 24

Turn = tuple[str, str]
"""Role and text."""


def is_summary_request(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether the request orders a summary rather than an answer."""
    return _ordering_message(messages) is not None


def summarise(messages: Sequence[Mapping[str, object]], limit_tokens: int) -> str:
    """A summary of at most `limit_tokens`, and at most a sixth of what it summarises or 64 tokens."""
    place = _ordering_message(messages)
    if place is None:
        return ""
    order = text_of(messages[place])
    source = _source(messages, place)
    size = sum(count(text) for _, text in source)
    limit = min(limit_tokens, max(64, size // 6))
    headings = list(dict.fromkeys(match.strip() for match in _HEADING.findall(_BLOCK.sub("", order))))[:12]
    return _in_sections(headings, source, limit) if headings else _in_one(source, limit)


def text_to_summarise(messages: Sequence[Mapping[str, object]]) -> str:
    """All the text that a summary request is about, as it stands."""
    place = _ordering_message(messages)
    return "\n".join(text for _, text in _source(messages, place)) if place is not None else ""


def _ordering_message(messages: Sequence[Mapping[str, object]]) -> int | None:
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    if users and _orders(text_of(messages[users[-1]])):
        return users[-1]
    if messages and messages[0].get("role") in ("system", "developer"):
        opening = text_of(messages[0])[:_NEAR_EDGE_CHARS]
        return 0 if _ORDER.search(opening) else None
    return None


def _orders(text: str) -> bool:
    bare = _BLOCK.sub("\n", text).strip()
    return bool(_ORDER.search(bare[:_NEAR_EDGE_CHARS]) or _ORDER.search(bare[-_NEAR_EDGE_CHARS:]))


def _source(messages: Sequence[Mapping[str, object]], order_at: int) -> list[Turn]:
    turns = [
        (str(message.get("role")), text_of(message))
        for place, message in enumerate(messages)
        if place != order_at and message.get("role") not in ("system", "developer")
    ]
    order = text_of(messages[order_at])
    blocks = [match["text"] or match["code"] or "" for match in _BLOCK.finditer(order)]
    if blocks:
        turns += [("user", block) for block in blocks]
    elif messages[order_at].get("role") == "user" and len(order) > _LONG_ORDER_CHARS:
        turns.append(("user", order))
    return [(role, text) for role, text in turns if text]


def _in_one(source: Sequence[Turn], limit_tokens: int) -> str:
    every = [sentence for _, text in source for sentence in texts.sentences(text)]
    names = texts.identifiers(text for _, text in source)[:_MOST_IDENTIFIERS]
    tail = _fitted("Names: ", names, limit_tokens // 4)
    room = limit_tokens - count(tail) - 1
    chosen: set[str] = set()
    for sentence in texts.most_central(every):
        if (cost := count(sentence) + 1) <= room:
            chosen.add(sentence)
            room -= cost
    body = "\n".join(sentence for sentence in dict.fromkeys(every) if sentence in chosen)
    return "\n".join(part for part in (body, tail) if part)


def _in_sections(headings: Sequence[str], source: Sequence[Turn], limit_tokens: int) -> str:
    room = limit_tokens - sum(count(heading) + 2 for heading in headings)
    used: set[str] = set()
    sections: list[str] = []
    for place, heading in enumerate(headings):
        share = max(0, room) // (len(headings) - place)
        body = _section(heading, source, used, share)
        room -= count(body) + 1
        sections.append(f"{heading}\n{body}" if body else heading)
    return "\n".join(sections)


def _section(heading: str, source: Sequence[Turn], used: set[str], share_tokens: int) -> str:
    if re.search(r"\b(?:ids?|identifiers?|files?|paths?|names?|references?|resources?)\b", heading, re.IGNORECASE):
        names = texts.identifiers(text for _, text in source)[:_MOST_IDENTIFIERS]
        return _fitted("", names, share_tokens)
    lines: list[str] = []
    for sentence in _candidates(heading, source):
        line = f"- {sentence}"
        cost = count(line) + 1
        if sentence not in used and cost <= share_tokens:
            used.add(sentence)
            lines.append(line)
            share_tokens -= cost
    return "\n".join(lines)


def _candidates(heading: str, source: Sequence[Turn]) -> list[str]:
    """Sentences for a section, best first: those its name asks for, else what the text is about."""
    every = [(role, sentence) for role, text in source for sentence in texts.sentences(text)]
    for pattern, fits in _FITTING:
        if re.search(pattern, heading, re.IGNORECASE):
            fitting = [sentence for role, sentence in every if fits(role, sentence)]
            return texts.most_central(fitting)
    return texts.most_central([sentence for _, sentence in every])


def _says(pattern: str) -> Callable[[str, str], bool]:
    expression = re.compile(pattern, re.IGNORECASE)
    return lambda _role, sentence: expression.search(sentence) is not None


_FITTING: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    (r"goal|intent|request|task|asked|user|purpose", lambda role, _: role == "user"),
    (r"tool|result|output", lambda role, _: role == "tool"),
    (r"number|figure|fact|measure|value", lambda _, sentence: texts.has_number(sentence)),
    (r"decision|decided|agreed|constraint|rule", _says(r"\b(?:decid|agree|chose|must|never|always|shall|will)")),
    (r"open|pending|next|todo|question|unresolved", _says(r"\?|\b(?:next|todo|pending|open|should|later)\b")),
)


def _fitted(opening: str, names: Sequence[str], limit_tokens: int) -> str:
    while names:
        line = opening + ", ".join(names)
        if count(line) <= limit_tokens:
            return line
        names = names[:-1]
    return ""
