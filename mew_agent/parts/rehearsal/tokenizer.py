"""[pure] The tokenizer and the prompt template of the rehearsal model. Every count that it reports comes from here.

English prose has about 4.5 characters per token, code and JSON about 3, hex and base64 less than 2, Chinese 1. These
proportions are those of a byte-pair vocabulary.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from mew_listener.bounded_dict import cached_by_text
from mew_protocol.json_values import object_at

from mew_agent.parts.rehearsal.text import CACHED_CHARS, message_text

TOKENS_PER_MESSAGE = 4  # role, separators and end mark of each message
TOKENS_FOR_NAME = 1  # the `name` of a message, in addition to the tokens of the name
TOKENS_PER_TOOL_CALL = 6  # frame of a call, in addition to name and arguments; most templates render no ids
TOKENS_FOR_TOOLS = 12  # introduction of the tools, once per request that offers any
TOKENS_PER_TOOL = 4  # frame of an offered tool, in addition to its JSON
TOKENS_FOR_PRIMER = 3  # start of the reply, at the end of every prompt

_CJK = "\u2e80-\u2fdf\u3000-\u30ff\u3130-\u318f\u31a0-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
# Lossless: the joined tokens of a text are the text.
_TOKEN = re.compile(
    rf"""
      [{_CJK}]                                      # one CJK character
    | (?:[ ]|(?<![A-Za-z])) [A-Z]?[a-z]{{1,9}}      # the first piece of a word, with the space before it
    | [A-Z]?[a-z]{{1,5}}                            # a further piece of the same word: get User Name
    | [ ]?[A-Z]{{1,2}}                              # capitals
    | [ ]?(?:(?![A-Za-z{_CJK}])[^\W\d_]){{1,3}}     # other letters: accented, Greek, Cyrillic
    | [0-9]{{1,3}}                                  # digits
    | (?:[ \t]{{0,255}}\r?\n){{1,3}}                  # line breaks, each with the blanks before it
    | [ ]?[^A-Za-z0-9\s{_CJK}]{{1,4}}               # marks: any other visible character
    | [ \t]{{1,16}}                                 # blanks
    | .                                            # anything else
    """,
    re.VERBOSE | re.DOTALL,
)


def encode(text: str) -> list[str]:
    """Split `text` into tokens. Joined, they are `text`."""
    return _TOKEN.findall(text)


@cached_by_text(CACHED_CHARS)
def count(text: str) -> int:
    """Return the number of tokens in `text`. Cached, because every call sends the conversation again."""
    return len(_TOKEN.findall(text))


def count_tool_call(name: str, arguments: str) -> int:
    """Return the tokens of one tool call, in a reply or in a prompt."""
    return TOKENS_PER_TOOL_CALL + count(name) + count(arguments)


def count_request(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()) -> int:
    """Return the prompt tokens of a request. The cost of a message does not depend on the other messages."""
    return sum(repeated + count(text) for _, repeated, text in _prompt_parts(messages, tools))


def render_request(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()) -> list[str]:
    """Return the tokens of the prompt of a request, as many as `count_request` returns."""
    return [
        token
        for mark, repeated, text in _prompt_parts(messages, tools)
        for token in (*[mark] * repeated, *encode(text))
    ]


_Part = tuple[str, int, str]
"""A mark of the template, how many tokens it has, and the text that follows it."""


def _prompt_parts(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]]) -> Iterator[_Part]:
    if tools:  # first, as in most templates
        yield "<tools>", TOKENS_FOR_TOOLS, ""
    for tool in tools:
        yield "<tool>", TOKENS_PER_TOOL, json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    for message in messages:
        yield from _message_parts(message)
    yield "<reply>", TOKENS_FOR_PRIMER, ""


def _message_parts(message: Mapping[str, object]) -> Iterator[_Part]:
    name, calls = message.get("name"), message.get("tool_calls")
    yield f"<{message.get('role')}>", TOKENS_PER_MESSAGE, message_text(message)
    if isinstance(name, str):
        yield "<name>", TOKENS_FOR_NAME, name
    for call in calls if isinstance(calls, list) else ():
        function = object_at(call, "function")
        yield "<call>", TOKENS_PER_TOOL_CALL, str(function.get("name") or "")
        yield "", 0, str(function.get("arguments") or "")
