"""`acp:` in a space.yaml: a third-party agent that speaks the Agent Client Protocol."""

import os
import shutil
from collections.abc import Iterator, Mapping

from mew_settings.participant_types import AddedBy, ParticipantStart, ParticipantType, Place, ProgramStart, StartCheck
from mew_settings.plugins import Finding

from mew_agent.errors import ConfigError
from mew_agent.parts.acp.modes import reported_mode
from mew_agent.parts.acp.profiles import UNKNOWN, AcpProfile, profiles, unknown_agent
from mew_agent.parts.acp.settings import ACP_CONFIG, AcpSettings, installed_command


class AcpType(ParticipantType):
    """Starts `mew acp start`, which starts the agent's program."""

    settings = AcpSettings
    extra = ("acp", "an ACP agent")
    variable = ACP_CONFIG
    with_variables = ("command", "args", "env")
    added_by = AddedBy("--acp", "Agent", "ACP agent", "Run this agent over ACP.", tuple(profiles()))

    def start(self, start: ParticipantStart) -> ProgramStart:
        """Return the command, and the settings for its environment."""
        store = None if start.session is None else str(start.session)
        settings = {**start.settings, "cwd": str(start.folder), "store": store}
        return ProgramStart(start.program("mew", ("acp", "start", *start.joins)), settings)

    def section_from(self, text: str) -> str:
        """Return the name of a known agent. Raises `ConfigError`."""
        if text not in profiles():
            more = ", or `acp: {command: ...}` in space.yaml"
            raise unknown_agent("--acp", text, more)
        return text

    def useless_keys(self, section: AcpSettings) -> Iterator[tuple[Place, str]]:
        """Yield the keys that have no effect without another key."""
        if section.args and section.command is None:
            yield ("args",), "without 'acp.command'"
        if section.max_compacting is not None and section.compact_at is None:
            yield ("max_compacting",), "without 'acp.compact_at'"

    def check(self, check: StartCheck) -> None:
        """Raise `ConfigError` if the agent's program is missing, with the install command."""
        from mew_agent.cli.app.locate import place_of

        settings = check.start.settings or {}
        agent, command = settings.get("agent"), settings.get("command")
        profile = profiles().get(agent or "")
        place = place_of(check.path, check.name, "acp")
        if command is None and profile is None:
            raise unknown_agent(place, agent or "", ", or `command` and `args`")
        search = settings["env"].get("PATH", check.search)
        command = command or (installed_command(profile, search)[0] if profile is not None else "")
        if "${" not in command and shutil.which(command, path=search) is None:
            raise ConfigError(place, f"program '{command}' {_absence(command, profile)}")

    def needs(self, section: AcpSettings) -> Iterator[str]:
        """Yield the extra, and the agent's program."""
        yield from super().needs(section)
        profile = profiles().get(section.agent or "")
        if section.command is not None or profile is not None:
            yield section.command or installed_command(profile or UNKNOWN)[0]

    def programs(self) -> Mapping[str, tuple[str, str]]:
        """Return the program of each known agent."""
        return {installed_command(one)[0]: (name, one.install) for name, one in profiles().items()}

    def findings(self, name: str, section: AcpSettings) -> Iterator[Finding]:
        """Yield the configured mode, and whether the agent asks in it."""
        if section.mode is not None:
            profile = profiles().get(section.agent or "", UNKNOWN)
            asks = reported_mode(section.mode, profile, section.mode, asks_always=False).asks
            says = "whether it asks is unknown" if asks is None else "asks" if asks else "acts without asking"
            yield Finding("mode", name, f"{section.mode}: {says}", "")


def _absence(command: str, profile: AcpProfile | None) -> str:
    if profile is not None:
        return f"not found; install it with `{profile.install}`"
    return "is not an executable file" if os.sep in command else "not found on PATH"


ACP = AcpType()
