"""[pure] Recognise a summary request, and write the summary by extraction.

A request is an instruction in a separate sentence near the start or end of the first system message or the last user
message. Its `## Headings` become sections; if it requests citations as `[id]`, sentences have the id of their block.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import mew_agent.parts.rehearsal.text as texts
from mew_agent.parts.rehearsal.text import message_text
from mew_agent.parts.rehearsal.tokenizer import count, encode

_COURTESY = r"(?:please\s+|now\s+|then\s+|(?:can|could|would|will)\s+you\s+(?:please\s+)?|@?[\w-]++[:,]\s+)*+"
_INSTRUCTION = re.compile(
    rf"(?:^|[.!?:;>]\s*+|(?<!\s)(?=[^\S\n]*\n)\s++|\byou\s+|\b(?:task|job)\s+is\s+to\s+|\bare\s+to\s+){_COURTESY}"
    r"(?:(?:summari[sz]e|condense)\b"
    r"|(?:write|give|produce|create|make|update|return|extend)\s[^.\n]{0,60}\bsummary\b"
    r"|respond\s+with\s[^.\n]{0,80}<summary>)"
    r"|\byou\s+are\s+an?\s[^.\n]{0,40}\bsummari[sz]er\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^[ \t]*(#{1,4}[ \t]+\S[^\n]{0,78})$", re.MULTILINE)
# One pattern for both ends of blocks: a pattern of whole blocks would search to the end for each block without an end.
_EDGE = re.compile(
    r"<(?P<tag>[A-Za-z][\w-]*+)(?P<attributes>[^<>\n]*+)>\n?|</(?P<closed>[A-Za-z][\w-]*+)>|^```(?P<code>\w*+\n)?",
    re.MULTILINE,
)
_ATTRIBUTE = re.compile(r"\b(id|from)=\"([^\"]*)\"")
_TOKEN_LIMIT = re.compile(r"\b(?:at most|no more than|within|under) (\d+) tokens\b", re.IGNORECASE)
_CITED = re.compile(r"\[[^\[\]\n]{1,128}\]$")
_LISTED = re.compile(r"^\[(?P<id>m\d+)\] [^:\n]+: (?P<text>.+)$", re.MULTILINE)
_LISTED_CHARS = 200
# The words of `behaviour` around quoted sentences.
_OWN_FRAME = re.compile(r"(?:You write:|Earlier:|From what I was given:) (?=\")|(?<!\w)\"|\"(?!\w)")
_FRAGMENT = re.compile(r"[,;(]$|\b(?:and|or|the|of|to)$")  # the first line of a wrapped sentence
_NEAR_EDGE_CHARS = 400
_LONG_REQUEST_CHARS = 1500
_MAX_IDENTIFIERS = 24
_TAGS = ("<summary>\n", "\n</summary>")
_ROLE_OF_AUTHOR = {"me": "assistant", "assistant": "assistant", "tool": "tool"}

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A sentence of a turn, with the id to cite, or ""."""

    role: str
    sentence: str
    id: str

    @property
    def cited(self) -> str:
        return f"{self.sentence} [{self.id}]" if self.id and not _CITED.search(self.sentence) else self.sentence


def is_summary_request(messages: Sequence[Message]) -> bool:
    """Return True if the messages request a summary."""
    return _request_at(messages) is not None


