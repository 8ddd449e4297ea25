"""Measures the cost of a decision after each call, for histories of any length, and of planning a compaction.

    python -m benchmarks.decisions [--items 10 1000 10000 100000] [--calls 400]

The whole path is what an agent does after a call: `Tracker.call_kept` (books and drift), `Tracker.decide` (level,
rules, state) and `Tracker.report` (the context report with its breakdown). The floor is the cost of building the
status message from known figures, which no agent can avoid. All figures are medians of single calls, in microseconds,
on a history that grows by a question and an answer between calls.

The second table measures what else must not grow with the history: adding an item (which counts its features), the
size of the next prompt, a call that sent nothing new and reported another size (which resizes all intervals), a call
answered by another model, and a report before any usage was reported.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mew_protocol.context_report import ContextReport
from mew_protocol.payloads.participant import Status

from mew_agent.compaction.planner import plan_compaction
from mew_agent.config.policy_choice import presets
from mew_agent.context.history import History
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.policy import MEW, ContextSnapshot, PolicyState, decide
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import ToolCall, Window
from mew_agent.model.usage import Usage

GOAL_MICROSECONDS = 60.0
GROWTH_GOAL = 1.5
"""Limit for the cost of the longest history, relative to one of 1,000 items."""

NOISE_MICROSECONDS = 2.0
"""Differences below this are noise of the clock."""

WINDOW_TOKENS = 10**9
"""Large enough that the longest history stays below every threshold, so that nothing is compacted."""

QUESTION = "What does the gateway do with a frame that is larger than it accepts, and who learns about it?"
ANSWER = "It refuses the frame, sends a system error to the sender, and goes on; nobody else learns of it."
SYSTEM = "You are an agent in a space. " * 20


@dataclass
class TimedConversation:
    """A tracker that gets the events of an agent: a question, a call, an answer."""

    history: History = field(default_factory=History)
    tracker: Tracker = field(init=False)
    tool_calls: bool = False
    calls: int = 0
    prompt_tokens: int = 200

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.history, MEW, Window(WINDOW_TOKENS, "configured"), "bench")
        self.tracker.describe_prefix(SYSTEM, "")

    def ask(self) -> None:
        """Add a question."""
        self.history.begin_turn()
        self.tracker.item_added(self.history.append("user", QUESTION, id=f"q{self.calls}", at="t"))

    def ended_call(self, served_model: str = "bench") -> Callable[[], object]:
        """The event of a call that sent everything so far, ready to be timed."""
        self.calls += 1
        self.prompt_tokens += 50
        usage, name, at = (
            Usage(self.prompt_tokens, 24, self.prompt_tokens + 24),
            f"c{self.calls}",
            "2026-01-01T00:00:00Z",
        )
        call = CallRecord(name, "main", at, served_model, self.history.revision, usage)
        return partial(self.tracker.call_kept, call, last_seq=self.history.last_seq, fingerprint="f")

    def answer(self) -> None:
        """Add the reply."""
        calls = (ToolCall(f"c{self.calls}", "look_up", "{}"),) if self.tool_calls else ()
        name = f"a{self.calls}"
        item = self.history.append("assistant", ANSWER, id=name, at="t", known_tokens=24, tool_calls=calls)
        self.tracker.item_added(item)

    def grow_to(self, items: int) -> None:
        """Continue the conversation until it has this many items."""
        while len(self.history.items) < items:
            self.ask()
            self.ended_call()()
            self.answer()


@dataclass
class Timings:
    """Durations of single calls in microseconds, by name."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, call: Callable[[], object]) -> None:
        """Make a call and record its duration."""
        begun = time.perf_counter_ns()
        call()
        self.samples.setdefault(name, []).append((time.perf_counter_ns() - begun) / 1000)

    def median(self, name: str) -> float:
        """The median duration."""
        return statistics.median(self.samples[name])


def decisions(items: int, calls: int) -> Timings:
    """Time the path after a call on a history of this many items."""
    conversation = TimedConversation()
    conversation.grow_to(items)
    tracker, timings = conversation.tracker, Timings()

    def whole(call_kept: Callable[[], object]) -> None:
        call_kept()
        tracker.decide("after_call", 0.0)
        tracker.report()

    def parts(call_kept: Callable[[], object]) -> None:
        timings.time("call_kept", call_kept)
        timings.time("decide", partial(tracker.decide, "after_call", 0.0))
        timings.time("report", tracker.report)

    for number in range(2 * calls):
        conversation.ask()
        ended = conversation.ended_call()
        if number % 2:
            parts(ended)
        else:
            timings.time("whole", partial(whole, ended))
        conversation.answer()
        report = {name: getattr(tracker.report(), name) for name in ContextReport.model_fields}
        timings.time("floor", partial(_status, report, tracker.measurement.tokens))
    return timings


