"""[pure] The words and rules of the board that every surface shares: terminal, scripts and dashboard.

`board_words.json` holds them; the dashboard reads the same file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

BOARD_WORDS_FILE: Final = Path(__file__).with_name("board_words.json")

_WORDS: Final[Mapping[str, Any]] = json.loads(BOARD_WORDS_FILE.read_text(encoding="utf-8"))

COUNTED: Final = frozenset[str](_WORDS["counted"])
"""Bases of figures that are shown without `~`."""

REASONS: Final[Mapping[str, str]] = _WORDS["reasons"]
"""Why a figure is missing, by the reason of a report."""

OUTDATED_WORDS: Final[Mapping[str, str]] = _WORDS["outdated"]
"""Why a figure may not be true any more."""

SKIPPED: Final[Mapping[str, str]] = _WORDS["skipped"]
"""Why a compaction was skipped, by the reason of its answer."""

PART_NAMES: Final[Mapping[str, str]] = _WORDS["parts"]
"""How parts of a window are called where their own name does not say it."""

ATTENTION_WORDS: Final[Mapping[str, str]] = _WORDS["attention"]
"""What needs a person in two or three words, by the kind of the item."""

STATE_WORDS: Final[Mapping[str, str]] = _WORDS["states"]
"""The state of participants in groups, by how urgent they are."""

RECEIPT_FORMS: Final[Mapping[str, str]] = _WORDS["receipt_forms"]
"""What the context of `{participant}` still holds of a message, by the form in a receipt."""

RECEIPT_CHANGES: Final[Mapping[str, str]] = _WORDS["receipt_changes"]
"""What a mark adds if the context no longer holds the whole message."""
