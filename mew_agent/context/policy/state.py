"""[pure] The input of a decision: a snapshot of the context, flags of the next generation, and the policy's state.

The state is stored with the session, so that a restarted process does not announce twice or lose a countdown.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from mew_protocol.context_report import Basis, UnknownReason

from mew_agent.context.policy.actions import Suggestion
from mew_agent.context.policy.threshold import Figure


class ContextSnapshot(NamedTuple):
    """The context at one moment. Counts are in tokens; None means unknown.

    `used_tokens` is the policy's measure; in the phases `tool_result` and `stream` it is the current content of the
    context, and `tool_result_tokens` is what a tool result would add. `hidden_tokens` of it are reasoning that is not
    sent again. `call_id` identifies the generation that was measured last, so that each one counts once. If
    `at_seconds` is None the time is unknown, and a cooldown counts as over.
    """

    used_tokens: int | None
    basis: Basis
    limit_tokens: int | None
    reason: UnknownReason | None = None
    hidden_tokens: int = 0
    next_prompt_tokens: int | None = None
    at_seconds: float | None = 0.0
    call_id: str | None = None
    tool_result_tokens: int | None = None
    suggestions: tuple[Suggestion, ...] = ()

    def figure(self, name: Figure) -> int | None:
        """The token count of a figure, without any reserve; None if it is unknown."""
        match name:
            case "used":
                return self.used_tokens
            case "resent":
                return None if self.used_tokens is None else self.used_tokens - self.hidden_tokens
            case "next_prompt" | "next_prompt_and_reserve":
                return self.next_prompt_tokens
            case "tool_result":
                return self.tool_result_tokens
            case "with_tool_result":
                if self.used_tokens is None or self.tool_result_tokens is None:
                    return None
                return self.used_tokens + self.tool_result_tokens


@dataclass(frozen=True, slots=True)
class GenerationFlags:
    """Facts about the next generation.

    `user_prompt`: it carries a person's message. `queue_busy`: another prompt is waiting for it. `user_chain`: it
    continues an answer to a person's message after tool calls. `queue_busy` comes only from logs that
    `mew context simulate` replays; an agent takes up waiting messages at its next turn.
    """

    user_prompt: bool = False
    queue_busy: bool = False
    user_chain: bool = False


NO_FLAGS = GenerationFlags()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy remembers of one conversation between decisions.

    - near_limit: `armed`, and `announced_at_seconds` for its cooldown (a finished compaction counts too).
    - compaction: `stalls`, compactions in a row that did not help; `restarts` of the reply within this request, and
      `restarting` while the next start is due.
    - levels: `level` is the last known one; `announced_entries` and `suggested` were announced already.
    - reminders: `reminders` holds the owners whose reminder is shown.
    - prompts: `prompting` is the level that prompts belong to, `generation` the call they were last decided for.
      `prompted` says that the next generation has its prompt, `due` that one is waiting, `counted` counts generations
      since the last prompt, and `remaining` is the rest of a countdown.
    """

    armed: bool = True
    announced_at_seconds: float | None = None
    stalls: int = 0
    level: str | None = None
    announced_entries: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()
    reminders: tuple[str, ...] = ()
    generation: str | None = None
    prompted: bool = False
    prompting: str | None = None
    due: bool = False
    counted: int = 0
    remaining: int | None = None
    restarts: int = 0
    restarting: bool = False


def after_compaction(state: PolicyState, *, progressed: bool, at_seconds: float | None) -> PolicyState:
    """The state after a compaction: it restarts the cooldown, and counts as a stall unless it `progressed`."""
    return replace(state, announced_at_seconds=at_seconds, stalls=0 if progressed else state.stalls + 1)


def after_clear(state: PolicyState) -> PolicyState:
    """The state after a clear: a new one, except for reminders and the cooldown."""
    return PolicyState(announced_at_seconds=state.announced_at_seconds, reminders=state.reminders)
