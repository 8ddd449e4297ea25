"""Checks of a space before its programs start.

Refuses missing programs, folders and packages. Warns about lines of space.yaml that do less or more than their author
may expect. Changes nothing.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.ids import GATEWAY_IDS
from mew_settings.participant_types import Place, participant_types
from mew_settings.setting_problems import did_you_mean
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig, place_in
from mew_spaces.launch.launch import Launch, Program, start_check, uses_fifos

from mew_agent.cli.app.capabilities import unknown_kind_warnings
from mew_agent.cli.app.locate import place_of
from mew_agent.errors import ConfigError, listed
from mew_agent.extras import require_extra

_PROGRAM_KEYS: Final = ("env", "env_from", "cwd", "restart_policy")
"""Keys of a participant that are about its program, or about the client of its FIFOs."""

_PLAIN_ID: Final = re.compile(r"[\w.-]+")
"""An id, not a pattern of several."""

_PATH_KEYS: Final = frozenset({"path", "uri", "url", "file", "filename", "folder", "directory"})
_NAME_KEYS: Final = frozenset({"method", "name"})
"""Keys with values that contain slashes and name no file: `tools/*`, `resources/*`."""

_NEEDED_BY_AGENTS: Final = {
    kinds.CHAT: "answer",
    kinds.PARTICIPANT_STATUS: "report how full its context is",
    kinds.PARTICIPANT_COMPACT_DONE: "report what a compaction freed",
}


def check_programs(launch: Launch, programs: Sequence[Program], path: Path) -> None:
    """Check that these programs of participants can start. Raises `MissingExtra` and `ConfigError`."""
    for program in programs:
        participant = launch.config.participants[program.name]
        search = program.environment.get("PATH")
        check_command(path, (program.name,), program.command[0], program.folder, search)
        check = start_check(program, participant, path)
        if check is not None and (its_type := participant.participant_type) is not None:
            if its_type.extra is not None:
                require_extra(*its_type.extra)
            its_type.check(check)


def warnings_about(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield the warnings about space.yaml, each with its place in the file."""
    yield from _missing_capabilities(config, path)
    yield from _warnings_of_types(config, path)
    yield from _suspicious_capabilities(config, path)
    yield from _unknown_recipients(config, path)
    yield from _keys_without_effect(config, path)


def check_command(path: Path, owner: tuple[str, ...], command: str, folder: Path, search: str | None) -> None:
    """Check that a program and its working folder exist; `owner` is their place in space.yaml."""
    if not folder.is_dir():
        raise ConfigError(place_of(path, *owner, "cwd"), f"folder '{folder}' not found")
    file = folder / command
    wanted = str(file) if "/" in command else command
    if "${" not in command and shutil.which(wanted, path=search) is None:
        problem = "is not executable" if file.is_file() and wanted != command else "not found"
        hint = _meant_program(command, file)
        raise ConfigError(place_of(path, *owner, "command"), f"program '{command}' {problem}{hint}")


def _meant_program(command: str, file: Path) -> str:
    """Return the advice for a program that cannot be started."""
    if re.fullmatch(r"python[\d.]*", command):
        return "; ${MEW_PYTHON} is the Python that runs mew"
    if command.endswith(".py"):
        return f'; write `command: "${{MEW_PYTHON}}", args: [{command}]` for a Python program'
    return f"; write './{command}' for the file in {file.parent}" if file.is_file() and file.name == command else ""


def _missing_capabilities(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield warnings about agents that may not answer, report or use the space's tools, with the line to add."""
    items = config.participants.items()
    tools = [name for name, one in items if "tool" in (one.role, one.participant_type and one.participant_type.role)]
    for name, participant in items:
        kinds_held = [{"kind": pattern["kind"]} for pattern in config.patterns_of(name)]
        held = CapabilitySet(kinds_held)
        lacks = [text for kind, text in _NEEDED_BY_AGENTS.items() if not held.allows(Draft(kind=kind))]
        if tools and not any(held.allows(Draft(kind=kind)) for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)):
            lacks.append(f"call the tools of {', '.join(tools)}")
        if participant.acts_as == "agent" and lacks:
            place = place_in(path, ("participants", name))
            yield f"{place}: '{name}' may not {' or '.join(lacks)}; add the line `role: agent` to allow it"


