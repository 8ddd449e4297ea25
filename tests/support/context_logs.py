"""Context logs in a short form, and the decisions of a policy in short words."""

import json
from typing import Any

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import Policy
from mew_agent.parts.policies.log_steps import read_step
from mew_agent.parts.policies.simulation import Simulation

Line = dict[str, Any]

NO_USAGE: Line = {"usage": None}
CLEAR: Line = {"clear": True}


def prompt(tokens: int, **flags: Any) -> Line:
    """A call with so many prompt tokens and a short answer."""
    return {"usage": {"prompt_tokens": tokens, "completion_tokens": 7, "total_tokens": tokens + 7}, **flags}


def total(tokens: int, **flags: Any) -> Line:
    """A call with so many tokens in total."""
    answer = min(tokens, 7)
    return {"usage": {"prompt_tokens": tokens - answer, "completion_tokens": answer, "total_tokens": tokens}, **flags}


def user(tokens: int) -> Line:
    """A counted message of a person."""
    return {"message_tokens": tokens, "role": "user"}


def lines(policy: str | Policy, limit: int | None, *steps: Line, **settings: float) -> list[Line]:
    """The output lines of a replay."""
    chosen = presets()[policy] if isinstance(policy, str) else policy
    simulation = Simulation(chosen.configured(settings), limit)
    return [simulation.play(read_step(json.dumps(step))).as_json() for step in steps]


def said(policy: str | Policy, limit: int | None, *steps: Line, **settings: float) -> list[str]:
    """Per step the actions in short words, such as `inject 4` or `near_limit compact`; empty for none."""
    return [" ".join(_word(action) for action in line["actions"]) for line in lines(policy, limit, *steps, **settings)]


def levels(policy: str | Policy, limit: int | None, *steps: Line, **settings: float) -> list[str]:
    """Per step the level."""
    return [line["level"] for line in lines(policy, limit, *steps, **settings)]


def _word(action: Line) -> str:
    more = [str(action[key]) for key in ("remaining", "from", "to") if key in action]
    return " ".join([action["type"], *more])
