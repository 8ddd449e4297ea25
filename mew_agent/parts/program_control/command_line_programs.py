"""The programs of a space for the gateway of `mew up`: their logs, restarts and additions.

Runs the same commands as people (`space.restart`, `space.add`), and limits their output to a browser.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from mew_settings.participant_types import participant_types
from mew_settings.setting_problems import unreadable
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig, load_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import space_folder
from mew_spaces.gateway.http_bodies import ProgramAnswer
from mew_spaces.gateway.programs import NewProgram
from mew_spaces.launch.launch import substitute
from mew_spaces.launch.program_logs import log_folder, log_path, tail
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path

from mew_agent.cli.app.locate import OWN_COMMAND
from mew_agent.cli.space.agent_type import AGENT_KEY

COMMAND_SECONDS: Final = 90.0
"""How long a command may take; it waits until a program has joined."""

MAX_WAITING: Final = 8
"""How many commands may wait for the one that runs."""

_SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_TEXT: Final = re.compile(
    r"(?i)((?:bearer|basic)\s+|(?:api[-_]?key|token|secret|password)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]{6,}"
    r"|(://[^\s/:@]*:)[^\s/@]+(?=@)"
    r"|\b(?:sk|pk|rk|gh[opsu]|github_pat|glpat|hf|xox[abp])[-_][A-Za-z0-9_-]{12,}"
    r"|\b(?:AKIA[A-Z0-9]{16}|AIza[\w-]{30,})"
)
# Look ahead once for each run of characters: a search from each `eyJ` of a long run would take quadratic time.
_WEB_TOKEN: Final = re.compile(r"(?<![\w-])(?=[\w-]++\.[\w-]{8,}+\.[\w-])([\w-]*?\b)eyJ[\w-]{8,}\.[\w-]+\.[\w-]+")
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
        """See `ProgramControl.log`. Tokens of the space and secrets of environments are replaced.

        While the tokens cannot be read, one line says so in place of the log.
        """
        if participant not in (self.participants() or ()):
            return None
        path = log_path(log_folder(self._state), participant)

        def read() -> tuple[str, ...]:
            try:
                secrets = self._secrets()
            except SecretsUnknown as error:
                return (str(error),)
            with suppress(OSError):
                return tuple(hide_secrets(line, secrets) for line in tail(path, lines))
            return ()

        return await anyio.to_thread.run_sync(read)

    async def startable(self) -> tuple[str, ...]:
        """See `ProgramControl.startable`."""
        config = await anyio.to_thread.run_sync(self._newest_config)
        started = self.participants() or ()
        return tuple(name for name, one in config.participants.items() if one.has_program and name not in started)

    async def models(self) -> tuple[str, ...]:
        """See `ProgramControl.models`."""
        config = await anyio.to_thread.run_sync(self._newest_config)
        return tuple(name for name, one in config.participants.items() if one.section(AGENT_KEY) is not None)

    async def restart(self, participant: str) -> ProgramAnswer:
        """See `ProgramControl.restart`."""
        return await self._command("restarted", "restart", participant)

    async def add(self, new: NewProgram) -> ProgramAnswer:
        """See `ProgramControl.add`."""
        options = {"--prompt": new.system_prompt, "--model": new.model}
        if new.type is not None and (by := participant_types()[new.type].added_by) is not None:
            options[by.option] = new.value
        if new.like is not None:
            config = await anyio.to_thread.run_sync(self._newest_config)
            like = config.participants.get(new.like)
            agent = like.section(AGENT_KEY) if like is not None else None
            if agent is None:
                return _not_done(new.participant, f"'{new.like}' is not an agent of space.yaml")
            written = agent.model_fields_set
            for option, key in (("--base-url", "base_url"), ("--api-key-env", "api_key_env"), ("--model", "model")):
                if key in written:  # the key belongs to the server, so use both
                    options[option] = options.get(option) or getattr(agent, key)
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return await self._command("added", "agent", "add", *given, new.participant)

    def _newest_config(self) -> SpaceConfig:
        """Return the current space.yaml, or the initial one if that is invalid."""
        try:
            run = self._run()
            return self._config if run is None else load_space(run.config)
        except SpacesError:
            return self._config

    def _secrets(self) -> list[str]:
        return known_secrets(self._state, self._newest_config(), os.environ)

    def _run(self) -> RunFile | None:
        """Return the run of this space; None if no `mew up` runs its programs."""
        run = read_run_file(run_file_path(self._state))
        return run if run is not None and run.is_running(run.pids.supervisor) else None

    async def _command(self, done_key: str, *words: str) -> ProgramAnswer:
        """Run a `mew` command about the participant in its last word. `done_key` of the answer shows success."""
        *command, participant = words
        if self._run() is None:
            return _not_done(participant, "no `mew up` runs the programs of this space")
        if self._turn.statistics().tasks_waiting >= MAX_WAITING:
            return _not_done(participant, "too many requests wait already; try again later")
        folder = space_folder(self._state)
        async with self._turn:
            with anyio.move_on_after(COMMAND_SECONDS):
                done = await anyio.run_process(
                    [*OWN_COMMAND, *command, "--json", "--space-dir", str(folder), "--", participant],
                    check=False,
                    stdin=subprocess.DEVNULL,
                    cwd=folder,
                )
                # Both outputs contain the last lines of the program.
                try:
                    secrets = await anyio.to_thread.run_sync(self._secrets)
                except SecretsUnknown as error:
                    return _not_done(participant, f"`mew {words[0]}` ended with code {done.returncode}; {error}")
                with suppress(ValueError):
                    if isinstance(answer := json.loads(done.stdout), dict):
                        text = hide_secrets(str(answer.get("text")), secrets)
                        return ProgramAnswer(participant=participant, done=answer.get(done_key) is True, text=text)
                problem = hide_secrets(done.stderr.decode(errors="replace"), secrets).strip().removeprefix("mew: ")
                return _not_done(participant, problem or f"`mew {words[0]}` ended with code {done.returncode}")
        return _not_done(participant, f"`mew {words[0]}` did not end within {COMMAND_SECONDS:g} seconds")


def _not_done(participant: str, why: str) -> ProgramAnswer:
    return ProgramAnswer(participant=participant, done=False, text=why)


class SecretsUnknown(Exception):
    """The tokens of a space cannot be read, so its logs, which may contain them, are hidden."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(f"output withheld, because the tokens to hide cannot be read: {folder} {unreadable(error)}")


