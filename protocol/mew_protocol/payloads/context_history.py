"""[pure] The context figures of a space over time, in the form of `GET /spaces/{id}/context/history`.

Unknown figures are absent, as in a status.
"""

from typing import Final

from mew_protocol.payloads.base import Payload

KEPT_SECONDS: Final = 90 * 86_400
"""For how long a gateway keeps figures."""


class FigureSample(Payload):
    """Figures of one status: tokens, their basis, the window, and the level of the policy."""

    at: str
    tokens: int | None = None
    max_tokens: int | None = None
    basis: str
    level: str | None = None
    severity: int | None = None


class RecordedCompaction(Payload):
    """One compaction with the figures of `LastCompaction`; `spent_tokens` are the reported tokens of its calls.

    `asked_by` is the participant that requested it; absent if the agent compacted on its own, or if unknown. `summary`
    is its text, if the agent has shown it to a participant.
    """

    at: str
    trigger: str
    tokens_before: int | None = None
    tokens_after: int | None = None
    freed_tokens: int | None = None
    basis: str | None = None
    spent_tokens: int | None = None
    amount: float | None = None
    currency: str | None = None
    asked_by: str | None = None
    summary: str | None = None


class ParticipantFigures(Payload):
    """The figures of one participant, oldest first. A figure is valid until the next one."""

    id: str
    samples: tuple[FigureSample, ...] = ()
    compactions: tuple[RecordedCompaction, ...] = ()


class ContextHistory(Payload):
    """The figures of a space. `more` says that older figures of the requested time were omitted."""

    space: str
    at: str
    participants: tuple[ParticipantFigures, ...] = ()
    more: bool = False
