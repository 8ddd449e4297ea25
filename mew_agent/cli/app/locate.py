"""Finds the space of a command: its space.yaml, folder, run file and person.

Two kinds of records name running gateways. `mew up` writes `run.json`, with its supervisor and all programs: one for
each folder (`find_run`). Each `mew gateway start` writes `gateways/PORT.pid`, because several may run in one folder,
with `mew up` or without it (`recorded_gateways`). Both contain process ids with their start times.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from mew_settings.environment import COMPAT_VARIABLE
from mew_settings.setting_problems import did_you_mean
from mew_spaces.gateway import auth
from mew_spaces.launch.processes import is_running
from mew_spaces.launch.run_file import RunFile, find_file, find_run_file, read_run_file, run_file_path

from mew_agent.certificates import CA_VARIABLE
from mew_agent.errors import ConfigError, listed
from mew_agent.gateway_address import addresses, is_loopback

if TYPE_CHECKING:  # most commands, and agents, only read the run file: the models of space.yaml take 20 ms to load
    from mew_spaces.config.loading import SpaceConfig

SPACE_FILE = "space.yaml"

FOLDER_ADVICE: Final = "`mew init` creates one, --space-dir FOLDER names another folder"
"""What to do in a folder without a space.yaml."""

OWN_COMMAND: Final = (sys.executable, "-P", "-m", "mew_agent")
"""This `mew`, independent of PATH and of modules in the space's folder."""


def space_config_path(config: Path | None, folder: Path | None) -> Path:
    """Return the given file, else the space.yaml of the given folder, else of this one or its nearest parent with one.

    Raises `ConfigError`.
    """
    if config is not None:
        if not config.is_file():
            raise ConfigError(str(config), "no such file")
        return config
    # Paths in messages are short for the working folder itself.
    path = space_file_in(folder or Path()) or (find_file(Path.cwd(), space_file_in) if folder is None else None)
    if path is None:
        raise ConfigError(str((folder or Path()).resolve()), f"no {SPACE_FILE} here; {FOLDER_ADVICE}")
    return path


def space_file_in(folder: Path) -> Path | None:
    """Return the space.yaml of a folder: in its `.mew`, else in the folder itself; None without one."""
    return next((path for path in (folder / auth.STATE_NAME / SPACE_FILE, folder / SPACE_FILE) if path.is_file()), None)


def space_folder(config_path: Path) -> Path:
    """Return the folder of a space: its file's folder, or the parent of `.mew`."""
    return auth.space_folder(auth.state_dir(config_path.resolve()))


def find_run(folder: Path | None) -> tuple[Path, RunFile] | None:
    """Return the run file of a folder, or of the working folder and its parents: its path and content.

    From then on this process and its children trust that gateway's certificate.
    """
    path = find_run_file(Path.cwd()) if folder is None else run_file_path(folder.resolve() / auth.STATE_NAME)
    run = read_run_file(path) if path is not None else None
    if path is None or run is None:
        return None
    if run.ca_file is not None:
        os.environ.setdefault(CA_VARIABLE, run.ca_file)
    return path, run


@dataclass(frozen=True, slots=True)
class RecordedGateway:
    """A running gateway of `mew gateway start` in this folder. `mark` identifies its process."""

    pid: int
    mark: str
    url: str | None = None


def recorded_gateways(state: Path) -> dict[int, RecordedGateway]:
    """Return the running gateways of a state folder by port, except the one of `mew up`."""
    found: dict[int, RecordedGateway] = {}
    for path in sorted((state / "gateways").glob("*.pid")):
        with suppress(OSError, ValueError):
            pid, mark, *url = path.read_text(encoding="utf-8").split()
            if is_running(int(pid), mark):
                found[int(path.stem)] = RecordedGateway(int(pid), mark, url[0] if url else None)
    return found


def is_same_gateway(one: str, other: str) -> bool:
    """Return True if two URLs name the same gateway, whatever the scheme or loopback name.

    Two lists match if they share a gateway.
    """
    known = {_gateway_address(url) for url in addresses(one)}
    return any(_gateway_address(url) in known for url in addresses(other))


