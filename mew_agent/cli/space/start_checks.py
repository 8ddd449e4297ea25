"""What is checked in a space before its programs start.

Owns what is refused (programs, folders and packages that do not exist) and what gets a warning: lines of space.yaml
that do less, or more, than their author may expect. Changes nothing.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mew_protocol import kinds
from mew_protocol.bridge_settings import BRIDGE_CONFIG
from mew_protocol.capability import CapabilitySet, stars_across_folders
from mew_protocol.envelope import Draft
from mew_protocol.payloads.mcp import COMPACT_CONTEXT
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig, place_in
from mew_spaces.config.settings import BRIDGE
from mew_spaces.launch.launch import Launch, Place, Program, uses_fifos

from mew_agent.cli.app.locate import place_of
from mew_agent.cli.remote.permissions import unknown_kind_warnings
from mew_agent.errors import ConfigError, require_extra, unknown_name
from mew_agent.parts.acp.profiles import PROFILES
from mew_agent.parts.acp.settings import installed_command

_PROGRAM_KEYS: Final = ("env", "env_from", "cwd", "restart_policy")
"""Keys of a participant that are about its program, or about the client of its FIFOs."""

_NEEDED_BY_AGENTS: Final = {
    kinds.CHAT: "answer",
    kinds.PARTICIPANT_STATUS: "report how full its context is",
    kinds.PARTICIPANT_COMPACT_DONE: "report what a compaction freed",
}


def check_programs(launch: Launch, programs: Sequence[Program], path: Path) -> None:
    """Check that these programs of participants can start. Raises `MissingExtra` and `ConfigError`."""
    for program in programs:
        participant, search = launch.config.participants[program.name], program.environment.get("PATH")
        _check_command(path, (program.name,), program.command[0], program.folder, search)
        if BRIDGE_CONFIG in program.environment:
            # The bridge itself is ours. What can be missing is the package it needs, and the server's program.
            require_extra("mcp", "the MCP bridge")
            server = json.loads(program.environment[BRIDGE_CONFIG])["server"]
            if "command" in server:
                place, folder = (program.name, "mcp_server"), Path(server["cwd"] or program.folder)
                _check_command(path, place, server["command"], folder, server["env"].get("PATH", search))
        elif participant.acp is not None:
            check_acp_agent(program.name, participant, path, launch.folder, search)


def check_acp_agent(name: str, one: ParticipantConfig, path: Path, folder: Path, search: str | None = None) -> None:
    """What can be missing: the package, the agent's program in `search` (default: PATH), its folder.

    Raises `MissingExtra`, and `ConfigError` with the command that installs the agent.
    """
    assert one.acp is not None
    require_extra("acp", "an ACP agent")
    profile = PROFILES.get(one.acp.agent or "")
    if one.acp.command is None and profile is None:
        agent = one.acp.agent or ""
        more = ", or `command` and `args`"
        raise unknown_name(place_of(path, name, "acp"), f"no agent '{agent}' is known", agent, PROFILES, more)
    if not (folder / (one.cwd or "")).is_dir():
        raise ConfigError(place_of(path, name, "cwd"), f"folder '{folder / (one.cwd or '')}' not found")
    found_in = one.acp.env.get("PATH", search)
    command = one.acp.command or (installed_command(profile, found_in)[0] if profile is not None else "")
    if "${" not in command and shutil.which(command, path=found_in) is None:
        problem = "is not an executable file" if os.sep in command else "not found on PATH"
        if profile is not None:
            problem = f"not found; install it with `{profile.install}`"
        raise ConfigError(place_of(path, name, "acp"), f"program '{command}' {problem}")


def warnings_about(config: SpaceConfig, path: Path) -> Iterator[str]:
    """The warnings about space.yaml, each with its place in the file."""
    yield from _missing_capabilities(config, path)
    yield from _approvers_without_capability(config, path)
    yield from _suspicious_capabilities(config, path)
    yield from _keys_without_effect(config, path)


def _check_command(path: Path, owner: tuple[str, ...], command: str, folder: Path, search: str | None) -> None:
    """Check that a program and its working folder exist; `owner` is their place in space.yaml."""
    if not folder.is_dir():
        raise ConfigError(place_of(path, *owner, "cwd"), f"folder '{folder}' not found")
    if shutil.which(command, path=search) is None and not (folder / command).is_file():
        raise ConfigError(place_of(path, *owner, "command"), f"program '{command}' not found")


def _missing_capabilities(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Warnings about agents that may not answer, report or use the space's tools, with the line to add."""
    tools = [name for name, one in config.participants.items() if one.role == "tool" or one.is_bridge]
    for name, participant in config.participants.items():
        kinds_held = [{"kind": pattern["kind"]} for pattern in config.patterns_of(name)]
        held = CapabilitySet(kinds_held)
        lacks = [text for kind, text in _NEEDED_BY_AGENTS.items() if not held.allows(Draft(kind=kind))]
        if tools and not any(held.allows(Draft(kind=kind)) for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)):
            lacks.append(f"call the tools of {', '.join(tools)}")
        if participant.acts_as == "agent" and lacks:
            place = place_in(path, ("participants", name))
            yield f"{place}: '{name}' may not {' or '.join(lacks)}; add the line `role: agent` to allow it"


