"""Decides whether a message fits into a conversation's context, now and after a compaction.

Knows the parts that no compaction removes, and the size of a message that a model refused. Does not know the sender or
the fate of the message.
"""

from collections.abc import Set as AbstractSet

from mew_protocol.payloads.text_fit import Fit, TextBasis, with_headroom

from mew_agent.compaction.planner import summary_budget_tokens
from mew_agent.context.ledger import Ledger
from mew_agent.context.policy.definition import CompactRule
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.compactions import is_overflow
from mew_agent.conversation.context_state import ContextState
from mew_agent.errors import ContextOverflow, ModelError
from mew_agent.tokens.sizes import Size, basis_of


def fit_of_text(tracker: Tracker, size: Size) -> Fit:
    """Return whether a text outside the context fits, now and after a compaction."""
    calibration, queued = tracker.ledger.calibration, tracker.queued
    fit = _fit(
        tracker,
        calibration.wrap(size.tokens(calibration)),
        basis_of((size,), calibration),
        queued_tokens=0 if queued is None else queued.tokens,
        queued_messages=0 if queued is None else queued.messages,
        context_tokens=tracker.ledger.next_prompt_tokens,
    )
    if fit.fits is not False or fit.max_tokens is None:
        return fit
    rules = tracker.policy.interventions.get("pre_request", ())
    can_compact = not tracker.is_stalled and any(isinstance(rule, CompactRule) for rule in rules)
    kept_tokens = _kept_tokens(tracker, fit.max_tokens) + (fit.reserve_tokens or 0)
    after = kept_tokens + fit.tokens + calibration.spread(size.units)
    return fit.model_copy(update={"fits_after_compaction": can_compact and after <= fit.max_tokens})


def fit_of_message(state: ContextState, error: ModelError | None = None) -> Fit | None:
    """Return whether the message being answered fits: by the server's count of its request, else by projection.

    A size in the model's `error` comes first. None once the turn contains replies or tool results.
    """
    tracker, ledger = state.tracker, state.tracker.ledger
    items = [item for item in state.history.items if item.turn == state.answering_turn]
    if not items or any(item.role != "user" for item in items):
        return None
    tokens, basis = _size_of_items(ledger, {item.seq for item in items})
    rest_tokens = ledger.projected_tokens - tokens
    request_tokens = error.requested_tokens if isinstance(error, ContextOverflow) else None
    if request_tokens is None and ledger.next_prompt_basis == "server_counted":
        request_tokens = ledger.next_prompt_tokens
    if request_tokens is not None:  # only the rest of the request is projected
        tokens, basis = max(0, request_tokens - rest_tokens), "projected"
    leaving_tokens = max(0, rest_tokens - ledger.parts.prefix - ledger.parts.pins)
    return _fit(tracker, tokens, basis, context_tokens=max(0, rest_tokens), leaving_tokens=leaving_tokens)


def _size_of_items(ledger: Ledger, seqs: AbstractSet[int]) -> tuple[int, TextBasis]:
    """Return the known size of these items in the next prompt, and its basis."""
    prices = ledger.item_prices()
    tokens = sum(prices.get(seq, 0) for seq in seqs)
    if all(one.is_counted(ledger.calibration) for one in ledger.items.sizes if one.seq in seqs):
        return tokens, "tokenizer"
    return tokens, "projected" if ledger.calibration.weights is not None else "heuristic"


def may_never_fit(state: ContextState) -> bool:
    """Return whether the message being answered may be too large for any compaction."""
    fit = fit_of_message(state)
    return fit is not None and fit.may_never_fit


def refused_message(state: ContextState, error: ModelError) -> Fit | None:
    """Return the figures of the message being answered if this error shows that no compaction makes room for it."""
    if not is_overflow(error, state.tracker):
        return None
    fit = fit_of_message(state, error)
    return fit if fit is not None and fit.may_never_fit else None


def _fit(
    tracker: Tracker,
    tokens: int,
    basis: TextBasis,
    *,
    context_tokens: int,
    queued_tokens: int = 0,
    queued_messages: int = 0,
    leaving_tokens: int | None = None,
) -> Fit:
    """Return whether this many tokens fit into a context of this size, and the largest number that fits.

    `leaving_tokens` as in `_kept_tokens`.
    """
    window_tokens = tracker.shown_limit_tokens
    fit = with_headroom(
        Fit(
            fits=None,
            tokens=tokens,
            tokens_basis=basis,
            context_tokens=context_tokens,
            context_basis=tracker.ledger.next_prompt_basis,
            queued_tokens=queued_tokens,
            queued_messages=queued_messages,
            max_tokens=window_tokens,
            max_tokens_basis=None if window_tokens is None else tracker.window.basis,
            as_of=tracker.measurement.measured_at,
        )
    )
    if window_tokens is None:
        return fit
    now = (fit.headroom_tokens or 0) + queued_tokens
    after = window_tokens - _kept_tokens(tracker, window_tokens, leaving_tokens)
    return fit.model_copy(update={"largest_tokens": max(0, now, after - (fit.reserve_tokens or 0))})


def _kept_tokens(tracker: Tracker, window_tokens: int, leaving_tokens: int | None = None) -> int:
    """Return the tokens that no compaction removes: the prefix, pins, and a summary of its largest size.

    The summary is of `leaving_tokens`; of any number by default.
    """
    parts = tracker.ledger.parts
    leaving_tokens = window_tokens if leaving_tokens is None else leaving_tokens
    budget = summary_budget_tokens(leaving_tokens, window_tokens)
    return parts.prefix + parts.pins + max(parts.summary, budget)