def _gateway_address(url: str) -> tuple[str, int | None, str]:
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    is_encrypted = parts.scheme in ("wss", "https")
    try:
        host, port = parts.hostname or "", parts.port or (443 if is_encrypted else 80)
    except ValueError:
        return url, None, ""
    is_here = host in ("0.0.0.0", "::") or is_loopback(host)  # noqa: S104 - compared only
    return "localhost" if is_here else host, port, parts.path.rstrip("/")


def place_of(path: Path, name: str, *keys: str, at: str | None = None) -> str:
    """Return the place of a participant's setting by line and by name. The error names the key `at` within it."""
    from mew_spaces.config.loading import place_in

    exact = () if at is None else (at,)
    return f"{place_in(path, ('participants', name, *keys, *exact))}: {'.'.join(('participants', name, *keys))}"


def relative_to(folder: Path, path: Path) -> str:
    """Return a path as it is typed in a folder; in full if it is elsewhere."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def on_backplane(config: "SpaceConfig", addresses: str | None) -> "SpaceConfig":
    """Return the configuration with the addresses of `--backplane`, if it was given. Raises `ConfigError`."""
    from mew_spaces.config.shared_storages import with_addresses

    if addresses is None:
        return config
    try:
        return config.model_copy(update={"backplane": with_addresses(config.backplane, addresses)})
    except ValueError as error:
        raise ConfigError("--backplane", f"invalid: {addresses!r}", str(error).removeprefix("must be ")) from None


REFERENCE_NOTICE: Final = (
    "compat: reference: participants may send stream/open, invitations may exceed the inviter's rights, "
    "and logs are linked in logs/, as with the TypeScript gateway"
)


def is_reference(environ: Mapping[str, str]) -> bool:
    """Return True if MEW_COMPAT asks for the behaviour of the TypeScript reference. Raises `ConfigError`."""
    mode = environ.get(COMPAT_VARIABLE, "")
    if mode not in ("", "reference"):
        raise ConfigError(COMPAT_VARIABLE, f"must be 'reference' or empty, not '{mode}'")
    return bool(mode)


def in_mode(config: "SpaceConfig", environ: Mapping[str, str]) -> "SpaceConfig":
    """Return the configuration in the mode of MEW_COMPAT, if that is set."""
    return config.model_copy(update={"compat": "reference"}) if is_reference(environ) else config


def default_person(config: "SpaceConfig") -> str | None:
    """Return the participant that one-shot commands act as: `space.default_participant`, else the only person."""
    if config.space.default_participant is not None:
        return config.space.default_participant
    people = people_of(config)
    return people[0] if len(people) == 1 else None


def which_person(config: "SpaceConfig | None") -> str:
    """Return the advice for a missing --participant in a space without a default person."""
    people = people_of(config) if config is not None else []
    if not people:
        return "is missing; give the id of a participant in space.yaml, or set space.default_participant there"
    names = ", ".join(people)
    return f"{len(people)} people in this space: {names}. Add --participant {people[0]}, or {default_hint(people[0])}"


def not_in_space(where: str, name: str, config: "SpaceConfig", place: object) -> ConfigError:
    """Return the error for a participant that space.yaml does not have. It suggests a similar one, or lists all."""
    hint = did_you_mean(name, config.participants)
    return ConfigError(where, f"'{name}' is not in {place}{hint}", None if hint else listed(config.participants))


def default_hint(person: str) -> str:
    """Return the hint that explains how to set the default person."""
    return f"set `default_participant: {person}` under `space` in space.yaml"


def people_of(config: "SpaceConfig") -> list[str]:
    """Return the people of a space, in the order of its file."""
    return [name for name in config.participants if config.is_person(name)]


def agents_of(config: "SpaceConfig") -> frozenset[str]:
    """Return the agents of a space. They have a context even before they report it."""
    return frozenset(name for name, one in config.participants.items() if one.acts_as == "agent")


def dashboard_url(gateway: str, space: str, participant: str, token: str) -> str:
    """Return the URL of a participant's dashboard. The token is in the fragment: browsers do not send it."""
    values = {"token": token, "space": space, "participant": participant}
    return f"{gateway}/dashboard#" + "&".join(f"{key}={quote(value, safe='')}" for key, value in values.items())
