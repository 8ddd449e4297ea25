"""[pure] The decision: (policy, state, snapshot, phase, flags) -> (state, actions).

One engine for all policies. Actions come in this order: announcements, reminders and prompts, then at most one
intervention (a compaction, or a stop). Does not read a clock, know the texts of prompts, or perform actions.
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
    InjectAction,
    NearLimitAction,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    UnremindAction,
)
from mew_agent.context.policy.rules import (
    Cadence,
    CompactRule,
    Countdown,
    EntryRule,
    Flag,
    InjectRule,
    Intervention,
    NearLimitRule,
    Phase,
    StateChangedRule,
    StopRule,
)
from mew_agent.context.policy.state import NO_FLAGS, ContextSnapshot, GenerationFlags, PolicyState
from mew_agent.context.policy.threshold import Condition

if TYPE_CHECKING:
    from mew_agent.context.policy.definition import Policy

_UNKNOWN = "unknown"


class Decision(NamedTuple):
    """The new state, and the actions in the order to perform them."""

    state: PolicyState
    actions: tuple[Action, ...] = ()


def decide(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, flags: GenerationFlags = NO_FLAGS
) -> Decision:
    """Decide what to do now. Of the interventions, only the first rule that holds acts.

    Compactions that did not help stop further ones until a call is below every level again.
    """
    if snapshot.limit_tokens is None and policy.limit_missing == "error":
        return Decision(state, (ErrorAction(f"{policy.name} cannot work without a known context window"),))
    snapshot = _trusted(policy, snapshot)
    state = _begin_request(state, phase, flags)
    if phase == "after_call" and policy.on_missing != "unknown" and snapshot.reason == "usage_unavailable":
        return _decide_without_usage(policy, state, flags)
    level = _level(policy, snapshot)[0]
    actions: list[Action] = []
    state = _announce(policy, state, snapshot, phase, level, actions)
    rules = policy.rule_index
    if phase in rules.reminders:
        state = _update_reminders(policy, state, snapshot, phase, actions)
    if rules.prompts and phase == "after_call":
        state, prompts = inject_prompts(rules.prompts, state, level, snapshot.call_id, flags)
        actions += prompts
    rule = _first_intervention(policy, snapshot, phase)
    if rule is not None:
        state = _intervene(policy, state, snapshot, rule, actions)
    # Only a call proves that a compaction helped: the size after a cut is a projection.
    elif phase == "after_call" and state.stalls and _is_low_call(policy, snapshot, level):
        state = replace(state, stalls=0)
    return Decision(_end_request(state, flags), tuple(actions))


def level_of(policy: "Policy", snapshot: ContextSnapshot) -> tuple[str, int | None]:
    """The level's name and severity; ("unknown", None) if the level is unknown."""
    return _level(policy, _trusted(policy, snapshot))


def compact_at_tokens(policy: "Policy", limit_tokens: int | None) -> int | None:
    """The size at which this policy compacts after a call; None if it never does."""
    return policy.rule_index.marks(limit_tokens).compact_at_tokens


def is_stalled(policy: "Policy", state: PolicyState) -> bool:
    """Whether compactions by the policy have stopped because they did not help."""
    return state.stalls >= policy.max_stalls


def withholds_tool_result(policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, size_bytes: int) -> bool:
    """Whether to replace a tool result of `size_bytes` by a notice before it enters the history.

    Depends on the level of the snapshot, or on the last known level if that is unknown.
    """
    large = policy.large_results
    if large is None or large.above_bytes is None or size_bytes <= large.above_bytes:
        return False
    level = level_of(policy, snapshot)[0]
    return (state.level if level == _UNKNOWN else level) in large.levels


# -- levels and figures ----------------------------------------------------------------------------------


def _trusted(policy: "Policy", snapshot: ContextSnapshot) -> ContextSnapshot:
    """The snapshot without `used_tokens` if the policy does not trust its basis."""
    if snapshot.used_tokens is None or snapshot.basis in policy.bases:
        return snapshot
    return snapshot._replace(used_tokens=None)


def _level(policy: "Policy", snapshot: ContextSnapshot) -> tuple[str, int | None]:
    used, limit = snapshot.used_tokens, snapshot.limit_tokens
    if used is None or (limit is None and policy.measure != "cumulative"):
        return _UNKNOWN, None
    name, severity = policy.healthy, 0
    # Levels are in ascending order, so the last one that holds is the highest.
    for level, first_tokens in policy.rule_index.marks(limit).levels:
        if used >= first_tokens if first_tokens is not None else _holds(policy, level.at, snapshot):
            name, severity = level.name, level.severity
    return name, severity


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


# -- requests --------------------------------------------------------------------------------------------


