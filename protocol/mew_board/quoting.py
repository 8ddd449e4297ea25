"""[pure] Quotes texts and names of others for another language, so that they stay text whatever they contain.

Owns one function for each language: a terminal, plain text with several authors, Markdown, a shell. Each is safe by
construction, not by a list of known attacks. HTML has `html.escape`, and JSON has `json.dumps`. Does not shorten texts.
"""

import re
import shlex
import unicodedata
from typing import Final

from mew_board.visible import visible

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_MARKDOWN: Final = re.compile(r"[\\`*\[\]<>~|&#$]|_(?![^\W_])|(?<![^\W_])_|:(?=//)")
"""Characters with a meaning inside a line of Markdown, or of one of its dialects. `_` has none within a word."""
_MARKDOWN_START: Final = re.compile(r"\A(\d+(?=[.)])|(?=[-+=]))")
"""The beginnings of a list, a rule or a heading."""


def clean(text: str) -> str:
    """Remove control and format characters, so that a text cannot control a terminal or reverse its direction."""
    if text.isprintable():
        return text
    return "".join(one for one in text if unicodedata.category(one) not in _INVISIBLE)


def one_line(text: str) -> str:
    """Return a text as one line without control characters; each run of blanks and line breaks becomes one space."""
    return clean(" ".join(text.split()))


def indented(text: str, margin: str = "  ") -> str:
    """Indent all lines after the first with `margin`, so that none looks like another entry."""
    return f"\n{margin}".join(clean(line.expandtabs(4)) for line in text.splitlines())


def markdown_line(text: str) -> str:
    """Return a text as one line of Markdown, such as a heading, that renders as exactly this text."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return _MARKDOWN_START.sub(r"\1\\", escaped)


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a code block of Markdown, with a fence longer than any in the text."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return "\n".join((f"{fence}{language}", *(clean(line.expandtabs(4)) for line in text.splitlines()), fence))


def mew_command(command: str, *names: str) -> str:
    """Return a `mew` command for people to copy into a shell: `mew approve 3f2a9c1b`.

    `command` may have several words. Quotes names as arguments, and marks invisible characters.
    """
    separator = ["--"] if any(one.startswith("-") for one in names) else []
    return visible(f"mew {command} {shlex.join([*separator, *names])}")
