"""Looks for a figure that is labelled as sure and wrong, in random histories under six kinds of servers.

    python -m benchmarks.sure_figures [--histories 100000] [--seed 0] [--json]

Each history is a random conversation, half of them with tool calls and a fifth with thinking, compacted at random
moments with and without a summary. Its server writes the prompt by one of the templates: `additive`; `rewriting`
(shortens tool calls of earlier turns); `stripping` (removes the thinking of earlier turns); `retokenizing` (a reply
takes other tokens when it is sent again). Two more are routers: behind one name are machines whose templates add up to
3 tokens to each message, and a hidden prefix. `routed` names the machine in each reply, `unnamed` does not. Half of the
histories give the ledger the model's tokenizer, and a fifth of the compactions are measured (`measure_compactions`).
Counted are compactions by the basis of their net and gross figures, cuts at call bounds, and those of each basis that
differ from the truth: `exact` and `tokenizer` must never.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from mew_agent.compaction.compactor import apply_plan, history_after
from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.cuts import CountedCut
from mew_agent.context.history import History, Item, Summary, summary_text
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.policy import MEW, CompactionMethod
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import ToolCall, Window
from mew_agent.model.usage import Usage
from tests.support.trackers import keep_call, planned

Template = Literal["additive", "rewriting", "stripping", "retokenizing", "routed", "unnamed"]
SYSTEM = "You keep records. " * 9
THINKING_TOKENS = 37
WORDS = [
    "station",
    "pier",
    "measured",
    "water",
    "0x7f3a",
    "units",
    "and",
    "nothing",
    "else",
    "happened",
    "/etc/hosts",
    "that",
    "day",
    "{}:",
    "[42]",
]


def count(text: str) -> int:
    """Tokens of a text, by the tokenizer of these servers: one for each three characters of a word."""
    return sum(-(-len(word) // 3) for word in text.split())


@dataclass
class Server:
    """What a model server makes of a history."""

    template: Template
    overhead: int
    has_tools: bool
    thinks: bool
    machine: int = 0
    """Which of several machines answers: its number is what it adds to each message."""

    def route(self, random: Random) -> None:
        """Let another machine answer from now on, sometimes."""
        if self.template in ("routed", "unnamed") and random.random() < 0.2:
            self.machine = random.randrange(4)

    @property
    def backend(self) -> str | None:
        """What a reply says of the machine."""
        return None if self.template == "unnamed" else f"machine {self.machine}"

    def prompt(self, history: History) -> int:
        """The true size of the next prompt."""
        tokens = count(SYSTEM) + self.overhead + 7 * self.machine
        if history.summary is not None:
            tokens += count(summary_text(history.summary.text)) + self.overhead + self.machine
        return tokens + sum(self.item(item, history.turn) for item in history.items)

    def item(self, item: Item, turn: int) -> int:
        """The true size of an item in a request of this turn."""
        text, extra = item.text(), 0
        if self.template == "rewriting" and item.tool_calls and item.turn < turn:
            text = item.content + "".join(call.name for call in item.tool_calls)
        if item.thinking and not (self.template == "stripping" and item.turn < turn):
            extra = THINKING_TOKENS
        if self.template == "retokenizing" and item.role == "assistant":
            extra += len(text) % 3
        return count(text) + extra + self.overhead + self.machine


def replay(seed: int, template: Template, found: Counter[str]) -> None:
    """Run one history and count what its figures are labelled as, and whether they are right."""
    random = Random(f"{template} {seed}")
    server = Server(template, random.randrange(2, 7), random.random() < 0.5, random.random() < 0.2)
    has_tokenizer = seed % 2 == 1
    size: Callable[[str], int | None] = count if has_tokenizer else lambda _text: None
    history = History()
    tracker = Tracker(history, MEW, Window(100_000, "configured"), "model")
    bounds: list[int] = []
    for turn in range(random.randrange(4, 11)):
        history.begin_turn()
        asked = history.append("user", words(random, 60), id=f"q{turn}", at="")
        tracker.item_added(asked, size(asked.text()))
        if random.random() < 0.25:
            compact(tracker, server, random, size, found)
        calls = random.choice((1, 1, 2, 3)) if server.has_tools else 1
        for number in range(calls):
            call(tracker, server, random, size, bounds, is_last=number == calls - 1)
        held = [seq for seq in bounds if history.items and seq >= history.items[0].seq]
        if len(held) > 2:
            check_bounds(tracker, server, held, found)


def call(
    tracker: Tracker,
    server: Server,
    random: Random,
    size: Callable[[str], int | None],
    bounds: list[int],
    *,
    is_last: bool,
) -> None:
    """One call, its reply, and perhaps a tool result."""
    history = tracker.history
    tracker.describe_prefix(SYSTEM, "")
    server.route(random)
    prompt = server.prompt(history)
    text, thinks = words(random, 40), server.thinks and random.random() < 0.3
    asked = () if is_last or not server.has_tools else (ToolCall(f"c{history.next_seq}", "look", words(random, 12)),)
    written = count(text + "".join(f"{one.name}{one.arguments}" for one in asked))
    completion = written + (THINKING_TOKENS if thinks else 0)
    usage = Usage(prompt, completion, prompt + completion)
    bounds.append(history.last_seq)
    keep_call(tracker, usage, call_id=f"{history.next_seq}", backend=server.backend)
    known = kept_reply_tokens(usage, thinking_seen=thinks)
    reply = history.append(
        "assistant", text, id=f"r{history.next_seq}", at="", tool_calls=asked, known_tokens=known, thinking=thinks
    )
    tracker.item_added(reply, size(reply.text()))
    for one in asked:
        result = history.append("tool", words(random, 80), id=f"t{history.next_seq}", at="", tool_call_id=one.id)
        tracker.item_added(result, size(result.text()))


def compact(
    tracker: Tracker, server: Server, random: Random, size: Callable[[str], int | None], found: Counter[str]
) -> None:
    """Compact to half of the present size, with a summary or without."""
    history = tracker.history
    method: CompactionMethod = random.choice(("staged", "summarise", "drop_oldest"))
    target = tracker.ledger.next_prompt_tokens // 2
    plan = planned(tracker, 100_000, target, answering_turn=history.turn, method=method)
    if not isinstance(plan, CompactionPlan):
        return
    summary = Summary(words(random, 50)) if plan.evict is not None and plan.summary_budget_tokens else None
    after = history_after(plan, summary, history)
    before, left = server.prompt(history), server.prompt(after)
    freed, written = (
        before - left,
        0 if summary is None else count(summary_text(summary.text)) + server.overhead + server.machine,
    )
    counted = None
    if (
        (before + left) % 5 == 4 and tracker.ledger.evidence.is_backend_steady
    ):  # as good as random, and the same seeds still make the same histories
        counted = CountedCut(before, left, None if summary is None else left - written, basis="exact")
    outcome = apply_plan(plan, summary, tracker, trigger="threshold", count=size, counted=counted).outcome
    found[f"net {outcome.basis}"] += 1
    found[f"gross {outcome.freed_gross_basis}"] += 1
    found[f"net {outcome.basis} wrong"] += outcome.freed_tokens != freed
    found[f"gross {outcome.freed_gross_basis} wrong"] += outcome.freed_gross_tokens != freed + written


def check_bounds(tracker: Tracker, server: Server, bounds: list[int], found: Counter[str]) -> None:
    """The price of a cut from call to call, next to what it would free."""
    history = tracker.history
    first, last = bounds[0] + 1, bounds[-1]
    price = tracker.ledger.price(first, last)
    true = sum(server.item(item, history.turn) for item in history.items if first <= item.seq <= last)
    found[f"call bounds {price.basis}"] += 1
    found[f"call bounds {price.basis} wrong"] += price.tokens != true


def wrong_and_sure(found: Counter[str]) -> list[str]:
    """The kinds of figures that are wrong although their label is `exact` or `tokenizer`."""
    return [name for name, count in found.items() if count and name.endswith(("exact wrong", "tokenizer wrong"))]


def words(random: Random, most: int) -> str:
    """A text of some words."""
    return " ".join(random.choices(WORDS, k=random.randrange(3, most)))


def main() -> int:
    """Count and print. Returns 1 if a figure labelled `exact` or `tokenizer` is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object per template")
    options = parser.parse_args()
    templates: tuple[Template, ...] = get_args(Template)
    is_wrong = False
    for template in templates:
        found: Counter[str] = Counter()
        for seed in range(options.seed, options.seed + options.histories // len(templates)):
            replay(seed, template, found)
        is_wrong |= bool(wrong_and_sure(found))
        shown = {name: found[name] for name in sorted(found)}
        lines = (f"{template:<14}{name:<30}{number:>9,}" for name, number in shown.items())
        print(json.dumps({"template": template, **shown}) if options.json else "\n".join(lines), flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
