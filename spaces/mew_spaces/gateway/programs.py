"""The programs of a space over HTTP: reads their logs, starts one, adds an agent or a tool server.

Bounds what a request may ask for. Who runs the programs is up to `ProgramControl`; a gateway that `mew up` did not
start has none. Does not know who may ask (`http`).
"""

from typing import Annotated, Protocol, Self
from urllib.parse import urlsplit

from mew_protocol.ids import new_id_problem
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mew_spaces.gateway.http_bodies import ProgramAnswer


def _new_id(text: str) -> str:
    if problem := new_id_problem(text):
        raise ValueError(problem)
    return text


def _server_url(text: str) -> str:
    """Accept the URL of a server. `${...}` is refused: it would send a variable of the gateway's machine there."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or "$" in text:
        raise ValueError("expected an http:// or https:// URL without a password and without '$'")
    return text


class NewProgram(BaseModel):
    """Body of a request to add a participant: an agent, or with `mcp_url` the tools of a running MCP server.

    It gets the capabilities of its role, `agent` or `tool`, and runs no other program. An agent uses the model server
    of the agent `like`, and its model unless `model` names another.
    """

    model_config = ConfigDict(extra="forbid")

    participant: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_new_id)]
    like: str | None = Field(default=None, min_length=1, max_length=200)
    model: str | None = Field(default=None, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")
    system_prompt: str | None = Field(default=None, max_length=20_000, pattern=r"^[^\x00]+$")
    mcp_url: Annotated[str, Field(max_length=2_000, pattern=r"^[\x21-\x7e]+$"), AfterValidator(_server_url)] | None = (
        None
    )

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.mcp_url is not None and (self.like or self.model or self.system_prompt):
            raise ValueError("'mcp_url' adds a tool server, which has no model and no prompt")
        return self


class ProgramControl(Protocol):
    """Runs the programs of one space."""

    def participants(self) -> tuple[str, ...] | None:
        """Return the participants with programs started here; None if nothing runs programs now."""
        ...

    async def startable(self) -> tuple[str, ...]:
        """Return the participants with programs that space.yaml declares and nothing has started."""
        ...

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        """Return the last lines that a participant's program wrote, without secrets; None if it has no program here."""
        ...

    async def restart(self, participant: str) -> ProgramAnswer:
        """Start a participant's program with the present settings of space.yaml; end the running one."""
        ...

    async def add(self, new: NewProgram) -> ProgramAnswer:
        """Add a participant to space.yaml and start its program."""
        ...
