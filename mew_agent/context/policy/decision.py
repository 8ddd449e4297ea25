"""[pure] The decision: (policy, state, snapshot, phase, flags) -> (state, actions).

One engine for all policies; it asks no clock and acts on nothing. Order of actions: what is told, then reminders and
prompts, then at most one intervention.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mew_agent.context.policy.actions import (
    AbortAction,
    Action,
    ApproachingRedlineAction,
    ClearAction,
    CompactAction,
    ErrorAction,
    NearLimitAction,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    UnremindAction,
)
from mew_agent.context.policy.injection import prompts
from mew_agent.context.policy.rules import CompactRule, Intervention, NearLimitRule, Phase, StateChangedRule, StopRule
from mew_agent.context.policy.snapshot import NO_FLAGS, ContextSnapshot, GenerationFlags
from mew_agent.context.policy.state import PolicyState
from mew_agent.context.policy.threshold import Condition

if TYPE_CHECKING:
    from mew_agent.context.policy.definition import Policy

_UNKNOWN = "unknown"


class Decision(NamedTuple):
    """The outcome: the state to keep, and what to do, in order."""

    state: PolicyState
    actions: tuple[Action, ...] = ()


def decide(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, flags: GenerationFlags = NO_FLAGS
) -> Decision:
    """What to do now. Announcements come before interventions; at most one of these, of the first rule that holds.

    Compactions that did not help stop the compacting, until a call is below every threshold again.
    """
    if snapshot.limit_tokens is None and policy.limit_missing == "error":
        return Decision(state, (ErrorAction(f"{policy.name} cannot work without a known context window"),))
    snapshot = _allowed(policy, snapshot)
    state = _request_begins(state, phase, flags)
    if snapshot.reason == "usage_unavailable" and phase == "after_call":
        if policy.on_missing == "error":
            return Decision(state, (ErrorAction(f"{policy.name} cannot work without reported usage"),))
        if policy.on_missing == "keep_last":
            return Decision(_next_is_new(state, flags))
    level = _level(policy, snapshot)[0]
    actions: list[Action] = []
    if phase in policy.phases:
        state = _tell_level(policy, state, snapshot, level, actions)
    rules = policy.grouped
    if phase in rules.near_limit:
        state = _tell_near_limit(policy, state, snapshot, phase, actions)
    if phase in rules.reminders:
        state = _remind(policy, state, snapshot, phase, actions)
    if rules.injected and phase == "after_call":
        state, injected = prompts(rules.injected, state, level, snapshot.call_id, flags)
        actions += injected
    rule = _first_that_holds(policy, snapshot, phase)
    if rule is not None:
        state = _intervene(policy, state, snapshot, rule, actions)
    elif phase == "after_call" and state.stalls and _is_a_low_call(policy, snapshot, level):
        state = replace(state, stalls=0)
    return Decision(_next_is_new(state, flags), tuple(actions))


def level_of(policy: "Policy", snapshot: ContextSnapshot) -> tuple[str, int | None]:
    """The level's name and severity; ("unknown", None) when it cannot be told."""
    return _level(policy, _allowed(policy, snapshot))


def _level(policy: "Policy", snapshot: ContextSnapshot) -> tuple[str, int | None]:
    used, limit = snapshot.used_tokens, snapshot.limit_tokens
    if used is None or (limit is None and policy.measure != "cumulative"):
        return _UNKNOWN, None
    name, severity = policy.healthy, 0
    for level, first_tokens in policy.grouped.marks(limit).levels:
        if used >= first_tokens if first_tokens is not None else _holds(policy, level.at, snapshot):
            name, severity = level.name, level.severity
    return name, severity


def compact_at_tokens(policy: "Policy", limit_tokens: int | None) -> int | None:
    """Where an agent under this policy compacts by itself after a call; None if it never does."""
    return policy.grouped.marks(limit_tokens).compact_at_tokens


