"""[pure] Prompts that a level puts before generations: on a cadence, or counting down to a cleared context.

Generations are counted by the id of the call that was measured, so that asking twice changes nothing. It knows no
texts: what a prompt says belongs to whoever shows it.
"""

from dataclasses import replace

from mew_agent.context.policy.actions import Action, ClearAction, InjectAction
from mew_agent.context.policy.rules import Countdown, Flag, InjectRule
from mew_agent.context.policy.snapshot import GenerationFlags
from mew_agent.context.policy.state import PolicyState


def prompts(
    rules: tuple[InjectRule, ...], state: PolicyState, level: str, call_id: str | None, flags: GenerationFlags
) -> tuple[PolicyState, tuple[Action, ...]]:
    """What goes before the generation that follows a call at this level, which may be `unknown`.

    Leaving a level for any other one, also for an unknown one, ends its cadence and its countdown.
    """
    is_new = call_id is None or call_id != state.generation
    prompted = state.prompted and not is_new
    rule = next((rule for rule in rules if rule.level == level), None)
    if rule is None:
        return _elsewhere(state, call_id, prompted=prompted), ()
    entering = state.prompting != level
    if entering:
        remaining = rule.repeat.steps if isinstance(rule.repeat, Countdown) else None
        state = replace(state, prompting=level, due=True, counted=0, remaining=remaining)
    state = replace(state, generation=call_id, prompted=prompted)
    if _any(flags, rule.silent_for) and not flags.user_prompt:
        # Another message of a person is a new ingress, also in the middle of the tools of an answer.
        return state, ()
    withheld = prompted or _any(flags, rule.withheld_by)
    if isinstance(rule.repeat, Countdown):
        return _count_down(state, rule, withheld=withheld)
    if is_new and not entering and not state.due:
        counted = state.counted + 1
        state = replace(state, counted=counted, due=counted >= rule.repeat.generations)
    if withheld or not state.due:
        return state, ()
    return replace(state, due=False, counted=0, prompted=True), (InjectAction(rule.level),)


def _count_down(state: PolicyState, rule: InjectRule, *, withheld: bool) -> tuple[PolicyState, tuple[Action, ...]]:
    remaining = state.remaining or 0
    if remaining == 0 and not state.prompted:
        # A waiting prompt does not stop this: it is carried into what begins anew.
        return _elsewhere(state, state.generation, prompted=True), (ClearAction(f"countdown at {rule.level} ended"),)
    if withheld:
        return state, ()
    return replace(state, remaining=remaining - 1, prompted=True), (InjectAction(rule.level, remaining - 1),)


def _elsewhere(state: PolicyState, call_id: str | None, *, prompted: bool) -> PolicyState:
    return replace(state, generation=call_id, prompted=prompted, prompting=None, due=False, counted=0, remaining=None)


def _any(flags: GenerationFlags, names: tuple[Flag, ...]) -> bool:
    return any(getattr(flags, name) for name in names)
