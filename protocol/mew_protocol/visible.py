"""[pure] Text of others as a person can check it: characters that cannot be seen are shown by their number.

Owns which characters count as invisible, and how a cut is marked. Used where a person decides about a text, so nothing
is removed and nothing is left out silently.
"""

import re
import unicodedata
from typing import Final

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})

_BLANK: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810)))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Letters and marks without a shape of their own: fillers, joiners and variation selectors."""

_LAST_SPACE: Final = re.compile(r" (?=\n|\Z)")


def visible(text: str, *, lines: bool = False) -> str:
    """Return a text with invisible characters, direction marks and unusual spaces as `<U+202E>`.

    So is the last space of a line, which nobody sees. With `lines`, line feeds stay as they are.
    """
    if text.isascii() and text.isprintable() and not text.endswith(" "):
        return text
    shown = "".join(
        one if one == " " or (lines and one == "\n") or not is_invisible(one) else _code(one) for one in text
    )
    return _LAST_SPACE.sub(_code(" "), shown)


def is_invisible(character: str) -> bool:
    """Return True if a character cannot be seen, looks like a space, or changes how others are shown."""
    return character in _BLANK or unicodedata.category(character) in _INVISIBLE


def shortened(text: str, most: int, where: str = "") -> str:
    """Return the first `most` characters of a text, and how many are left out; `where` says how to see them all."""
    left = len(text) - most
    if left <= 0:
        return text
    more = "1 more character" if left == 1 else f"{left:,} more characters"
    return f"{text[:most]} … ({more}{f'; {where}' if where else ''})"


def _code(character: str) -> str:
    return f"<U+{ord(character):04X}>"