def _warnings_of_types(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield the warnings of participant types."""
    for name, participant in config.participants.items():
        key = participant.type_key
        if key is not None:
            for place, warning in participant_types()[key].warnings(name, participant.section(key), config):
                yield f"{place_in(path, ('participants', name, key, *place))}: {warning}"


def _suspicious_capabilities(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield warnings about capabilities that allow nothing, or more than they seem to."""
    owners = {("participants", name): one.capabilities or () for name, one in config.participants.items()}
    for owner, capabilities in (*owners.items(), (("defaults",), config.defaults.capabilities or ())):
        for index, capability in enumerate(capabilities):
            listed: tuple[int | str, ...] = (*owner, "capabilities", index)
            for warning in unknown_kind_warnings([capability.pattern()]):
                yield f"{place_in(path, (*listed, 'kind'))}: {'.'.join(map(str, listed))}: {warning}"
            for place, text in _stars_across_folders(capability.payload, (*listed, "payload")):
                where = f"{place_in(path, place)}: {'.'.join(map(str, place))}"
                yield (
                    f"{where}: '{text}' also matches what is in subfolders; "
                    f"write '{text}*' if that is meant, else a regular expression with [^/]*"
                )


def _ends_in_one_star(text: str) -> bool:
    return text.endswith("*") and not text.endswith("**") and text[0] != "!"


def _is_path(text: str, place: tuple[int | str, ...]) -> bool:
    """Return whether a text looks like a path, by its key or its slashes."""
    key = next((step for step in reversed(place) if isinstance(step, str)), "")
    name = key.rpartition(".")[2].casefold()
    return name in _PATH_KEYS or ("/" in text and name not in _NAME_KEYS)


def _stars_across_folders(value: object, place: tuple[int | str, ...]) -> Iterator[tuple[tuple[int | str, ...], str]]:
    """Yield each text of a payload that looks like a path and ends in one star, with its place.

    Such a star crosses slashes, as at the TypeScript gateway. The writer may have meant one folder.
    """
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _stars_across_folders(one, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _stars_across_folders(one, (*place, index))
    elif isinstance(value, str) and _ends_in_one_star(value) and _is_path(value, place):
        yield place, value


def _unknown_recipients(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield a warning for each recipient that space.yaml does not have. A guest may later use this id."""
    for place, names in _recipients(config):
        for name in names:
            if name not in config.participants and name not in GATEWAY_IDS and _PLAIN_ID.fullmatch(name):
                hint = did_you_mean(name, config.participants) or f"; expected one of {listed(config.participants)}"
                yield f"{place_in(path, place)}: {'.'.join(map(str, place))}: no participant '{name}'{hint}"


def _recipients(config: SpaceConfig) -> Iterator[tuple[tuple[int | str, ...], Sequence[str]]]:
    """Yield each list of recipients with its place."""
    yield ("defaults", "routing", "default_to", kinds.CHAT), config.defaults.routing.default_to.get(kinds.CHAT, ())
    for name, one in config.participants.items():
        yield ("participants", name, "default_to", kinds.CHAT), one.default_to.get(kinds.CHAT, ())
        for index, capability in enumerate(one.capabilities or ()):
            to = (capability.to,) if isinstance(capability.to, str) else capability.to or ()
            yield ("participants", name, "capabilities", index, "to"), to


def _keys_without_effect(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Yield warnings about keys of the TypeScript tools, and about keys that need another key."""
    rows: list[tuple[Place, str]] = [(("space", "ui_theme"), "here")] if config.space.ui_theme is not None else []
    for name, one in config.participants.items():
        rows += ((("participants", name, *inner), why) for inner, why in _useless_keys(one))
    routing = config.defaults.routing.default_to
    rows += ((("defaults", "routing", "default_to", kind), "here") for kind in routing if kind != kinds.CHAT)
    stores = config.history.durability != "memory"
    if config.backplane is not None and stores and "durability" in config.history.model_fields_set:
        rows.append((("history", "durability"), "next to 'backplane'"))
    if config.attention.webhook is None:
        options = config.attention.model_dump(exclude_defaults=True)
        rows += ((("attention", key), "without 'attention.webhook'") for key in options)
    for place, why in rows:
        yield f"{place_in(path, place)}: '{'.'.join(place)}' has no effect {why}; you can remove it"


def _useless_keys(one: ParticipantConfig) -> Iterator[tuple[Place, str]]:
    """Yield the keys of a participant that have no effect, and why."""
    has_program, has_fifos = one.has_program, uses_fifos(one)
    labels = {kind.label for kind in participant_types().values()}
    checks = {
        "io": (False, "here"),
        "type": (one.type in labels, "here"),
        "auto_start": (has_program, "without a program"),
        **dict.fromkeys(_PROGRAM_KEYS, (has_program or has_fifos, "without a program")),
        "args": (one.command is not None, "without 'command'"),
        "fifo": (has_fifos, "with a program" if has_program else "without 'auto_connect: true'"),
        "auto_connect": (has_fifos or one.output_log is not None, "without 'output_log' or 'fifo'"),
    }
    for key, kind in participant_types().items():
        starts = one.command is None and one.section(key) is not None
        checks[key] = (one.command is None, "next to 'command'")
        checks |= dict.fromkeys(kind.more_keys, (starts, f"without '{key}'"))
    given = one.model_dump(exclude_defaults=True)
    yield from (((key,), why) for key, (has_effect, why) in checks.items() if key in given and not has_effect)
    yield from ((("default_to", kind), "here") for kind in one.default_to if kind != kinds.CHAT)
    if (of := one.type_key) is not None:
        for place, why in participant_types()[of].useless_keys(one.section(of)):
            yield (of, *place), why
