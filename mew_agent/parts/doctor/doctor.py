"""`mew doctor`: lists installed programs and packages, and the install commands of missing ones.

Marks those that the space of this folder needs. Installs nothing.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Final

from mew_settings.installation import install_command
from mew_settings.participant_types import participant_types
from mew_settings.plugins import Finding, load_table
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.errors import SpaceConfigError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import in_mode, space_config_path
from mew_agent.cli.app.options import OUTPUT, SpaceFileOptions
from mew_agent.errors import ConfigError
from mew_agent.settings import BUILTIN_MODELS

VERSION_SECONDS: Final = 20.0
NODE_COMMANDS: Final = {"node": "install Node.js 22.19 or newer", "npx": "install Node.js, which contains npx"}
_EXTRA: Final = re.compile(r"^([\w.-]++)[^;]*;.*extra == ['\"]([\w-]+)['\"]")
SPACE_EXTRA: Final = "space"
_NOT_FOR_USERS: Final = frozenset({"dev", "docs", "test"})
_VERSION_CHARS: Final = 34
_COLUMNS: Final = f"{{:<7}} {{:<18}} {{:<{_VERSION_CHARS}}} {{}}"


def doctor(place: SpaceFileOptions) -> int:
    """List installed programs and extras, and commands to add others.

    Looks for programs of known agents, Node.js, and the extras of mew-agent. Exits with 1 if something that the space
    of this folder needs is missing. Installs nothing.
    """
    config = _space_of(place)
    found = look_around({} if config is None else needs(config))
    if config is not None:
        found += _findings_of_space(config)
    missing = [one for one in found if one.needed_by and one.version is None]
    if OUTPUT.is_json:
        terminal.print_json([asdict(one) for one in found])
    else:
        _print_findings(found)
        _warn_of_missing(missing)
    return ExitCode.FAILED if missing else ExitCode.DONE


def _findings_of_space(config: SpaceConfig) -> list[Finding]:
    mode = in_mode(config, os.environ).compat or "specification"
    return [*_findings_of_participants(config), Finding("space", "compat", mode, "")]


def _warn_of_missing(missing: Iterable[Finding]) -> None:
    for one in missing:
        terminal.warn(f"{', '.join(one.needed_by)}: needs {one.name}; install it with: {one.install}")


def _space_of(place: SpaceFileOptions) -> SpaceConfig | None:
    """Return the space of this folder; None outside of one, or if its space.yaml is invalid."""
    try:
        return load_space(space_config_path(place.config, place.folder))
    except ConfigError:
        if place.config is not None or place.folder is not None:
            raise  # without a space, nothing is required
    except SpaceConfigError as error:
        terminal.warn(f"{error}; what this space needs is not checked")
    return None


def _print_findings(found: list[Finding]) -> None:
    terminal.print_line(_COLUMNS.format("WHAT", "NAME", "VERSION", "INSTALL WITH").rstrip())
    for one in found:
        missing_word = "missing" if one.needed_by else "not installed"
        state = one.version or (missing_word if one.problem is None else "does not run")
        install = "" if one.version is not None else one.install
        terminal.print_line(_COLUMNS.format(one.kind, one.name, state, install).rstrip())
    for one in found:
        if one.problem is not None:
            terminal.warn(f"{one.name} does not run: {one.problem}")


def look_around(needed: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    """Return the findings about this machine. `needed` maps programs, and extras as `[name]`, to the participants that
    need them.
    """
    programs = {name: of for kind in participant_types().values() for name, of in kind.programs().items()}
    known = {**programs, **NODE_COMMANDS}
    searched = [*known, *(name for name in needed if name not in known and name[0] != "[")]
    with ThreadPoolExecutor() as threads:
        found_versions = threads.map(_version_of, searched, [name in known for name in searched])
        versions = dict(zip(searched, found_versions, strict=True))
    found = [
        Finding("python", "mew-agent", importlib.metadata.version("mew-agent"), ""),
        Finding("python", "python", ".".join(map(str, sys.version_info[:3])), ""),
    ]
    found += (_extra_finding(extra, package, needed) for extra, package in _extras())
    found += (line for model in load_table(BUILTIN_MODELS).values() for line in model.findings())
    for program in searched:
        version, problem = versions[program]
        name, install = programs.get(program, (program, NODE_COMMANDS.get(program, f"put '{program}' on PATH")))
        kind = "agent" if program in programs else "program"
        found.append(Finding(kind, name, version, install, needed.get(program, ()), problem))
    return found


def _extra_finding(extra: str, package: str, needed: Mapping[str, tuple[str, ...]]) -> Finding:
    version = _package(package)
    shown = None if version is None else f"{package} {version}"
    return Finding("extra", extra, shown, install_command(extra), needed.get(f"[{extra}]", ()))


def _findings_of_participants(config: SpaceConfig) -> Iterator[Finding]:
    for name, one in config.participants.items():
        if (key := one.type_key) is not None:
            yield from participant_types()[key].findings(name, one.section(key))


def needs(config: SpaceConfig) -> dict[str, tuple[str, ...]]:
    """Return the programs and extras (as `[name]`) needed at the start, with the participants that need them."""
    needed = defaultdict[str, list[str]](list)
    for name, one in config.participants.items():
        key = one.type_key
        if one.auto_start and key is not None:
            for what in participant_types()[key].needs(one.section(key)):
                if "${" not in what and what != "mew":
                    needed[what].append(name)
    return {what: tuple(names) for what, names in needed.items()}


def _extras() -> Iterator[tuple[str, str]]:
    """Yield each extra for users, and a package that it installs: the one with its name, else the first that only it
    has.
    """
    packages = defaultdict[str, list[str]](list)
    for line in importlib.metadata.requires("mew-agent") or ():
        match = _EXTRA.match(line)
        if match is not None and match[2] not in _NOT_FOR_USERS:
            packages[match[2]].append(match[1])
    common = packages[SPACE_EXTRA]  # most other extras contain these
    for extra, names in packages.items():
        own = names if extra == SPACE_EXTRA else [name for name in names if name not in common]
        yield extra, extra if extra in own else own[0]


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_of(program: str, is_known: bool) -> tuple[str | None, str | None]:
    """Return the output of `PROGRAM --version`, and the problem if it does not run; neither if it is not on PATH.

    `is_known`: the program supports this option.
    """
    path = shutil.which(program)
    if path is None:
        return None, None
    try:
        done = subprocess.run(  # noqa: S603 - a program that space.yaml or a profile names
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return None, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return (
            ("present", None) if not is_known else (None, f"no answer to --version within {VERSION_SECONDS:g} seconds")
        )
    if done.returncode == 0:
        return _version_in(done.stdout) or "present", None
    # Another program may work without the option.
    return (None, _failure_of(done)) if is_known or done.returncode in (126, 127) else ("present", None)


def _failure_of(done: "subprocess.CompletedProcess[str]") -> str:
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return f"--version ended with code {done.returncode}{f': {said[0].strip()[:200]}' if said else ''}"


def _version_in(output: str) -> str | None:
    """Return the version in the first line of an output: `1.2.0` of `name/of-package 1.2.0`; else the whole line."""
    line = next(iter(output.strip().splitlines()), "").strip()
    numbers = (word for word in line.split() if "." in word and word.removeprefix("v")[:1].isdigit())
    return next(numbers, line)[:_VERSION_CHARS] or None
