"""[pure] The rehearsal model's tokenizer and prompt template: every count it reports comes from here.

Owns how text is cut into tokens and what a request costs beside its texts. Knows no server and no reply.

A token is one match of `_TOKEN`, tried in this order; nothing is dropped, so joining the tokens of a text
gives the text back:

* one CJK character;
* a word's first piece: up to nine lower-case letters, with an optional capital and the single space before it;
* a further piece of the same word: up to five letters, with an optional capital (`get` `User` `Name`);
* capitals: up to two together, also with the single space before them;
* other letters (accented, Greek, Cyrillic ...): up to three together, also with the single space before them;
* digits: up to three together;
* line breaks: up to three, each with the blanks before it;
* marks (anything that is none of these): up to four together, also with the single space before them;
* blanks: up to sixteen;
* anything else: one character.

English prose comes to about 4.5 characters a token, code and JSON to about 3, hex and base64 to less than 2,
Chinese to 1: the proportions of a byte-pair vocabulary, without one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mew_agent.rehearsal.content import text_of

TOKENS_PER_MESSAGE = 4
"""Role, separators and end mark of every message."""

TOKENS_FOR_NAME = 1
"""A message's `name`, beside the name's own tokens."""

TOKENS_PER_TOOL_CALL = 6
"""Frame of a tool call, beside its name and arguments. Ids are not rendered, as in most chat templates."""

TOKENS_FOR_TOOLS = 12
"""Introduction of the tools, once, if any are offered."""

TOKENS_PER_TOOL = 4
"""Frame of one offered tool, beside its JSON."""

TOKENS_FOR_PRIMER = 3
"""What opens the reply, at the end of every prompt."""

_CJK = "\u2e80-\u2fdf\u3000-\u30ff\u3130-\u318f\u31a0-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
_TOKEN = re.compile(
    rf"""
      [{_CJK}]
    | (?:[ ]|(?<![A-Za-z])) [A-Z]?[a-z]{{1,9}}
    | [A-Z]?[a-z]{{1,5}}
    | [ ]?[A-Z]{{1,2}}
    | [ ]?(?:(?![A-Za-z{_CJK}])[^\W\d_]){{1,3}}
    | [0-9]{{1,3}}
    | (?:[ \t]*\r?\n){{1,3}}
    | [ ]?[^A-Za-z0-9\s{_CJK}]{{1,4}}
    | [ \t]{{1,16}}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def encode(text: str) -> list[str]:
    """Cut `text` into tokens; joined again they are `text`."""
    return _TOKEN.findall(text)


@lru_cache(maxsize=8192)
def count(text: str) -> int:
    """Number of tokens of `text`. Remembered, because a conversation is sent again with every call."""
    return len(_TOKEN.findall(text))


def count_message(message: Mapping[str, object]) -> int:
    """Tokens of one message of a request (the OpenAI shape), with its template overhead."""
    tokens = TOKENS_PER_MESSAGE + count(text_of(message))
    name = message.get("name")
    if isinstance(name, str):
        tokens += TOKENS_FOR_NAME + count(name)
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        tokens += sum(_count_wire_call(call) for call in calls)
    return tokens


def count_tool_call(name: str, arguments: str) -> int:
    """Tokens of one tool call, the same in a reply and in a later prompt."""
    return TOKENS_PER_TOOL_CALL + count(name) + count(arguments)


def count_request(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()) -> int:
    """Prompt tokens of a request. The template is additive: what a message costs does not depend on the others."""
    tokens = TOKENS_FOR_PRIMER + sum(count_message(message) for message in messages)
    if tools:
        tokens += TOKENS_FOR_TOOLS + sum(TOKENS_PER_TOOL + count(_rendered(tool)) for tool in tools)
    return tokens


def _rendered(tool: Mapping[str, object]) -> str:
    return json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _count_wire_call(call: object) -> int:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return TOKENS_PER_TOOL_CALL
    return count_tool_call(str(function.get("name") or ""), str(function.get("arguments") or ""))