def summarise(messages: Sequence[Message], limit_tokens: int) -> str:
    """Write a summary within `limit_tokens`, the limit in the request, and a sixth of the source (or 64 tokens).

    It is in `<summary>` tags if the request ends with them.
    """
    place = _request_at(messages)
    if place is None:
        return ""
    instructions = _without_blocks(message_text(messages[place]), "")
    source = _source(messages, place)
    limits = [limit_tokens, max(64, sum(count(turn.text) for turn in source) // 6)]
    limits += [int(match) for match in _TOKEN_LIMIT.findall(instructions)]
    tags = _TAGS if _TAGS[0].strip() in instructions[-_NEAR_EDGE_CHARS:] else ("", "")
    text = _written(instructions, source, min(limits) - sum(map(count, tags)))
    return f"{tags[0]}{text}{tags[1]}" if text else ""


def _written(instructions: str, source: Sequence[_Turn], limit: int) -> str:
    statements = [one for turn in source for one in _statements(turn, is_cited="[id]" in instructions)]
    names = texts.identifiers(turn.text for turn in source)[:_MAX_IDENTIFIERS]
    headings = list(dict.fromkeys(match.strip() for match in _HEADING.findall(instructions)))[:12]
    if headings and (text := _in_sections(headings, statements, names, limit)):
        return text
    # A short source has room for one section only; a shorter one for no complete sentence.
    opening = f"{headings[0]}\n" if headings and count(headings[0]) * 2 < limit else ""
    limit -= count(opening)
    text = _as_one_text(statements, names, limit) or _first_tokens(statements, limit)
    return f"{opening}{text}" if text else ""


def _statements(turn: _Turn, *, is_cited: bool) -> Iterator[_Statement]:
    text = _OWN_FRAME.sub("\n", turn.text) if turn.role == "assistant" else turn.text
    for sentence in texts.sentences(text):
        if not _FRAGMENT.search(sentence):
            yield _Statement(turn.role, sentence, turn.id if is_cited else "")


def quarter_of(messages: Sequence[Message]) -> str:
    """Return every fourth sentence of the source, in order, distributed over the request's headings."""
    place = _request_at(messages)
    if place is None:
        return ""
    kept = [sentence for turn in _source(messages, place) for sentence in texts.sentences(turn.text)][::4]
    headings = list(dict.fromkeys(match.strip() for match in _HEADING.findall(message_text(messages[place]))))
    if not headings:
        return "\n".join(kept)
    share = -(-len(kept) // len(headings))
    sections = [(heading, kept[n * share : (n + 1) * share]) for n, heading in enumerate(headings)]
    return "\n".join(line for heading, lines in sections if lines for line in (heading, *lines))


def text_to_summarise(messages: Sequence[Message]) -> str:
    """Return the complete text that a summary request refers to, unchanged."""
    place = _request_at(messages)
    return "\n".join(turn.text for turn in _source(messages, place)) if place is not None else ""


def _request_at(messages: Sequence[Message]) -> int | None:
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    if users and _is_request(message_text(messages[users[-1]])):
        return users[-1]
    if messages and messages[0].get("role") in ("system", "developer"):
        opening = message_text(messages[0])[:_NEAR_EDGE_CHARS]
        return 0 if _INSTRUCTION.search(opening) else None
    return None


def _is_request(text: str) -> bool:
    bare = _without_blocks(text, "\n").strip()
    return bool(_INSTRUCTION.search(bare[:_NEAR_EDGE_CHARS]) or _INSTRUCTION.search(bare[-_NEAR_EDGE_CHARS:]))


def _source(messages: Sequence[Message], request_at: int) -> list[_Turn]:
    """Return the text to summarise: the other messages, else the blocks or the long text in the request.

    Messages have the ids that the request lists, as `[id] author: beginning`.
    """
    turns: list[_Turn] = []
    ids = {match["text"]: match["id"] for match in _LISTED.finditer(message_text(messages[request_at]))}
    for place, message in enumerate(messages):
        role, text = str(message.get("role")), message_text(message)
        if place != request_at and role in ("system", "developer"):
            continue
        blocks = list(_blocks(text))
        if blocks:
            turns += blocks
        elif place != request_at:
            turns.append(_Turn(role, text, _listed_id(text, ids)))
        elif role == "user" and len(text) > _LONG_REQUEST_CHARS and not ids:
            turns.append(_Turn(role, text))
    return [turn for turn in turns if turn.text]


def _listed_id(text: str, ids: Mapping[str, str]) -> str:
    opening = " ".join(text[:_LISTED_CHARS].split())
    return next((ids[part] for part in ids if opening.startswith(part)), "")


def _blocks(text: str) -> Iterator[_Turn]:
    return (turn for turn, _, _ in _blocks_in(text))


def _without_blocks(text: str, replacement: str) -> str:
    places = [0, *(place for _, start, end in _blocks_in(text) for place in (start, end)), len(text)]
    return replacement.join(text[start:end] for start, end in zip(places[::2], places[1::2], strict=True))


def _ends_by_kind(edges: Sequence[re.Match[str]]) -> dict[str, list[re.Match[str]]]:
    """Return the ends of elements by tag, the last first. Code blocks have an empty tag."""
    ends: dict[str, list[re.Match[str]]] = {}
    for edge in reversed(edges):
        if (kind := edge["closed"] or ("" if edge[0].startswith("`") else None)) is not None:
            ends.setdefault(kind, []).append(edge)
    return ends


def _blocks_in(text: str) -> Iterator[tuple[_Turn, int, int]]:
    """Yield the elements and code blocks of a text, with their starts and ends. Unclosed ones are text."""
    edges = list(_EDGE.finditer(text))
    ends, place = _ends_by_kind(edges), 0
    for edge in edges:
        if edge.start() < place or edge["closed"] or not (edge["tag"] or edge["code"]):
            continue
        waiting = ends.get(edge["tag"] or "", [])
        while waiting and waiting[-1].start() < edge.end():
            waiting.pop()
        if waiting:
            attributes = dict(_ATTRIBUTE.findall(edge["attributes"] or ""))
            role = _ROLE_OF_AUTHOR.get(attributes.get("from", ""), "user")
            inner, place = text[edge.end() : waiting[-1].start()].strip(), waiting[-1].end()
            if not edge["tag"]:
                place = waiting[-1].start() + len("```")
            yield _Turn(role, inner, attributes.get("id", "")), edge.start(), place


def _as_one_text(statements: Sequence[_Statement], names: Sequence[str], limit_tokens: int) -> str:
    tail = _fitted("Names: ", names, limit_tokens // 4)
    room = limit_tokens - count(tail) - 1
    chosen: set[_Statement] = set()
    for statement in _most_central(statements):
        if (cost := count(statement.cited) + 1) <= room:
            chosen.add(statement)
            room -= cost
    body = "\n".join(statement.cited for statement in dict.fromkeys(statements) if statement in chosen)
    return "\n".join(part for part in (body, tail) if part)


def _first_tokens(statements: Sequence[_Statement], limit_tokens: int) -> str:
    """Return the part of the most central sentence that fits."""
    for statement in _most_central(statements):
        return "".join(encode(statement.sentence)[:limit_tokens])
    return ""


def _in_sections(
    headings: Sequence[str], statements: Sequence[_Statement], names: Sequence[str], limit_tokens: int
) -> str:
    room = limit_tokens - sum(count(heading) + 2 for heading in headings)
    used: set[str] = set()
    sections: list[str] = []
    for place, heading in enumerate(headings):
        share = max(0, room) // (len(headings) - place)
        if _ASKS_FOR_NAMES.search(heading):
            body = _fitted("", names, share)
        else:
            body = _filled(_candidates(heading, statements), used, share, min(room, 2 * share))
        if body:
            room -= count(body) + 1
            sections.append(f"{heading}\n{body}")
    return "\n".join(sections)


def _filled(candidates: Sequence[_Statement], used: set[str], share_tokens: int, first_tokens: int) -> str:
    """Return the lines that fit into the share. The first may exceed it, so that no section is empty."""
    lines: list[str] = []
    for statement in candidates:
        line = f"- {statement.cited}"
        cost = count(line) + 1
        if statement.sentence not in used and cost <= (share_tokens if lines else first_tokens):
            used.add(statement.sentence)
            lines.append(line)
            share_tokens -= cost
    return "\n".join(lines)


def _candidates(heading: str, statements: Sequence[_Statement]) -> list[_Statement]:
    """Return the statements for a section, best first: matches of its name, else the most central ones."""
    for pattern, fits in _FITTING:
        if re.search(pattern, heading, re.IGNORECASE):
            fitting = [statement for statement in statements if fits(statement)]
            # The first request is the goal, even if it is rarely repeated.
            opening = fitting[:1] if pattern == _GOAL else []
            return opening + _most_central(fitting)
    return _most_central(statements)


def _most_central(statements: Sequence[_Statement]) -> list[_Statement]:
    first: dict[str, _Statement] = {}
    for statement in statements:
        first.setdefault(statement.sentence, statement)
    return [first[sentence] for sentence in texts.most_central([statement.sentence for statement in statements])]


def _matches(pattern: str) -> Callable[[_Statement], bool]:
    expression = re.compile(pattern, re.IGNORECASE)
    return lambda statement: expression.search(statement.sentence) is not None


_ASKS_FOR_NAMES = re.compile(r"\b(?:ids?|identifiers?|files?|paths?|names?|references?|resources?)\b", re.IGNORECASE)
_GOAL = r"goal|intent|request|task|asked|purpose"
_FITTING: tuple[tuple[str, Callable[[_Statement], bool]], ...] = (
    (_GOAL, lambda statement: statement.role == "user"),
    (r"done|progress|so far", lambda statement: statement.role == "assistant"),
    (r"tool|result|output", lambda statement: statement.role == "tool"),
    (r"number|figure|fact|measure|value", lambda statement: texts.has_number(statement.sentence)),
    (r"constraint|instruction|rule", _matches(r"\b(?:must|never|always|only|shall|may not|do not)\b")),
    (r"decision|decided|agreed", _matches(r"\b(?:decid|agree|chose|because|will|must)")),
    (r"open|pending|next|todo|question|unresolved", _matches(r"\?|\b(?:next|todo|pending|open|should|later)\b")),
)


def _fitted(opening: str, names: Sequence[str], limit_tokens: int) -> str:
    while names:
        line = opening + ", ".join(names)
        if count(line) <= limit_tokens:
            return line
        names = names[:-1]
    return ""
