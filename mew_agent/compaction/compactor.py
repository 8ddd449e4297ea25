"""Carries out a compaction plan: asks the model for the summary, checks it, and only then changes anything.

A failed or rejected summary leaves the history as it was. The request always fits: what does not fit at once is
summarised piece by piece, each piece together with the summary so far. It knows no envelopes and no policy.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mew_agent.compaction.planner import Plan
from mew_agent.compaction.summary import RejectedSummary, checked_summary, clipped, summary_messages, transcript_entry
from mew_agent.context.history import Item, Summary
from mew_agent.context.measures import kept_reply_tokens
from mew_agent.context.outcomes import CutOutcome
from mew_agent.context.tracker import Tracker
from mew_agent.errors import ContextOverflow
from mew_agent.model.interface import ModelReply, ModelRequest
from mew_agent.tokens.projection import Calibration, features, most_tokens

INPUT_SHARE = (7, 10)
"""How much of the room beside instructions and answer the material may fill; the rest absorbs projection errors."""

MIN_ROOM_TOKENS = 64

MAX_HALVINGS = 4
MIN_CLIPPED_CHARS = 200
Call = Callable[[ModelRequest], Awaitable[ModelReply]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: the booked outcome, and what left."""

    outcome: CutOutcome
    evicted: tuple[Item, ...]
    stubbed: tuple[Item, ...]
    summary: Summary | None


async def carry_out(
    plan: Plan, tracker: Tracker, call: Call, *, trigger: str, count: Callable[[str], int | None] = lambda _text: None
) -> Compacted:
    """Run a plan. `call` makes one summary call; `count` counts the tokens of a short text, where somebody can.

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
        counts = {item.seq: count(item.text()) for item in stubs}
        counted = {seq: tokens for seq, tokens in counts.items() if tokens is not None}
        outcomes.append(tracker.stubbed(stubs, trigger=trigger, counted=counted))
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
    room = _room(tracker.window.max_tokens, budget_tokens, tracker)
    halvings = 0
    rest, summary = deque(items), previous
    while rest:
        if room < MIN_ROOM_TOKENS:
            raise RejectedSummary(f"a window of {tracker.window.max_tokens:,} tokens is too small to summarise in")
        piece, used = _piece(rest, summary, room, tracker)
        try:
            reply = await call(
                ModelRequest(messages=summary_messages(piece, summary, budget_tokens), max_output_tokens=budget_tokens)
            )
        except ContextOverflow as overflow:
            halvings += 1
            if halvings > MAX_HALVINGS:
                raise
            room = min(room, used) // 2
            if overflow.limit_tokens:
                room = min(room, _room(overflow.limit_tokens, budget_tokens, tracker))
            continue
        summary = _accepted(reply, [rest.popleft() for _ in piece], summary)
        if rest and tracker.size_of_summary(summary) * 2 > room:
            raise RejectedSummary("the model's summary is so long that there is no room to go on with the rest")
    if summary is None:
        raise RejectedSummary("there was nothing to summarise")
    return summary


def _accepted(reply: ModelReply, items: Sequence[Item], previous: Summary | None) -> Summary:
    known = kept_reply_tokens(reply.usage, thinking_seen=bool(reply.reasoning_text))
    summary = checked_summary(
        reply.text, finish_reason=reply.finish_reason, known_tokens=known, items=items, previous=previous
    )
    written, kept = features(reply.text), features(summary.text)
    if known is None or known > most_tokens(written):
        return replace(summary, known_tokens=None)
    return replace(summary, known_tokens=round(known * kept / written))


def _room(window_tokens: int, budget_tokens: int, tracker: Tracker) -> int:
    """Tokens that a window leaves for what is to be summarised."""
    numerator, denominator = INPUT_SHARE
    instructions = sum(features(message.content) for message in summary_messages((), None, budget_tokens))
    taken = budget_tokens + tracker.ledger.calibration.project(instructions, messages=2)
    return (window_tokens - taken) * numerator // denominator


def _piece(rest: Iterable[Item], summary: Summary | None, room_tokens: int, tracker: Tracker) -> tuple[list[Item], int]:
    """As many items as fit, at least one, and what they take with the summary; a single one too long is clipped."""
    calibration = tracker.ledger.calibration
    used = calibration.project(features(summary.text)) if summary else 0
    piece: list[Item] = []
    for item in rest:
        cost = calibration.project(features(transcript_entry(item)))
        if piece and used + cost > room_tokens:
            break
        if used + cost > room_tokens:
            item, cost = _clipped_to(item, cost, room_tokens - used, calibration)
        piece.append(item)
        used += cost
    return piece, used


def _clipped_to(item: Item, cost_tokens: int, room_tokens: int, calibration: Calibration) -> tuple[Item, int]:
    """Clip until it fits by projection; the ends of a text may be denser than its middle, so ask more than once."""
    short, cost, chars = item, cost_tokens, len(transcript_entry(item))
    while cost > room_tokens and chars > MIN_CLIPPED_CHARS:
        chars = max(MIN_CLIPPED_CHARS, min(chars // 2, chars * max(1, room_tokens) // cost))
        short = clipped(item, chars)
        cost = calibration.project(features(transcript_entry(short)))
    return short, cost


def _refuse_growth(summary: Summary, plan: Plan, tracker: Tracker) -> None:
    replaced = plan.evicted_tokens + tracker.ledger.summary_tokens
    size = tracker.size_of_summary(summary)
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