def _begin_request(state: PolicyState, phase: Phase, flags: GenerationFlags) -> PolicyState:
    """Reset the count of restarts at the start of a request.

    A restart and a continuation after tool calls belong to the request before.
    """
    if phase == "pre_request" and state.restarts and not state.restarting and not flags.user_chain:
        return replace(state, restarts=0)
    if phase == "after_call" and state.restarting:
        return replace(state, restarting=False)
    return state


def _end_request(state: PolicyState, flags: GenerationFlags) -> PolicyState:
    """Reset the count of restarts if the next generation answers a person, which makes it a request of its own."""
    return replace(state, restarts=0, restarting=False) if flags.user_prompt and state.restarts else state


def _decide_without_usage(policy: "Policy", state: PolicyState, flags: GenerationFlags) -> Decision:
    if policy.on_missing == "error":
        return Decision(state, (ErrorAction(f"{policy.name} cannot work without reported usage"),))
    return Decision(_end_request(state, flags))


# -- announcements ---------------------------------------------------------------------------------------


def _announce(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, level: str, actions: list[Action]
) -> PolicyState:
    if phase in policy.phases and level != _UNKNOWN:
        if level != state.level:
            state = _announce_level(policy, state, level, actions)
        if snapshot.suggestions or state.suggested:
            actions += [SuggestAction(one) for one in snapshot.suggestions if one.key not in state.suggested]
            state = replace(state, suggested=tuple(one.key for one in snapshot.suggestions))
    if phase in policy.rule_index.near_limit and snapshot.used_tokens is not None:
        state = _announce_near_limit(policy, state, snapshot, phase, actions)
    return state


def _announce_level(policy: "Policy", state: PolicyState, level: str, actions: list[Action]) -> PolicyState:
    before, announced = state.level, state.announced_entries
    for rule in policy.rule_index.announcements:
        if isinstance(rule, StateChangedRule):
            # The first known level is not a change.
            actions += [] if before is None else [StateChangedAction(before, level)]
        elif _announces_entry(rule, level, announced):
            actions.append(RedlinedAction() if rule.action == "redlined" else ApproachingRedlineAction())
            announced = announced if rule.action in announced else (*announced, rule.action)
    return replace(state, level=level, announced_entries=announced)


def _announces_entry(rule: EntryRule, level: str, announced: tuple[str, ...]) -> bool:
    return rule.level == level and (rule.repeat == "every_entry" or rule.action not in announced)


def _announce_near_limit(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, actions: list[Action]
) -> PolicyState:
    used, limit = snapshot.used_tokens or 0, snapshot.limit_tokens
    for rule in policy.rule_index.near_limit[phase]:
        if not state.armed and limit is not None and rule.rearm_below.exceeds(used, limit):
            state = replace(state, armed=True)
        if state.armed and _has_cooled(rule, state, snapshot.at_seconds) and _all_hold(policy, rule.when, snapshot):
            actions.append(NearLimitAction())
            state = replace(state, armed=False, announced_at_seconds=snapshot.at_seconds)
    return state


def _has_cooled(rule: NearLimitRule, state: PolicyState, at_seconds: float | None) -> bool:
    """Whether the cooldown is over. A clock that was set back ends it, or it would last as long as the step back."""
    if state.announced_at_seconds is None or at_seconds is None:
        return True
    passed_seconds = at_seconds - state.announced_at_seconds
    return passed_seconds < 0 or passed_seconds > rule.cooldown_seconds


# -- reminders and prompts -------------------------------------------------------------------------------


def _update_reminders(
    policy: "Policy", state: PolicyState, snapshot: ContextSnapshot, phase: Phase, actions: list[Action]
) -> PolicyState:
    if snapshot.limit_tokens is None:
        return state
    for rule in policy.rule_index.reminders[phase]:
        if rule.owner not in state.reminders and any(_holds(policy, c, snapshot) for c in rule.when_any):
            actions.append(RemindAction(rule.owner))
            state = replace(state, reminders=(*state.reminders, rule.owner))
        if rule.owner in state.reminders and _all_hold(policy, rule.until, snapshot):
            actions.append(UnremindAction(rule.owner))
            state = replace(state, reminders=tuple(owner for owner in state.reminders if owner != rule.owner))
    return state


