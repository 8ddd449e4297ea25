"""[pure] What a decision looks at: one moment of a context, and what is known of the generation that follows."""

from dataclasses import dataclass
from typing import NamedTuple

from mew_protocol.context_report import Basis, UnknownReason

from mew_agent.context.policy.actions import Suggestion
from mew_agent.context.policy.threshold import Figure


class ContextSnapshot(NamedTuple):
    """One moment. All figures in tokens, None when not known.

    `used_tokens` is the policy's measure; in the phases `tool_result` and `stream` it is what the context holds then,
    and `tool_result_tokens` is what a tool result would add. `hidden_tokens` of it are reasoning that is never sent
    again. `call_id` names the generation that was measured last, so that none is counted twice. `at_seconds` None
    means that the time is not known; then a cooldown counts as over.
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
        """The value of a figure, without any reserve; None when it cannot be told."""
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
    """What is known of the generation that follows.

    `user_prompt`: it carries a person's message. `queue_busy`: another prompt waits for it. `user_chain`: it goes on
    with the tools of an answer to a person's message.
    """

    user_prompt: bool = False
    queue_busy: bool = False
    user_chain: bool = False


NO_FLAGS = GenerationFlags()
