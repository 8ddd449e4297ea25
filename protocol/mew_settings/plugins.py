"""Finds the entries that installed packages add to a table, such as commands, participant types, models and policies.

A table is a group of entry points, such as `mew_agent.commands`. This project's own entries are in its pyproject.toml,
those of other packages in theirs. Finds and loads entry points. The owner of each table describes its entries.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

logger = logging.getLogger("mew_settings.plugins")


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of `mew doctor`: a program or package, its version, its users, and the command that installs it.

    `version` is None if it is missing. `problem` says why an installed program cannot run; it then has no version.
    """

    kind: str
    name: str
    version: str | None
    install: str
    needed_by: tuple[str, ...] = ()
    problem: str | None = None


class BrokenPlugin(ImportError):
    """An entry point that cannot be loaded."""


class TwoPlugins(ImportError):
    """Two packages add to a table for a single entry."""


class EntryPoint(NamedTuple):
    """One entry of a table: `name = module:attribute`."""

    package: str
    group: str
    name: str
    module: str
    attribute: str

    def load(self) -> Any:
        """Import the module and return the attribute. Raises `BrokenPlugin`."""
        try:
            return getattr(import_module(self.module), self.attribute)
        except (ImportError, AttributeError) as error:
            place = f"{self.name} = {self.module}:{self.attribute}"
            raise BrokenPlugin(f"entry point '{place}' of '{self.group}' cannot be loaded: {error}") from error


def entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entries of a table by name. If two packages use the same name, the first on `sys.path` wins."""
    found: dict[str, EntryPoint] = {}
    for entry in _entries_of(group):
        first = found.setdefault(entry.name, entry)
        if first is not entry:
            logger.warning("'%s' of '%s' is that of %s, not of %s", entry.name, group, first.package, entry.package)
    return found


def load_table(group: str) -> dict[str, Any]:
    """Load all entries of a table. Skips unloadable entries with a warning.

    Skips entries without a warning if their folder was removed without its metadata, such as a part of this project.
    """
    return {entry.name: value for entry, value in _loaded(entry_points(group).values())}


def load_only(group: str) -> Any | None:
    """Load the entry of a table for a single entry; None without one. Raises `TwoPlugins`."""
    found = list(_loaded(_entries_of(group)))
    if len(found) > 1:
        packages = " and ".join(entry.package for entry, _ in found)
        raise TwoPlugins(f"{packages} both add to '{group}', which has room for one; uninstall one of them")
    return found[0][1] if found else None


def _entries_of(group: str) -> list[EntryPoint]:
    """Return the entries of a table in the order of `sys.path`. A package installed twice counts once.

    So does a package with leftovers of pip under a name with `~`.
    """
    found: dict[tuple[str, str], EntryPoint] = {}
    for entry in _installed(tuple(sys.path)):
        if entry.group == group and not entry.package.startswith("~"):
            found.setdefault((entry.package, entry.name), entry)
    return list(found.values())


def _loaded(entries: Iterable[EntryPoint]) -> Iterator[tuple[EntryPoint, Any]]:
    for entry in entries:
        try:
            yield entry, entry.load()
        except BrokenPlugin as error:
            cause = error.__cause__
            if not (isinstance(cause, ModuleNotFoundError) and f"{entry.module}.".startswith(f"{cause.name}.")):
                logger.warning("%s", error)


@cache
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Not `importlib.metadata`: its import takes longer than all the rest of `mew --help`.
    return tuple(entry for folder in path for found in _metadata_in(folder) for entry in _entries(*found))


def _metadata_in(folder: str) -> Iterator[tuple[str, str]]:
    """Yield each package in a folder of `sys.path`, and its entry points as text."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith(".dist-info")]  # noqa: PTH208
    except OSError:  # not a folder
        return
    for name in sorted(names):
        try:
            with open(f"{folder}/{name}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123 - quicker
                yield name.partition("-")[0].replace("_", "-"), file.read()
        except OSError:
            continue


def _entries(package: str, text: str) -> Iterator[EntryPoint]:
    group = ""
    for line in text.splitlines():
        if line.startswith("["):
            group = line.strip("[] ")
        elif line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            module, _, attribute = target.partition("[")[0].partition(":")
            yield EntryPoint(package, group, name.strip(), module.strip(), attribute.strip())
