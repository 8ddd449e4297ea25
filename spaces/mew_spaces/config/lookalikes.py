"""[pure] Ids that look like another id: `аda` with a Cyrillic letter and `ada`.

Compares ids by Unicode's confusable characters (UTS 39), and ignores characters without a shape, such as variation
selectors. ASCII ids are not compared: `a1` and `al` differ.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from unicodedata import name as name_of
from unicodedata import normalize

from mew_board.visible import is_invisible

_SMALL_CAPITAL: Final = "LATIN LETTER SMALL CAPITAL "
"""UTS 39 does not list most of these letters. Ids that differ in case alone look alike, and so do they."""


def alike(name: str, others: Iterable[str]) -> str | None:
    """Return the first other id that a person could confuse with `name`, or None."""
    folded, shape = _folded(name), None
    for other in others:
        if _folded(other) == folded:
            return other
        if not (name.isascii() and other.isascii()):
            shape = shape or _shape(folded)
            if _shape(_folded(other)) == shape:
                return other
    return None


def imitates_ascii(name: str) -> bool:
    """Return whether an id with other characters looks like plain ASCII, such as `аda` or `ｇateway`."""
    return not name.isascii() and _shape(_folded(name)).isascii()


def _folded(name: str) -> str:
    """Return an id in the form in which some systems compare file names, such as those of tokens."""
    return normalize("NFC", normalize("NFC", name).casefold())


@lru_cache(maxsize=4096)
def _prototype(character: str) -> str:
    if is_invisible(character):
        return ""
    unicode_name = name_of(character, "")
    if unicode_name.startswith(_SMALL_CAPITAL) and len(letter := unicode_name.removeprefix(_SMALL_CAPITAL)) == 1:
        return letter
    from confusable_homoglyphs.confusables import confusables_data  # 1 MB; most spaces never need it

    alternatives: list[str] = [one["c"] for one in confusables_data.get(character, ())]
    return min([character, *alternatives], key=lambda one: (not one.isascii(), -len(one), one))


def _shape(folded: str) -> str:
    """Return the same text for ids that look alike."""
    return "".join(map(_prototype, normalize("NFD", normalize("NFKC", folded)))).casefold()
