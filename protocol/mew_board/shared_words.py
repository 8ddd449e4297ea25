"""[pure] The words that every surface shares: programs, terminal and dashboard.

`words.json` holds them; the dashboard reads the same file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

WORDS_FILE: Final = Path(__file__).with_name("words.json")

_WORDS: Final[Mapping[str, Mapping[str, str]]] = json.loads(WORDS_FILE.read_text(encoding="utf-8"))

REASONS: Final[Mapping[str, str]] = _WORDS["reasons"]
"""Why a figure is missing, by the reason of a report."""

OUTDATED_WORDS: Final[Mapping[str, str]] = _WORDS["outdated"]
"""Why a figure may not be true any more."""

SKIPPED: Final[Mapping[str, str]] = _WORDS["skipped"]
"""Why a compaction was skipped, by the reason of its answer."""

PART_NAMES: Final[Mapping[str, str]] = _WORDS["parts"]
"""How parts of a window are called where their own name does not say it."""

ATTENTION_WORDS: Final[Mapping[str, str]] = _WORDS["attention"]
"""The title of an attention item in two or three words, by its kind."""

SEVERAL_WORDS: Final[Mapping[str, str]] = _WORDS["several"]
"""The words for several items of a kind, after their number."""

STATE_WORDS: Final[Mapping[str, str]] = _WORDS["states"]
"""The state of participants in groups, by how urgent they are."""

RECEIPT_FORMS: Final[Mapping[str, str]] = _WORDS["receipt_forms"]
"""The form of a message in the context of `{participant}`, by the form in a receipt."""

RECEIPT_CHANGES: Final[Mapping[str, str]] = _WORDS["receipt_changes"]
"""The addition of a mark if the context no longer has the whole message."""

WINDOW_SOURCES: Final[Mapping[str, str]] = _WORDS["window_sources"]
"""How the size of a window is known, by the basis of the limit."""

FILTER_WORDS: Final[Mapping[str, str]] = _WORDS["filters"]
"""The labels of the filters of a list of participants."""

GROUPING_WORDS: Final[Mapping[str, str]] = _WORDS["groupings"]
"""How participants are grouped, by the grouping or `none`."""

PROPOSAL_WORDS: Final[Mapping[str, str]] = _WORDS["proposals"]
"""The state of a proposal; `{participant}` decided."""

TURN_WORDS: Final[Mapping[str, str]] = _WORDS["turns"]
"""The state of a turn that has not ended."""

PRESENCE_WORDS: Final[Mapping[str, str]] = _WORDS["presence"]
"""The action of a participant, by the event of a presence."""
