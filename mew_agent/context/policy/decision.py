"""[pure] The decision: (policy, state, snapshot, phase, flags) -> (state, actions).

One engine for all policies. Actions come in this order: announcements, reminders and prompts, then at most one
intervention (a compaction, or a stop). The state is stored with the session, so that a restarted process does not
announce twice or lose a countdown. Does not read a clock, know the texts of prompts, or perform actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mew_protocol.context_report import Basis, UnknownReason, known_sum

from mew_agent.context.policy import actions as acts
from mew_agent.context.policy import definition as r
from mew_agent.context.policy.actions import Suggestion
from mew_agent.context.policy.definition import Policy
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
    tool_result_tokens: int | None = None  # what a tool result would add
    suggestions: tuple[Suggestion, ...] = ()
    usual_task_tokens: int | None = None  # what a task of the usual size adds
    grown_tokens: int | None = None  # since the last compaction

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

    user_prompt: bool = False  # it carries a person's message
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
    level: str | None = None  # the last known one
    announced_entries: tuple[str, ...] = ()  # entries of levels that were announced since the last clear
    suggested: tuple[str, ...] = ()
    reminders: tuple[str, ...] = ()  # owners whose reminder is shown
    generation: str | None = None  # the call that prompts were last decided for
    prompted: bool = False  # the next generation has its prompt
    prompting: str | None = None  # the level that prompts belong to
    due: bool = False  # a prompt is waiting
    counted: int = 0  # generations since the last prompt
    remaining: int | None = None  # the rest of a countdown
    restarts: int = 0  # of the reply within this request
    restarting: bool = False  # the next start is due


def after_compaction(
    state: PolicyState, *, progressed: bool, at_seconds: float | None, tokens: int | None = None
) -> PolicyState:
    """Return the state after a compaction to a next prompt of so many tokens.

    It restarts the cooldowns, and counts as a stall unless it `progressed`.
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


_UNKNOWN = "unknown"
_WITHOUT_USAGE = ("usage_unavailable", "usage_implausible")


class Decision(NamedTuple):
    """The new state, and the actions in the order to perform them."""

    state: PolicyState
    actions: tuple[acts.Action, ...] = ()


def decide(
    policy: Policy, state: PolicyState, snapshot: ContextSnapshot, phase: r.Phase, flags: GenerationFlags = NO_FLAGS
) -> Decision:
    """Return the actions for this moment. Of the interventions, only the first rule that applies acts."""
    if snapshot.limit_tokens is None and policy.limit_missing == "error":
        return Decision(state, (acts.ErrorAction(f"{policy.name} cannot work without a known context window"),))
    if state.restarts:
        state = _begin_request(state, phase, flags)
    marks = policy.rule_index.marks(snapshot.limit_tokens)
    deciding = _Deciding(policy, state, trusted(policy, snapshot), phase, marks)
    if phase == "after_call" and policy.on_missing != "unknown" and snapshot.reason in _WITHOUT_USAGE:
        if policy.on_missing == "error":
            deciding.actions.append(acts.ErrorAction(f"{policy.name} cannot work without reported usage"))
            return Decision(deciding.state, tuple(deciding.actions))
    else:
        deciding.apply_rules(flags)
    after = deciding.state
    if flags.user_prompt and after.restarts:  # the next generation answers a person, so it is a separate request
        after = replace(after, restarts=0, restarting=False)
    return Decision(after, tuple(deciding.actions))


def level_of(policy: Policy, snapshot: ContextSnapshot) -> tuple[str, int | None]:
    """Return the level's name and severity; ("unknown", None) if the level is unknown."""
    snapshot = trusted(policy, snapshot)
    used, limit = snapshot.used_tokens, snapshot.limit_tokens
    if used is None or (limit is None and policy.measure != "cumulative"):
        return _UNKNOWN, None
    name, severity = policy.healthy, 0
    # Levels are in ascending order, so the last one that applies is the highest.
    for level, first_tokens in policy.rule_index.marks(limit).levels:
        if used >= first_tokens if first_tokens is not None else snapshot.meets((level.at,), policy.reserve):
            name, severity = level.name, level.severity
    return name, severity


