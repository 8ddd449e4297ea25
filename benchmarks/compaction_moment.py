"""Replays a day of tasks and counts the compactions in the middle of one, with and without a better moment.

    python -m benchmarks.compaction_moment [--tasks 400] [--days 20] [--windows 128000 200000] [--seed 0]

A task is a question, model calls with tools, and an answer. Most tasks have a few calls, some up to 40; a call adds the
results of one to three tools (median 900 tokens each, at most 7,500) and a short reply. Each day runs twice through the
policy `mew`: compacting after the call that reaches the mark (`at once`), and at the end of the task unless the next
request would not fit (`task end`). Decision and test for room are those of an agent; the same seed gives the same day.
The exit code is 1 if `task end` with an earlier mark (`compact_at: 75%`) saves less than 80 % of the compactions in the
middle of a task.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from mew_agent.context.policy import (
    MEW,
    CompactAction,
    ContextSnapshot,
    Phase,
    Policy,
    PolicyState,
    after_compaction,
    decide,
)
from mew_agent.context.policy.threshold import Fraction

GOAL_SAVED = 0.8
MARKS = ("9/10", "75%", "60%")
PREFIX_TOKENS = 4_000
SECONDS_PER_CALL = 8.0
SECONDS_BETWEEN_TASKS = 60.0


@dataclass
class Day:
    """One agent's day. `has_moments` is whether compactions may wait for the end of the task."""

    policy: Policy
    window_tokens: int
    has_moments: bool
    used_tokens: int = PREFIX_TOKENS
    at_seconds: float = 0.0
    state: PolicyState = field(default_factory=PolicyState)
    compactions: int = 0
    in_the_middle: int = 0

    def run(self, tasks: Sequence[Sequence[int]]) -> None:
        """Run tasks, each as the tokens that its calls add."""
        for task in tasks:
            pending: CompactAction | None = None
            for number, added in enumerate(task, start=1):
                self.used_tokens += added
                self._before_request(is_middle=number > 1)
                self.at_seconds += SECONDS_PER_CALL
                pending = self._decided("after_call")
                is_over = number == len(task)
                waits = self.has_moments and not is_over and self._has_room(task[number])
                if pending is not None and not waits:
                    self._compact(pending, is_middle=not is_over)
            self.at_seconds += SECONDS_BETWEEN_TASKS

    def _before_request(self, *, is_middle: bool) -> None:
        action = self._decided("pre_request")
        if action is not None:
            self._compact(action, is_middle=is_middle)

    def _has_room(self, added_tokens: int) -> bool:
        """Whether the next request fits, as `Conversation` asks once the results of the tools are in."""
        needed, scale = self.policy.reserve.added_to(self.used_tokens + added_tokens, self.window_tokens)
        return needed <= self.window_tokens * scale

    def _decided(self, phase: Phase) -> CompactAction | None:
        snapshot = ContextSnapshot(
            self.used_tokens,
            "reported",
            self.window_tokens,
            next_prompt_tokens=self.used_tokens,
            at_seconds=self.at_seconds,
        )
        self.state, actions = decide(self.policy, self.state, snapshot, phase)
        return next((action for action in actions if isinstance(action, CompactAction)), None)

    def _compact(self, action: CompactAction, *, is_middle: bool) -> None:
        self.compactions += 1
        self.in_the_middle += is_middle
        self.used_tokens = min(self.used_tokens, action.target_tokens)
        self.state = after_compaction(self.state, progressed=True, at_seconds=self.at_seconds)


def tasks_of_a_day(count: int, rng: random.Random) -> list[list[int]]:
    """The tokens that each call of each task adds: the question first, then results of tools with the reply before."""
    tasks: list[list[int]] = []
    for _ in range(count):
        calls = min(40, 1 + int(rng.lognormvariate(1.2, 0.8)))
        question = min(4_000, int(rng.lognormvariate(4.5, 1.0)))
        results = [_call_tokens(rng) for _ in range(calls - 1)]
        tasks.append([question, *results])
    return tasks


def _call_tokens(rng: random.Random) -> int:
    """A reply, and the results of the one to three tools that it calls."""
    results = sum(int(min(7_500, rng.lognormvariate(6.8, 0.8))) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    return results + rng.randint(30, 300)


def main() -> int:
    """Print one line for each window and mark. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--windows", type=int, nargs="+", default=[128_000, 200_000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{given.days} days of {given.tasks} tasks; compactions, and those in the middle of a task")
    print(f"{'window':>8} {'mark':>5} {'at once':>9} {'middle':>7} {'task end':>9} {'middle':>7} {'saved':>7}")
    is_good = True
    for window in given.windows:
        for mark in MARKS:
            policy = MEW if mark == "9/10" else MEW.compacting_at(Fraction.model_validate(mark))
            counts: list[tuple[int, int]] = []
            for has_moments in (False, True):
                days = [Day(policy, window, has_moments) for _ in range(given.days)]
                for number, day in enumerate(days):
                    day.run(tasks_of_a_day(given.tasks, random.Random(given.seed * 1_000 + number)))
                counts.append((sum(day.compactions for day in days), sum(day.in_the_middle for day in days)))
            (all_before, before), (all_after, after) = counts
            saved = 1 - after / before
            print(f"{window:>8,} {mark:>5} {all_before:>9} {before:>7} {all_after:>9} {after:>7} {saved:>7.1%}")
            is_good &= mark != "75%" or saved >= GOAL_SAVED
    if not is_good:
        print(
            f"GOAL MISSED: with `compact_at: 75%` at least {GOAL_SAVED:.0%} fewer compactions in the middle of a task"
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
