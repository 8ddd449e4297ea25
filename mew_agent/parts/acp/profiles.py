"""[pure] The table of ACP agents: their commands, the meaning of their figures, and their compaction commands.

Owns the form of a profile. Finds profiles by entry points of the group `mew_agent.acp_profiles`; `known_agents` has
those of this project. An agent without a profile gets `UNKNOWN`: its figures are only shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from mew_settings.plugins import load_table

from mew_agent.errors import ConfigError, unknown_name

Used = Literal["total", "prompt"]
"""The contents of `used`: prompt and reply of the last main call, or its prompt."""

CompactionStep = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class AcpProfile:
    """One agent. `window_percent` says which part of the window its `size` is.

    `name` is part of its announced `agentInfo.name`.
    """

    name: str
    command: tuple[str, ...] = ()
    used: Used | None = None
    """None if it is not known; then nothing acts on the figures."""
    window_percent: int = 100
    compact_commands: tuple[str, ...] = ("compact", "compress")
    hidden_command: str | None = None
    """The command that compacts, for an agent that does not announce it."""
    compaction_texts: Mapping[str, CompactionStep] = field(default_factory=lambda: MappingProxyType({}))
    """How its messages about a compaction begin, for an agent that only writes them. It may compact between prompts."""
    compacts_unreported: bool = False
    """Whether it reports no compaction, but writes the summary and goes on in further messages of the same turn."""
    usage_is_late: bool = False
    """Whether the figure of a turn arrives after the turn's response."""
    asking_modes: tuple[str, ...] = ()
    """The modes in which it asks before it writes files or runs commands; the first is the default."""
    asking_environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The variables that make it ask, for an agent without asking modes."""
    other_commands: tuple[str, ...] = ()
    """Further names under which its program is installed."""
    sign_in: str = ""
    """How to sign in, for an agent that names no command for it."""
    install: str = ""
    """The command that installs it."""


UNKNOWN: Final = AcpProfile("unknown")


@cache
def profiles() -> Mapping[str, AcpProfile]:
    """Return the profiles of known agents by name."""
    return load_table("mew_agent.acp_profiles")


def unknown_agent(where: str, name: str, more: str) -> ConfigError:
    """Return the error for a name without a profile; `more` are other possibilities."""
    return unknown_name(where, f"no agent '{name}' is known", name, profiles(), more)


def profile_for(configured: str | None, announced: str) -> AcpProfile:
    """Return the profile of an agent: the configured one, else the one that matches its announced name."""
    if configured is not None and configured in profiles():
        return profiles()[configured]
    return next((one for one in profiles().values() if one.name in announced.lower()), UNKNOWN)
