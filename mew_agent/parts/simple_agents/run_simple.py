"""`mew agent run --type`: runs a participant without a model; a fulfiller can ask at the terminal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mew_settings.setting_problems import problem_at
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.groups import AgentProgram
from mew_agent.cli.app.options import ProgramConnection
from mew_agent.cli.remote.identity import find_identity
from mew_agent.config.agent_config import file_source
from mew_agent.errors import ConfigError, unknown_name
from mew_agent.participant.event_handlers import ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.parts.shared.line_io import lines_of_stdin, read_lines
from mew_agent.parts.simple_agents.behaviours import BEHAVIOURS
from mew_agent.parts.simple_agents.fulfiller import Decide, Fulfiller
from mew_agent.parts.simple_agents.fulfiller_policy import TERMINAL, FulfillerPolicy, is_answer, read_answer
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment


def run(program: AgentProgram) -> None:
    """Run a participant until it is shut down."""
    connection = ProgramConnection(program.id, program.gateway, program.space, token=program.token)
    who = find_identity(connection, participant=f"{program.type}-agent", token="")
    terminal.configure_logging(program.log_level)
    enable_by_environment()
    policy = fulfiller_policy(program.config, is_fulfiller=program.type == "fulfiller")

    async def serve() -> None:
        me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token)
        if policy is None:
            BEHAVIOURS[program.type](me)
        async with fulfilling(me, policy), me:
            terminal.print_line(f"{who.participant} joined '{who.space}' at {who.gateway}")
            await me.run_forever()

    run_until_signal(serve)


def fulfiller_policy(path: Path | None, *, is_fulfiller: bool) -> FulfillerPolicy | None:
    """Read a fulfiller's policy; None without a file. Raises `ConfigError`."""
    if path is None:
        return None
    if not is_fulfiller:
        raise ConfigError("--config", "requires --type fulfiller")
    source = file_source(path)
    try:
        return FulfillerPolicy.model_validate(dict(source.values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    key = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        raise unknown_name(source.place(key), f"unknown key '{key}'", key, FulfillerPolicy.model_fields)
    raise ConfigError(source.place(key) if key else source.where, problem_at(key, detail))


@asynccontextmanager
async def fulfilling(me: Participant, policy: FulfillerPolicy | None) -> AsyncIterator[None]:
    """Decide proposals by a policy (None: do nothing) while the block runs, and ask at this terminal if the policy says
    so.
    """
    if policy is None:
        yield
    elif policy.ask != TERMINAL:
        Fulfiller(me, policy)
        yield
    else:
        async with read_lines(lines_of_stdin()) as lines:
            Fulfiller(me, policy, ask_at_terminal(lines))
            yield


def ask_at_terminal(lines: MemoryObjectReceiveStream[str]) -> Decide:
    """Ask at the terminal. Ignores lines typed before a question. End of input means no."""

    async def decide(proposal: ProposalMade) -> str | None:
        try:
            while True:
                lines.receive_nowait()
        except anyio.WouldBlock:
            terminal.print_line(f"{proposal}. Allow? [yes, or no and a reason]")
        except anyio.EndOfStream:
            return "no one is at the terminal"
        async for line in lines:
            if is_answer(line):
                return read_answer(line)
            terminal.print_line("Please answer yes, or no and a reason.")
        return "no one is at the terminal"

    return decide
