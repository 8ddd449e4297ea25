"""[pure] Prepares foreign text for a person's check: marks invisible characters and look-alikes.

Chooses the marked characters, and marks cuts. Removes nothing, and omits nothing silently, because a person decides
about the text. The dashboard does the same with `visible.js`, and reads the same `look_alikes.json`.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

MOST_CHARS: Final = 400
"""How long a text of a participant is shown. Where it belongs to a decision, the whole text is shown elsewhere."""

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})

_BLANK: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810)))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Letters and marks without a shape of their own: fillers, joiners and variation selectors."""

_LAST_SPACE: Final = re.compile(r" (?=\n|\Z)")
_MANY_SPACES: Final = re.compile(r" {9,}")

_MOST_SPACES: Final = 8
"""So many between two words are shown as they are; more push the rest out of sight."""
_MOST_INDENT: Final = 80
_MOST_MARKS: Final = 2
"""So many marks may be on one letter, as in Vietnamese."""

LOOK_ALIKES_FILE: Final = Path(__file__).with_name("look_alikes.json")
_LOOK_ALIKES: Final = json.loads(LOOK_ALIKES_FILE.read_text(encoding="utf-8"))
_ALIKE: Final = frozenset(_LOOK_ALIKES["letters"])
"""Letters of other scripts that look like ASCII ones."""
_ALIKE_SCRIPTS: Final = tuple(f"{one.upper()} " for one in _LOOK_ALIKES["scripts"])
_ALIKE_LATIN: Final = frozenset(_LOOK_ALIKES["latin"])
_ALIKE_SIGNS: Final = frozenset(_LOOK_ALIKES["signs"])


def visible(text: str, *, lines: bool = False) -> str:
    """Return a text with invisible characters, direction marks and unusual spaces as `<U+202E>`.

    A look-alike is followed by its code: `а<U+0430>dmin`. Marks the last space of a line, and replaces many spaces with
    their number. With `lines`, keeps line feeds.
    """
    if text.isascii() and text.isprintable() and "  " not in text and not text.endswith(" "):
        return text
    shown = "".join(_words(_counted(text), lines=lines))
    return _LAST_SPACE.sub(_code(" "), shown)


def _counted(text: str) -> str:
    """Replace very many spaces in a text with their number."""
    if "  " not in text:
        return text
    pieces: list[str] = []
    at = 0
    for found in _MANY_SPACES.finditer(text):
        is_indent = found.start() == 0 or text[found.start() - 1] == "\n"
        if len(found[0]) > (_MOST_INDENT if is_indent else _MOST_SPACES):
            pieces += [text[at : found.start()], f"<{len(found[0])} spaces>"]
            at = found.end()
    return "".join((*pieces, text[at:]))


def _words(text: str, *, lines: bool) -> Iterator[str]:
    """Yield a text in pieces, with words whole, because the other characters of a word show whether one is
    misleading.
    """
    if text.isascii() and text.isprintable():
        yield text
        return
    word: list[str] = []
    for one in text:
        if one not in _BLANK and (one.isalnum() or (not one.isascii() and unicodedata.category(one)[0] == "M")):
            word.append(one)
            continue
        yield _word(word)
        word.clear()
        if one == " " or (lines and one == "\n") or not is_invisible(one):
            yield f"{one}{_code(one)}" if is_misleading(one) else one
        else:
            yield _code(one)
    yield _word(word)


def _word(characters: list[str]) -> str:
    """Add codes to misleading letters, and to marks without a letter, in a word."""
    text = "".join(characters)
    if text.isascii():
        return text
    has_ascii = any(one.isascii() and one.isalpha() for one in characters)
    letters = [one for one in characters if unicodedata.category(one)[0] == "L"]
    is_alike = bool(letters) and all(_looks_ascii(one) for one in letters)
    shown: list[str] = []
    marks = _MOST_MARKS  # of the letter before; a mark without a letter does not fit
    for one in characters:
        is_mark = not one.isascii() and unicodedata.category(one)[0] == "M"
        is_odd = _misleads(one, has_ascii=has_ascii, is_alike=is_alike)
        marks = marks + 1 if is_mark else _MOST_MARKS if is_odd else 0
        shown.append(_code(one) if marks > _MOST_MARKS else f"{one}{_code(one)}" if is_odd else one)
    return "".join(shown)


def _misleads(one: str, *, has_ascii: bool, is_alike: bool) -> bool:
    if one.isascii():
        return False
    if is_misleading(one) or (is_alike and _looks_ascii(one)):
        return True
    return has_ascii and unicodedata.category(one)[0] == "L" and not _is_latin(one)


@cache
def _looks_ascii(one: str) -> bool:
    return one in _ALIKE or one in _ALIKE_LATIN or unicodedata.name(one, "").startswith(_ALIKE_SCRIPTS)


@cache
def _is_latin(one: str) -> bool:
    return unicodedata.name(one, "").startswith("LATIN ")


@cache
def is_misleading(one: str) -> bool:
    """Return True for a character that looks like an ASCII one in any context, such as a minus sign."""
    if one.isascii():
        return False
    usual = [part for part in unicodedata.decomposition(one).split() if not part.startswith("<")]
    return one in _ALIKE_LATIN or one in _ALIKE_SIGNS or (len(usual) == 1 and int(usual[0], 16) < 128)


def is_invisible(character: str) -> bool:
    """Return True if a character cannot be seen, looks like a space, or changes the display of others."""
    return character in _BLANK or unicodedata.category(character) in _INVISIBLE


def short(text: str, most: int = MOST_CHARS) -> str:
    """Return the first `most` characters of a text, and `…` if there are more."""
    return text if len(text) <= most else f"{text[:most]}…"


def short_line(text: str, most: int) -> str:
    """Return a text as one line, shortened to `most` characters."""
    return short(" ".join(text.split()), most)


def shortened(text: str, most: int, where: str = "") -> str:
    """Return the first `most` characters of a text, and the number of omitted ones; `where` says how to see all."""
    left = len(text) - most
    if left <= 0:
        return text
    more = "1 more character" if left == 1 else f"{left:,} more characters"
    return f"{text[:most]} … ({more}{f'; {where}' if where else ''})"


def _code(character: str) -> str:
    return f"<U+{ord(character):04X}>"
