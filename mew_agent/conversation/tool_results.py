"""What happens to tool results before they enter the context: withheld, given room, or refused."""

from collections.abc import Awaitable, Callable, Sequence

from mew_agent.context.policy import CompactAction, level_of, withholds_tool_result
from mew_agent.conversation import texts
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.overflow import halved
from mew_agent.conversation.policy_actions import carry_out
from mew_agent.errors import PolicyStopped
from mew_agent.model.interface import ToolCall
from mew_agent.tools.results import ToolResult

CompactNow = Callable[[CompactAction], Awaitable[bool]]


def withhold_results(calls: Sequence[ToolCall], results: dict[str, ToolResult], state: ContextState) -> None:
    """Replace results that are too large for the current level by a notice that says whether the call failed."""
    tracker = state.tracker
    snapshot = tracker.snapshot()
    is_withheld = False
    for call in calls:
        result = results[call.id]
        size_bytes = len(result.prompt_text.encode())
        is_withheld = withholds_tool_result(tracker.policy, tracker.policy_state, snapshot, size_bytes)
        if is_withheld:
            level = level_of(tracker.policy, snapshot)[0]
            if level == "unknown":
                level = tracker.policy_state.level or level
            text = texts.withheld_result(size_bytes, level, failed=result.is_error)
            results[call.id] = ToolResult(text, result.is_error)
    # The notice in place of the last result says what a prompt would say.
    if is_withheld:
        state.drop_pending_prompts()


async def make_room_for_results(
    calls: Sequence[ToolCall], results: dict[str, ToolResult], state: ContextState, compact: CompactNow
) -> None:
    """Ask the policy about each result in turn and compact where it decides so. Raises `PolicyStopped`."""
    tracker, policy = state.tracker, state.tracker.policy
    if "tool_result" not in policy.phases and "tool_result" not in policy.rule_index.interventions:
        return
    earlier_tokens = 0
    for call in calls:
        size = await state.sizes.measure(results[call.id].prompt_text)
        calibration = tracker.ledger.calibration
        tokens = size.tokens(calibration) + round(calibration.overhead_tokens)
        asks_again = True
        while asks_again:
            used_tokens = tracker.next_prompt.tokens + earlier_tokens
            actions = state.decide("tool_result", used_tokens=used_tokens, tool_result_tokens=tokens)
            pending = await carry_out(actions, state)
            if pending.stop is not None:
                window_tokens = tracker.window.max_tokens
                results[call.id] = ToolResult(texts.oversized_result(tokens, window_tokens), is_error=True)
                takes = f"a result of {call.name} takes about {tokens:,} tokens of {window_tokens:,}"
                raise PolicyStopped(policy.name, f"{pending.stop.reason} ({takes}, projected)")
            if pending.compact is not None:
                await compact(halved(pending.compact, tracker.next_prompt.tokens))
            asks_again = pending.compact is not None and pending.restart is not None
        earlier_tokens += tokens
