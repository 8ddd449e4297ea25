"""Ways to shorten a session, and models that write summaries. Each strategy shows the text that a model would read."""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Protocol

from benchmarks.compaction_quality.session import Entry
from mew_agent.compaction.compactor import apply_plan, write_summary
from mew_agent.compaction.planner import SUMMARY_MAX_TOKENS, CompactionPlan
from mew_agent.context.history import History, Pin, summary_text
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.errors import ContextOverflow, ModelUnreachable
from mew_agent.model.interface import Message, Model, ModelReply, ModelRequest, ToolCall, Window
from mew_agent.model.usage import Usage
from mew_agent.parts.rehearsal.summaries import quarter_of
from mew_agent.parts.rehearsal.tokenizer import count, encode
from tests.support.trackers import keep_call, planned

SYSTEM = "You are an agent in a shared space. Answer briefly and truthfully."
WINDOW_TOKENS = 128_000
TARGET = 0.2
"""Share of the session that truncation and dropping keep."""

KEPT_TURNS = 2
PIN = "Only ada approves a release.  (Two spaces, on purpose.)"
"""A text that no compaction may change."""

MASK = "[Tool result cleared]"
JUNK = (
    "I'm sorry, but I can't help with that.",
    "One large pizza with olives, please. That will be 14 EUR, and a bottle of water.",
    "## Goal and request\n" + "The work goes on and on. " * 60,
    "<|im_start|>assistant\n## Goal and request\nok<|im_end|>",
    "ok",
)

SummaryCall = Callable[[ModelRequest], Awaitable[ModelReply]]


@dataclass
class Spending:
    """Tokens that the summary calls of a strategy took."""

    tokens: int = 0
    calls: int = 0

    def metered(self, call: SummaryCall) -> SummaryCall:
        """The same call, counted."""

        async def metered(request: ModelRequest) -> ModelReply:
            self.calls += 1
            reply = await call(request)
            self.tokens += count(reply.text) + sum(count(message.content) for message in request.messages)
            return reply

        return metered


class Strategy(Protocol):
    """Something that shortens a session."""

    spending: Spending

    def enter(self, turn: Sequence[Entry]) -> None:
        """Add a turn."""

    async def compact(self) -> None:
        """Shorten what is there."""

    def context(self) -> str:
        """What a model would read now."""


@dataclass
class _Texts:
    """A session as plain messages."""

    turns: list[list[Entry]] = field(default_factory=list)
    seen_tokens: int = 0
    spending: Spending = field(default_factory=Spending)

    def enter(self, turn: Sequence[Entry]) -> None:
        self.turns.append(list(turn))
        self.seen_tokens += sum(count(shown(entry)) for entry in turn)

    def context(self) -> str:
        return "\n".join([SYSTEM, *(shown(entry) for turn in self.turns for entry in turn)])


def shown(entry: Entry) -> str:
    """A message with its author."""
    return f"{entry.by or entry.role}: {entry.text}"


class Truncation(_Texts):
    """Keeps the newest fifth of the session, cut anywhere."""

    _text = ""

    def context(self) -> str:
        return "\n".join([self._text, *(shown(entry) for turn in self.turns for entry in turn)])

    async def compact(self) -> None:
        tokens = encode(self.context())
        self._text = "".join(tokens[-int(TARGET * self.seen_tokens) :])
        self.turns.clear()


class CharDropping(_Texts):
    """Drops the oldest messages until a quarter of the characters is a fifth of the session's tokens."""

    async def compact(self) -> None:
        entries = [entry for turn in self.turns for entry in turn]
        while entries and sum(len(shown(entry)) for entry in entries) / 4 > TARGET * self.seen_tokens:
            entries.pop(0)
        self.turns = [entries]


class Masking(_Texts):
    """Clears tool results before the newest turns, and nothing else."""

    async def compact(self) -> None:
        for turn in self.turns[:-KEPT_TURNS]:
            turn[:] = [Entry(e.role, MASK if e.role == "tool" else e.text, e.id, e.by) for e in turn]