def _approvers_without_capability(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Warnings about agents that wait for the approval of a compaction which cannot be asked for, or not be given."""
    for name, participant in config.participants.items():
        compaction = participant.agent.compaction if participant.agent is not None else None
        if compaction is None:
            continue
        place = place_in(path, ("participants", name, "agent", "compaction"))
        call = {"method": "tools/call", "params": {"name": COMPACT_CONTEXT}}
        if not CapabilitySet(config.patterns_of(name)).allows(Draft(kind=kinds.MCP_PROPOSAL, payload=call)):
            yield f"{place}: '{name}' may not propose its compactions (mcp/proposal), so it compacts without asking"
        approval = Draft(kind=kinds.MCP_REQUEST, to=(name,), payload=call)
        for approver in compaction.approve:
            if not CapabilitySet(config.patterns_of(approver)).allows(approval):
                yield f"{place}: '{approver}' may not approve compactions of '{name}' (mcp/request to '{name}')"


def _suspicious_capabilities(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Warnings about capabilities that allow nothing, or more than they seem to."""
    owners = {("participants", name): one.capabilities or () for name, one in config.participants.items()}
    for owner, capabilities in (*owners.items(), (("defaults",), config.defaults.capabilities or ())):
        for index, capability in enumerate(capabilities):
            listed: tuple[int | str, ...] = (*owner, "capabilities", index)
            for warning in unknown_kind_warnings([capability.pattern()]):
                yield f"{place_in(path, (*listed, 'kind'))}: {'.'.join(map(str, listed))}: {warning}"
            for inner, text in stars_across_folders(capability.pattern()):
                place = (*listed, *inner)
                where = f"{place_in(path, place)}: {'.'.join(map(str, place))}"
                yield (
                    f"{where}: '{text}' also matches what is in subfolders; "
                    f"write '{text}*' if that is meant, else a regular expression with [^/]*"
                )


def _keys_without_effect(config: SpaceConfig, path: Path) -> Iterator[str]:
    """Warnings about keys of the TypeScript tools, and about keys that need another one."""
    rows: list[tuple[Place, str]] = [(("space", "ui_theme"), "here")] if config.space.ui_theme is not None else []
    for name, one in config.participants.items():
        rows += ((("participants", name, *inner), why) for inner, why in _useless_keys(one))
    routing = config.defaults.routing.default_to
    rows += ((("defaults", "routing", "default_to", kind), "here") for kind in routing if kind != kinds.CHAT)
    if config.backplane is not None and "durability" in config.history.model_fields_set:
        rows.append((("history", "durability"), "next to 'backplane'"))
    if config.attention.webhook is None:
        options = config.attention.model_dump(exclude_defaults=True)
        rows += ((("attention", key), "without 'attention.webhook'") for key in options)
    for place, why in rows:
        yield f"{place_in(path, place)}: '{'.'.join(place)}' has no effect {why}; you can remove it"


def _useless_keys(one: ParticipantConfig) -> Iterator[tuple[Place, str]]:
    """The keys of a participant that have no effect, and why."""
    has_program, has_fifos, acp = one.has_program, uses_fifos(one), one.acp
    checks = {
        "io": (False, "here"),
        "type": (one.type == BRIDGE, "here"),
        "auto_start": (has_program, "without a program"),
        **dict.fromkeys(_PROGRAM_KEYS, (has_program or has_fifos, "without a program")),
        "args": (one.command is not None, "without 'command'"),
        "mcp_server": (one.command is None, "next to 'command'"),
        "bridge_config": (one.mcp_server is not None and one.command is None, "without a bridge"),
        "fifo": (has_fifos, "with a program" if has_program else "without 'auto_connect: true'"),
        "auto_connect": (has_fifos or one.output_log is not None, "without 'output_log' or 'fifo'"),
    }
    given = one.model_dump(exclude_defaults=True)
    yield from (((key,), why) for key, (has_effect, why) in checks.items() if key in given and not has_effect)
    yield from ((("default_to", kind), "here") for kind in one.default_to if kind != kinds.CHAT)
    if acp is not None and acp.args and acp.command is None:
        yield ("acp", "args"), "without 'acp.command'"
    if acp is not None and acp.max_compacting is not None and acp.compact_at is None:
        yield ("acp", "max_compacting"), "without 'acp.compact_at'"