def other_costs(items: int, calls: int) -> Timings:
    """Time everything else on a history of this many items, whose replies asked for tools."""
    conversation = TimedConversation(tool_calls=True)
    conversation.grow_to(items)
    tracker, timings = conversation.tracker, Timings()
    unreported = Tracker(conversation.history, MEW, Window(WINDOW_TOKENS, "configured"), "bench")
    for number in range(calls):
        conversation.history.begin_turn()
        item = conversation.history.append("user", QUESTION, id=f"x{number}", at="t")
        timings.time("add", partial(tracker.item_added, item))
        timings.time("next", lambda: tracker.ledger.next_prompt_tokens)
        conversation.ended_call()()
        conversation.prompt_tokens += 5 - 60 * (number % 2)
        timings.time("resend", conversation.ended_call())
        timings.time("switch", conversation.ended_call(served_model=f"model {number % 2}"))
        conversation.answer()
        timings.time("unreported", unreported.report)
    return timings


def _status(report: dict[str, object], tokens: int | None) -> Status:
    return Status(
        tokens=tokens,
        max_tokens=128_000,
        messages_in_context=84,
        status="active",
        context=ContextReport(**report),
    )


def deciding_alone(calls: int) -> dict[str, float]:
    """Microseconds of one decision by preset, near its highest threshold."""
    found = {}
    for name, policy in presets().items():
        timings, state = Timings(), PolicyState()
        for number in range(calls):
            snapshot = ContextSnapshot(127_000, "reported", 128_000, next_prompt_tokens=1, call_id=f"c{number}")
            timings.time("decide", partial(decide, policy, state, snapshot, "after_call"))
            state = decide(policy, state, snapshot, "after_call").state
        found[name] = timings.median("decide")
    return found


def planning(items: int) -> float:
    """Milliseconds to plan a compaction of this many items to half their size, prices included; best of three."""
    conversation = TimedConversation()
    conversation.grow_to(items)
    ledger = conversation.tracker.ledger
    timings = Timings()
    gc.collect()
    gc.freeze()
    for _ in range(3):
        timings.time(
            "plan",
            lambda: plan_compaction(
                conversation.history,
                ledger.item_prices(),
                present_tokens=ledger.next_prompt_tokens,
                window_tokens=WINDOW_TOKENS,
                target_tokens=ledger.next_prompt_tokens // 2,
            ),
        )
    return min(timings.samples["plan"]) / 1000


def main() -> int:
    """Print the tables. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Measure the cost of decisions and planning.")
    parser.add_argument("--items", type=int, nargs="+", default=[10, 1000, 10_000, 100_000])
    parser.add_argument("--calls", type=int, default=400)
    arguments = parser.parse_args()
    gc.freeze()
    print(f"{'items':>9}{'floor':>9}{'call_kept':>11}{'decide':>9}{'report':>9}{'whole':>9}  us per call, median")
    whole = {}
    for items in arguments.items:
        timings = decisions(items, arguments.calls)
        whole[items] = timings.median("whole")
        row = "".join(f"{timings.median(name):>{width}.1f}" for name, width in _COLUMNS)
        print(f"{items:>9,}{row}", flush=True)
    print(f"\n{'items':>9}{'add':>9}{'next':>9}{'resend':>9}{'switch':>9}{'unreported':>12}  us, median")
    others: dict[str, list[float]] = {name: [] for name, _ in _OTHERS}
    for items in arguments.items:
        timings = other_costs(items, arguments.calls)
        for name, _ in _OTHERS:
            others[name].append(timings.median(name))
        print(f"{items:>9,}" + "".join(f"{timings.median(name):>{width}.1f}" for name, width in _OTHERS), flush=True)
    print("\ndeciding alone, us: " + ", ".join(f"{n} {us:.1f}" for n, us in deciding_alone(arguments.calls).items()))
    print(f"\n{'items':>9}{'plan, ms':>11}{'us per item':>13}")
    for items in arguments.items:
        milliseconds = planning(items)
        print(f"{items:>9,}{milliseconds:>11.1f}{milliseconds * 1000 / items:>13.2f}", flush=True)
    slow = [items for items, us in whole.items() if us > GOAL_MICROSECONDS]
    base = whole.get(1000, min(whole.values()))
    grown = max(whole.values()) > base * GROWTH_GOAL
    grown = grown or any(max(found) > min(found) * GROWTH_GOAL + NOISE_MICROSECONDS for found in others.values())
    if slow or grown:
        print(
            f"\ngoal missed: {f'above {GOAL_MICROSECONDS} us at {slow} items' if slow else 'it grows with the history'}"
        )
    return int(bool(slow) or grown)


_COLUMNS = (("floor", 9), ("call_kept", 11), ("decide", 9), ("report", 9), ("whole", 9))
_OTHERS = (("add", 9), ("next", 9), ("resend", 9), ("switch", 9), ("unreported", 12))

if __name__ == "__main__":
    sys.exit(main())
