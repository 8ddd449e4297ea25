"""[pure] What a policy remembers between decisions, and its stable JSON form.

It is kept with the conversation, so that a restart of the process neither warns twice nor forgets a countdown.
"""

from dataclasses import dataclass, replace

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy's memory of one conversation.

    `armed`, `announced_at_seconds`: near_limit and its cooldown. `stalls`: compactions in a row that did not help.
    `level`: the last one that was known. `told`, `suggested`: entries and suggestions that were told already.
    `reminders`: owners whose reminder is there. `generation` is the call the prompts were last decided for and
    `prompted` whether one was put before what follows it; `prompting` is the level they belong to, `due` whether one
    waits, `counted` the generations since the last one, `remaining` what is left of a countdown.
    `restarts`: how often this request began again; `restarting`: whether it is about to.
    """

    armed: bool = True
    announced_at_seconds: float | None = None
    stalls: int = 0
    level: str | None = None
    told: tuple[str, ...] = ()
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


_FORM = TypeAdapter(PolicyState)


def state_json(state: PolicyState) -> str:
    """The state as JSON text; `state_from_json` reads it back as it was."""
    return _FORM.dump_json(state, exclude_defaults=True).decode()


def state_from_json(text: str) -> PolicyState:
    """A state that was kept. Raises pydantic's `ValidationError` for anything else."""
    return _FORM.validate_json(text)


def after_compaction(state: PolicyState, *, progressed: bool, at_seconds: float | None) -> PolicyState:
    """Note a finished compaction: it counts for the cooldown, and some without progress stop the loop."""
    return replace(state, announced_at_seconds=at_seconds, stalls=0 if progressed else state.stalls + 1)


def after_clear(state: PolicyState) -> PolicyState:
    """Note that the context was emptied: everything begins anew but reminders and the cooldown."""
    return PolicyState(announced_at_seconds=state.announced_at_seconds, reminders=state.reminders)
