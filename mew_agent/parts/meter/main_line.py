"""[pure] Decides which calls of an agent belong to its own conversation, and which figure is valid.

Owns the rules:

1. A call continues an earlier one if both have the same session and tools and its messages begin with those of the
earlier one. It also continues the newest main call if it adds tools, or contains a result of its tool calls. 2. A call
that continues a main call is a main call. The call that it continues is confirmed. 3. The newest main call is
provisional until a call continues it: background calls of some agents look like turns. 4. A new conversation with the
same tools takes over provisionally, unless the main one waits for tool results: an agent compacted or began again.
While it waits, a new conversation is a subagent. 5. Any other conversation takes over when it continues after the end
of its turn and the main one did not meanwhile. 6. Calls without tools never take over from an agent with tools, and
calls of subagents never do.

Does not know HTTP or the space.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from mew_listener.bounded_dict import BoundedDict

from mew_agent.model.usage import Usage
from mew_agent.parts.meter.relayed_texts import NOT_SEARCHED
from mew_agent.parts.meter.replies import Reply
from mew_agent.parts.meter.request_facts import CallFacts

MAX_KEPT_CALLS: Final = 4096
"""How many of the newest calls can be continued. Each takes less than a kilobyte."""

TURNS_TO_LEAVE_A_WAITING_CALL: Final = 2
"""Turns another conversation must end before it takes over from one that waits for tool results."""

Verdict = Literal["running", "main", "provisional", "aside", "failed"]


@dataclass(eq=False, slots=True)
class MeteredCall:
    """One call, its verdict and the reason. `number` counts from 1. `facts` only has the last digest."""

    number: int
    facts: CallFacts
    messages: int
    verdict: Verdict = "running"
    reason: str | None = None
    reply: Reply | None = None
    measured_at: str | None = None
    line: "_Line" = field(init=False, repr=False)
    may_take_over: bool = field(default=False, repr=False)

    @property
    def usage(self) -> Usage | None:
        """The provider's usage for this call."""
        return None if self.reply is None else self.reply.usage

    @property
    def model(self) -> str:
        """The model that answered, until then the requested one; empty if neither is named."""
        return (self.reply.model if self.reply is not None else None) or self.facts.model

    def as_json(self) -> dict[str, Any]:
        """Return the call as a JSON object, without any text of it."""
        usage = self.usage
        return {
            "call": self.number,
            "is": self.verdict,
            "reason": self.reason,
            "tokens": None if usage is None else usage.total_tokens,
            "prompt_tokens": None if usage is None else usage.prompt_tokens,
            "messages": self.messages,
            "api": self.facts.api,
            "model": self.model,
        }


@dataclass(eq=False, slots=True)
class _Line:
    """Calls that continue each other. `tip` is its newest call, as far as known."""

    facts: CallFacts  # facts of its first call
    began: int
    touched: int  # number of the newest call
    tip: MeteredCall | None = None
    running: int = 0
    turns_ended: int = 0
    is_released: bool = False  # whether a summary request contained the results that `tip` waits for

    @property
    def is_waiting(self) -> bool:
        """True while its agent is in the middle of a turn."""
        awaits = self.tip is not None and self.tip.reply is not None and bool(self.tip.reply.tool_calls)
        return self.running > 0 or (awaits and not self.is_released)


