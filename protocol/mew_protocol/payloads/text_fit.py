"""[pure] Decides from reports whether a text fits into an agent's context window.

Owns the arithmetic and its labels: an unknown figure is never 0, and makes the decision unknown. Does not measure
texts; their size is an argument.
"""

from typing import Final, Literal

from pydantic import Field

from mew_protocol.context_report import (
    COUNTED,
    Basis,
    LimitBasis,
    NextPromptBasis,
    Outdated,
    UnknownReason,
    answer_reserve_tokens,
)
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.participant import Status, report_of

TextBasis = Literal["given", "tokenizer", "projected", "heuristic"]
"""The source of a text's size: given by the asker, counted by a tokenizer, projected from calibration of the model, or
from the text alone."""

WOULD_OVERFLOW: Final = "would_overflow"
"""Status of the acknowledgement of a chat that does not fit now."""

Delivery = Literal["reference", "digest", "anyway", "cancel"]
"""How the sender of a held chat wants it delivered."""

DELIVERIES: Final[tuple[Delivery, ...]] = ("reference", "digest", "anyway", "cancel")

WouldFit = Literal["off", "warn", "hold"]
"""Action of agents for chats that do not fit: none, warn the sender, or hold the chat."""


class Fit(Payload):
    """The answer for a text of `tokens`: `fits` is absent if unknown, and `reason` says why.

    `headroom_tokens` are the free tokens: `max_tokens` minus `context_tokens` (the next request), `queued_tokens`
    (chats that wait at the agent) and `reserve_tokens` (room for the answer); negative if these are more than the
    window. `fits_after_compaction` and `largest_tokens` come from the agent itself; the latter is the largest text that
    fits after a compaction, with an empty queue. `as_of` is the time of the report. `by_report` is True if the figures
    come from the agent's last report, not from its answer.
    """

    fits: bool | None = None
    tokens: int = Field(ge=0)
    tokens_basis: TextBasis
    headroom_tokens: int | None = None
    context_tokens: int | None = Field(default=None, ge=0)
    context_basis: NextPromptBasis | Basis = "unknown"
    queued_tokens: int | None = Field(default=None, ge=0)
    queued_messages: int | None = Field(default=None, ge=0)
    reserve_tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_tokens_basis: LimitBasis | None = None
    compact_at_tokens: int | None = None
    fits_after_compaction: bool | None = None
    largest_tokens: int | None = Field(default=None, ge=0)
    reason: UnknownReason | Literal["no_report", "queue_unknown", "outdated"] | None = None
    as_of: str | None = None
    by_report: bool | None = None

    @property
    def can_never_fit(self) -> bool:
        """Whether no compaction makes enough room for the text in a window of known size.

        An uncounted size may be too high by a third.
        """
        return self._is_too_large(self.tokens if self._is_counted else self.tokens * 3 // 4)

    @property
    def may_never_fit(self) -> bool:
        """Whether no compaction makes enough room for the text, assuming that its size is right."""
        return self._is_too_large(self.tokens)

    def _is_too_large(self, tokens: int) -> bool:
        """Return whether no compaction makes room for a text of this size.

        A text below half of the window is not the cause. A text that only needs the room reserved for the answer is
        tried, because the answer may be short.
        """
        window, largest = self.max_tokens, self.largest_tokens
        if window is None or largest is None or self.max_tokens_basis == "assumed":
            return False
        return tokens > largest + (self.reserve_tokens or 0) and tokens * 2 > window

    @property
    def _is_counted(self) -> bool:
        return self.tokens_basis in ("given", "tokenizer")

    @property
    def size(self) -> str:
        """The size of the text for people: `~4,000 tokens (projected)`."""
        return f"{'' if self._is_counted else '~'}{self.tokens:,} tokens ({self.tokens_basis})"

    def __str__(self) -> str:
        """For people: `~4,000 tokens (projected); free: ~1,200 of 8,192 (projected), 2 chats waiting`."""
        if self.headroom_tokens is None or self.max_tokens is None:
            return f"{self.size}; free: unknown ({(self.reason or 'no_report').replace('_', ' ')})"
        chats = f", {self.queued_messages} chat{'' if self.queued_messages == 1 else 's'} waiting"
        unknown = ", its queue is not known" if self.reason == "queue_unknown" else ""
        waiting = chats if self.queued_messages else unknown
        most = f"; at most ~{self.largest_tokens:,} after a compaction" if self.largest_tokens is not None else ""
        window = "~" if self.max_tokens_basis == "assumed" else ""
        about = "" if self.context_basis in COUNTED and not self.queued_tokens and not window else "~"
        free = f"free: {about}{max(0, self.headroom_tokens):,} of {window}{self.max_tokens:,} ({self.context_basis})"
        return f"{self.size}; {free}{waiting}{most}"


def fit_in(
    status: Status | None,
    tokens: int,
    tokens_basis: TextBasis = "given",
    *,
    as_of: str | None = None,
    outdated: Outdated | None = None,
) -> Fit:
    """Compare a text with the context of the sender of this status, at the time `as_of`.

    An `outdated` figure makes the result unknown.
    """
    report = report_of(status)
    if status is None or status.context is None:
        return Fit(fits=None, tokens=tokens, tokens_basis=tokens_basis, reason="no_report", as_of=as_of)
    # An agent of another project may report only the size of its context.
    context = status.tokens if report.next_prompt_tokens is None else report.next_prompt_tokens
    basis = report.next_prompt_basis or report.basis
    known = Fit(
        fits=None,
        tokens=tokens,
        tokens_basis=tokens_basis,
        context_tokens=context,
        context_basis="unknown" if context is None else basis,
        queued_tokens=report.queued.tokens if report.queued is not None else None,
        queued_messages=report.queued.messages if report.queued is not None else None,
        max_tokens=status.max_tokens,
        max_tokens_basis=report.max_tokens_basis,
        compact_at_tokens=report.compact_at_tokens,
        reason=report.reason or ("no_call_yet" if context is None else None),
        as_of=as_of,
    )
    return with_headroom(known) if outdated is None else known.model_copy(update={"reason": "outdated"})


def with_headroom(known: Fit) -> Fit:
    """Return the figures with derived ones: reserve, headroom, and `fits`."""
    context, window = known.context_tokens, known.max_tokens
    if window is None or context is None:
        return known.model_copy(update={"reason": known.reason if window is not None else "limit_unavailable"})
    reserve = answer_reserve_tokens(window)
    headroom = window - reserve - context - (known.queued_tokens or 0)
    fits: bool | None = known.tokens <= headroom
    reason = None
    if fits and known.queued_tokens is None:  # uncounted chats may need the room
        fits, reason = None, "queue_unknown"
    return known.model_copy(
        update={"fits": fits, "reserve_tokens": reserve, "headroom_tokens": headroom, "reason": reason}
    )
