"""[pure] Replays a context log through a policy, to tune thresholds on real conversations.

Actions do not change later steps: only steps of the log compact or clear. Opens no file, prints nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, assert_never

from mew_protocol.context_report import Basis, UnknownReason

from mew_agent.context import policy as policies
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.policy import Action, ContextSnapshot, Decision, Phase, Policy, PolicyState
from mew_agent.context.policy.definition import MessageSums
from mew_agent.model.interface import Role
from mew_agent.model.usage import Usage, read_usage
from mew_agent.parts.policies.log_steps import Step


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of one step. `used_tokens` is the policy's measure; None if it is unknown.

    `freed` has the tokens and number of messages dropped by a compaction in the log.
    """

    step: int
    level: str
    basis: Basis
    used_tokens: int | None
    limit_tokens: int | None
    actions: tuple[Action, ...]
    freed: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the line of output, without unknown figures."""
        figures = {"used_tokens": self.used_tokens, "limit_tokens": self.limit_tokens}
        known = {name: tokens for name, tokens in figures.items() if tokens is not None}
        freed = {} if self.freed is None else {"freed_tokens": self.freed[0], "freed_messages": self.freed[1]}
        shown = {"step": self.step, "level": self.level, "basis": self.basis, **known, **freed}
        return {**shown, "actions": [action_json(action) for action in self.actions]}


def action_json(action: Action) -> dict[str, Any]:
    """Return the action as a JSON object: its `type` and the fields shown in a log."""
    shown: dict[str, Any] = {"type": _type_of(action)}
    match action:
        case policies.CompactAction():
            shown["target_tokens"] = action.target_tokens
            shown |= {} if action.reason is None else {"reason": action.reason}
        case policies.InjectAction(remaining=int()):
            shown["remaining"] = action.remaining
        case policies.StopAction("error", reason):
            shown["message"] = reason
        case policies.AnnounceAction("state_changed", before, after):
            shown |= {"from": before, "to": after}
        case policies.SuggestAction(suggestion):
            shown |= {"text": suggestion.text, "impact": suggestion.impact, "tokens_saved": suggestion.tokens_saved}
        case _:
            pass
    return shown


def _type_of(action: Action) -> str:
    match action:
        case policies.AnnounceAction(word):
            return word
        case policies.StopAction(how):
            return how
        case policies.RemindAction(is_shown=False):
            return "unremind"
        case _:
            return type(action).__name__.removesuffix("Action").lower()


class Simulation:
    """One replay. `limit_tokens` is None if the window is unknown."""

    def __init__(self, policy: Policy, limit_tokens: int | None) -> None:
        self.policy, self.state = policy, PolicyState()
        self._now = ContextSnapshot(None, "unknown", limit_tokens, "no_call_yet", at_seconds=None)
        self._steps = self._calls = self._spent_since_clear = 0
        self._keep_messages(())
        self._freed: tuple[int, int] | None = None
        self._decided: tuple[policies.CompactAction, int] | None = None
        """The last compaction, and the stalls before it."""
        if policy.counts_messages:
            self._set_size(0, "projected")

    def play(self, step: Step) -> StepOutcome:
        """Replay the next step. Returns the policy's decision."""
        self._steps += 1
        self._freed = None
        if step.at_seconds is not None:
            self._now = self._now._replace(at_seconds=step.at_seconds)
        decision = self._replay(step)
        self.state = decision.state
        decided = next((one for one in decision.actions if isinstance(one, policies.CompactAction)), None)
        if decided is not None:
            self._decided = decided, self.state.stalls
            # A compaction counts as progress unless the log says that it failed.
            self.state = policies.after_compaction(self.state, progressed=True, at_seconds=self._now.at_seconds)
        return StepOutcome(
            self._steps,
            policies.level_of(self.policy, self._now)[0],
            self._now.basis,
            self._now.used_tokens,
            self._now.limit_tokens,
            decision.actions,
            self._freed,
        )

    def _replay(self, step: Step) -> Decision:
        match step.kind:
            case "usage":
                return self._call(step)
            case "pre_request_tokens":
                self._now = self._now._replace(next_prompt_tokens=step.tokens)
                self._move("pre_request", step.tokens)
                return self._decide("pre_request", step)
            case "tool_result_tokens":
                return self._tool_result(step)
            case "stream_tokens":
                self._move("stream", step.tokens)
                return self._decide("stream", step)
            case "message_tokens":
                return self._message(step)
            case "compact_to_tokens" | "compact_to_percent":
                return self._compact(step)
            case "summary_failed":
                return self._summary_failed(step)
            case "clear":
                return self._clear(step)
            case "set_limit":
                self._now = self._now._replace(limit_tokens=step.tokens)
                return self._decide("after_call", step)
            case "usual_task_tokens":
                return self._end_of_task(step)
            case _:
                assert_never(step.kind)

    def _end_of_task(self, step: Step) -> Decision:
        # The next prompt is at least the size after the last call.
        now = self._now
        tokens = now.used_tokens if now.next_prompt_tokens is None else now.next_prompt_tokens
        at_end = now._replace(next_prompt_tokens=tokens, grown_tokens=tokens, usual_task_tokens=step.tokens)
        return self._decide("task_end", step, at_end)

    def _call(self, step: Step) -> Decision:
        self._calls += 1
        self._now = self._now._replace(call_id=f"call-{self._calls}")
        usage = None if step.usage is None else read_usage(step.usage.model_dump(exclude_unset=True))
        if usage is not None:
            self._set_size(self._measure(usage), "reported")
            kept = kept_reply_tokens(usage, thinking_seen=False)
            reply = max(0, usage.total_tokens - usage.prompt_tokens)
            hidden = 0 if kept is None or self.policy.measure != "total" else max(0, reply - kept)
            self._now = self._now._replace(next_prompt_tokens=None, hidden_tokens=hidden)
            return self._decide("after_call", step)
        # The next prompt will not be smaller than this one, so keep its size.
        missing = self._now._replace(used_tokens=None, basis="unknown", reason="usage_unavailable")
        if self.policy.on_missing != "keep_last":
            self._set_size(None, "unknown", "usage_unavailable")
        elif self._now.used_tokens is not None:
            self._now = self._now._replace(basis="projected")
        return self._decide("after_call", step, missing)

    def _measure(self, usage: Usage) -> int:
        match self.policy.measure:
            case "prompt":
                return usage.prompt_tokens
            case "total":
                return usage.total_tokens
            case "cumulative":
                self._spent_since_clear += usage.total_tokens
                return self._spent_since_clear

    def _tool_result(self, step: Step) -> Decision:
        before, result = step.current_tokens, step.tokens
        entering = self._now._replace(used_tokens=before, basis="projected", reason=None, tool_result_tokens=result)
        self._move("tool_result", before + result)
        return self._decide("tool_result", step, entering)

    def _message(self, step: Step) -> Decision:
        added = step.tokens
        self._messages.append((added, step.role))
        self._sums.add(added, step.role)
        if self._now.next_prompt_tokens is not None:
            self._now = self._now._replace(next_prompt_tokens=self._now.next_prompt_tokens + added)
        if self._now.used_tokens is not None:
            self._move("message_added", self._now.used_tokens + added)
        return self._decide("message_added", step)

    def _summary_failed(self, step: Step) -> Decision:
        """Apply the policy's fallback after a summary failed, or count no progress."""
        if self._decided is None:
            return Decision(self.state)
        (action, stalls), self._decided = self._decided, None
        if self.policy.fallback == "drop_oldest":
            return self._compact(Step(compact_to_tokens=action.target_tokens))
        self._freed = (0, 0)
        state = replace(self.state, stalls=stalls)
        return Decision(policies.after_compaction(state, progressed=False, at_seconds=self._now.at_seconds))

    def _compact(self, step: Step) -> Decision:
        """Drop the oldest messages down to a size. A system message at the start and the newest message stay."""
        kept, used, limit = self._messages, self._now.used_tokens, self._now.limit_tokens
        place = int(bool(kept) and kept[0][1] == "system")
        size = before = sum(tokens for tokens, _ in kept) if used is None else used
        target = step.tokens
        if step.kind == "compact_to_percent":  # without a window, a percentage has no base
            target = before if limit is None else limit * target // 100
        dropped = place
        while size > target and dropped < len(kept) - 1:
            size -= kept[dropped][0]
            dropped += 1
        self._keep_messages(kept[:place] + kept[dropped:])
        self._freed = (before - size, dropped - place)
        has_dropped = dropped > place
        if has_dropped:
            self._now = self._now._replace(next_prompt_tokens=None)
            if used is not None:
                self._set_size(max(0, size), "projected")
        self.state = policies.after_compaction(self.state, progressed=has_dropped, at_seconds=self._now.at_seconds)
        return self._decide("message_added", step)

    def _clear(self, step: Step) -> Decision:
        level = self.state.level
        self.state = policies.after_clear(self.state)
        self._keep_messages(())
        self._now = self._now._replace(next_prompt_tokens=None)
        self._spent_since_clear = 0
        if not self.policy.counts_messages:
            self._set_size(None, "unknown", "cleared")
            return Decision(self.state)
        self._set_size(0, "projected")
        self.state = replace(self.state, level=level)
        return self._decide("message_added", step)

    def _keep_messages(self, messages: Iterable[tuple[int, Role | None]]) -> None:
        self._messages, self._sums = [*messages], MessageSums()
        for tokens, role in self._messages:
            self._sums.add(tokens, role)

    def _move(self, phase: Phase, tokens: int | None) -> None:
        """Set a projected size, if the policy's level moves in this phase."""
        if phase in self.policy.phases and tokens is not None:
            self._set_size(tokens, "projected")

    def _set_size(self, tokens: int | None, basis: Basis, reason: UnknownReason | None = None) -> None:
        self._now = self._now._replace(used_tokens=tokens, basis=basis, reason=reason, hidden_tokens=0)

    def _decide(self, phase: Phase, step: Step, snapshot: ContextSnapshot | None = None) -> Decision:
        """Let the policy decide about the present figures, or about a snapshot made before they changed."""
        snapshot = self._now if snapshot is None else snapshot
        suggestions = self.policy.suggestions(self._sums, lambda size, _: round(size), snapshot.limit_tokens)
        return policies.decide(self.policy, self.state, snapshot._replace(suggestions=suggestions), phase, step.flags)
