"""[pure] What the rehearsal model answers: a function of the request alone.

Owns the choice between a tool call, an answer from tool results, a summary and an ordinary answer, and the
extraction that makes an answer. It quotes what it was given, so other text gives another answer; it has no
knowledge of its own and says so. Knows neither HTTP nor how replies are cut to length.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mew_agent.rehearsal.text as texts
from mew_agent.rehearsal.content import text_of
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.summarising import is_summary_request, summarise, text_to_summarise
from mew_agent.rehearsal.tokenizer import count, encode
from mew_agent.rehearsal.tool_requests import RequestedCall, requested_calls

Message = Mapping[str, object]

SELF_DESCRIPTION = (
    "I am the rehearsal model that ships with mew-agent: no weights, no network. I quote what I was given, call"
    " tools when asked to, and summarise by extraction."
)
_WHO = re.compile(r"\b(?:who|what)\s+are\s+you\b|\b(?:which|what)\s+(?:\w+\s+)?model\b", re.IGNORECASE)
_QUOTES = 3
_SHORT_RESULT_TOKENS = 60


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """A whole reply before any bound is applied."""

    text: str
    calls: tuple[RequestedCall, ...] = ()


def plan_reply(
    messages: Sequence[Message], tools: Sequence[Message], options: RehearsalOptions, max_tokens: int | None
) -> PlannedReply:
    """Plan the reply to a request. `max_tokens` only bounds how much a summary tries to say."""
    if is_summary_request(messages):
        return PlannedReply(_summary(messages, options, max_tokens))
    waiting = [message for message in messages if message.get("role") in ("user", "tool")]
    if not waiting:
        return PlannedReply(SELF_DESCRIPTION)
    if waiting[-1].get("role") == "tool":
        return PlannedReply(_answer_from_results(messages, options.reply_tokens))
    asked = text_of(waiting[-1])
    if calls := requested_calls(asked, tools):
        return PlannedReply("", calls)
    if _WHO.search(asked) and count(asked) < _SHORT_RESULT_TOKENS:
        return PlannedReply(SELF_DESCRIPTION)
    return PlannedReply(_answer(messages, asked, options.reply_tokens))


def _summary(messages: Sequence[Message], options: RehearsalOptions, max_tokens: int | None) -> str:
    match options.summary_behaviour:
        case "echo_everything":
            return text_to_summarise(messages)
        case "empty" | "fail":
            return ""
        case "extract":
            limit = options.summary_tokens if max_tokens is None else min(options.summary_tokens, max_tokens)
            return summarise(messages, limit)


def _answer(messages: Sequence[Message], asked: str, limit_tokens: int) -> str:
    said = texts.sentences(asked)
    earlier = _earlier_sentences(messages, asked)
    query = texts.content_words(asked)
    if len(said) >= _QUOTES:
        # A text to read: what it is about, and what was said of the same before.
        own = texts.most_central(said)[: _QUOTES - 1]
        return _quoted([("You write:", own), ("Earlier:", texts.best_for(query, earlier)[:1])], limit_tokens)
    found = texts.best_for(query, earlier)[:_QUOTES]
    if found:
        return _quoted([("From what I was given:", found)], limit_tokens)
    start = "".join(encode(asked)[:30]).strip()
    return f'Noted: "{start}". I have nothing else about it in what I was given.'


def _earlier_sentences(messages: Sequence[Message], asked: str) -> list[str]:
    """Sentences of users and tools before the question; our own replies are quotations already."""
    given = [text_of(message) for message in messages if message.get("role") in ("user", "tool")]
    own = set(texts.sentences(asked))
    return [sentence for text in given for sentence in texts.sentences(text) if sentence not in own]


def _answer_from_results(messages: Sequence[Message], limit_tokens: int) -> str:
    calls_at = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    names = _call_names(messages[calls_at]) if calls_at >= 0 else {}
    asked = [text_of(message) for message in messages if message.get("role") == "user"]
    query = texts.content_words(asked[-1]) if asked else frozenset()
    results = [message for message in messages[calls_at + 1 :] if message.get("role") == "tool"]
    share = max(16, limit_tokens // max(1, len(results)))
    parts: list[str] = []
    for result in results:
        name = names.get(str(result.get("tool_call_id")), "the tool")
        parts.append(f"{name} answered: {_essence(text_of(result), query, share)}")
    return "\n".join(parts)


def _call_names(message: Message) -> dict[str, str]:
    calls = message.get("tool_calls")
    names: dict[str, str] = {}
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            names[str(call.get("id"))] = str(function.get("name"))
    return names


def _essence(text: str, query: frozenset[str], limit_tokens: int) -> str:
    if count(text) <= min(limit_tokens, _SHORT_RESULT_TOKENS):
        return text.strip() or "(nothing)"
    candidates = texts.sentences(text)
    found = texts.best_for(query, candidates) or texts.most_central(candidates)
    return _quoted([("", found[:_QUOTES])], limit_tokens) or "".join(encode(text)[:limit_tokens]).strip()


def _quoted(groups: Sequence[tuple[str, Sequence[str]]], limit_tokens: int) -> str:
    """Each group's opening and its sentences in quotes, as many as fit; the first always stands."""
    parts: list[str] = []
    room = limit_tokens
    for opening, quotes in groups:
        for place, quote in enumerate(quotes):
            part = f'{opening} "{quote}"'.strip() if place == 0 else f'"{quote}"'
            cost = count(part) + 1
            if parts and cost > room:
                break
            parts.append(part)
            room -= cost
    return " ".join(parts)
