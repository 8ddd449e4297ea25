"""A fulfiller with a policy, and a person at its terminal who is asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

    from mew_agent.participant.participant import Participant
    from mew_agent.simple_agents.fulfiller import Decide
    from mew_agent.simple_agents.fulfiller_policy import FulfillerPolicy


def policy_from(path: Path | None, *, is_fulfiller: bool) -> "FulfillerPolicy | None":
    """The policy of a file; None without one. Raises `ConfigError`."""
    from pydantic import ValidationError

    from mew_agent.config.agent_config import file_source
    from mew_agent.errors import ConfigError, did_you_mean
    from mew_agent.simple_agents.fulfiller_policy import FulfillerPolicy

    if path is None:
        return None
    if not is_fulfiller:
        raise ConfigError("--config", "only `--type fulfiller` has a policy")
    source = file_source(path)
    try:
        return FulfillerPolicy.model_validate(dict(source.values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    key = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        known = tuple(FulfillerPolicy.model_fields)
        hint = did_you_mean(key, known)
        raise ConfigError(
            source.place(key), f"unknown key '{key}'{hint}", None if hint else f"one of {', '.join(known)}"
        )
    said = detail["msg"].removeprefix("Value error, ")
    raise ConfigError(source.place(key) if key else source.where, f"{key}: {said}" if key else said)


@asynccontextmanager
async def fulfilling(me: "Participant", policy: "FulfillerPolicy | None") -> AsyncIterator[None]:
    """Let a participant decide about proposals by a policy; None: it decides about none. Where it says so, ask here."""
    from mew_agent.cli.app.line_io import lines_of_stdin, reading
    from mew_agent.simple_agents.fulfiller import Fulfiller
    from mew_agent.simple_agents.fulfiller_policy import TERMINAL

    if policy is None:
        yield
    elif policy.ask != TERMINAL:
        Fulfiller(me, policy)
        yield
    else:
        async with reading(lines_of_stdin()) as lines:
            Fulfiller(me, policy, at_terminal(lines))
            yield


def at_terminal(lines: "MemoryObjectReceiveStream[str]") -> "Decide":
    """Asks whoever types these lines. What was typed before the question is no answer to it; at their end it is no."""
    import anyio

    from mew_agent.cli.app import terminal
    from mew_agent.participant.events import ProposalMade
    from mew_agent.simple_agents.fulfiller_policy import is_answer, read_answer

    async def decide(proposal: ProposalMade) -> str | None:
        try:
            while True:
                lines.receive_nowait()
        except anyio.WouldBlock:
            terminal.say(f"{proposal}. May it? [yes, or no and why]")
        except anyio.EndOfStream:
            return "nobody is at the terminal"
        async for line in lines:
            if is_answer(line):
                return read_answer(line)
            terminal.say("Please answer yes, or no and why.")
        return "nobody is at the terminal"

    return decide
