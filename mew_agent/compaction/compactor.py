"""Carries out a compaction plan: asks the model for the summary, checks it, and only then changes anything.

A failed or rejected summary leaves the history as it was. The request always fits: what does not fit at once is
summarised piece by piece, each piece together with the summary so far. It knows no envelopes and no policy.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mew_agent.compaction.planner import Plan
from mew_agent.compaction.summary import RejectedSummary, checked_summary, clipped, summary_messages, transcript_entry
from mew_agent.context.projection import features
from mew_agent.context.tracker import CutOutcome, Tracker, kept_reply_tokens
from mew_agent.errors import ContextOverflow
from mew_agent.history import Item, Summary
from mew_agent.model.interface import ModelReply, ModelRequest

INPUT_SHARE = (6, 10)
"""How much of the window a summary request may fill by projection; the rest absorbs its error and the answer."""

MAX_HALVINGS = 4
Call = Callable[[ModelRequest], Awaitable[ModelReply]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: the booked outcome, and what left."""

    outcome: CutOutcome
    evicted: tuple[Item, ...]
    stubbed: tuple[Item, ...]
    summary: Summary | None


async def carry_out(plan: Plan, tracker: Tracker, call: Call, *, trigger: str) -> Compacted:
    """Run a plan. `call` makes one summary call.

    Raises `RejectedSummary` when the result would not shrink anything, or a `ModelError`; both before any change.
    """
    history = tracker.history
    originals = {item.seq: item for item in history.items}
    summary = history.summary
    evict = plan.evict
    if evict is not None and plan.summary_budget_tokens:
        items = [item for item in history.items if evict[0] <= item.seq <= evict[1]]
        revision = history.revision
        summary = await _summarise(items, history.summary, plan.summary_budget_tokens, tracker, call)
        if history.revision != revision:
            raise RejectedSummary("the history changed meanwhile")
        _refuse_growth(summary, plan, tracker)
    outcomes: list[CutOutcome] = []
    stubs = history.stub(plan.stub_seqs) if plan.stub_seqs else []
    if stubs:
        outcomes.append(tracker.stubbed(stubs, trigger=trigger))
    gone: list[Item] = []
    if evict is not None:
        gone = history.evict(evict[0], evict[1], summary)
        outcomes.append(tracker.cut(evict[0], evict[1], trigger=trigger, freed_messages=len(gone)))
    return Compacted(
        outcome=_together(outcomes, trigger),
        evicted=tuple(gone),
        stubbed=tuple(originals[item.seq] for item in stubs),
        summary=summary if gone else None,
    )


async def _summarise(
    items: Sequence[Item], previous: Summary | None, budget_tokens: int, tracker: Tracker, call: Call
) -> Summary:
    """Summarise piece by piece; each piece fits, and takes the summary so far along."""
    numerator, denominator = INPUT_SHARE
    room = tracker.window.max_tokens * numerator // denominator - budget_tokens
    halvings = 0
    rest, summary = list(items), previous
    while rest:
        piece = _piece(rest, summary, room, tracker)
        try:
            reply = await call(
                ModelRequest(messages=summary_messages(piece, summary, budget_tokens), max_output_tokens=budget_tokens)
            )
        except ContextOverflow:
            halvings += 1
            room //= 2
            if halvings > MAX_HALVINGS:
                raise
            continue
        known = kept_reply_tokens(reply.usage, thinking_seen=bool(reply.reasoning_text))
        summary = checked_summary(
            reply.text,
            finish_reason=reply.finish_reason,
            known_tokens=known,
            items=rest[: len(piece)],
            previous=summary,
        )
        rest = rest[len(piece) :]
    if summary is None:
        raise RejectedSummary("there was nothing to summarise")
    return summary


def _piece(rest: Sequence[Item], summary: Summary | None, room_tokens: int, tracker: Tracker) -> list[Item]:
    """As many items as fit, at least one; a single item that does not fit is clipped."""
    calibration = tracker.ledger.calibration
    used = calibration.project(features(summary.text)) if summary else 0
    piece: list[Item] = []
    for item in rest:
        cost = calibration.project(features(transcript_entry(item)))
        if piece and used + cost > room_tokens:
            break
        if used + cost > room_tokens:
            chars = max(200, len(item.content) * max(1, room_tokens - used) // max(1, cost))
            return [clipped(item, chars)]
        piece.append(item)
        used += cost
    return piece


def _refuse_growth(summary: Summary, plan: Plan, tracker: Tracker) -> None:
    replaced = plan.evicted_tokens + tracker.ledger.summary_tokens
    size = summary.known_tokens
    if size is None:
        size = tracker.ledger.calibration.project(features(summary.text))
    if size >= replaced:
        raise RejectedSummary(
            f"the summary did not shrink anything ({size:,} tokens in place of {replaced:,}); nothing was changed"
        )


def _together(outcomes: Sequence[CutOutcome], trigger: str) -> CutOutcome:
    first, last = outcomes[0], outcomes[-1]
    return CutOutcome(
        trigger=trigger,
        tokens_before=first.tokens_before,
        tokens_after=last.tokens_after,
        freed_tokens=sum(o.freed_tokens for o in outcomes),
        freed_gross_tokens=sum(o.freed_gross_tokens for o in outcomes),
        summary_tokens=last.summary_tokens,
        freed_messages=sum(o.freed_messages for o in outcomes),
        basis="exact" if all(o.basis == "exact" for o in outcomes) else "projected",
    )
