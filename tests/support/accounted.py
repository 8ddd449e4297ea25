"""A tracker with its history, driven as a conversation drives it, and the figures that are fed to it."""

import itertools
from typing import Any

from mew_protocol.context_report import ContextReport

from mew_agent.context.cuts import CutOutcome
from mew_agent.context.history import History, Item, Summary
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.persisted_state import SavedContext
from mew_agent.context.policy import MEW, PolicyState
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import ToolCall, Window
from mew_agent.model.usage import Usage
from tests.support.trackers import keep_call

SYSTEM = "You are an agent in a space. " * 20
QUESTION = "What does the gateway do with a frame that is larger than it accepts? "


class Agent:
    """A tracker with its history, driven as a conversation drives it."""

    def __init__(self, window: int = 128_000, history: History | None = None) -> None:
        self.history = history or History()
        self.tracker = Tracker(self.history, MEW, Window(window, "configured"), "gpt")
        self.calls = 0
        self._ids = itertools.count()

    def ask(self, text: str = QUESTION) -> Item:
        self.history.begin_turn()
        return self.receive(text)

    def receive(self, text: str = QUESTION) -> Item:
        item = self.history.append("user", text, id=f"u-{next(self._ids)}", at="t")
        self.tracker.item_added(item)
        return item

    def observe(self, text: str, call_id: str = "c") -> Item:
        item = self.history.append("tool", text, id=f"t-{next(self._ids)}", at="t", tool_call_id=call_id)
        self.tracker.item_added(item)
        return item

    def call(
        self,
        usage: Usage | None,
        *,
        reply: str = "The gateway refuses it and says so.",
        calls: tuple[str, ...] = (),
        served: str = "gpt",
        fingerprint: str = "f",
        revision: int | None = None,
        thinking: bool = False,
    ) -> Item:
        self.calls += 1
        self.tracker.describe_prefix(SYSTEM, "")
        keep_call(
            self.tracker,
            usage,
            call_id=f"call-{self.calls}",
            at=f"2026-01-01T00:00:{self.calls:02}Z",
            revision=revision,
            served=served,
            fingerprint=fingerprint,
        )
        item = self.history.append(
            "assistant",
            reply,
            id=f"a-{next(self._ids)}",
            at="t",
            tool_calls=tuple(ToolCall(name, "read", "{}") for name in calls),
            known_tokens=kept_reply_tokens(usage, thinking_seen=thinking),
            thinking=thinking,
        )
        self.tracker.item_added(item)
        return item

    def turn(self, total: int, completion: int = 10) -> Item:
        self.ask()
        return self.call(used(total, completion))

    def forget(self, first: int, last: int) -> CutOutcome:
        gone = self.history.evict(first, last, self.history.summary)
        return self.tracker.cut(first, last, trigger="forget", freed_messages=len(gone))

    def summarise(self, first: int, last: int, summary: Summary) -> CutOutcome:
        gone = self.history.evict(first, last, summary)
        return self.tracker.cut(first, last, trigger="requested", freed_messages=len(gone))

    def stub(self, *seqs: int) -> CutOutcome:
        return self.tracker.stubbed(self.history.stub(seqs), trigger="threshold", counted={})

    def report(self) -> ContextReport:
        return self.tracker.report()

    def shown(self) -> tuple[int | None, str, str | None, int]:
        status = self.tracker.status("active")
        assert status.context is not None
        return status.tokens, status.context.basis, status.context.reason, status.messages_in_context


def restored_state(state: PolicyState) -> PolicyState:
    """The policy state as a restarted process loads it."""
    text = SavedContext(policy_state=state).model_dump_json()
    return SavedContext.model_validate_json(text).policy_state


def used(total: int, completion: int = 10, **more: Any) -> Usage:
    return Usage(total - completion, completion, total, **more)


def breakdown_sum(report: ContextReport) -> int:
    assert report.breakdown is not None
    return sum(part.tokens for part in report.breakdown if part.part != "unsent")


def restarted(agent: Agent) -> Agent:
    saved = SavedContext.model_validate_json(agent.tracker.saved().model_dump_json())
    old = agent.history
    again = Agent(
        agent.tracker.window.max_tokens,
        History(list(old.items), [], old.summary, old.revision, old.next_seq, old.turn),
    )
    again.tracker.restored(saved, {})
    return again