@dataclass
class FreeForm(_Texts):
    """Replaces all but the newest turns by what a model makes of them and of the summary before."""

    call: SummaryCall = field(kw_only=True)
    reply_tokens: int = 2048
    _summary: str = ""

    def context(self) -> str:
        return f"{SYSTEM}\n{self._summary}\n{super().context()}"

    async def compact(self) -> None:
        old, self.turns = self.turns[:-KEPT_TURNS], self.turns[-KEPT_TURNS:]
        lines = [f'<message id="{e.id}" from="{e.by or e.role}">\n{e.text}\n</message>' for turn in old for e in turn]
        if not lines:
            return
        before = [f"<earlier_summary>\n{self._summary}\n</earlier_summary>"] if self._summary else []
        while True:
            messages = (Message("system", "You summarise a conversation."), Message("user", "\n".join(before + lines)))
            try:
                reply = await self.spending.metered(self.call)(
                    ModelRequest(messages=messages, max_output_tokens=self.reply_tokens)
                )
            except ContextOverflow:
                lines = lines[len(lines) // 2 :]  # it drops what does not fit
                continue
            self._summary = reply.text
            return


@dataclass
class Ours:
    """The compaction of an agent, with history, ledger, plan, checks and extract."""

    call: SummaryCall
    window_tokens: int = WINDOW_TOKENS
    most_summary_tokens: int = SUMMARY_MAX_TOKENS
    seen_chars: int = 0
    spending: Spending = field(default_factory=Spending)
    history: History = field(default_factory=History)
    written_by: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history.pins.append(Pin("p1", PIN))
        self.tracker = Tracker(self.history, MEW, Window(self.window_tokens, "configured"), "model")

    def enter(self, turn: Sequence[Entry]) -> None:
        self.history.begin_turn()
        called = None
        for place, entry in enumerate(turn):
            self.seen_chars += len(entry.text)
            calls: tuple[ToolCall, ...] = ()
            if place + 1 < len(turn) and turn[place + 1].role == "tool":
                called = ToolCall(turn[place + 1].id, "read", "{}")
                calls = (called,)
            item = self.history.append(
                entry.role,
                entry.text,
                id=entry.id,
                at="",
                name=entry.by,
                envelope_id=entry.id if entry.role == "user" else None,
                tool_calls=calls,
                tool_call_id=called.id if called and entry.role == "tool" else None,
            )
            if entry.role == "assistant":
                self._report()
                self.tracker.item_added(item)
            else:
                self.tracker.item_added(item)

    def _report(self) -> None:
        """A call of the model whose usage is reported."""
        self.tracker.describe_prefix(SYSTEM, "")
        # No token holds the end of a line and what follows: by lines, most counts are known from the call before.
        prompt = sum(map(count, re.split(r"(?<=\n)(?=\S)", self.context())))
        keep_call(self.tracker, Usage(prompt, 20, prompt + 20))

    async def compact(self) -> None:
        plan = planned(self.tracker, self.window_tokens)
        if not isinstance(plan, CompactionPlan):
            return
        plan = replace(plan, summary_budget_tokens=min(plan.summary_budget_tokens, self.most_summary_tokens))
        summary = await write_summary(plan, self.tracker, self.spending.metered(self.call))
        apply_plan(plan, summary, self.tracker, trigger="requested")
        if summary is not None:
            self.written_by.append(summary.written_by)

    def context(self) -> str:
        parts = [SYSTEM, *(pin.text for pin in self.history.pins)]
        if self.history.summary is not None:
            parts.append(summary_text(self.history.summary.text))
        return "\n".join([*parts, *(f"{item.name or item.role}: {item.content}" for item in self.history.items)])


# -- who writes the summaries ------------------------------------------------------------------------------------


async def nobody(_request: ModelRequest) -> ModelReply:
    """No model: the extract takes its place."""
    raise ModelUnreachable("benchmark", "none", "no model")


async def quarter(request: ModelRequest) -> ModelReply:
    """A fluent model that keeps one sentence in four."""
    texts = [{"role": message.role, "content": message.content} for message in request.messages]
    return _reply(quarter_of(texts), request)


def junk() -> SummaryCall:
    """A model that answers something else, in turns: a refusal, an order, a loop, template tokens, `ok`."""
    texts = cycle(JUNK)

    async def call(request: ModelRequest) -> ModelReply:
        return _reply(next(texts), request)

    return call


def model_call(model: Model) -> SummaryCall:
    """A real model."""

    async def call(request: ModelRequest) -> ModelReply:
        last = None
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                last = event
        assert isinstance(last, ModelReply)
        return last

    return call


def _reply(text: str, request: ModelRequest) -> ModelReply:
    tokens = encode(text)
    limit = request.max_output_tokens or len(tokens)
    finish = "length" if len(tokens) > limit else "stop"
    return ModelReply("".join(tokens[:limit]), (), finish, None, "model")
