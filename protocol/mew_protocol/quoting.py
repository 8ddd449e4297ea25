"""[pure] Texts and names of others, written into another language: they stay text, whatever they contain.

Owns one function for each language: a terminal, plain text with several authors, a prompt for a model, Markdown, the
mark-up of chat services, a shell. Each is safe by construction, not by a list of known attacks. HTML has `html.escape`,
and JSON has `json.dumps`. Does not shorten texts.
"""

import re
import shlex
import unicodedata
from collections.abc import Mapping
from typing import Final

from mew_protocol.visible import visible

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_TAGS: Final = re.compile(r"<(?=\s*+(?:/\s*+)?(?:message|earlier_summary))", re.IGNORECASE)
_NOT_IN_ATTRIBUTE: Final = re.compile(r"[\"<>\r\n\x00-\x1f]")

_MARKDOWN: Final = re.compile(r"[\\`*\[\]<>~|&#$]|_(?![^\W_])|(?<![^\W_])_|:(?=//)")
"""What has a meaning inside a line of Markdown, or of one of its dialects. `_` has none within a word."""
_MARKDOWN_START: Final = re.compile(r"\A(\d+(?=[.)])|(?=[-+=]))")
"""What begins a list, a rule or a heading."""

_CHAT_MARKUP: Final = str.maketrans(dict(zip("<>&@`*~|[]#\\", "‹›＆＠´∗∼¦［］＃＼", strict=True)))
_CHAT_EMPHASIS: Final = re.compile(r"_(?![^\W_])|(?<![^\W_])_")
_CHAT_LINK: Final = re.compile(r":(?=//)|:(?=\w+:)|(?<=www)\.", re.IGNORECASE)


def clean(text: str) -> str:
    """Remove control and format characters, so that a text cannot control a terminal or reverse its direction."""
    if text.isprintable():
        return text
    return "".join(one for one in text if unicodedata.category(one) not in _INVISIBLE)


def one_line(text: str) -> str:
    """Return a text as one line without control characters; each run of blanks and line breaks becomes one space."""
    return clean(" ".join(text.split()))


def indented(text: str, margin: str = "  ") -> str:
    """Return plain text with `margin` before its further lines, so that none looks like another entry."""
    return f"\n{margin}".join(clean(line.expandtabs(4)) for line in text.splitlines())


def in_tag(text: str, about: Mapping[str, str]) -> str:
    """Return a message as a model reads it among others: in a tag with attributes, which its text cannot close."""
    attributes = "".join(f' {name}="{_NOT_IN_ATTRIBUTE.sub("_", value)}"' for name, value in about.items())
    return f"<message{attributes}>\n{without_tags(text)}\n</message>"


def spoken(text: str, author: str) -> str:
    """Return a message of a prompt with its author: a line `author: text`, or a tag if it has several lines."""
    is_line = len(text.splitlines()) < 2
    return f"{author}: {without_tags(text)}" if is_line else in_tag(text, {"from": author})


def without_tags(text: str) -> str:
    """Return a text that can neither close a tag of `in_tag` nor open one."""
    return _TAGS.sub(r"<\\", text)


def markdown_line(text: str) -> str:
    """Return a text as one line of Markdown, such as a heading, that shows exactly this text."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return _MARKDOWN_START.sub(r"\1\\", escaped)


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a code block of Markdown, with a fence longer than any in the text."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return "\n".join((f"{fence}{language}", *(clean(line.expandtabs(4)) for line in text.splitlines()), fence))


def chat_line(text: str) -> str:
    """Return a text as one line for Slack, Discord, Teams and similar services, without mentions, links or mark-up.

    These services agree on no way to escape. Each character that one of them reads as mark-up becomes one that looks
    like it: `<!channel>` becomes `‹!channel›`.
    """
    plain = _CHAT_EMPHASIS.sub("＿", one_line(text).translate(_CHAT_MARKUP))
    return _CHAT_LINK.sub(lambda found: "：" if found[0] == ":" else "․", plain)


def mew_command(command: str, *names: str) -> str:
    """Return a `mew` command for people to copy into a shell: `mew approve 3f2a9c1b`.

    `command` may have several words. Names are arguments, whatever they contain; invisible characters are marked.
    """
    separator = ["--"] if any(one.startswith("-") for one in names) else []
    return visible(f"mew {command} {shlex.join([*separator, *names])}")
