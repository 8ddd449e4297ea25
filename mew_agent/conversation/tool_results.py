"""What becomes of tool results before they enter the context: withheld, made room for, or refused.

Owns the order of these looks at one reply's results. What a policy decides about them it decides itself; who compacts
is handed in.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from mew_agent.context.policy import CompactAction, withholds_tool_result
from mew_agent.conversation import texts
from mew_agent.conversation.policy_executor import Remedies
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import PolicyStopped
from mew_agent.model.interface import ToolCall
from mew_agent.tools.results import ToolResult

CompactNow = Callable[[CompactAction], Awaitable[bool]]


class ToolResults:
    """See the module."""

    def __init__(self, transcript: Transcript, remedies: Remedies, compact: CompactNow) -> None:
        self._sizes = transcript.sizes
        self._tracker = transcript.tracker
        self._remedies = remedies
        self._compact = compact

    def withhold(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> None:
        """Replace results that are too large for the present level by a notice; whether the call failed is kept.

        Where the last one is such a notice, it says what a prompt would say, and prompts that wait are dropped.
        """
        tracker = self._tracker
        snapshot = tracker.snapshot()
        is_withheld = False
        for call in calls:
            result = results[call.id]
            size_bytes = len(result.prompt_text.encode())
            is_withheld = withholds_tool_result(tracker.policy, tracker.policy_state, snapshot, size_bytes)
            if is_withheld:
                level = tracker.report().level
                if level == "unknown":
                    level = tracker.policy_state.level or level
                text = texts.withheld_result(size_bytes, level, failed=result.is_error)
                results[call.id] = ToolResult(text, result.is_error)
        if is_withheld:
            self._remedies.drop_notices()

    async def fit(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> None:
        """Ask the policy about each result in turn, and make room where it says so; the result itself stays.

        Raises `PolicyStopped` when one cannot be sent at all; a note then stands in its place.
        """
        policy = self._tracker.policy
        if "tool_result" not in policy.phases and "tool_result" not in policy.rule_index.interventions:
            return
        entered_tokens = 0
        for call in calls:
            size = await self._sizes.measure(results[call.id].prompt_text)
            calibration = self._tracker.ledger.calibration
            tokens = size.tokens(calibration) + round(calibration.overhead_tokens)
            await self._make_room(call, tokens, entered_tokens, results)
            entered_tokens += tokens

    async def _make_room(
        self, call: ToolCall, tokens: int, entered_tokens: int, results: dict[str, ToolResult]
    ) -> None:
        tracker = self._tracker
        while True:
            present = tracker.next_prompt_tokens + entered_tokens
            decision = tracker.decide_while("tool_result", present, tool_result_tokens=tokens)
            due = self._remedies.carry_out(decision.actions)
            if due.stop is not None:
                problem = texts.problem_of(due.stop)
                results[call.id] = ToolResult(texts.oversized_result(tokens, tracker.window.max_tokens), is_error=True)
                size = f"a result of {call.name} takes about {tokens:,} tokens of {tracker.window.max_tokens:,}"
                raise PolicyStopped(tracker.policy.name, f"{problem} ({size}, projected)")
            if due.compact is None:
                return
            await self._compact(halved(due.compact, tracker.next_prompt_tokens))
            if due.restart is None:
                return


def halved(action: CompactAction, prompt_tokens: int) -> CompactAction:
    """The compaction of a prompt that did not leave room for what came: at most half of it may stay.

    The policy's target is of everything at that moment, of which what came is no part of the prompt.
    """
    return replace(action, target_tokens=min(action.target_tokens, prompt_tokens // 2))
