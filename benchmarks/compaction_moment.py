"""Replays a day of tasks and counts the compactions in the middle of one, with and without a better moment.

    python -m benchmarks.compaction_moment [--tasks 400] [--days 20] [--windows 128000 200000] [--seed 0]

A task is a question, model calls with tools, and an answer. Most tasks have a few calls, some up to 40; a call adds the
results of one to three tools (median 900 tokens each, at most 7,500) and a short reply. Each day runs three times
through the policy `mew`: compacting after the call that reaches the mark (`at once`); at the end of the task unless the
next request would not fit (`task end`, the default); and there also when the next task of the usual size would not fit
(`early`: `compact_early: true`). Decision, test for room and the size of a usual task are those of an agent; the same
seed gives the same day. Shown are all compactions, and those in the middle of a task.

The exit code is 1 if an agent with `compact_early: true` does not save 80 % of the compactions in the middle of a task,
or compacts more than a tenth oftener than `at once`.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from mew_agent.context.measurement import TurnGrowth
from mew_agent.context.policy import (
    MEW,
    CompactAction,
    ContextSnapshot,
    Phase,
    Policy,
    PolicyState,
    after_compaction,
    compacting_early,
    decide,
)
from mew_agent.context.policy.threshold import Fraction

Way = Literal["at once", "task end", "early"]
WAYS: tuple[Way, ...] = get_args(Way)
GOAL_SAVED, GOAL_MORE = 0.8, 1.1
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
    trend: TurnGrowth = field(default_factory=TurnGrowth)

    def run(self, tasks: Sequence[Sequence[int]]) -> None:
        """Run tasks, each as the tokens that its calls add."""
        for turn, task in enumerate(tasks):
            pending: CompactAction | None = None
            for number, added in enumerate(task, start=1):
                self.used_tokens += added
                self._before_request(is_middle=number > 1)
                self.at_seconds += SECONDS_PER_CALL
                self.trend.add(self.used_tokens, turn=turn)
                pending = self._decided("after_call")
                is_over = number == len(task)
                waits = self.has_moments and not is_over and self._has_room(task[number])
                if pending is not None and not waits:
                    self._compact(pending, is_middle=not is_over)
            early = self._decided("task_end")
            if early is not None:
                self._compact(early, is_middle=False)
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
            usual_task_tokens=self.trend.usual_task_tokens,
            grown_tokens=self.used_tokens - (self.state.compacted_to_tokens or 0),
        )
        self.state, actions = decide(self.policy, self.state, snapshot, phase)
        return next((action for action in actions if isinstance(action, CompactAction)), None)

    def _compact(self, action: CompactAction, *, is_middle: bool) -> None:
        self.compactions += 1
        self.in_the_middle += is_middle
        self.used_tokens = min(self.used_tokens, action.target_tokens)
        self.trend.interrupt()
        self.state = after_compaction(self.state, progressed=True, at_seconds=self.at_seconds, tokens=self.used_tokens)


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
    print(f"{'window':>8} {'mark':>5}" + "".join(f"{way:>11} {'middle':>7} {'saved':>6}" for way in WAYS))
    days = [tasks_of_a_day(given.tasks, random.Random(given.seed * 1_000 + day)) for day in range(given.days)]
    is_good = True
    for window in given.windows:
        for mark in MARKS:
            policy = MEW if mark == "9/10" else MEW.compacting_at(Fraction.model_validate(mark))
            counts = [count(way, policy, window, days) for way in WAYS]
            shares = [1 - middle / counts[0][1] for _, middle in counts]
            cells = [
                f"{every:>11} {middle:>7} {saved:>6.1%}" for (every, middle), saved in zip(counts, shares, strict=True)
            ]
            print(f"{window:>8,} {mark:>5}{''.join(cells)}")
            if mark == MARKS[0]:
                is_good &= shares[-1] >= GOAL_SAVED and counts[-1][0] <= GOAL_MORE * counts[0][0]
    if not is_good:
        print(f"GOAL MISSED: {GOAL_SAVED:.0%} saved at {MARKS[0]} with at most {GOAL_MORE:.1f} times the compactions")
    return 0 if is_good else 1


def count(way: Way, policy: Policy, window_tokens: int, days: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int]:
    """The compactions of these days, and those in the middle of a task."""
    if way == "early":
        policy = compacting_early(policy)
    run = [Day(policy, window_tokens, has_moments=way != "at once") for _ in days]
    for day, tasks in zip(run, days, strict=True):
        day.run(tasks)
    return sum(day.compactions for day in run), sum(day.in_the_middle for day in run)


if __name__ == "__main__":
    sys.exit(main())