def is_stalled(policy: "Policy", state: PolicyState) -> bool:
    """Whether self-compaction has given up because it does not help."""
    return state.stalls >= policy.max_stalls


def withholds_tool_result(policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, size_bytes: int) -> bool:
    """Whether a tool result of so many bytes is replaced by a notice before it is kept.

    The level of the snapshot decides; where that is not known, the last one that was.
    """
    large = policy.large_results
    if large is None or large.above_bytes is None or size_bytes <= large.above_bytes:
        return False
    level = level_of(policy, snapshot)[0]
    return (state.level if level == _UNKNOWN else level) in large.levels


def _allowed(policy: "Policy", snapshot: ContextSnapshot) -> ContextSnapshot:
    """The snapshot as this policy may see it: a figure of a basis that it does not allow is not known."""
    if snapshot.used_tokens is None or snapshot.basis in policy.bases:
        return snapshot
    return snapshot._replace(used_tokens=None)


def _holds(policy: "Policy", condition: Condition, snapshot: ContextSnapshot) -> bool:
    if condition.figure == "used":
        return condition.holds(snapshot.used_tokens, snapshot.limit_tokens)
    value, limit = snapshot.figure(condition.figure), snapshot.limit_tokens
    if condition.figure == "next_prompt_and_reserve":
        if value is None or limit is None:
            return False
        value, scale = policy.reserve.added_to(value, limit)
        return condition.holds(value, limit, scale=scale)
    return condition.holds(value, limit)


def _all_hold(policy: "Policy", conditions: tuple[Condition, ...], snapshot: ContextSnapshot) -> bool:
    for condition in conditions:  # noqa: SIM110 - runs after every call, and a generator costs twice as much
        if not _holds(policy, condition, snapshot):
            return False
    return True


def _request_begins(state: PolicyState, phase: Phase, flags: GenerationFlags) -> PolicyState:
    """A request begins where nothing is about to begin again; only within one are restarts counted.

    What goes on with the tools of an answer is no new request.
    """
    if phase == "pre_request" and state.restarts and not state.restarting and not flags.user_chain:
        return replace(state, restarts=0)
    if phase == "after_call" and state.restarting:
        return replace(state, restarting=False)
    return state


def _next_is_new(state: PolicyState, flags: GenerationFlags) -> PolicyState:
    """What follows answers a person's message, so that it is a request of its own."""
    return replace(state, restarts=0, restarting=False) if flags.user_prompt and state.restarts else state


def _tell_level(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, level: str, actions: list[Action]
) -> PolicyState:
    if level == _UNKNOWN or (level == state.level and not snapshot.suggestions and not state.suggested):
        return state
    before, told = state.level, state.told
    if before != level:
        for rule in policy.grouped.told:
            if isinstance(rule, StateChangedRule):
                actions += [] if before is None else [StateChangedAction(before, level)]
            elif rule.level == level and (rule.repeat == "every_entry" or rule.action not in told):
                actions.append(RedlinedAction() if rule.action == "redlined" else ApproachingRedlineAction())
                told = told if rule.action in told else (*told, rule.action)
    actions += [SuggestAction(one) for one in snapshot.suggestions if one.key not in state.suggested]
    return replace(state, level=level, told=told, suggested=tuple(one.key for one in snapshot.suggestions))


def _tell_near_limit(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, actions: list[Action]
) -> PolicyState:
    limit = snapshot.limit_tokens
    if snapshot.used_tokens is None:
        return state
    for rule in policy.grouped.near_limit[phase]:
        if not state.armed and limit is not None and rule.rearm_below.exceeds(snapshot.used_tokens, limit):
            state = replace(state, armed=True)
        if state.armed and _has_cooled(rule, state, snapshot.at_seconds) and _all_hold(policy, rule.when, snapshot):
            actions.append(NearLimitAction())
            state = replace(state, armed=False, announced_at_seconds=snapshot.at_seconds)
    return state


