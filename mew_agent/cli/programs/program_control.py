"""The programs of a space for the gateway that `mew up` started: their logs, and commands that restart or add one.

Owns which commands run and what they may print to a browser. The commands are those that people type, so they check
and print the same; `space.restart` and `space.add` hold what they do.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.gateway.auth import space_folder
from mew_spaces.gateway.programs import NewAgent, ProgramOutcome
from mew_spaces.launch.program_logs import log_folder, log_path, tail
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path

from mew_agent.cli.app.locate import OWN_COMMAND

COMMAND_SECONDS: Final = 90.0
"""How long a command may take; it waits until a program has joined."""

_SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SECRET_TEXT: Final = re.compile(
    r"(?i)(bearer\s+|(?:api[-_]?key|token|secret|password)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]{6,}"
    r"|\b(?:sk|pk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{12,}"
)
_SHORTEST_SECRET: Final = 6
_HIDDEN: Final = "[hidden]"


class CommandLinePrograms:
    """Implements `ProgramControl` for the space of a state folder. Commands run one at a time."""

    def __init__(self, state: Path, config: SpaceConfig) -> None:
        self._state = state
        self._config = config
        self._turn = anyio.Lock()

    def participants(self) -> tuple[str, ...] | None:
        """See `ProgramControl.participants`."""
        run = self._run()
        return None if run is None else tuple(sorted({*run.pids.participants, *run.exits}))

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        """See `ProgramControl.log`. Tokens of the space and secrets of environments are replaced."""
        if participant not in (self.participants() or ()):
            return None

        def read() -> tuple[str, ...]:
            secrets = known_secrets(self._state, self._config, os.environ)
            return tuple(hide_secrets(line, secrets) for line in tail(path, lines))

        path = log_path(log_folder(self._state), participant)
        try:
            return await anyio.to_thread.run_sync(read)
        except OSError:
            return ()

    async def restart(self, participant: str) -> ProgramOutcome:
        """See `ProgramControl.restart`."""
        answer = await self._command("restart", "--json", *self._place, "--", participant)
        if isinstance(answer, str):
            return ProgramOutcome(is_done=False, text=answer)
        fault = answer.get("fault")
        return ProgramOutcome(is_done=fault is None, text="restarted" if fault is None else str(fault))

    async def add(self, agent: NewAgent) -> ProgramOutcome:
        """See `ProgramControl.add`."""
        options = {"--prompt": agent.system_prompt, "--model": agent.model}
        if agent.like is not None:
            config = await anyio.to_thread.run_sync(self._newest_config)
            like = config.participants.get(agent.like)
            if like is None or like.agent is None:
                return ProgramOutcome(is_done=False, text=f"'{agent.like}' is no agent of space.yaml")
            written = like.agent.model_fields_set
            options["--base-url"] = like.agent.base_url if "base_url" in written else None
            options["--model"] = agent.model or (like.agent.model if "model" in written else None)
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        answer = await self._command("agent", "add", "--json", *self._place, *given, "--", agent.participant)
        if isinstance(answer, str):
            return ProgramOutcome(is_done=False, text=answer)
        return ProgramOutcome(is_done=answer.get("added") is True, text=str(answer.get("text")))

    def _newest_config(self) -> SpaceConfig:
        run = self._run()
        return self._config if run is None else load_space(run.config)

    @property
    def _place(self) -> tuple[str, ...]:
        return "--space-dir", str(space_folder(self._state))

    def _run(self) -> RunFile | None:
        """The run of this space; None if no process of `mew up` runs its programs."""
        run = read_run_file(run_file_path(self._state))
        return run if run is not None and run.is_running(run.pids.supervisor) else None

    async def _command(self, *arguments: str) -> dict[str, Any] | str:
        """Run a `mew` command. Returns the object it printed, or why it printed none."""
        if self._run() is None:
            return "no `mew up` runs the programs of this space"
        async with self._turn:
            with anyio.move_on_after(COMMAND_SECONDS):
                done = await anyio.run_process(
                    [*OWN_COMMAND, *arguments], check=False, stdin=subprocess.DEVNULL, cwd=space_folder(self._state)
                )
                try:
                    answer = json.loads(done.stdout)
                except ValueError:
                    answer = None
                if isinstance(answer, dict):
                    return answer
                problem = done.stderr.decode(errors="replace").strip().removeprefix("mew: ")
                secrets = known_secrets(self._state, self._config, os.environ)
                return hide_secrets(problem, secrets) or f"`mew {arguments[0]}` ended with code {done.returncode}"
        return f"`mew {arguments[0]}` did not end within {COMMAND_SECONDS:g} seconds"


def known_secrets(state: Path, config: SpaceConfig, environ: Mapping[str, str]) -> list[str]:
    """The tokens of a space, and the values of variables of its programs whose names sound like secrets."""
    found = [path.read_text(encoding="utf-8").strip() for path in (state / "tokens").glob("*") if path.is_file()]
    environs = (environ, *(participant.env for participant in config.participants.values()))
    found += [value for one in environs for name, value in one.items() if _SECRET_NAME.search(name)]
    return sorted({one for one in found if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text: those given, and what has the form of a key or follows such a name."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _SECRET_TEXT.sub(lambda found: f"{found[1] or ''}{_HIDDEN}", text)
