"""[pure] The decision: (policy, state, snapshot, phase, flags) -> (state, actions).

One engine for all policies. Actions come in this order: announcements, reminders and prompts, then at most one
intervention (a compaction, or a stop). The state is stored with the session, so that a restarted process does not
announce twice or lose a countdown. Does not read a clock, know the texts of prompts, or perform actions.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from mew_agent.context.policy.actions import Action, StopAction
from mew_agent.context.policy.definition import Deciding, Phase, Policy
from mew_agent.context.policy.snapshot import NO_FLAGS, ContextSnapshot, GenerationFlags, PolicyState

_UNKNOWN: Final = "unknown"


class Decision(NamedTuple):
    """The new state, and the actions in the order to perform them."""

    state: PolicyState
    actions: tuple[Action, ...] = ()


def decide(
    policy: Policy, state: PolicyState, snapshot: ContextSnapshot, phase: Phase, flags: GenerationFlags = NO_FLAGS
) -> Decision:
    """Return the actions for this moment. Only the first intervention that applies acts."""
    if snapshot.limit_tokens is None and policy.limit_missing == "error":
        return Decision(state, (StopAction("error", f"{policy.name} cannot work without a known context window"),))
    if state.restarts:
        state = _begin_request(state, phase, flags)
    snapshot = trusted(policy, snapshot)
    if phase == "after_call" and policy.on_missing != "unknown" and snapshot.lacks_usage:
        if policy.on_missing == "error":
            return Decision(state, (StopAction("error", f"{policy.name} cannot work without reported usage"),))
        actions: tuple[Action, ...] = ()
    else:
        state, actions = _apply_rules(policy, state, snapshot, phase, flags)
    if flags.user_prompt and state.restarts:  # the next generation answers a person, so it is a separate request
        state = replace(state, restarts=0, restarting=False)
    return Decision(state, actions)


def _apply_rules(
    policy: Policy, state: PolicyState, snapshot: ContextSnapshot, phase: Phase, flags: GenerationFlags
) -> Decision:
    level, before = level_of(policy, snapshot)[0], state.level
    if level != before and level != _UNKNOWN and phase in policy.phases:
        state = replace(state, level=level)
    deciding = Deciding(policy, state, snapshot, phase, flags, level, before)
    used, next_prompt = policy.marks(snapshot.limit_tokens).rests_below[phase]
    rests = (snapshot.used_tokens or 0) < used and (snapshot.next_prompt_tokens or 0) < next_prompt
    for rules in () if rests and state.armed else policy.acting[phase]:
        rules[0].decide(rules, deciding)
    state = deciding.state
    # Only a call proves that a compaction helped: the size after a cut is a projection.
    if state.stalls and phase == "after_call" and not deciding.has_intervened and _is_low_call(deciding):
        state = replace(state, stalls=0)
    return Decision(state, tuple(deciding.actions))


def _is_low_call(deciding: Deciding) -> bool:
    """Return whether a call (no restart or cut) was measured below all levels."""
    if deciding.snapshot.basis == "reported":
        return deciding.level == deciding.policy.healthy
    return deciding.snapshot.lacks_usage


def level_of(policy: Policy, snapshot: ContextSnapshot) -> tuple[str, int | None]:
    """Return the level's name and severity; ("unknown", None) if the level is unknown."""
    snapshot = trusted(policy, snapshot)
    used, limit = snapshot.used_tokens, snapshot.limit_tokens
    if used is None or (limit is None and policy.measure != "cumulative"):
        return _UNKNOWN, None
    name, severity = policy.healthy, 0
    # Levels are in ascending order, so the last one that applies is the highest.
    for level, first_tokens in policy.marks(limit).levels:
        if used >= first_tokens if first_tokens is not None else snapshot.meets((level.at,), policy.reserve):
            name, severity = level.name, level.severity
    return name, severity


def is_stalled(policy: Policy, state: PolicyState) -> bool:
    """Return whether compactions by the policy have stopped because they did not help."""
    return state.stalls >= policy.max_stalls


def withheld_at(policy: Policy, state: PolicyState, snapshot: ContextSnapshot, size_bytes: int) -> str | None:
    """Return the level that withholds a tool result of this size; None if the result may enter.

    Uses the snapshot's level, or the last known one.
    """
    large = policy.large_results
    if large is None or large.above_bytes is None or size_bytes <= large.above_bytes:
        return None
    level = level_of(policy, snapshot)[0]
    known = state.level if level == _UNKNOWN else level
    return known if known in large.levels else None


def trusted(policy: Policy, snapshot: ContextSnapshot) -> ContextSnapshot:
    """Return the snapshot without `used_tokens` if the policy does not trust its basis."""
    # Neither a report from before the end of the reply nor a count after a cut is the report of a whole call.
    basis = "projected" if snapshot.basis in ("provisional", "server_counted") else snapshot.basis
    if snapshot.used_tokens is None or basis in policy.bases:
        return snapshot
    return snapshot._replace(used_tokens=None)


def _begin_request(state: PolicyState, phase: Phase, flags: GenerationFlags) -> PolicyState:
    """Return the state of a request whose reply restarts, or of the next request."""
    # A restart and a continuation after tool calls belong to the request before.
    if phase == "pre_request" and not state.restarting and not flags.user_chain:
        return replace(state, restarts=0)
    if phase == "after_call" and state.restarting:
        return replace(state, restarting=False)
    return state
