"""[pure] The settings of an agent that speaks the Agent Client Protocol (ACP): each key, its type, bounds and default.

Shared by `acp:` of a space.yaml and the program that runs the agent. `mew_agent.parts.acp` decides what the
settings mean for an agent.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from mew_protocol.agent_settings import LoopLimits, Seconds, SettingsModel, Text, text_as
from mew_protocol.setting_problems import matching

ACP_CONFIG: Final = "MEW_ACP_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""

FileAccess = Literal["none", "read", "write"]
"""What an agent may do with files through `mew`; `write` includes `read`."""


class AcpSettings(SettingsModel):
    """An agent that speaks the Agent Client Protocol: the name of a known one, or a program to start."""

    agent: str | None = Field(default=None, min_length=1)
    command: str | None = Field(default=None, min_length=1)
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    mode: str | None = Field(default=None, min_length=1)
    """The mode in which its sessions work (default: one in which it asks before it acts, if it has one)."""
    files: FileAccess = "none"
    """What the agent may do with files through `mew`, only below its working folder; its own tools are not limited."""
    terminal: bool = False
    """Whether the agent may run commands through `mew`, which start below its working folder."""
    answer_broadcasts: bool = False
    loop_limits: LoopLimits = Field(default_factory=LoopLimits)
    """When the agent stops answering other agents, and what it spends for one sender; see an agent's `loop_limits`."""
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

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if self.agent is None and self.command is None:
            raise ValueError("needs 'agent' or 'command'")
        return self

    @property
    def compact_at_percent(self) -> int | None:
        """`compact_at` as a number."""
        return None if self.compact_at is None else int(self.compact_at.rstrip("%"))
