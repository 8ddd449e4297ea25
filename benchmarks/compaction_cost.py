"""Measures what compactions cost, and how much of the summary request a provider's prompt cache has read already.

    python -m benchmarks.compaction_cost [--windows 8000 32000 128000] [--compactions 4] [--seed 0]

A conversation runs against the rehearsal model, whose prefix cache reports the tokens that a prompt has in common with
an earlier one. It compacts by itself at 9/10 of the window. The two methods send the same material: in place (the
conversation and one message more, what an agent does) and as a transcript (what it does if another model writes its
summaries). The exit code is 1 if in place less than 90 % of the summary requests was cached.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial

import anyio
from mew_protocol.context_report import CompactionCost

from benchmarks.corpus import Writer
from mew_agent.context.history import History
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.model.interface import ModelEvent, ToolSpec, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal

GOAL_SHARE = 0.9
TOOL = ToolSpec(
    "read_file", "Reads a file of the project.", {"type": "object", "properties": {"path": {"type": "string"}}}
)
KINDS = ("prose", "code", "json", "logs")


async def _ignore(_event: ModelEvent) -> None:
    return None


async def measure(window_tokens: int, compactions: int, seed: int, *, in_place: bool) -> list[CompactionCost]:
    """The costs of so many compactions of one conversation."""
    async with AsyncExitStack() as stack:
        options = RehearsalOptions(window_tokens=window_tokens, prefix_cache=True)
        server = await stack.enter_async_context(serve_rehearsal(options))
        model = OpenAIModel("rehearsal", server.base_url, "key")
        stack.push_async_callback(model.aclose)
        tracker = Tracker(History(), MEW, Window(window_tokens, "configured"), "rehearsal")
        conversation = Conversation(
            model,
            tracker,
            MemoryStore(),
            ConversationOptions(
                system_prompt="You keep the records of a project. " * 20,
                tools=lambda: (TOOL,),
                summariser=None if in_place else model,
            ),
        )
        costs: list[CompactionCost] = []
        for number, text in enumerate(_questions(window_tokens, seed)):
            await conversation.begin_turn()
            entered = False

            async def prepare(text: str = text, number: int = number) -> None:
                nonlocal entered
                if not entered:
                    entered = True
                    await conversation.state.add_user_message(text, sender="ada", envelope_id=f"message-{number}")

            await conversation.call(_ignore, prepare)
            conversation.end_turn()
            await conversation.apply_pending()
            last = tracker.last_compaction
            if tracker.compactions > len(costs) and last is not None and last.cost is not None:
                costs.append(last.cost)
            if len(costs) == compactions:
                break
        return costs


def _questions(window_tokens: int, seed: int) -> Iterator[str]:
    writer, number = Writer("judge", seed), 0
    while True:
        kind = KINDS[number % len(KINDS)]
        yield f"Please look at part {number} of this:\n{writer.write(kind, window_tokens // 4)}"
        number += 1


def main() -> int:
    """Print one line for each window and method. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--windows", type=int, nargs="+", default=[8_000, 32_000, 128_000])
    parser.add_argument("--compactions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{'window':>8}  {'method':<11} {'calls':>5} {'prompt':>9} {'cached':>8} {'output':>7} {'freed/token':>12}")
    is_good = True
    for window in given.windows:
        for method in ("in place", "transcript"):
            run = partial(measure, window, given.compactions, given.seed, in_place=method == "in place")
            costs = anyio.run(run)
            prompt = sum(cost.prompt_tokens or 0 for cost in costs)
            cached = sum(cost.cached_tokens or 0 for cost in costs)
            output = sum(cost.completion_tokens or 0 for cost in costs)
            freed = sum((cost.freed_per_token or 0) for cost in costs) / len(costs)
            calls = sum(cost.calls for cost in costs)
            figures = f"{calls:>5} {prompt:>9,} {cached / prompt:>8.1%} {output:>7,} {freed:>12.2f}"
            print(f"{window:>8,}  {method:<11} {figures}")
            is_good &= method != "in place" or cached >= GOAL_SHARE * prompt
    if not is_good:
        print(f"GOAL MISSED: at least {GOAL_SHARE:.0%} of the summary requests in place is cached")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
