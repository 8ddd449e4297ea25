"""[pure] Plan the reply of the rehearsal model, as a function of the request alone.

Answers quote the request, so other text gives another answer. Does not know HTTP or shorten replies.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mew_protocol.json_values import objects_at, value_at

import mew_agent.parts.rehearsal.text as texts
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions, ScriptedToolCall
from mew_agent.parts.rehearsal.summaries import is_summary_request, quarter_of, summarise, text_to_summarise
from mew_agent.parts.rehearsal.text import message_text
from mew_agent.parts.rehearsal.tokenizer import count, encode
from mew_agent.parts.rehearsal.tool_requests import requested_calls

Message = Mapping[str, object]

SELF_DESCRIPTION = (
    "I am the rehearsal model that ships with mew-agent: no weights, no network. I quote what I was given, call"
    " tools when asked to, and summarise by extraction."
)
_ASKS_WHO = re.compile(r"\b(?:who|what)\s+are\s+you\b|\b(?:which|what)\s+(?:\w+\s+)?model\b", re.IGNORECASE)
_QUOTES = 3
_SHORT_RESULT_TOKENS = 60
_SECTION = re.compile(r"(?:\[[^\n]*\]\n)?(### \w{4}-\d{1,3})\n")
"""The beginning of a message that asks for a section of its own in the answer; the first one has an introduction."""

_CALL = re.compile(r"\s*call\s+(\w+_\w+)", re.IGNORECASE)
NO_SUCH_TOOL = "I have no tool named {name}. `mew tools` lists those of the space; my capabilities say which I may see."
"""Answer to a request for a tool that was not offered."""


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """A complete reply before any limit is applied."""

    text: str
    calls: tuple[ScriptedToolCall, ...] = ()


def plan_reply(
    messages: Sequence[Message], tools: Sequence[Message], options: RehearsalOptions, max_tokens: int | None
) -> PlannedReply:
    """Plan the reply to a request. `max_tokens` limits the length of a summary only."""
    if is_summary_request(messages):
        return PlannedReply(_summary(messages, options, max_tokens))
    incoming = [message for message in messages if message.get("role") in ("user", "tool")]
    if not incoming:
        return PlannedReply(SELF_DESCRIPTION)
    sections = _sections(messages)
    if incoming[-1].get("role") == "tool":
        answer = _answer_from_results(messages, options.reply_tokens)
        return PlannedReply(_in_sections(sections, options.reply_tokens, answer) if sections else answer)
    question = message_text(incoming[-1])
    if calls := requested_calls(sections[-1][1] if sections else question, tools):
        return PlannedReply("", calls)
    if sections:
        return PlannedReply(_in_sections(sections, options.reply_tokens))
    return _plan_answer(messages, question, options)


def _plan_answer(messages: Sequence[Message], question: str, options: RehearsalOptions) -> PlannedReply:
    if (unknown := _CALL.match(question)) is not None:
        return PlannedReply(NO_SUCH_TOOL.format(name=unknown[1]))
    if _ASKS_WHO.search(question) and count(question) < _SHORT_RESULT_TOKENS:
        return PlannedReply(SELF_DESCRIPTION)
    return PlannedReply(_answer(messages, question, options.reply_tokens))


def _sections(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return heading and text of each message since the last answer that asks for a section; none for a single
    message.
    """
    found: list[tuple[str, str]] = []
    for message in reversed(messages):
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            break
        text = message_text(message)
        if message.get("role") == "user" and (match := _SECTION.match(text)) is not None:
            found.append((match[1], text[match.end() :]))
    return found[::-1] if len(found) > 1 else []


def _in_sections(sections: Sequence[tuple[str, str]], limit_tokens: int, last: str | None = None) -> str:
    """Return an answer to each message, from its own words, below its heading; `last` is the answer to the last one."""
    answers = [_answer((), question, limit_tokens) for _, question in sections]
    if last is not None:
        answers[-1] = last
    return "\n\n".join(f"{heading}\n{answer}" for (heading, _), answer in zip(sections, answers, strict=True))


def _summary(messages: Sequence[Message], options: RehearsalOptions, max_tokens: int | None) -> str:
    match options.summary_behaviour:
        case "echo_everything":
            return text_to_summarise(messages)
        case "empty" | "fail" | "silent" | "endless":
            return ""
        case "quarter":
            return quarter_of(messages)
        case "extract":
            limit = options.summary_tokens if max_tokens is None else min(options.summary_tokens, max_tokens)
            return summarise(messages, limit)


def _answer(messages: Sequence[Message], question: str, limit_tokens: int) -> str:
    own = texts.sentences(question)
    earlier = _earlier_sentences(messages, question)
    query = texts.content_words(question)
    if len(own) >= _QUOTES:
        # Not a question: quote its topic, and earlier messages about the same topic.
        topic = texts.most_central(own)[: _QUOTES - 1]
        return _quoted([("You write:", topic), ("Earlier:", texts.best_for(query, earlier)[:1])], limit_tokens)
    found = texts.best_for(query, earlier)[:_QUOTES]
    if found:
        return _quoted([("From what I was given:", found)], limit_tokens)
    start = "".join(encode(question)[:30]).strip()
    end = "" if start.endswith((".", "!", "?")) else "."
    return f'Noted: "{start}"{end} I have nothing else about it in what I was given.'


def _earlier_sentences(messages: Sequence[Message], question: str) -> list[str]:
    """Return the sentences of users and tools before the question. Skip the model's own replies, which are
    quotations.
    """
    given = [message_text(message) for message in messages if message.get("role") in ("user", "tool")]
    own = set(texts.sentences(question))
    return [sentence for text in given for sentence in texts.sentences(text) if sentence not in own]


def _called_names(message: Message) -> dict[str, str]:
    """Return the names of the functions that a message calls, by the ids of the calls."""
    calls = objects_at(message, "tool_calls")
    return {str(call.get("id")): str(value_at(call, "function", "name")) for call in calls if "function" in call}


def _answer_from_results(messages: Sequence[Message], limit_tokens: int) -> str:
    calls_at = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    names = _called_names(messages[calls_at]) if calls_at >= 0 else {}
    questions = [message_text(message) for message in messages if message.get("role") == "user"]
    query = texts.content_words(questions[-1]) if questions else frozenset()
    results = [message for message in messages[calls_at + 1 :] if message.get("role") == "tool"]
    share = max(16, limit_tokens // max(1, len(results)))
    parts: list[str] = []
    for result in results:
        name = names.get(str(result.get("tool_call_id")), "the tool")
        parts.append(f"{name} answered: {_essence(message_text(result), query, share)}")
    return "\n".join(parts)


def _essence(text: str, query: frozenset[str], limit_tokens: int) -> str:
    if count(text) <= min(limit_tokens, _SHORT_RESULT_TOKENS):
        return text.strip() or "(nothing)"
    candidates = texts.sentences(text)
    found = texts.best_for(query, candidates) or texts.most_central(candidates)
    return _quoted([("", found[:_QUOTES])], limit_tokens) or "".join(encode(text)[:limit_tokens]).strip()


def _quoted(groups: Sequence[tuple[str, Sequence[str]]], limit_tokens: int) -> str:
    """Return each group's opening and quoted sentences, as many as fit, but at least one."""
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