def compact_at_tokens(policy: Policy, limit_tokens: int | None) -> int | None:
    """Return the size at which this policy compacts after a call; None if it never does."""
    return policy.rule_index.marks(limit_tokens).compact_at_tokens


def is_stalled(policy: Policy, state: PolicyState) -> bool:
    """Return whether compactions by the policy have stopped because they did not help."""
    return state.stalls >= policy.max_stalls


def withheld_at(policy: Policy, state: PolicyState, snapshot: ContextSnapshot, size_bytes: int) -> str | None:
    """Return the level at which a notice replaces a tool result of this size; None if it is not replaced.

    The level is the snapshot's, or else the last known one.
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


def _begin_request(state: PolicyState, phase: r.Phase, flags: GenerationFlags) -> PolicyState:
    """Return the state of a request after a restart of its reply, or of the next request."""
    # A restart and a continuation after tool calls belong to the request before.
    if phase == "pre_request" and not state.restarting and not flags.user_chain:
        return replace(state, restarts=0)
    if phase == "after_call" and state.restarting:
        return replace(state, restarting=False)
    return state


@dataclass(slots=True)
class _Deciding:
    """A decision in the making: `state` and `actions` change rule by rule."""

    _policy: Policy
    state: PolicyState
    _snapshot: ContextSnapshot
    _phase: r.Phase
    _marks: r.Marks
    actions: list[acts.Action] = field(default_factory=list)

    def apply_rules(self, flags: GenerationFlags) -> None:
        level, rules = level_of(self._policy, self._snapshot)[0], self._policy.rule_index
        self._announce(level)
        if self._phase in rules.reminders:
            self._update_reminders()
        if rules.prompts and self._phase == "after_call":
            self.state, prompts = _inject_prompts(rules.prompts, self.state, level, self._snapshot.call_id, flags)
            self.actions += prompts
        rule = self._first_intervention()
        if rule is not None:
            self._intervene(rule)
        # Only a call proves that a compaction helped: the size after a cut is a projection.
        elif self._phase == "after_call" and self.state.stalls and self._is_low_call(level):
            self.state = replace(self.state, stalls=0)

    def _announce(self, level: str) -> None:
        offered, state = self._snapshot.suggestions, self.state
        if self._phase in self._policy.phases and level != _UNKNOWN:
            if level != state.level:
                self._announce_level(level)
            if offered or state.suggested:
                self.actions += [acts.SuggestAction(one) for one in offered if one.key not in state.suggested]
                self.state = replace(self.state, suggested=tuple(one.key for one in offered))
        if self._snapshot.used_tokens is not None:
            self._announce_near_limit(self._snapshot.used_tokens)

    def _announce_level(self, level: str) -> None:
        before, announced = self.state.level, self.state.announced_entries
        for rule in self._policy.rule_index.announcements:
            if isinstance(rule, r.StateChangedRule):
                # The first known level is not a change.
                self.actions += [] if before is None else [acts.StateChangedAction(before, level)]
            elif rule.level == level and (rule.repeat == "every_entry" or rule.action not in announced):
                redlined = rule.action == "redlined"
                self.actions.append(acts.RedlinedAction() if redlined else acts.ApproachingRedlineAction())
                announced = announced if rule.action in announced else (*announced, rule.action)
        self.state = replace(self.state, level=level, announced_entries=announced)

    def _announce_near_limit(self, used_tokens: int) -> None:
        limit, at_seconds = self._snapshot.limit_tokens, self._snapshot.at_seconds
        for rule, never_below, _ in self._marks.near_limit.get(self._phase, ()):
            if not self.state.armed and limit is not None and rule.rearm_below.exceeds(used_tokens, limit):
                self.state = replace(self.state, armed=True)
            # Most calls end here, without evaluating a condition.
            if used_tokens < never_below or not self.state.armed:
                continue
            if not self._snapshot.meets(rule.when, self._policy.reserve):
                continue
            if _has_passed(rule.cooldown_seconds, self.state.announced_at_seconds, at_seconds):
                self.actions.append(acts.NearLimitAction())
                self.state = replace(self.state, armed=False, announced_at_seconds=at_seconds)

    def _update_reminders(self) -> None:
        if self._snapshot.limit_tokens is None:
            return
        for rule in self._policy.rule_index.reminders[self._phase]:
            owners = self.state.reminders
            if rule.owner not in owners and any(
                self._snapshot.meets((one,), self._policy.reserve) for one in rule.when_any
            ):
                self.actions.append(acts.RemindAction(rule.owner))
                owners = (*owners, rule.owner)
            if rule.owner in owners and self._snapshot.meets(rule.until, self._policy.reserve):
                self.actions.append(acts.UnremindAction(rule.owner))
                owners = tuple(owner for owner in owners if owner != rule.owner)
            if owners is not self.state.reminders:
                self.state = replace(self.state, reminders=owners)

    def _first_intervention(self) -> r.Intervention | None:
        used, next_prompt = self._snapshot.used_tokens, self._snapshot.next_prompt_tokens
        for rule, least_used, least_next in self._marks.interventions.get(self._phase, ()):
            # Most calls end here, without evaluating a condition.
            if (least_used and (used is None or used < least_used)) or (next_prompt or 0) < least_next:
                continue
            if rule.action == "compact" and rule.phase == "after_call":
                unavailable = self._snapshot.basis == "unknown" and self._snapshot.reason in _WITHOUT_USAGE
                if unavailable != (rule.known == "unavailable"):
                    continue
            if self._snapshot.meets(rule.when, self._policy.reserve):
                return rule
        return None

    def _intervene(self, rule: r.Intervention) -> None:
        policy, state, limit = self._policy, self.state, self._snapshot.limit_tokens
        if isinstance(rule, r.StopRule):
            self.actions.append(_STOPS[rule.action](rule.reason))
        elif self._holds_when_empty(rule):
            # No compaction could help, and the policy would demand one before every request.
            problem = f"a window of {limit} tokens has no room beyond the output reserve of {policy.name}"
            self.actions.append(acts.ErrorAction(problem))
        elif not rule.restart:
            since, now = state.compacted_at_seconds, self._snapshot.at_seconds
            has_cooled = not rule.cooldown_seconds or _has_passed(rule.cooldown_seconds, since, now)
            self.actions += [self._compaction(rule)] if has_cooled and not is_stalled(policy, state) else []
        elif state.restarts >= policy.max_restarts_per_request:
            problem = f"still over the limit after {policy.max_restarts_per_request} restarts of this request"
            self.actions.append(acts.ErrorAction(problem))
            self.state = replace(state, restarting=False)
        else:
            restart = acts.RestartAction(state.restarts + 1, policy.max_restarts_per_request)
            self.actions += [self._compaction(rule), restart]
            self.state = replace(state, restarts=restart.attempt, restarting=True)

    def _compaction(self, rule: r.CompactRule) -> acts.CompactAction:
        limit = self._snapshot.limit_tokens or 0
        base = limit if rule.target_of == "window" else self._snapshot.figure(rule.when[0].figure) or 0
        target = min(rule.target.floor_of(base), self._policy.ceiling.floor_of(limit))
        reason = None
        if any(condition.figure == "next_task_and_reserve" for condition in rule.when):
            reason = f"the next task of the usual size, {self._snapshot.usual_task_tokens:,} tokens, would not fit"
        return acts.CompactAction(rule.trigger, target, rule.method, rule.moment, reason)

    def _holds_when_empty(self, rule: r.CompactRule) -> bool:
        """Return whether the rule would compact an empty conversation, because the reserve exceeds the window."""
        if not any(condition.figure == "next_prompt_and_reserve" for condition in rule.when):
            return False
        empty = self._snapshot._replace(next_prompt_tokens=0)
        return empty.meets(rule.when, self._policy.reserve)

    def _is_low_call(self, level: str) -> bool:
        """Return whether a call, not a restart or a cut, was measured below every level."""
        if self._snapshot.basis == "reported":
            return level == self._policy.healthy
        return self._snapshot.reason in _WITHOUT_USAGE


_STOPS: Mapping[str, Callable[[str], acts.Action]] = {
    "abort": acts.AbortAction,
    "error": acts.ErrorAction,
    "clear": acts.ClearAction,
}


def _has_passed(cooldown_seconds: float, since_seconds: float | None, at_seconds: float | None) -> bool:
    """Return whether a cooldown is over. A clock that was set back ends it; otherwise it would last too long."""
    if since_seconds is None or at_seconds is None:
        return True
    passed_seconds = at_seconds - since_seconds
    return passed_seconds < 0 or passed_seconds > cooldown_seconds


def _inject_prompts(
    rules: tuple[r.InjectRule, ...], state: PolicyState, level: str, call_id: str | None, flags: GenerationFlags
) -> tuple[PolicyState, tuple[acts.Action, ...]]:
    """Decide which prompt precedes the generation after a call at this level, which may be `unknown`."""
    # Generations are counted by their call, so that deciding twice about one call changes nothing.
    is_new = call_id is None or call_id != state.generation
    prompted = state.prompted and not is_new
    rule = next((rule for rule in rules if rule.level == level), None)
    if rule is None:
        return _without_prompts(state, call_id, prompted=prompted), ()
    entering = state.prompting != level
    state = replace(_entering(state, rule) if entering else state, generation=call_id, prompted=prompted)
    # Another message of a person ends the silence, also between the tool calls of an answer.
    if not flags.user_prompt and _is_set(flags, rule.silent_for):
        return state, ()
    withheld = prompted or _is_set(flags, rule.withheld_by)
    if isinstance(rule.repeat, r.Countdown):
        return _count_down(state, rule, withheld=withheld)
    return _at_cadence(state, level, rule.repeat, counts=is_new and not entering, withheld=withheld)


def _entering(state: PolicyState, rule: r.InjectRule) -> PolicyState:
    remaining = rule.repeat.steps if isinstance(rule.repeat, r.Countdown) else None
    return replace(state, prompting=rule.level, due=True, counted=0, remaining=remaining)


def _at_cadence(
    state: PolicyState, level: str, cadence: r.Cadence, *, counts: bool, withheld: bool
) -> tuple[PolicyState, tuple[acts.Action, ...]]:
    if counts and not state.due:  # while a prompt is due, no generation counts towards the next one
        state = replace(state, counted=state.counted + 1, due=state.counted + 1 >= cadence.generations)
    if withheld or not state.due:
        return state, ()
    return replace(state, due=False, counted=0, prompted=True), (acts.InjectAction(level),)


def _count_down(
    state: PolicyState, rule: r.InjectRule, *, withheld: bool
) -> tuple[PolicyState, tuple[acts.Action, ...]]:
    remaining = state.remaining or 0
    if remaining == 0 and not state.prompted:
        # A waiting prompt does not prevent the clear; it enters the cleared context.
        action = acts.ClearAction(f"countdown at {rule.level} ended")
        return _without_prompts(state, state.generation, prompted=True), (action,)
    if withheld:
        return state, ()
    return replace(state, remaining=remaining - 1, prompted=True), (acts.InjectAction(rule.level, remaining - 1),)


def _without_prompts(state: PolicyState, call_id: str | None, *, prompted: bool) -> PolicyState:
    return replace(state, generation=call_id, prompted=prompted, prompting=None, due=False, counted=0, remaining=None)


def _is_set(flags: GenerationFlags, names: tuple[r.Flag, ...]) -> bool:
    return any(getattr(flags, name) for name in names)
