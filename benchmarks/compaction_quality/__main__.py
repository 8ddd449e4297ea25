"""Measures what an agent still knows after compactions, by type of fact.

    python -m benchmarks.compaction_quality [--strategies NAME ...] [--seeds 3] [--rounds 10] [--turns 36] [--local]
                                            [--url URL --model NAME] [--kit] [--shares] [--json]

Each round adds 36 turns (about 14,000 tokens) to a session and then compacts it. Facts of ten types are planted at all
depths; after each round the text that a model would read is searched for them: all the words that carry the fact, in
one line. A column is the age of the facts in rounds, over all facts of that age. `share` is the size of the prompt
after the last compaction in percent of the whole session, `spent` the tokens of summary calls in thousands, `freed`
the tokens that compactions freed. `stale` counts lines that still give a value that was changed. Sizes are counted by
the rehearsal model's tokenizer. The exit code is 1 if a goal is missed by one of our own rows without a real model.
"""

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from statistics import fmean

from benchmarks.compaction_quality import strategies
from benchmarks.compaction_quality.kit import kit_table
from benchmarks.compaction_quality.session import BINDING, KINDS, TURNS_PER_ROUND, Kind, Session
from benchmarks.compaction_quality.shares import groups, share_lines
from benchmarks.compaction_quality.strategies import FreeForm, Ours, Strategy, SummaryCall
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.local.llama_server import LocalModelOptions, find_gguf, serve_local
from mew_agent.parts.rehearsal.tokenizer import count

AGES = (1, 3, 5, 10)
GOALS = {1: 0.95, 5: 0.85}
LARGEST_SHARE = 0.2

Make = Callable[[], Strategy]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one strategy kept of all sessions."""

    strategy: str
    kept: dict[Kind, dict[int, float]]  # by type and age in rounds
    share: float  # of the session, after the last compaction
    spent_tokens: int
    freed_tokens: int
    stale: int

    def at(self, age: int, kinds: tuple[Kind, ...] = KINDS) -> float | None:
        """The share of facts of an age that is kept; None if none is so old."""
        found = [self.kept[kind][age] for kind in kinds if age in self.kept[kind]]
        return fmean(found) if found else None

    @property
    def missed(self) -> Iterator[str]:
        """The goals that this outcome misses."""
        for kind in BINDING:
            for age, kept in self.kept[kind].items():
                if age <= 5 and kept < 1:
                    yield f"{kind} after {age}: {kept:.0%}"
        for age, goal in GOALS.items():
            share = self.at(age)
            if share is not None and share < goal:
                yield f"all facts after {age}: {share:.0%}"
        if self.share > LARGEST_SHARE:
            yield f"prompt: {self.share:.0%} of the session"


async def measure(name: str, make: Make, *, seeds: range, rounds: int, turns: int = TURNS_PER_ROUND) -> Outcome:
    """Play sessions and look after each round for each fact."""
    hits: dict[Kind, dict[int, list[bool]]] = {kind: defaultdict(list) for kind in KINDS}
    shares, spent, freed, stale = [], 0, 0, 0
    for seed in seeds:
        session, strategy, seen = Session(seed), make(), 0
        for number in range(1, rounds + 1):
            for turn in session.round(number, turns):
                seen += sum(count(entry.text) for entry in turn)
                strategy.enter(turn)
            before = count(strategy.context())
            await strategy.compact()
            context = strategy.context()
            freed += before - count(context)
            stale += sum(fact.is_contradicted_in(context) for fact in session.planted)
            for fact in session.planted:
                hits[fact.kind][number - fact.round + 1].append(fact.is_in(context))
        shares.append(count(strategy.context()) / seen)
        spent += strategy.spending.tokens
    kept = {kind: {age: fmean(found) for age, found in ages.items()} for kind, ages in hits.items()}
    return Outcome(name, kept, fmean(shares), spent // len(seeds), freed // len(seeds), stale)


OWN: dict[str, Make] = {
    "ours, extract": lambda: Ours(strategies.nobody),
    "ours, 1 in 4": lambda: Ours(strategies.quarter),
    "ours, junk": lambda: Ours(strategies.junk()),
}
OTHERS: dict[str, Make] = {
    "truncation": strategies.Truncation,
    "char/4 dropping": strategies.CharDropping,
    "tool masking": strategies.Masking,
    "free-form, 1 in 4": lambda: FreeForm(call=strategies.quarter),
}


def with_model(name: str, call: SummaryCall, window_tokens: int) -> dict[str, Make]:
    """The two strategies that a real model can write for."""
    reply_tokens = min(2048, window_tokens // 4)
    return {
        f"free-form, {name}": lambda: FreeForm(call=call, reply_tokens=reply_tokens),
        f"ours, {name}": lambda: Ours(call, window_tokens),
    }


def print_outcome(outcome: Outcome) -> None:
    """One line for each type, and one for all."""
    ages = [age for age in AGES if outcome.at(age) is not None]
    head = "".join(f"{age:>6}" for age in ages)
    print(
        f"{outcome.strategy:<22}{head}   share {outcome.share:.0%}  spent {outcome.spent_tokens / 1000:.0f}k"
        f"  freed {outcome.freed_tokens / 1000:.0f}k  stale {outcome.stale}"
    )
    for kind in KINDS:
        print(f"  {kind:<20}" + "".join(f"{outcome.kept[kind][age]:>6.0%}" for age in ages))
    print(f"  {'all':<20}" + "".join(f"{outcome.at(age) or 0:>6.0%}" for age in ages))


_LOCAL_KEY = "none"
"""The key of the local model's server, which lives as long as the measurement; other servers ignore it."""


async def run(options: argparse.Namespace) -> int:
    """Measure and print. Returns 1 if a goal is missed."""
    async with AsyncExitStack() as stack:
        made = {**OTHERS, **OWN}
        urls = [(options.model, options.url)] if options.url else []
        if options.local:
            local = LocalModelOptions(find_gguf("local", where="--local"), window_tokens=8192)
            urls.append((local.model_name, await stack.enter_async_context(serve_local(local, _LOCAL_KEY))))
        for name, url in urls:
            model = OpenAIModel(name, url, _LOCAL_KEY)
            stack.push_async_callback(model.aclose)
            window = await model.discover_window()
            window_tokens = window.max_tokens if window else strategies.WINDOW_TOKENS
            made |= with_model(name, strategies.model_call(model), window_tokens)
        if options.shares:
            for name, plays in groups(range(options.seeds)):
                print(*await share_lines(name, plays, strategies.quarter), sep="\n", flush=True)
            return 0
        chosen = options.strategies or list(made)
        missed = False
        for name in chosen:
            outcome = await measure(
                name, made[name], seeds=range(options.seeds), rounds=options.rounds, turns=options.turns
            )
            if options.json:
                print(json.dumps(asdict(outcome)))
            else:
                print_outcome(outcome)
            for problem in outcome.missed if name in OWN else ():
                print(f"  goal missed: {problem}", file=sys.stderr)
                missed = True
        if options.kit:
            print(await kit_table({name: made[name] for name in chosen if name.startswith("ours")}))
    return int(missed)


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="rows to measure (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="number of sessions")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=TURNS_PER_ROUND, help="turns of a round")
    parser.add_argument("--local", action="store_true", help="add rows for the small local model (extra `local`)")
    parser.add_argument("--url", help="add rows for the model at this OpenAI-compatible URL")
    parser.add_argument("--model", default="default", help="its name")
    parser.add_argument("--kit", action="store_true", help="judge our rows with compaction-conformance-kit as well")
    parser.add_argument("--shares", action="store_true", help="measure only what small shares of a session hold")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
