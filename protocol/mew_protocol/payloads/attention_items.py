"""[pure] Attention items in the gateway's form, with their actions and text changes.

`mew_board.attention` decides which items exist.
"""

from typing import Any, Final, Literal

from mew_protocol.payloads.base import Payload

AttentionKind = Literal[
    "approval",
    "sign_in",
    "model_unreachable",
    "model_failed",
    "program_ended",
    "not_stored",
    "turn_stopped",
    "handler_failed",
    "compaction_stalled",
    "compaction_failed",
    "loop",
    "held",
    "unread",
    "tools_left_out",
    "budget_spent",
    "acts_unasked",
    "disconnected",
    "nearly_full",
    "about_to_compact",
]

AttentionLevel = Literal["blocking", "warning", "notice"]
"""`blocking`: work stands still until a person acts; `warning`: it soon may; `notice`: it goes on by itself."""

LEVELS: Final[tuple[AttentionLevel, ...]] = ("blocking", "warning", "notice")

RowMark = Literal[" ", "-", "+", "@"]
"""A line of both texts, of the one before, of the one after, or the place of the next lines."""

Row = tuple[RowMark, str]


class TextChange(Payload):
    """A change of a text: its lines in hunks. `keys` are the arguments with the old and the new text.

    Unchanged lines far from a change are omitted; a row `@` says which lines follow.
    """

    keys: tuple[str, str]
    rows: tuple[Row, ...]
    added: int
    removed: int

    @property
    def title(self) -> str:
        """The number of changed lines: `+4 -4`."""
        return f"+{self.added:,} -{self.removed:,}"


class AttentionAction(Payload):
    """A possible action on an item.

    `command` does it in a terminal. `envelope` is the envelope to send (kind, `to`, payload, `correlation_id`); absent
    if only a command does it. `capability` is the required kind. `allowed` says whether the reader may send it; absent
    for an unknown reader. `confirm` is the text that the reader must confirm first.
    """

    label: str
    confirm: str | None = None
    command: str | None = None
    capability: str | None = None
    envelope: dict[str, Any] | None = None
    allowed: bool | None = None


class AttentionItem(Payload):
    """One thing that needs a person. `reason` is a sentence; `id` stays the same while the cause exists.

    Without `participant`, it is about the space, or a group of the items in `items`. `rejected_by` are the participants
    that rejected a proposal which others may still approve. `changes` are a proposed call's text changes, by their
    place in its arguments.
    """

    id: str
    kind: AttentionKind
    level: AttentionLevel
    participant: str | None = None
    reason: str
    since: str | None = None
    actions: tuple[AttentionAction, ...] = ()
    rejected_by: tuple[str, ...] = ()
    changes: dict[str, TextChange] | None = None
    items: tuple["AttentionItem", ...] = ()


class Attention(Payload):
    """`GET /spaces/{id}/attention`: items that need a person, most urgent first."""

    space: str
    at: str
    items: tuple[AttentionItem, ...] = ()
