"""[pure] The commands about a participant: their kinds, and the payloads built from typed words.

`verbs.json` holds them. The terminal reads it here; the dashboard reads the same file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

VERBS_FILE: Final = Path(__file__).with_name("verbs.json")

VERBS: Final[Mapping[str, Mapping[str, Any]]] = json.loads(VERBS_FILE.read_text(encoding="utf-8"))
"""By name: the `kind`, the `fields`, and for a verb of the gateway the `target`: the key with the participant.

`formerly` is an old name that is still accepted, and `does` is the effect of the command. A verb that `begins`
something is answered with a status that says so, and later with its outcome (see `is_preliminary`).
"""


def payload_of(verb: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Read the words after a verb and its participant, field by field. Raises `ValueError` with the reason."""
    rest, found = list(words), dict[str, Any]()
    fields = verb.get("fields", ())
    for field in fields:
        value = _take(field, rest)
        if value:
            found[field["name"]] = value
        elif field.get("required"):
            raise ValueError(f"{field['what']} is missing")
    if rest:
        raise ValueError(f"'{rest[0]}' is not a number of {fields[-1]['label'].lower()}")
    return found


def _take(field: Mapping[str, Any], rest: list[str]) -> Any:
    """Remove the words of a field; None or nothing if there are none."""
    options, kind = field.get("options"), field.get("type")
    if options is not None:
        return rest.pop(0) if rest[:1] and rest[0] in options else options[0]
    if kind == "number":
        return _number(rest.pop(0)) if rest and _is_number(rest[0], field.get("min", 0)) else None
    taken, rest[:] = rest[:], []
    return taken if kind == "list" else " ".join(taken)


def _is_number(word: str, least: int) -> bool:
    return word.replace(".", "", 1).isdecimal() and float(word) >= least


def _number(word: str) -> float:
    return int(word) if word.isdecimal() else float(word)
