"""[pure] What somebody probably meant who wrote a name that nobody knows."""

import difflib
from collections.abc import Iterable

_LIKENESS = 0.6


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name that is most like this one; empty where none is."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=_LIKENESS)
    return f" (did you mean '{found[0]}'?)" if found else ""
