"""Finds the participant a command acts as, and its gateway: from options, the environment, or the running space.

Owns the lookup order. Reads the run file and a token file; opens no connection.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast

from mew_board.figures import span
from mew_protocol.envelope import parse_time
from mew_settings.plugins import load_only
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import read_token, state_dir
from mew_spaces.launch.program_logs import last_write, log_folder
from mew_spaces.launch.run_file import RunFile, find_last_run, read_run_file, run_file_path

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import (
    FOLDER_ADVICE,
    default_person,
    find_run,
    is_same_gateway,
    not_in_space,
    people_of,
    recorded_gateways,
    space_config_path,
    which_person,
)
from mew_agent.cli.app.options import ConnectionOptions, ProgramConnection
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.errors import ConfigError, NotConnected
from mew_agent.gateway_address import websocket_url


@dataclass(frozen=True, slots=True)
class Identity:
    """A participant of a space and how to connect as it. `run_path` is set if the space runs on this machine."""

    gateway: str
    space: str
    participant: str
    token: str = field(repr=False)
    run_path: Path | None = None

    @property
    def ws_url(self) -> str:
        """The gateway's WebSocket URL. Raises `ConfigError`."""
        return websocket_url(self.gateway, "--gateway")


def find_gateway(connection: ConnectionOptions) -> GatewayApi:
    """Find a one-shot command's access to its gateway: over HTTP, or through a part if the gateway serves no board.

    Raises as `find_identity` does.
    """
    who = find_identity(connection)
    api = GatewayApi(who.gateway, space=who.space, participant=who.participant, token=who.token, run_path=who.run_path)
    if who.run_path is not None or api.is_complete():
        return api
    joining = load_only("mew_agent.gateway_apis")
    return api if joining is None else cast("GatewayApi", joining(who, api))


def find_identity(
    connection: ConnectionOptions, *, participant: str | None = None, token: str | None = None
) -> Identity:
    """Find gateway, space, participant and token, the last two with defaults. Raises `ConfigError`, `NotConnected`."""
    place = _find_place(connection)
    space = connection.space or os.environ.get("MEW_SPACE") or place.space
    if space is None:
        raise ConfigError("--space", "is missing", "the space's id, as in space.yaml")
    chosen = connection.participant or os.environ.get("MEW_PARTICIPANT_ID") or participant or place.person
    if chosen is None:
        raise ConfigError("--participant", which_person(configuration_at(place.run_path)))
    given = connection.token if isinstance(connection, ProgramConnection) else None
    known = given or _stored_token(chosen, place.run_path) or token
    if known is None:
        raise _no_token(chosen, space, place.run_path)
    return Identity(place.gateway, space, chosen, known, place.run_path)


class _LocatedSpace(NamedTuple):
    """A gateway, and its space if its files are here."""

    gateway: str
    run_path: Path | None = None
    space: str | None = None
    person: str | None = None


def _recorded_space(file: Path, given: str | None) -> _LocatedSpace | None:
    """Return the space that `mew gateway start` serves from a folder, if the given gateway is one of these."""
    state = state_dir(file.resolve())
    urls = ",".join(one.url for one in recorded_gateways(state).values() if one.url is not None)
    if not urls or (given is not None and not is_same_gateway(given, urls)):
        return None
    config = load_space(file)
    return _LocatedSpace(given or urls, run_file_path(state), config.space.id, default_person(config))


def _find_place(connection: ConnectionOptions) -> _LocatedSpace:
    """Find the gateway: the given one, or one that `mew up` or `mew gateway start` runs in this folder.

    Tokens of the folder go only to gateways of the folder.
    """
    path, run = find_run(connection.folder) or (None, None)
    given = connection.gateway or os.environ.get("MEW_GATEWAY")
    if run is not None and (given is None or is_same_gateway(given, run.gateway)):
        return _LocatedSpace(given or _running_gateway(path, run, connection.folder), path, run.space, run.person)
    with suppress(ConfigError):
        file = Path(run.config) if run is not None and run.config else space_config_path(None, connection.folder)
        if (recorded := _recorded_space(file, given)) is not None:
            return recorded
    return _LocatedSpace(given or _running_gateway(path, run, connection.folder))


def _no_token(participant: str, space: str, run_path: Path | None) -> ConfigError:
    """Return the error for a participant without a known token."""
    config = configuration_at(run_path)
    if config is not None and participant not in config.participants:
        return not_in_space("--participant", participant, config, f"space '{space}'")
    return ConfigError("MEW_TOKEN", f"no token of '{participant}' found", "MEW_TOKEN, or a file in .mew/tokens")


def require_person(who: Identity, config: SpaceConfig | None = None) -> None:
    """Raise `ConfigError` for a program of space.yaml (default: as read now): joining would replace it."""
    known = config or configuration_at(who.run_path)
    if known is not None and who.participant in known.participants and not known.is_person(who.participant):
        people = ", ".join(people_of(known)) or "no one"
        problem = f"'{who.participant}' is a program; acting as it would end its connection"
        raise ConfigError("--participant", problem, f"a person: {people}")


def configuration_at(run_path: Path | None) -> SpaceConfig | None:
    """Return the space.yaml of the space with this run file. If it cannot be read, warns and returns None."""
    if run_path is None:
        return None
    run = read_run_file(run_path)
    try:
        # Without `mew up`, space.yaml is in the folder itself.
        file = run.config if run is not None else space_config_path(None, run_path.parent.parent)
        return load_space(file) if file else None
    except ConfigError:
        return None
    except SpacesError as error:
        terminal.warn(str(error))
        return None


def _running_gateway(path: Path | None, run: RunFile | None, folder: Path | None) -> str:
    """Return the gateway of the running space. Raises `ConfigError` or `NotConnected` if there is none."""
    if run is None or path is None:
        problem = (
            f"no space is running here{_how_to_start(folder)}, or give --gateway, --space, --participant and MEW_TOKEN"
        )
        raise ConfigError(str(folder or Path.cwd()), problem)
    if not run.is_running(run.pids.gateway) and not run.is_gateway_restarting:
        how = f"its gateway {run.gateway_exit.words}" if run.gateway_exit is not None else "it was killed"
        when = parse_time(run.gateway_exit.at) if run.gateway_exit is not None else last_write(log_folder(path.parent))
        raise NotConnected(
            run.gateway, f"{how}{_when(when)}; `mew up` starts it again, and `mew logs gateway` shows its last lines"
        )
    return run.gateway


def _how_to_start(folder: Path | None) -> str:
    """Return why no space runs, if it is known, and the command to type next."""
    if (last := find_last_run(folder)) is not None:
        return f": '{last.space}' {last.how}{_when(last.at)}. `mew up` starts it again"
    try:
        space_config_path(None, folder)
    except ConfigError:
        return f", and there is no space.yaml: {FOLDER_ADVICE}"
    return ". Start one with `mew up`"


def _when(at: datetime | None) -> str:
    if at is None:
        return ""
    return f" at {at.astimezone():%Y-%m-%d %H:%M:%S} ({span((datetime.now(UTC) - at).total_seconds())} ago)"


def _stored_token(participant: str, run_path: Path | None) -> str | None:
    """Return the participant's token. MEW_TOKEN belongs to MEW_PARTICIPANT_ID and is used for no other participant."""
    given = os.environ.get("MEW_TOKEN")
    if given and os.environ.get("MEW_PARTICIPANT_ID") in (None, "", participant):
        return given
    return read_token(run_path.parent, participant) if run_path else None
