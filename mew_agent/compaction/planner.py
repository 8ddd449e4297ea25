"""[pure] Plans a compaction: tool outputs to replace by notes, and turns to summarise.

A plan never separates a tool call from its result or a turn from its answer, and never touches the system prompt, pins
or the running turn. The cheapest step comes first: old tool outputs, then whole turns from the oldest on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from mew_agent.context.history import History, Item
from mew_agent.context.policy import CompactionMethod

PROTECTED_TURNS = 2  # number of newest turns that a compaction spares if possible

STUB_TOKENS = 48  # upper bound of a cleared tool result: 32 to 41 tokens with most tokenizers, before the factor k

MIN_SUMMARISABLE_TOKENS = 96
"""Below this a first summary cannot be much shorter than the turns it replaces, so they are dropped without one."""

SUMMARY_MAX_TOKENS = 2048

Prices = Mapping[int, int]  # tokens of each item in the next prompt, by seq


CallResults = list[Item]
"""Results of one reply's tool calls, cleared together: their total size is known better than each size."""


class MostTokens(NamedTuple):
    """Upper bounds in tokens, computed from texts alone: for system prompt and tools, and for each item by seq."""

    fixed: int
    items: Prices


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """There is nothing to compact. The reason is `no_history` or `already_below_target`."""

    reason: str


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The items to remove."""

    stub_seqs: tuple[int, ...]  # tool results to replace by notes
    evict: tuple[int, int] | None  # the inclusive range of items to remove
    evicted_tokens: int
    summary_budget_tokens: int  # room for a summary in their place; 0: no summary

    def leaving(self, items: Iterable[Item]) -> list[Item]:
        """Return the items that the plan removes. Tool results that leave a note stay."""
        first, last = self.evict or (0, -1)
        return [item for item in items if first <= item.seq <= last]

    def staying(self, items: Iterable[Item]) -> list[Item]:
        """Return the items that the plan keeps."""
        first, last = self.evict or (0, -1)
        return [item for item in items if not first <= item.seq <= last]


@dataclass(frozen=True, slots=True)
class _PlanningInput:
    """Input of a plan. `old` are the turns before the one being answered."""

    method: CompactionMethod
    items: Sequence[Item]
    old: list[list[Item]]
    prices: Prices
    present_tokens: int
    window_tokens: int
    summary_tokens: int

    @property
    def unprotected(self) -> int:
        """The number of turns before the newest ones, which are removed only if the others are not enough."""
        return max(0, len(self.old) - PROTECTED_TURNS)

    def after(self, evicted_tokens: int) -> int:
        """Return the size of the next prompt after evicting this much, if the new summary uses its whole budget."""
        budget = self.budget(evicted_tokens)
        kept_summary = 0 if budget else self.summary_tokens
        return self.present_tokens - evicted_tokens - self.summary_tokens + kept_summary + budget

    def budget(self, evicted_tokens: int) -> int:
        """Return the summary budget for evicting this much; 0 for no summary."""
        if self.method == "drop_oldest":
            return 0
        return summary_budget_tokens(evicted_tokens, self.window_tokens, self.summary_tokens)

    def saving(self, batch: CallResults) -> int:
        """Return the tokens saved by replacing these tool results with notes."""
        return sum(self.prices[item.seq] - STUB_TOKENS for item in batch)

    def evicting(self, turns: Sequence[list[Item]]) -> CompactionPlan | NothingToDo:
        """Return the plan that only evicts these turns."""
        items = [item for turn in turns for item in turn]
        if not items:
            return NothingToDo("no_history")
        gross = sum(self.prices[item.seq] for item in items)
        return CompactionPlan((), (items[0].seq, items[-1].seq), gross, self.budget(gross))


def plan_compaction(
    history: History,
    prices: Prices,
    *,
    present_tokens: int,
    window_tokens: int,
    target_tokens: int | None,
    summary_tokens: int = 0,
    answering_turn: int | None = None,
    method: CompactionMethod = "staged",
    most: MostTokens | None = None,
) -> CompactionPlan | NothingToDo:
    """Plan a compaction that removes as little as reaches the target, in time linear in the history's length.

    `present_tokens` is the next prompt's size, `summary_tokens` the present summary's part of it, `target_tokens` the
    size to reach (None: as small as the protected tail allows), `answering_turn` the turn being answered. With `most`,
    the newest turns stay if their texts alone cannot exceed the target, whatever the provider reported.
    """
    if target_tokens is not None and target_tokens >= present_tokens:
        return NothingToDo("already_below_target")
    old = _segments_before(answering_turn, history.items, by_turn=True)
    if method == "drop_oldest" and answering_turn is None:
        old = old[:-1]  # the newest turn stays, even if it alone is too large
    inputs = _PlanningInput(method, history.items, old, prices, present_tokens, window_tokens, summary_tokens)
    if target_tokens is None:
        return inputs.evicting(old[: inputs.unprotected])
    return _smallest_plan(inputs, target_tokens, most)


def _smallest_plan(inputs: _PlanningInput, target_tokens: int, most: MostTokens | None) -> CompactionPlan | NothingToDo:
    """Return the smallest plan that reaches the target; it keeps the newest turns if the others are enough."""
    old, unprotected = inputs.old, inputs.unprotected
    results = _long_results(inputs) if inputs.method == "staged" else []
    tail_from = old[unprotected][0].seq if unprotected < len(old) else None
    outside = [batch for batch in results if tail_from is not None and batch[-1].seq < tail_from]
    sparing = replace(inputs, old=old[:unprotected])
    if most is not None and _remains_at_most(sparing, most) <= target_tokens:
        turns = range(unprotected + 1)
        return _fewest_turns(sparing, turns, outside, target_tokens) or _as_much_as_helps(sparing, outside)
    # The newest turns are used only if all others are not enough, their tool outputs first.
    return (
        _fewest_turns(inputs, range(unprotected + 1), outside, target_tokens)
        or _fewest_turns(inputs, range(len(old) + 1), results, target_tokens)
        or _as_much_as_helps(inputs, results)
    )


def _remains_at_most(inputs: _PlanningInput, most: MostTokens) -> int:
    """Return an upper bound of the next prompt once all `old` turns are gone and a summary uses its whole budget."""
    leaving = [item for turn in inputs.old for item in turn]
    budget = inputs.budget(sum(inputs.prices[item.seq] for item in leaving))
    return most.fixed + budget + sum(most.items[item.seq] for item in inputs.items[len(leaving) :])


def _sizes(inputs: _PlanningInput, results: Sequence[CallResults]) -> list[tuple[int, int]]:
    """Return the size after evicting each number of turns: with all remaining outputs, and with all of them cleared."""
    saving = sum(inputs.saving(batch) for batch in results)
    sizes = [(inputs.present_tokens, inputs.present_tokens - saving)]
    waiting, gross = 0, 0
    for turn in inputs.old:
        gross += sum(inputs.prices[item.seq] for item in turn)
        while waiting < len(results) and results[waiting][-1].seq <= turn[-1].seq:
            saving -= inputs.saving(results[waiting])
            waiting += 1
        sizes.append((inputs.after(gross), inputs.after(gross) - saving))
    return sizes


def _fewest_turns(
    inputs: _PlanningInput, counts: Iterable[int], results: Sequence[CallResults], target_tokens: int
) -> CompactionPlan | None:
    """Evict the fewest turns that reach the target, and clear the oldest remaining outputs as needed; None if
    impossible.
    """
    sizes = _sizes(inputs, results)
    for count in counts:
        bare, cleared = sizes[count]
        if cleared <= target_tokens:
            return _with_stubs(inputs, count, bare, results, target_tokens)
    return None


def _as_much_as_helps(inputs: _PlanningInput, results: Sequence[CallResults]) -> CompactionPlan | NothingToDo:
    """Come as close as possible to an unreachable target."""
    sizes = _sizes(inputs, results)
    # More evictions are not always smaller: each may need a larger summary.
    count = min(range(len(sizes)), key=lambda count: sizes[count][1])
    return _with_stubs(inputs, count, sizes[count][0], results, 0) or NothingToDo("no_history")


def _with_stubs(
    inputs: _PlanningInput, count: int, size: int, results: Sequence[CallResults], target_tokens: int
) -> CompactionPlan | None:
    evicted_up_to = inputs.old[count - 1][-1].seq if count else -1
    chosen: list[int] = []
    for batch in results:
        # Results that leave with their turn need no note.
        if size > target_tokens and batch[0].seq > evicted_up_to:
            size -= inputs.saving(batch)
            chosen += (item.seq for item in batch)
    evicting = inputs.evicting(inputs.old[:count])
    if isinstance(evicting, CompactionPlan):
        return replace(evicting, stub_seqs=tuple(chosen))
    return CompactionPlan(tuple(chosen), None, 0, 0) if chosen else None


def summary_budget_tokens(evicted_tokens: int, window_tokens: int, summary_tokens: int = 0) -> int:
    """Return the token budget of a summary; 0: no summary.

    It is the size of the previous summary plus half of the removed tokens, at most a tenth of the window and 2,048. A
    smaller budget than the previous summary would lose facts at each small compaction.
    """
    if evicted_tokens < (1 if summary_tokens else MIN_SUMMARISABLE_TOKENS):
        return 0
    return min(summary_tokens + evicted_tokens // 2, max(128, window_tokens // 10), SUMMARY_MAX_TOKENS)


def _long_results(inputs: _PlanningInput) -> list[CallResults]:
    """Return the tool results that are longer than their notes, except those that the model has not read."""
    found: list[CallResults] = []
    unread: list[CallResults] = []
    for item in inputs.items:
        # A reply after a result shows that the model has read the result.
        if item.role == "assistant":
            found += unread
            unread = []
        elif item.role == "tool" and not item.stubbed and inputs.prices[item.seq] > 2 * STUB_TOKENS:
            # A note saves too little if the text is shorter.
            if unread and unread[-1][-1].turn == item.turn:
                unread[-1].append(item)
            else:
                unread.append([item])
    return found


def plan_forget(
    history: History, direction: str, entries: int | None, *, answering_turn: int | None = None
) -> tuple[int, int] | None:
    """Return the range of items that `participant/forget` removes: `entries` (default: half) from one end, or None."""
    wanted = -(-len(history.items) // 2) if entries is None else entries
    atoms = _segments_before(answering_turn, history.items, by_turn=False)
    if not atoms or wanted <= 0:
        return None
    # Rounded up, so that a tool call leaves with its results; the turn being answered stays.
    taken: list[Item] = []
    for atom in atoms if direction == "oldest" else reversed(atoms):
        if len(taken) >= wanted:
            break
        taken += atom
    seqs = [item.seq for item in taken]
    return min(seqs), max(seqs)


def _segments_before(answering_turn: int | None, items: Sequence[Item], *, by_turn: bool) -> list[list[Item]]:
    """Return the groups of items that leave together, before the running turn: whole turns, or the smallest possible
    groups.

    A tool call leaves with everything up to its results.
    """
    bound_until = _bound_until(items)
    found: list[list[Item]] = []
    until = -1
    for place, item in enumerate(items):
        if found and (place <= until or (by_turn and found[-1][-1].turn == item.turn)):
            found[-1].append(item)
        else:
            found.append([item])
        until = max(until, bound_until[place])
    return list(takewhile(lambda segment: all(item.turn != answering_turn for item in segment), found))


def _bound_until(items: Sequence[Item]) -> list[int]:
    """Return, for each position, where the last result of the calls made there is."""
    until = list(range(len(items)))
    asked_at: dict[str, int] = {}
    for place, item in enumerate(items):
        # A match is used once, because models may repeat a call id in a later turn.
        if item.tool_call_id in asked_at:
            until[asked_at.pop(item.tool_call_id)] = place
        asked_at.update((call.id, place) for call in item.tool_calls)
    return until
