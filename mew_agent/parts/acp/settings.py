"""The settings of an ACP agent: program, folder, permissions, and the stored part of its session.

Owns the keys of `acp:` in a space.yaml. Starts nothing.
"""

import shutil
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from mew_protocol.context_report import report_time
from mew_settings.environment import inherited
from mew_settings.setting_problems import matching
from mew_settings.values import Seconds, SettingsModel, Text, text_as
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from mew_agent.parts.acp.profiles import UNKNOWN, AcpProfile, profiles
from mew_agent.settings import LoopLimits

ACP_CONFIG: Final = "MEW_ACP_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""

_NOT_POSSIBLE: Final = {
    "between_steps": "the agent's program reads no message during a turn",
    "together": "the agent's program answers one message in each turn",
    "compaction": "an approver decides about a plan, and only the agent's program knows what a compaction removes",
    "pins": "the agent's program keeps its history, so no text stays in each of its requests",
    "max_sessions": "the agent's program keeps one conversation",
}
"""The keys of `agent:` that an agent over ACP cannot have, with the reasons."""

FileAccess = Literal["none", "read", "write"]
"""An agent's access to files through `mew`; `write` includes `read`."""


class AcpSettings(SettingsModel):
    """An agent that speaks the Agent Client Protocol: the name of a known one, or a program to start."""

    agent: str | None = Field(default=None, min_length=1)
    command: str | None = Field(default=None, min_length=1)
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    mode: str | None = Field(default=None, min_length=1)
    """The mode in which its sessions work (default: one in which it asks before it acts, if it has one)."""
    files: FileAccess = "none"
    """The agent's access to files through `mew`, only below its working folder; its own tools are not limited."""
    terminal: bool = False
    """Whether the agent may run commands through `mew`, which start below its working folder."""
    answer_broadcasts: bool = False
    loop_limits: LoopLimits = Field(default_factory=LoopLimits)
    """Limits of answers to other agents, and of the tokens for one sender; see an agent's `loop_limits`."""
    permission_seconds: Seconds = 600.0
    """How long a request for permission waits for a decision; then it is rejected."""
    turn_seconds: Seconds = 3600.0
    compact_seconds: Seconds = 300.0
    compact_at: Annotated[Text, matching(r"[1-9][0-9]?%", "must be a percentage such as 80%")] | None = None
    """A part of its window, such as `80%`: at the end of a turn that reaches it, the agent is asked to compact."""
    max_compacting: int | None = Field(default=None, ge=1)
    """How many agents of the space may compact at the same time; further ones wait (default: half of them)."""
    space_tools: bool = True
    """Whether the agent gets the tools of the space: the board, chats to peers, compaction of peers."""

    _from_name = text_as("agent")

    @model_validator(mode="before")
    @classmethod
    def _refuse_keys_of_our_agents(cls, given: object) -> object:
        for key, reason in _NOT_POSSIBLE.items():
            if isinstance(given, Mapping) and key in given:
                raise ValueError(f"'{key}' is not possible over ACP: {reason}")
        return given

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if self.agent is None and self.command is None:
            raise ValueError("needs 'agent' or 'command'")
        return self

    @property
    def compact_at_percent(self) -> int | None:
        """`compact_at` as a number."""
        return None if self.compact_at is None else int(self.compact_at.rstrip("%"))


class AcpConfig(AcpSettings):
    """All settings of one ACP agent. Times are in seconds.

    `store` is the file with the unanswered chats and the session's id, for a later start.
    """

    cwd: str = "."
    store: str | None = None
    start_seconds: Seconds = 60.0
    cancel_seconds: Seconds = 30.0
    """How long a cancelled turn may take to end before the program is restarted."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum number of restarts in a row."""

    @property
    def program(self) -> tuple[str, ...]:
        """The command to run."""
        if self.command is not None:
            return self.command, *self.args
        return installed_command(profiles()[self.agent or ""], self.env.get("PATH"))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the program's environment: the inherited part of `environ`, variables that make it ask, and `env`."""
        return {**inherited(environ), **self._asking_environment, **self.env}

    @property
    def asks_by_environment(self) -> bool:
        """Whether its environment makes the agent ask before it acts, in any mode."""
        asking = self._asking_environment
        return bool(asking) and all(self.env.get(name, value) == value for name, value in asking.items())

    @property
    def _asking_environment(self) -> Mapping[str, str]:
        profile = profiles().get(self.agent or "", UNKNOWN)
        return profile.asking_environment if self.mode is None else {}


def installed_command(profile: AcpProfile, path: str | None = None) -> tuple[str, ...]:
    """Return the command of a known agent, under the first of its names in `path` (default: PATH)."""
    name, *arguments = profile.command
    names = (name, *profile.other_commands)
    return next((one for one in names if shutil.which(one, path=path)), name), *arguments


def _checked_time(at: str) -> str:
    report_time(at)
    return at


class KeptSession(BaseModel):
    """The stored part of an agent's session: its id and last figure.

    `program` and `cwd` identify the agent, because another agent cannot load the session.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    program: tuple[str, ...]
    cwd: str
    tokens: NonNegativeInt | None = None
    window: PositiveInt | None = None
    measured_at: Annotated[str, AfterValidator(_checked_time)] | None = None

    def is_of(self, settings: AcpConfig) -> bool:
        """Return whether the session is of this program and folder."""
        return (self.program, self.cwd) == (settings.program, settings.cwd)
