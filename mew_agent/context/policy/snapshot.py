"""[pure] The input of a decision: the current context, and the policy's memory."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from mew_protocol.context_report import Basis, UnknownReason, known_sum

from mew_agent.context.policy.actions import Suggestion
from mew_agent.context.policy.threshold import Condition, Figure, Reserve


class ContextSnapshot(NamedTuple):
    """The context at one moment. Counts are in tokens; None means unknown."""

    used_tokens: int | None  # the policy's measure; during a reply or a tool result the content at that moment
    basis: Basis
    limit_tokens: int | None
    reason: UnknownReason | None = None
    hidden_tokens: int = 0  # reasoning in it that is not sent again
    next_prompt_tokens: int | None = None
    at_seconds: float | None = 0.0  # without a time, a cooldown counts as over
    call_id: str | None = None  # the generation measured last, so that each counts once
    tool_result_tokens: int | None = None  # size of a new tool result
    suggestions: tuple[Suggestion, ...] = ()
    usual_task_tokens: int | None = None  # size of a usual task
    grown_tokens: int | None = None  # growth since the last compaction

    @property
    def lacks_usage(self) -> bool:
        """Whether the last measured call reported no usage, or implausible usage."""
        return self.reason in ("usage_unavailable", "usage_implausible")

    def figure(self, name: Figure) -> int | None:
        """Return the token count of a figure, without any reserve; None if it is unknown."""
        match name:
            case "used":
                return self.used_tokens
            case "resent":
                return None if self.used_tokens is None else self.used_tokens - self.hidden_tokens
            case "next_prompt" | "next_prompt_and_reserve":
                return self.next_prompt_tokens
            case "next_task_and_reserve":
                return known_sum(self.next_prompt_tokens, self.usual_task_tokens)
            case "grown":
                return self.grown_tokens
            case "tool_result":
                return self.tool_result_tokens
            case "with_tool_result":
                return known_sum(self.used_tokens, self.tool_result_tokens)

    def meets(self, conditions: tuple[Condition, ...], reserve: Reserve) -> bool:
        """Return whether all conditions hold, with this output reserve."""
        limit = self.limit_tokens
        for condition in conditions:
            value, scale = self.figure(condition.figure), 1
            if condition.figure in ("next_prompt_and_reserve", "next_task_and_reserve"):
                if value is None or limit is None:
                    return False
                value, scale = reserve.added_to(value, limit)
            if not condition.holds(value, limit, scale=scale):
                return False
        return True


@dataclass(frozen=True, slots=True)
class GenerationFlags:
    """Facts about the next generation."""

    user_prompt: bool = False  # it contains a person's message
    queue_busy: bool = False  # another prompt waits for it; only logs of `mew context simulate` contain this
    user_chain: bool = False  # it continues an answer to a person's message after tool calls


NO_FLAGS = GenerationFlags()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The memory of a policy for one conversation, between decisions."""

    armed: bool = True
    announced_at_seconds: float | None = None  # for the cooldown of near_limit; a finished compaction counts too
    compacted_at_seconds: float | None = None  # for the cooldown of compactions; failed ones count too
    compacted_to_tokens: int | None = None  # the next prompt after the last compaction; failed ones count too
    stalls: int = 0  # compactions in a row that did not help
    level: str | None = None  # the last known level
    announced_entries: tuple[str, ...] = ()  # levels announced since the last clear
    suggested: tuple[str, ...] = ()
    reminders: tuple[str, ...] = ()  # owners with a displayed reminder
    generation: str | None = None  # the call of the last decision about prompts
    prompted: bool = False  # the next generation has its prompt
    prompting: str | None = None  # the level of the prompts
    due: bool = False  # whether a prompt waits
    counted: int = 0  # generations since the last prompt
    remaining: int | None = None  # the rest of a countdown
    restarts: int = 0  # restarts of the reply within this request
    restarting: bool = False  # the next start is due


def after_compaction(
    state: PolicyState, *, progressed: bool, at_seconds: float | None, tokens: int | None = None
) -> PolicyState:
    """Return the state after a compaction to a next prompt of this size.

    Restarts the cooldowns. The compaction counts as a stall unless it `progressed`.
    """
    return replace(
        state,
        announced_at_seconds=at_seconds,
        compacted_at_seconds=at_seconds,
        compacted_to_tokens=tokens,
        stalls=0 if progressed else state.stalls + 1,
    )


def after_clear(state: PolicyState) -> PolicyState:
    """Return the state after a clear: a new one, except for reminders and the cooldown."""
    return PolicyState(announced_at_seconds=state.announced_at_seconds, reminders=state.reminders)


def has_passed(cooldown_seconds: float, since_seconds: float | None, at_seconds: float | None) -> bool:
    """Return whether a cooldown is over. It also ends if the clock was set back, so that it never lasts too long."""
    if since_seconds is None or at_seconds is None:
        return True
    passed_seconds = at_seconds - since_seconds
    return passed_seconds < 0 or passed_seconds > cooldown_seconds
