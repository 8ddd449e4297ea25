"""[pure] What leaves the context: which tool outputs become notes, which turns become a summary.

A plan never splits a tool call from its result or a turn from its answer, and never touches the system prompt,
pins or the turn being answered. Cheapest first: old tool outputs, then whole turns from the oldest on. Prices
come as an argument; it knows neither models nor time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mew_agent.history import History, Item, groups

PROTECTED_TURNS = 2
"""How many of the newest turns a compaction leaves alone as long as it can."""

STUB_TOKENS = 24
"""About what a cleared tool result still takes."""

MIN_SUMMARISABLE_TOKENS = 96
"""Below this a summary cannot be much shorter than what it replaces; such turns are dropped without one."""

SUMMARY_MAX_TOKENS = 2048

Prices = Mapping[int, int]
"""Tokens that each item takes in the next prompt, by seq."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why there is nothing to do: `no_history` or `already_below_target`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to take out.

    `stub_seqs` are tool results to replace by notes; `evict` is the inclusive range of items to take out, and
    `summary_budget_tokens` the room for the summary in their place (0: take them out without one).
    `expected_tokens` is the size of the next prompt afterwards, if the summary uses its whole budget.
    """

    stub_seqs: tuple[int, ...]
    evict: tuple[int, int] | None
    evicted_tokens: int
    summary_budget_tokens: int
    expected_tokens: int


@dataclass(frozen=True, slots=True)
class _Desk:
    """What planning works on."""

    turns: list[list[Item]]
    old: list[list[Item]]
    prices: Prices
    present_tokens: int
    window_tokens: int
    summary_tokens: int

    def after(self, evicted_tokens: int) -> int:
        """Size of the next prompt after so much left and a new summary took its whole budget."""
        budget = summary_budget_tokens(evicted_tokens, self.window_tokens)
        kept_summary = 0 if budget else self.summary_tokens
        return self.present_tokens - evicted_tokens - self.summary_tokens + kept_summary + budget

    def evicting(self, turns: Sequence[list[Item]]) -> Plan | Nothing:
        """The plan that takes out these turns and nothing else."""
        items = [item for turn in turns for item in turn]
        if not items:
            return Nothing("no_history")
        gross = sum(self.prices[item.seq] for item in items)
        budget = summary_budget_tokens(gross, self.window_tokens)
        return Plan((), (items[0].seq, items[-1].seq), gross, budget, self.after(gross))


def plan(
    history: History,
    prices: Prices,
    *,
    present_tokens: int,
    window_tokens: int,
    target_tokens: int | None,
    summary_tokens: int = 0,
    answering_turn: int | None = None,
) -> Plan | Nothing:
    """Plan a compaction, in time linear in the history's length.

    `present_tokens` is the size of the next prompt, `summary_tokens` the part of it that the present summary
    takes, `target_tokens` what should be left at most (None: as little as the protected tail allows),
    `answering_turn` the turn now being worked on.
    """
    if target_tokens is not None and target_tokens >= present_tokens:
        return Nothing("already_below_target")
    turns = groups(history.items, key=lambda item: item.turn)
    old = [turn for turn in turns if turn[0].turn != answering_turn]
    desk = _Desk(turns, old, prices, present_tokens, window_tokens, summary_tokens)
    if target_tokens is None:
        return desk.evicting(old[: max(0, len(old) - PROTECTED_TURNS)])
    return _only_stubs(desk, target_tokens) or _turns_and_stubs(desk, target_tokens)


def _only_stubs(desk: _Desk, target_tokens: int) -> Plan | None:
    """Clear tool outputs outside the newest turns, oldest first; None when that does not reach the target."""
    newest = {turn[0].turn for turn in desk.turns[-PROTECTED_TURNS:]}
    chosen: list[int] = []
    size = desk.present_tokens
    for item in _long_results(desk):
        if size <= target_tokens or item.turn in newest:
            break
        size -= desk.prices[item.seq] - STUB_TOKENS
        chosen.append(item.seq)
    return Plan(tuple(chosen), None, 0, 0, size) if size <= target_tokens else None


def _turns_and_stubs(desk: _Desk, target_tokens: int) -> Plan | Nothing:
    """Evict as few whole turns as reach the target, else as many as help, then clear outputs of what is left."""
    gross, best_count, best_size = 0, 0, desk.present_tokens
    for count, turn in enumerate(desk.old, start=1):
        gross += sum(desk.prices[item.seq] for item in turn)
        if desk.after(gross) < best_size:
            best_count, best_size = count, desk.after(gross)
        if best_size <= target_tokens:
            break
    evicting = desk.evicting(desk.old[:best_count])
    gone_up_to = desk.old[best_count - 1][-1].seq if best_count else -1
    chosen: list[int] = []
    for item in _long_results(desk):
        if best_size > target_tokens and item.seq > gone_up_to:
            best_size -= desk.prices[item.seq] - STUB_TOKENS
            chosen.append(item.seq)
    if isinstance(evicting, Plan):
        return replace(evicting, stub_seqs=tuple(chosen), expected_tokens=best_size)
    return Plan(tuple(chosen), None, 0, 0, best_size) if chosen else evicting


def summary_budget_tokens(evicted_tokens: int, window_tokens: int) -> int:
    """Room for a summary: at most half of what it replaces, a tenth of the window and 2,048 tokens; 0 for none."""
    if evicted_tokens < MIN_SUMMARISABLE_TOKENS:
        return 0
    return min(evicted_tokens // 2, max(128, window_tokens // 10), SUMMARY_MAX_TOKENS)


def _long_results(desk: _Desk) -> list[Item]:
    """Tool results longer than the note that would replace them, except those the model has not answered yet."""
    last_said = max((item.seq for turn in desk.turns[-1:] for item in turn if item.role == "assistant"), default=-1)
    newest_turn = desk.turns[-1][0].turn if desk.turns else None
    return [
        item
        for turn in desk.turns
        for item in turn
        if item.role == "tool"
        and not item.stubbed
        and not (item.turn == newest_turn and item.seq > last_said)
        and desk.prices[item.seq] > 2 * STUB_TOKENS
    ]


def plan_forget(
    history: History, direction: str, entries: int | None, *, answering_turn: int | None = None
) -> tuple[int, int] | None:
    """The range of items `participant/forget` takes out: `entries` of them (half by default) from one end.

    Rounded outwards so that a tool call leaves with its results; the turn being answered stays. None: nothing.
    """
    free = [item for item in history.items if item.turn != answering_turn]
    wanted = -(-len(history.items) // 2) if entries is None else entries
    if not free or wanted <= 0:
        return None
    atoms = _atoms(free)
    taken: list[Item] = []
    for atom in atoms if direction == "oldest" else reversed(atoms):
        if len(taken) >= wanted:
            break
        taken += atom
    seqs = [item.seq for item in taken]
    return min(seqs), max(seqs)


def _atoms(items: Sequence[Item]) -> list[list[Item]]:
    """Items that must leave together: an assistant message with tool calls, and the results of those calls."""
    found: list[list[Item]] = []
    for item in items:
        if item.role == "tool" and found:
            found[-1].append(item)
        else:
            found.append([item])
    return found
