"""Which calls are the agent's: sessions as agents make them, and the rule that no side call is ever shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.usage import Usage
from mew_agent.parts.meter.main_line import MAX_KEPT_CALLS, MainLine, MeteredCall
from mew_agent.parts.meter.replies import Reply
from mew_agent.parts.meter.request_facts import digest_of, read_facts

NOW = "2026-01-31T12:00:00Z"
TOOLS, FEWER = ("bash", "edit", "task"), ("bash",)
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_call(name: str) -> Message:
    function = {"name": "task", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def result(name: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": f"result of {name}"}


@dataclass
class Replay:
    """Feeds calls of chat completions to a `MainLine`, and records the figure shown after each step."""

    line: MainLine = field(default_factory=MainLine)
    shown: list[tuple[int | None, str]] = field(default_factory=list)

    def begin(
        self,
        messages: Sequence[Message],
        tools: Sequence[str] = TOOLS,
        headers: Mapping[str, str] | None = None,
        model: str = "m",
    ) -> MeteredCall:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "system", "content": "Be brief."}, *messages]}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": name}} for name in tools]
        facts = read_facts("chat", headers or {}, body)
        assert facts is not None
        call = self.line.begin(facts)
        self._look()
        return call

    def end(self, call: MeteredCall, tokens: int | None, calls: Sequence[str] = ()) -> MeteredCall:
        usage = None if tokens is None else Usage(tokens - 1, 1, tokens)
        self.line.end(call, Reply(usage, frozenset(map(digest_of, calls))), NOW)
        self._look()
        return call

    def call(
        self, messages: Sequence[Message], tokens: int | None, calls: Sequence[str] = (), **about: Any
    ) -> MeteredCall:
        """A whole call. `calls` are the ids of the tool calls in its reply."""
        return self.end(self.begin(messages, **about), tokens, calls)

    def _look(self) -> None:
        newest = self.line.newest
        usage = None if newest is None else newest.usage
        self.shown.append((None if usage is None else usage.total_tokens, "" if newest is None else newest.verdict))

    def now(self) -> tuple[int | None, str]:
        return self.shown[-1]


def test_session_like_opencodes_shows_its_five_main_calls_only() -> None:
    replay, session = Replay(), {"x-session-id": "ses_1"}
    child = {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}
    history = [user("Fix the bug.")]
    first = replay.begin(history, headers=session)
    title = replay.call([user("Generate a title:"), *history], 614, tools=(), headers=session)
    replay.end(first, 7300, ["a"])
    assert replay.now() == (7300, "provisional")
    history += [tool_call("a"), result("a")]
    replay.call(history, 7350, ["b"], headers=session)
    subagent = replay.call([user("Look for x.")], 900, headers=child)
    history += [tool_call("b"), result("b")]
    replay.call(history, 7400, headers=session)
    history += [answer("Done."), user("And now?")]
    begun = replay.begin(history, headers=session)
    assert replay.now() == (7400, "main")
    replay.end(begun, 7450)
    summary = replay.call([*history, answer("So."), user("Summarise.")], 7700, tools=(), headers=session)
    assert replay.now() == (7450, "provisional")
    fresh = [user("Summary: ..."), user("Continue.")]
    replay.call(fresh, 3000, headers=session)
    assert replay.now() == (3000, "provisional")
    replay.begin([*fresh, answer("Yes."), user("Good.")], headers=session)
    assert replay.now() == (3000, "main")
    asides = [(call.verdict, call.reason) for call in (title, subagent, summary)]
    assert asides == [("aside", "no tools"), ("aside", "subagent"), ("aside", "no tools")]
    assert {tokens for tokens, _ in replay.shown} == {None, 7300, 7350, 7400, 7450, 3000}


def test_suggestion_that_looks_like_a_turn_stays_provisional() -> None:
    replay, history = Replay(), [user("Hello.")]
    replay.call(history, 100)
    history += [answer("Hi.")]
    suggestion = replay.call([*history, user("[SUGGESTION MODE: what will the user type next?]")], 140)
    assert replay.now() == (140, "provisional")
    replay.call([*history, user("Next question.")], 120)
    assert replay.now() == (120, "provisional")
    assert (suggestion.verdict, suggestion.reason) == ("aside", "not continued")
    assert (140, "main") not in replay.shown


def test_side_call_under_another_session_and_model_is_aside() -> None:
    replay, history = Replay(), [user("Hello.")]
    replay.call(history, 100, headers={"thread-id": "t1", "session-id": "s"})
    side = replay.call([user("Is this safe?")], 50, headers={"thread-id": "t2", "session-id": "s"}, model="small")
    assert replay.now() == (100, "provisional")
    assert (side.verdict, side.reason) == ("aside", "other session")
    replay.call([user("Start over.")], 60, headers={"thread-id": "t3"})
    assert replay.now() == (60, "provisional")


def test_subagent_without_headers_is_never_shown() -> None:
    replay, history = Replay(), [user("Use a subagent.")]
    replay.call(history, 500, ["task-1"])
    inner = [user("You are a subagent.")]
    for step, tokens in enumerate((40, 60, 80)):
        replay.call(inner, tokens, [f"inner-{step}"])
        inner += [tool_call(f"inner-{step}"), result(f"inner-{step}")]
    replay.call(inner, 90)
    replay.call([*history, tool_call("task-1"), result("task-1")], 520)
    assert replay.now() == (520, "provisional")
    assert {tokens for tokens, _ in replay.shown} == {None, 500, 520}


def test_history_cut_in_the_middle_of_a_turn_still_counts() -> None:
    replay, history = Replay(), [user("One."), answer("1"), user("Two.")]
    replay.call(history, 900, ["a"])
    replay.call([user("Summary."), tool_call("a"), result("a")], 300)
    assert replay.now() == (300, "provisional")
    assert replay.line.newest is not None


def test_tools_that_are_added_in_a_conversation_belong_to_it() -> None:
    replay, history = Replay(), [user("Work.")]
    replay.call(history, 100, ["search"])
    history += [tool_call("search"), result("search")]
    replay.call(history, 200, tools=(*TOOLS, "found"))
    assert replay.now() == (200, "provisional")
    fork = replay.call([*history, answer("."), user("Remember what matters.")], 999, tools=FEWER)
    assert (fork.verdict, fork.reason) == ("aside", "other tools")
    replay.begin([*history, answer("."), user("More.")], tools=(*TOOLS, "found"))
    assert replay.now() == (200, "main")


def test_after_a_summary_a_new_conversation_takes_over() -> None:
    replay, history = Replay(), [user("Work.")]
    replay.call(history, 900, ["a"])
    replay.call([*history, tool_call("a"), result("a"), user("Summarise.")], 950, tools=())
    replay.call([user("Summary. Continue.")], 200)
    assert replay.now() == (200, "provisional")


def test_a_long_conversation_takes_over_from_a_waiting_one() -> None:
    replay = Replay()
    replay.call([user("Work.")], 900, ["never answered"])
    history = [user("Other.")]
    for tokens in (10, 20, 30):
        replay.call(history, tokens)
        history += [answer("."), user("More.")]
    assert replay.now() == (30, "provisional")


def test_agent_without_tools_is_shown_from_its_second_call() -> None:
    replay, history = Replay(), [user("Hello.")]
    replay.call(history, 30, tools=())
    assert replay.now() == (None, "")
    replay.call([*history, answer("Hi."), user("More.")], 50, tools=())
    assert replay.now() == (50, "provisional")
    replay.call([user("A title, please.")], 20, tools=())
    assert replay.now() == (50, "provisional")
    replay.call([user("With tools.")], 70)
    assert replay.now() == (70, "provisional")


def test_failed_call_changes_nothing_and_its_retry_counts() -> None:
    replay, history = Replay(), [user("Hello.")]
    replay.call(history, 30)
    history += [answer("Hi."), user("More.")]
    replay.line.end(replay.begin(history), None, NOW)
    assert replay.now() == (30, "main")
    replay.call(history, 60)
    replay.call(history, 61)
    assert replay.now() == (61, "provisional")
    assert replay.call([*history, answer("."), user("?")], None).usage is None
    assert replay.now() == (None, "provisional")


def test_response_is_continued_by_its_id() -> None:
    line = MainLine()
    facts = read_facts("responses", {}, {"input": "Hello.", "tools": [{"type": "function", "name": "a"}]})
    assert facts is not None
    first = line.begin(facts)
    line.end(first, Reply(Usage(9, 1, 10), response=digest_of("resp_1")), NOW)
    body = {"input": "More.", "previous_response_id": "resp_1", "tools": [{"type": "function", "name": "a"}]}
    more = read_facts("responses", {}, body)
    assert more is not None
    line.begin(more)
    assert first.verdict == "main"


def test_kept_calls_are_bounded_and_hold_no_text() -> None:
    replay = Replay()
    for number in range(MAX_KEPT_CALLS + 10):
        replay.call([user(f"secret {number}")], 5)
    assert len(replay.line._kept) == MAX_KEPT_CALLS
    assert "secret" not in repr(list(replay.line._kept.values())[-1].facts)


@dataclass
class RandomAgent:
    """An agent that takes one step after another. Its own figures are below a million, titles and subagents above."""

    has_tools: bool
    headers: dict[str, str]
    replay: Replay = field(default_factory=Replay)
    history: list[Message] = field(default_factory=lambda: [user("Start.")])
    steps: int = 0
    size: int = 0

    @property
    def tools(self) -> tuple[str, ...]:
        return TOOLS if self.has_tools else ()

    def turn(self, *calls: str) -> None:
        self.size += 1
        self.replay.call(self.history, self.size, calls, tools=self.tools, headers=self.headers)

    def ask(self) -> None:
        self.turn()
        self.history += [answer(f"answer {self.steps}"), user(f"question {self.steps}")]

    def use_tool(self) -> None:
        self.turn(f"c{self.steps}")
        self.history += [tool_call(f"c{self.steps}"), result(f"c{self.steps}")]

    def title(self) -> None:
        self.replay.call([user("Title?"), self.history[0]], 1_000_000, tools=(), headers=self.headers)

    def subagent(self, headers: dict[str, str] | None = None) -> None:
        self.turn(f"task {self.steps}")
        inner = [user(f"subagent {self.steps}")]
        for place in range(4):
            name = f"{self.steps}/{place}"
            calls = [name] if place < 3 else []
            self.replay.call(inner, 2_000_000, calls, headers=self.headers if headers is None else headers)
            inner += [tool_call(name), result(name)]
        self.history += [tool_call(f"task {self.steps}"), result(f"task {self.steps}")]

    def named_subagent(self) -> None:
        self.subagent({"x-session-id": f"child {self.steps}", "x-parent-session-id": "one"})

    def compact(self) -> None:
        self.turn()
        self.replay.call([*self.history, user("Summarise.")], 4_000_000, tools=(), headers=self.headers)
        self.history = [user(f"Summary {self.steps}."), user("Go on.")]

    def fail(self) -> None:
        self.replay.line.end(self.replay.begin(self.history, tools=self.tools, headers=self.headers), None, NOW)


WITHOUT_TOOLS = ["ask", "title", "compact", "fail"]


@given(st.data(), st.booleans(), st.sampled_from([{}, {"x-session-id": "one"}]))
def test_no_figure_of_a_title_or_subagent_is_ever_shown(
    data: st.DataObject, has_tools: bool, headers: dict[str, str]
) -> None:
    agent = RandomAgent(has_tools, headers)
    steps = [*WITHOUT_TOOLS, "use_tool", "subagent", "named_subagent"] if has_tools else WITHOUT_TOOLS
    for agent.steps, step in enumerate(data.draw(st.lists(st.sampled_from(steps), max_size=25))):
        getattr(agent, step)()
    agent.ask()
    agent.turn()
    assert agent.replay.now() == (agent.size, "provisional")
    foreign = {figure for figure in agent.replay.shown if (figure[0] or 0) >= 1_000_000}
    # Without tools a summary looks like a turn.
    assert foreign <= (set() if has_tools else {(4_000_000, "provisional")})
