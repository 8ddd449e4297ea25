"""Who a one-shot command speaks as, and to which gateway: from its flags, else from the running space.

Owns the order in which identity is found. Reads the run file and a token file; opens no connection.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mew_spaces.gateway.auth import STATE_NAME, read_token
from mew_spaces.launch.run_file import RunFile, find_run_file, read_run_file, run_file_path

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import Flags
from mew_agent.cli.remote.http_api import GatewayApi, http_url
from mew_agent.errors import ConfigError, NotConnected

if TYPE_CHECKING:
    from mew_spaces.config.loading import SpaceConfig


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks where. `gateway` is a URL of either scheme, `run_path` as in `Seat`."""

    gateway: str
    space: str
    participant: str
    token: str = field(repr=False)
    run_path: Path | None = None

    @property
    def ws_url(self) -> str:
        """The gateway's address for a socket. Raises `ConfigError`."""
        return "ws" + http_url(self.gateway).removeprefix("http")


@dataclass(frozen=True, slots=True)
class Seat:
    """A place to speak from. `run_path` is the run file of the space when it runs on this machine."""

    api: GatewayApi
    run_path: Path | None

    def run(self) -> RunFile | None:
        """The newest run file."""
        return read_run_file(self.run_path) if self.run_path else None


def find_run(folder: Path | None) -> tuple[Path, RunFile] | None:
    """The running space of a folder, or of the working folder and those above it."""
    path = find_run_file(Path.cwd()) if folder is None else run_file_path(folder.resolve() / STATE_NAME)
    run = read_run_file(path) if path is not None else None
    return (path, run) if path is not None and run is not None else None


def take_seat(flags: Flags, environ: Mapping[str, str] = os.environ) -> Seat:
    """Find who speaks where, for a one-shot command. Raises as `find_identity` does."""
    who = find_identity(flags, environ)
    return Seat(GatewayApi(who.gateway, space=who.space, participant=who.participant, token=who.token), who.run_path)


def find_identity(
    flags: Flags, environ: Mapping[str, str] = os.environ, *, participant: str | None = None, token: str | None = None
) -> Identity:
    """Find gateway, space, participant and token; the last two may have defaults.

    Raises `ConfigError` naming what is missing, and `NotConnected` when the space of this folder is gone.
    """
    gateway = flags.gateway or environ.get("MEW_GATEWAY")
    found = find_run(flags.folder)
    if gateway is None:
        if found is None:
            raise ConfigError(
                str(flags.folder or Path.cwd()),
                "no space runs here: start one with `mew up`, or give --gateway, --space, --participant and --token",
            )
        if not found[1].is_running(found[1].pids.gateway):
            raise NotConnected(found[1].gateway, "it does not run any more; `mew up` starts it, `mew down` tidies up")
    path, run = found if found is not None else (None, None)
    if run is not None and gateway is not None and not _same(gateway, run):
        path, run = None, None
    space = flags.space or environ.get("MEW_SPACE") or (run.space if run else None)
    given = flags.participant or environ.get("MEW_PARTICIPANT_ID") or participant
    participant = given or (run.person if run else None)
    if space is None:
        raise ConfigError("--space", "which space?", "its id, as in space.yaml")
    if participant is None:
        raise ConfigError("--participant", "who asks?", "an id of space.yaml, or space.default_participant there")
    known = flags.token or _token_of(participant, path, environ)
    token = token if known is None else known
    if token is None:
        raise ConfigError("--token", f"there is no token of '{participant}' here", "--token, MEW_TOKEN or its file")
    return Identity(gateway or (run.gateway if run else ""), space, participant, token, path)


def _same(gateway: str, run: RunFile) -> bool:
    return gateway.partition("://")[2].rstrip("/") == run.gateway.partition("://")[2].rstrip("/")


def _token_of(participant: str, run_path: Path | None, environ: Mapping[str, str]) -> str | None:
    """MEW_TOKEN is the token of MEW_PARTICIPANT_ID; it speaks for nobody else."""
    given = environ.get("MEW_TOKEN")
    if given and environ.get("MEW_PARTICIPANT_ID") in (None, "", participant):
        return given
    return read_token(run_path.parent, participant, environ=environ) if run_path else None


def config_of(who: Identity | Seat) -> "SpaceConfig | None":
    """The configuration of the space, where it runs on this machine and can be read; a fault in it is told."""
    from mew_spaces.config.loading import load_space
    from mew_spaces.errors import SpacesError

    found = find_run(who.run_path.parent.parent) if who.run_path is not None else None
    if found is None or not found[1].config:
        return None
    try:
        return load_space(found[1].config)
    except SpacesError as error:
        terminal.warn(str(error))
        return None