def inject_prompts(
    rules: tuple[InjectRule, ...], state: PolicyState, level: str, call_id: str | None, flags: GenerationFlags
) -> tuple[PolicyState, tuple[Action, ...]]:
    """Decide which prompt precedes the generation after a call at this level, which may be `unknown`.

    Counts generations by `call_id`, so that deciding twice about one call changes nothing. Leaving a level, also for
    an unknown one, ends its cadence or countdown.
    """
    is_new = call_id is None or call_id != state.generation
    prompted = state.prompted and not is_new
    rule = next((rule for rule in rules if rule.level == level), None)
    if rule is None:
        return _without_prompts(state, call_id, prompted=prompted), ()
    entering = state.prompting != level
    if entering:
        remaining = rule.repeat.steps if isinstance(rule.repeat, Countdown) else None
        state = replace(state, prompting=level, due=True, counted=0, remaining=remaining)
    state = replace(state, generation=call_id, prompted=prompted)
    if _is_set(flags, rule.silent_for) and not flags.user_prompt:
        # Another message of a person ends the silence, also between the tool calls of an answer.
        return state, ()
    withheld = prompted or _is_set(flags, rule.withheld_by)
    if isinstance(rule.repeat, Countdown):
        return _count_down(state, rule, withheld=withheld)
    return _continue_cadence(state, rule.level, rule.repeat, counts=is_new and not entering, withheld=withheld)


def _continue_cadence(
    state: PolicyState, level: str, cadence: Cadence, *, counts: bool, withheld: bool
) -> tuple[PolicyState, tuple[Action, ...]]:
    """`counts`: the generation counts towards the next prompt. While a prompt is due, none do."""
    if counts and not state.due:
        counted = state.counted + 1
        state = replace(state, counted=counted, due=counted >= cadence.generations)
    if withheld or not state.due:
        return state, ()
    return replace(state, due=False, counted=0, prompted=True), (InjectAction(level),)


def _count_down(state: PolicyState, rule: InjectRule, *, withheld: bool) -> tuple[PolicyState, tuple[Action, ...]]:
    remaining = state.remaining or 0
    if remaining == 0 and not state.prompted:
        # A waiting prompt does not prevent the clear; it enters the cleared context.
        action = ClearAction(f"countdown at {rule.level} ended")
        return _without_prompts(state, state.generation, prompted=True), (action,)
    if withheld:
        return state, ()
    return replace(state, remaining=remaining - 1, prompted=True), (InjectAction(rule.level, remaining - 1),)


def _without_prompts(state: PolicyState, call_id: str | None, *, prompted: bool) -> PolicyState:
    return replace(state, generation=call_id, prompted=prompted, prompting=None, due=False, counted=0, remaining=None)


def _is_set(flags: GenerationFlags, names: tuple[Flag, ...]) -> bool:
    return any(getattr(flags, name) for name in names)


# -- interventions ---------------------------------------------------------------------------------------


def _first_intervention(policy: "Policy", snapshot: ContextSnapshot, phase: Phase) -> Intervention | None:
    used = snapshot.used_tokens
    for rule, never_below in policy.rule_index.marks(snapshot.limit_tokens).interventions.get(phase, ()):
        # Most calls end here, without evaluating a condition.
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
        actions.append(_stop(rule))
        return state
    # No compaction could help, and the policy would demand one before every request.
    if _holds_when_empty(policy, rule, snapshot):
        actions.append(
            ErrorAction(
                f"a window of {snapshot.limit_tokens} tokens has no room beyond the output reserve of {policy.name}"
            )
        )
        return state
    compact = _compaction(policy, rule, snapshot)
    if not rule.restart:
        actions += [] if is_stalled(policy, state) else [compact]
        return state
    most = policy.max_restarts_per_request
    if state.restarts >= most:
        actions.append(ErrorAction(f"still over the limit after {most} restarts of this request"))
        return replace(state, restarting=False)
    actions += [compact, RestartAction(state.restarts + 1, most)]
    return replace(state, restarts=state.restarts + 1, restarting=True)


def _stop(rule: StopRule) -> Action:
    match rule.action:
        case "abort":
            return AbortAction(rule.reason)
        case "error":
            return ErrorAction(rule.reason)
        case "clear":
            return ClearAction(rule.reason)


def _compaction(policy: "Policy", rule: CompactRule, snapshot: ContextSnapshot) -> CompactAction:
    limit = snapshot.limit_tokens or 0
    base = limit if rule.target_of == "window" else snapshot.figure(rule.when[0].figure) or 0
    target = min(rule.target.floor_of(base), policy.ceiling.floor_of(limit))
    return CompactAction(rule.trigger, target, rule.method)


def _holds_when_empty(policy: "Policy", rule: CompactRule, snapshot: ContextSnapshot) -> bool:
    """Whether the rule would compact even an empty conversation, because the window is smaller than the reserve."""
    if not any(condition.figure == "next_prompt_and_reserve" for condition in rule.when):
        return False
    return _all_hold(policy, rule.when, snapshot._replace(next_prompt_tokens=0))


def _is_low_call(policy: "Policy", snapshot: ContextSnapshot, level: str) -> bool:
    """Whether a call, not a restart or a cut, was measured below every level."""
    if snapshot.basis == "reported":
        return level == policy.healthy
    return snapshot.reason == "usage_unavailable"
