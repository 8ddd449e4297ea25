"""[pure] The tokenizer and the prompt template of the rehearsal model. Every count that it reports comes from here.

English prose has about 4.5 characters per token, code and JSON about 3, hex and base64 less than 2, Chinese 1. These
proportions are those of a byte-pair vocabulary.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mew_agent.rehearsal.text import message_text

TOKENS_PER_MESSAGE = 4  # role, separators and end mark of each message
TOKENS_FOR_NAME = 1  # the `name` of a message, in addition to the tokens of the name
TOKENS_PER_TOOL_CALL = 6  # frame of a call, in addition to name and arguments; most templates render no ids
TOKENS_FOR_TOOLS = 12  # introduction of the tools, once per request that offers any
TOKENS_PER_TOOL = 4  # frame of an offered tool, in addition to its JSON
TOKENS_FOR_PRIMER = 3  # start of the reply, at the end of every prompt

_CJK = "\u2e80-\u2fdf\u3000-\u30ff\u3130-\u318f\u31a0-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
# Nothing is dropped: the joined tokens of a text are the text.
_TOKEN = re.compile(
    rf"""
      [{_CJK}]                                      # one CJK character
    | (?:[ ]|(?<![A-Za-z])) [A-Z]?[a-z]{{1,9}}      # the first piece of a word, with the space before it
    | [A-Z]?[a-z]{{1,5}}                            # a further piece of the same word: get User Name
    | [ ]?[A-Z]{{1,2}}                              # capitals
    | [ ]?(?:(?![A-Za-z{_CJK}])[^\W\d_]){{1,3}}     # other letters: accented, Greek, Cyrillic
    | [0-9]{{1,3}}                                  # digits
    | (?:[ \t]*\r?\n){{1,3}}                        # line breaks, each with the blanks before it
    | [ ]?[^A-Za-z0-9\s{_CJK}]{{1,4}}               # marks: any other visible character
    | [ \t]{{1,16}}                                 # blanks
    | .                                            # anything else
    """,
    re.VERBOSE | re.DOTALL,
)


def encode(text: str) -> list[str]:
    """Split `text` into tokens. Joined, they are `text`."""
    return _TOKEN.findall(text)


@lru_cache(maxsize=2048)
def count(text: str) -> int:
    """The number of tokens in `text`. Cached, because every call sends the conversation again."""
    return len(_TOKEN.findall(text))


def count_message(message: Mapping[str, object]) -> int:
    """Tokens of one message in the OpenAI shape, with its template overhead."""
    tokens = TOKENS_PER_MESSAGE + count(message_text(message))
    name = message.get("name")
    if isinstance(name, str):
        tokens += TOKENS_FOR_NAME + count(name)
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        tokens += sum(_count_json_call(call) for call in calls)
    return tokens


def count_tool_call(name: str, arguments: str) -> int:
    """Tokens of one tool call, in a reply or in a prompt."""
    return TOKENS_PER_TOOL_CALL + count(name) + count(arguments)


def count_request(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()) -> int:
    """Prompt tokens of a request. The template is additive: the cost of a message does not depend on the others."""
    tokens = TOKENS_FOR_PRIMER + sum(count_message(message) for message in messages)
    if tools:
        rendered = [json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":")) for tool in tools]
        tokens += TOKENS_FOR_TOOLS + sum(TOKENS_PER_TOOL + count(text) for text in rendered)
    return tokens


def render_request(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()) -> list[str]:
    """The tokens of the prompt of a request: as many as `count_request` says, tools first, as in most templates."""
    tokens = []
    if tools:
        tokens += ["<tools>"] * TOKENS_FOR_TOOLS
        for tool in tools:
            tokens += ["<tool>"] * TOKENS_PER_TOOL
            tokens += encode(json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    for message in messages:
        tokens += [f"<{message.get('role')}>"] * TOKENS_PER_MESSAGE
        name, calls = message.get("name"), message.get("tool_calls")
        if isinstance(name, str):
            tokens += ["<name>"] * TOKENS_FOR_NAME + encode(name)
        tokens += encode(message_text(message))
        for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            tokens += ["<call>"] * TOKENS_PER_TOOL_CALL
            if isinstance(function, Mapping):
                tokens += encode(str(function.get("name") or "")) + encode(str(function.get("arguments") or ""))
    return tokens + ["<reply>"] * TOKENS_FOR_PRIMER


def _count_json_call(call: object) -> int:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return TOKENS_PER_TOOL_CALL
    return count_tool_call(str(function.get("name") or ""), str(function.get("arguments") or ""))