def known_secrets(state: Path, config: SpaceConfig, environ: Mapping[str, str]) -> list[str]:
    """Return the tokens of a space, and the values of its programs' variables and headers with names like `KEY`.

    Raises `SecretsUnknown`.
    """
    folder = state / "tokens"
    try:
        found = [*_texts_in(folder)]
    except OSError as error:
        raise SecretsUnknown(folder, error) from error
    found += [value for name, value in environ.items() if _SECRET_NAME.search(name)]
    for participant in config.participants.values():
        found += participant.tokens
        for name, value in _variables(participant):
            if _SECRET_NAME.search(name):
                whole = substitute(value, environ)
                found += [whole, whole.rpartition(" ")[2]]  # `Bearer KEY`
        found += _model_keys(participant, environ)
    return sorted({one for one in found if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)


def _texts_in(folder: Path) -> Iterator[str]:
    """Yield the text of each file in a folder. Raises OSError if any cannot be read."""
    for path in folder.iterdir():  # `glob` treats an unreadable folder as empty
        with suppress(FileNotFoundError):  # the token was replaced
            if not path.is_dir():
                yield path.read_text(encoding="utf-8", errors="replace").strip()


def _variables(participant: ParticipantConfig) -> Iterator[tuple[str, str]]:
    """Yield the variables and headers of a participant's programs."""
    yield from participant.env.items()
    if (key := participant.type_key) is not None:
        section = participant.section(key).model_dump(mode="json", exclude_none=True)
        found = (section.get(one) for one in participant_types()[key].with_variables)
        yield from (pair for one in found if isinstance(one, dict) for pair in one.items())


def _model_keys(participant: ParticipantConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the API keys of an agent's models."""
    agent = participant.section(AGENT_KEY)
    for one in () if agent is None else (agent, agent.summariser or agent):
        yield environ.get(one.api_key_env or "", "")
        if (key := getattr(one, "api_key", None)) is not None:
            yield key.get_secret_value()


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text: the given ones, and texts that look like keys."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    text = _SECRET_TEXT.sub(lambda found: f"{found[1] or found[2] or ''}{_HIDDEN}", text)
    return _WEB_TOKEN.sub(lambda found: f"{found[1]}{_HIDDEN}", text)
