"""[pure] The messages between `mew up` and a process that runs several agents: one JSON object per line.

Owns only their form. `shared_processes` sends the orders; the process itself is part of the command line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _AgentMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Participant id of the agent."""

    def to_line(self) -> bytes:
        """Return the message as one line of JSON."""
        return self.model_dump_json().encode() + b"\n"


class AgentOrder(_AgentMessage):
    """Start or stop one agent of the process.

    `variables` are the agent's own, in addition to the environment of the process; they contain its token. `log` is its
    log file. With `is_shown`, the process also reports each written line.
    """

    action: Literal["start", "stop"]
    variables: Mapping[str, str] = Field(default={}, repr=False)
    log: Path = Path()
    is_shown: bool = False


class AgentNote(_AgentMessage):
    """A line of an agent's output, or its exit code."""

    line: str | None = None
    code: int | None = None