def _has_cooled(rule: NearLimitRule, state: PolicyState, at_seconds: float | None) -> bool:
    """Whether enough time passed. A clock that was set back must not silence us for as long as that."""
    if state.announced_at_seconds is None or at_seconds is None:
        return True
    passed_seconds = at_seconds - state.announced_at_seconds
    return passed_seconds < 0 or passed_seconds > rule.cooldown_seconds


def _remind(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, actions: list[Action]
) -> PolicyState:
    if snapshot.limit_tokens is None:
        return state
    for rule in policy.grouped.reminders[phase]:
        if rule.owner not in state.reminders and any(_holds(policy, c, snapshot) for c in rule.when_any):
            actions.append(RemindAction(rule.owner))
            state = replace(state, reminders=(*state.reminders, rule.owner))
        if rule.owner in state.reminders and _all_hold(policy, rule.until, snapshot):
            actions.append(UnremindAction(rule.owner))
            state = replace(state, reminders=tuple(owner for owner in state.reminders if owner != rule.owner))
    return state


def _first_that_holds(policy: "Policy", snapshot: ContextSnapshot, phase: Phase) -> Intervention | None:
    used = snapshot.used_tokens
    for rule, never_below in policy.grouped.marks(snapshot.limit_tokens).interventions.get(phase, ()):
        if never_below and (used is None or used < never_below):
            continue
        if _applies(policy, rule, snapshot):
            return rule
    return None


def _applies(policy: "Policy", rule: Intervention, snapshot: ContextSnapshot) -> bool:
    if rule.action == "compact" and rule.phase == "after_call":
        unavailable = snapshot.basis == "unknown" and snapshot.reason == "usage_unavailable"
        if unavailable != (rule.known == "unavailable"):
            return False
    return _all_hold(policy, rule.when, snapshot)


def _intervene(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, rule: Intervention, actions: list[Action]
) -> PolicyState:
    if isinstance(rule, StopRule):
        match rule.action:
            case "abort":
                actions.append(AbortAction(rule.reason))
            case "error":
                actions.append(ErrorAction(rule.reason))
            case "clear":
                actions.append(ClearAction(rule.reason))
        return state
    if _holds_for_nothing(policy, rule, snapshot):
        problem = (
            f"a window of {snapshot.limit_tokens} tokens has no room beside what {policy.name} keeps for an answer"
        )
        actions.append(ErrorAction(problem))
        return state
    compact = _compaction(policy, rule, snapshot)
    if not rule.restart:
        if not is_stalled(policy, state):
            actions.append(compact)
        return state
    most = policy.max_restarts_per_request
    if state.restarts >= most:
        actions.append(ErrorAction(f"still over the limit after {most} restarts of this request"))
        return replace(state, restarting=False)
    actions += [compact, RestartAction(state.restarts + 1, most)]
    return replace(state, restarts=state.restarts + 1, restarting=True)


def _compaction(policy: "Policy", rule: CompactRule, snapshot: ContextSnapshot) -> CompactAction:
    limit = snapshot.limit_tokens or 0
    ceiling = policy.ceiling.floor_of(limit)
    base = limit if rule.target_of == "window" else snapshot.figure(rule.when[0].figure) or 0
    return CompactAction(rule.trigger, min(rule.target.floor_of(base), ceiling), ceiling, rule.method)


def _holds_for_nothing(policy: "Policy", rule: CompactRule, snapshot: ContextSnapshot) -> bool:
    """Whether even an empty conversation would be compacted, because the window is smaller than the reserve."""
    if not any(condition.figure == "next_prompt_and_reserve" for condition in rule.when):
        return False
    return _all_hold(policy, rule.when, snapshot._replace(next_prompt_tokens=0))


def _is_a_low_call(policy: "Policy", snapshot: ContextSnapshot, level: str) -> bool:
    """Whether the figures are those of a call, below every level; those of a restart or a cut show nothing new."""
    if snapshot.basis == "reported":
        return level == policy.healthy
    return snapshot.reason == "usage_unavailable"
