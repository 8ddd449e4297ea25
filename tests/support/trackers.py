"""Calls and compaction plans of a tracker whose model is made up."""

from typing import Any

from mew_agent.compaction.planner import CompactionPlan, NothingToDo, plan_compaction
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.tracker import Tracker
from mew_agent.model.usage import Usage


def keep_call(
    tracker: Tracker,
    usage: Usage | None,
    *,
    call_id: str = "c",
    at: str = "t",
    last_seq: int | None = None,
    revision: int | None = None,
    served: str = "m",
    fingerprint: str = "f",
    backend: str | None = "b",
) -> None:
    """Record a main call. It sent the whole history as it is now, unless `last_seq` or `revision` says otherwise."""
    history = tracker.history
    call = CallRecord(call_id, "main", at, served, history.revision if revision is None else revision, usage)
    seq = history.last_seq if last_seq is None else last_seq
    tracker.call_kept(call, last_seq=seq, fingerprint=fingerprint, backend=backend)


def planned(
    tracker: Tracker, window_tokens: int, target_tokens: int | None = None, **options: Any
) -> CompactionPlan | NothingToDo:
    """Plan a compaction of the history by the figures of its ledger. `options` are those of `plan_compaction`."""
    ledger = tracker.ledger
    return plan_compaction(
        tracker.history,
        ledger.item_prices(),
        present_tokens=ledger.next_prompt_tokens,
        window_tokens=window_tokens,
        target_tokens=target_tokens,
        summary_tokens=ledger.preamble.summary_tokens,
        **options,
    )