class MainLine:
    """Sorts the calls of one agent. `begin` each call when its request is read, and `end` it with its reply."""

    def __init__(self) -> None:
        self._calls = 0
        self._main: _Line | None = None
        self._kept: BoundedDict[tuple[str | None, frozenset[str], str], MeteredCall] = BoundedDict(MAX_KEPT_CALLS)
        """Calls that can be continued, by session, tools and the digest of their last message."""
        self._responses: BoundedDict[str, MeteredCall] = BoundedDict(MAX_KEPT_CALLS)

    @property
    def newest(self) -> MeteredCall | None:
        """The newest call of the agent's own line: `provisional`, or `main` if a later call continued it."""
        return None if self._main is None else self._main.tip

    def begin(self, facts: CallFacts) -> MeteredCall:
        """Add a call with the facts of its request."""
        self._calls += 1
        last_only = replace(facts, prefix=facts.prefix[-1:], answered_calls=frozenset(), texts=NOT_SEARCHED)
        call = MeteredCall(self._calls, last_only, len(facts.prefix))
        continued = None if facts.is_subagent else self._continued(facts)
        if continued is not None:
            line = continued.line
            if line is self._main or self._goes_on(line):
                self._continue_main(line, continued)
            else:
                call.reason = continued.reason
        else:
            line = self._repeated_line(facts) or _Line(last_only, call.number, call.number)
            call.reason = self._aside_reason(facts)
            call.may_take_over = call.reason is None
        call.line = line
        line.touched = call.number
        line.running += 1
        return call

    def end(self, call: MeteredCall, reply: Reply | None, at: str) -> None:
        """Add the reply of a call, or None if it failed or was cut. `at` is the time in ISO 8601."""
        line, main = call.line, self._main
        line.running -= 1
        if reply is None:
            call.verdict, call.reason = "failed", None
            return
        call.reply, call.measured_at = reply, at
        self._keep(call)
        if not reply.tool_calls:
            line.turns_ended += 1
        if line is not main and call.may_take_over and (main is None or main.touched < call.number):
            self._main = main = line
        if line.tip is None or line.tip.number < call.number:
            line.tip, line.is_released = call, False
        call.verdict, call.reason = _verdict_on(call, is_main=line is main)

    # -- rules -------------------------------------------------------------------------------------------

    def _continued(self, facts: CallFacts) -> MeteredCall | None:
        """Return the newest call that this one continues (rule 1)."""
        if facts.previous_response is not None:
            known = self._responses.get(facts.previous_response)
            return known if known is not None and known.facts.tools == facts.tools else None
        for digest in reversed(facts.prefix[:-1]):
            found = self._kept.get((facts.session, facts.tools, digest))
            if found is not None:
                return found
        tip = self.newest
        return tip if tip is not None and _continues(facts, tip) else None

    def _repeated_line(self, facts: CallFacts) -> _Line | None:
        """Return the line of the call that this one retries, with the same messages."""
        same = self._kept.get((facts.session, facts.tools, facts.prefix[-1])) if facts.prefix else None
        return None if same is None else same.line

    def _continue_main(self, line: _Line, continued: MeteredCall) -> None:
        """Confirm a call, and forget later calls that no call continued (rules 2 and 3)."""
        if self._main is not line and self._main is not None and self._main.tip is not None:
            self._set_aside(self._main.tip, "replaced")
        if line.tip is not None and line.tip is not continued:
            self._set_aside(line.tip, "not continued")
        self._main, line.tip, line.is_released = line, continued, False
        continued.verdict, continued.reason = "main", None

    def _set_aside(self, call: MeteredCall, reason: str) -> None:
        if call.verdict == "provisional":
            call.verdict, call.reason = "aside", reason

    def _aside_reason(self, facts: CallFacts) -> str | None:
        """Return why a new conversation is not the agent's; None if it may be (rules 4 and 6)."""
        main, tip = self._main, self.newest
        if facts.is_subagent:
            return "subagent"
        if not facts.tools:
            self._release(facts)
            return "no tools"
        if main is None or tip is None or not tip.facts.tools:
            return None
        if facts.tools != tip.facts.tools:
            self._release(facts)
            return "other tools"
        if facts.session != tip.facts.session and facts.model != tip.facts.model:
            return "other session"
        return "main call waits" if main.is_waiting else None

    def _release(self, facts: CallFacts) -> None:
        """Note a summary request with the awaited results, which a new conversation may follow."""
        tip = self.newest
        if self._main is not None and tip is not None and facts.session == tip.facts.session:
            self._main.is_released |= _extends(facts, tip) and _answers(facts, tip)

    def _goes_on(self, line: _Line) -> bool:
        """Return True if a continued line replaces the main one (rules 5 and 6)."""
        main = self._main
        if main is None:
            return True
        if not line.facts.tools and main.facts.tools:
            return False
        needed = TURNS_TO_LEAVE_A_WAITING_CALL if main.is_waiting else 1
        return line.turns_ended >= needed and main.touched < line.began

    def _keep(self, call: MeteredCall) -> None:
        facts = call.facts
        if call.reason == "subagent" or not facts.prefix:
            return
        self._kept[facts.session, facts.tools, facts.prefix[-1]] = call
        if call.reply is not None and call.reply.response is not None:
            self._responses[call.reply.response] = call


def _verdict_on(call: MeteredCall, *, is_main: bool) -> tuple[Verdict, str | None]:
    """Return the verdict on a call that has its reply, and its reason."""
    if not is_main:
        return "aside", call.reason or "another conversation"
    return ("provisional", None) if call.line.tip is call else ("aside", "not continued")


def _continues(facts: CallFacts, tip: MeteredCall) -> bool:
    """Return True if a call with at least the tools of another extends it or answers its tool calls."""
    has_tools = bool(tip.facts.tools) and facts.tools >= tip.facts.tools
    return facts.session == tip.facts.session and has_tools and (_extends(facts, tip) or _answers(facts, tip))


def _extends(facts: CallFacts, earlier: MeteredCall) -> bool:
    """Return True if the messages of an earlier call are the first of this one."""
    return bool(earlier.facts.prefix) and earlier.facts.prefix[-1] in facts.prefix[:-1]


def _answers(facts: CallFacts, earlier: MeteredCall) -> bool:
    """Return True if the messages hold the result of an earlier tool call."""
    return earlier.reply is not None and bool(earlier.reply.tool_calls & facts.answered_calls)
