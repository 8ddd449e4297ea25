"""Measures the figures of a compaction: the tokens it says it freed, and the first projection after it.

    python -m benchmarks.after_a_cut [--vocabularies FOLDER] [--families ...] [--templates ...] [--conversations 8]
                                     [--calls 40] [--every 10] [--seed 0] [--tokenizer | --server-counts] [--json]

A scripted conversation (`benchmarks.projection`) is compacted to half of its size after every so many calls, as an
agent does it: a plan, a summary whose size the provider reported, a cut. The true sizes are counts of a real tokenizer
over every message in one of three templates: `additive`, `verbose` (writes the tools at one and a half times their
length, and 60 tokens about them), and `rewriting` (shortens the arguments of tool calls of earlier turns).
`--tokenizer` gives the ledger the model's own tokenizer; with `--server-counts` the server counts each compaction.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.corpus import Writer
from benchmarks.projection import FAMILIES, SCENARIOS, SYSTEM, WINDOW_TOKENS, converse, load_counter, record_call
from mew_agent.compaction.compactor import apply_plan, history_after
from mew_agent.compaction.planner import CompactionPlan, MostTokens
from mew_agent.context.cuts import CountedCut
from mew_agent.context.history import History, Item, Summary, summary_text
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.errors import ConfigError
from mew_agent.model.interface import Window
from mew_agent.tokens.tokenizers import TextCounter
from tests.support.trackers import planned

Template = Literal["additive", "verbose", "rewriting"]
TEMPLATES: tuple[Template, ...] = ("additive", "verbose", "rewriting")
GOALS = {"freed": (1.0, 3.0), "projection": (1.5, 5.0)}  # mean and 95th percentile, in percent


@dataclass(frozen=True, slots=True)
class Server:
    """What a model server makes of a history."""

    counter: TextCounter
    template: Template
    overhead_tokens: int
    tools_text: str

    def prompt(self, history: History) -> int:
        """The true size of the next prompt."""
        tools = self.counter.count(self.tools_text)
        prefix = self.counter.count(SYSTEM) + self.overhead_tokens
        prefix += tools * 3 // 2 + 60 if self.template == "verbose" else tools * 11 // 10 + 12
        if history.summary is not None:
            prefix += self.counter.count(summary_text(history.summary.text)) + self.overhead_tokens
        return prefix + sum(self._message(item, history.turn) for item in history.items)

    def _message(self, item: Item, turn: int) -> int:
        text = item.text()
        if self.template == "rewriting" and item.tool_calls and item.turn < turn:
            text = item.content + "".join(call.name for call in item.tool_calls)
        return self.counter.count(text) + self.overhead_tokens


@dataclass(frozen=True, slots=True)
class Cut:
    """One compaction: errors in percent of the true figures."""

    freed_percent: float
    projection_percent: float
    basis: str
    is_sure_and_wrong: bool


def replay(
    scenario: str, seed: int, options: argparse.Namespace, counter: TextCounter, template: Template
) -> Iterator[Cut]:
    """Replay a conversation and compact it after every so many calls."""
    script = converse(scenario, seed, options.calls, "judge")
    server = Server(counter, template, script.overhead_tokens, script.tools_text)
    writer = Writer("judge", seed + 10_000)
    history = History()
    tracker = Tracker(history, MEW, Window(WINDOW_TOKENS, "configured"), "model")
    is_chained = False
    for number, call in enumerate(script.calls):
        if not is_chained:
            history.begin_turn()
        for role, text in call.entered:
            item = history.append(role, text, id=f"{number}", at="", tool_call_id="c" if role == "tool" else None)
            tracker.item_added(item, counter.count(text) if options.tokenizer else None)
        tracker.describe_prefix(SYSTEM, script.tools_text)
        is_chained = call.tool_call is not None
        if number % options.every == options.every - 1:
            cut = compact(tracker, server, writer, is_counted=options.server_counts, is_tokenized=options.tokenizer)
            if cut is not None:
                yield cut
        reply, _ = record_call(tracker, call, number, server.prompt(history), counter)
        tracker.item_added(reply, counter.count(reply.text()) if options.tokenizer else None)


def compact(tracker: Tracker, server: Server, writer: Writer, *, is_counted: bool, is_tokenized: bool) -> Cut | None:
    """Compact to half of the present size, as an agent does; None if nothing may leave."""
    history, ledger = tracker.history, tracker.ledger
    present = ledger.next_prompt_tokens
    most = MostTokens(*ledger.most_tokens())
    plan = planned(tracker, WINDOW_TOKENS, present // 2, answering_turn=history.turn, method="summarise", most=most)
    if not isinstance(plan, CompactionPlan) or plan.evict is None:
        return None
    before = server.prompt(history)
    text = writer.write("prose", plan.summary_budget_tokens * 3)
    summary = Summary(text, known_tokens=server.counter.count(text))
    left = history_after(plan, summary, history)
    after, bare = server.prompt(left), server.prompt(replace(left, summary=None))
    count = server.counter.count if is_tokenized else lambda _text: None
    counted = CountedCut(before, after, bare) if is_counted else None
    outcome = apply_plan(plan, summary, tracker, trigger="threshold", count=count, counted=counted).outcome
    freed = before - after
    return Cut(
        abs(outcome.freed_tokens - freed) * 100 / max(1, abs(freed)),
        abs(tracker.ledger.next_prompt_tokens - after) * 100 / after,
        outcome.basis,
        outcome.basis != "projected" and outcome.freed_tokens != freed,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """All compactions of one tokenizer and template."""

    family: str
    template: str
    cuts: int
    freed_mean: float
    freed_p95: float
    projection_mean: float
    projection_p95: float
    sure: int  # cuts whose freed tokens are not labelled as projected
    sure_and_wrong: int

    @property
    def misses_goal(self) -> bool:
        """Whether a figure is beyond its goal."""
        means = (self.freed_mean, self.freed_p95), (self.projection_mean, self.projection_p95)
        goals = zip(means, GOALS.values(), strict=True)
        return self.sure_and_wrong > 0 or any(mean > most or p95 > most95 for (mean, p95), (most, most95) in goals)


def judge(family: str, template: Template, cuts: Sequence[Cut]) -> Result:
    """Summarise the compactions of one tokenizer and template."""
    freed, projection = [cut.freed_percent for cut in cuts], [cut.projection_percent for cut in cuts]
    return Result(
        family,
        template,
        len(cuts),
        statistics.fmean(freed),
        statistics.quantiles(freed, n=20)[18],
        statistics.fmean(projection),
        statistics.quantiles(projection, n=20)[18],
        sum(cut.basis != "projected" for cut in cuts),
        sum(cut.is_sure_and_wrong for cut in cuts),
    )


def main() -> int:
    """Measure and print. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=Path, help="folder with rank files and tokenizer.json files")
    parser.add_argument("--families", nargs="+", choices=("rehearsal", *FAMILIES), default=("rehearsal", *FAMILIES))
    parser.add_argument("--templates", nargs="+", choices=TEMPLATES, default=TEMPLATES)
    parser.add_argument("--scenarios", nargs="+", choices=tuple(SCENARIOS), default=("mixed", "code", "chinese"))
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", action="store_true", help="give the ledger the model's tokenizer")
    parser.add_argument("--server-counts", action="store_true", help="let the server count each compaction")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    is_missed = False
    print(
        f"{'family':<11}{'template':<11}{'cuts':>5}   freed mean/p95 %   projection mean/p95 %   sure   wrong",
        file=sys.stderr,
    )
    for family in options.families:
        try:
            counter = load_counter(family, options.vocabularies)
        except ConfigError as error:
            print(f"not run: {family}: {error}", file=sys.stderr)
            continue
        for template in options.templates:
            seeds = range(options.seed, options.seed + options.conversations)
            runs = [(scenario, seed) for scenario in options.scenarios for seed in seeds]
            cuts = [cut for run in runs for cut in replay(*run, options, counter, template)]
            if len(cuts) < 2:
                parser.error(f"{len(cuts)} compactions with {family}, {template} (expected at least 2; raise --calls)")
            result = judge(family, template, cuts)
            is_missed |= result.misses_goal
            line = (
                f"{family:<11}{template:<11}{result.cuts:>5}{result.freed_mean:>11.2f}{result.freed_p95:>8.2f}"
                f"{result.projection_mean:>15.2f}{result.projection_p95:>8.2f}{result.sure:>7}{result.sure_and_wrong:>8}"
                f"{' missed' if result.misses_goal else ''}"
            )
            print(json.dumps(asdict(result)) if options.json else line, flush=True)
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
