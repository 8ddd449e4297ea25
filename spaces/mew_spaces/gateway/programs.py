"""The programs of a space over HTTP: reads logs, starts programs, and adds participants with programs.

Limits requests. `ProgramControl` runs the programs; a gateway without `mew up` has none. `http` checks capabilities.
"""

from dataclasses import asdict
from typing import Annotated, Protocol, Self
from urllib.parse import urlsplit

from mew_protocol.ids import typed_id_problem
from mew_settings.participant_types import participant_types
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mew_spaces.gateway.http_bodies import AddableType, ProgramAnswer


def _new_id(text: str) -> str:
    if problem := typed_id_problem(text):
        raise ValueError(problem)
    return text


def addable_types() -> list[AddableType]:
    """Return the participant types that one value adds."""
    return [
        AddableType(type=key, role=kind.role, **asdict(kind.added_by))
        for key, kind in participant_types().items()
        if kind.added_by is not None
    ]


def _addable(key: str) -> str:
    if key not in (keys := [one.type for one in addable_types()]):
        raise ValueError(f"expected one of {', '.join(keys)}")
    return key


def _public_value(text: str) -> str:
    """Refuse passwords, and `${...}`, which would leak a variable of the gateway's machine."""
    if "$" in text or urlsplit(text).username is not None:
        raise ValueError("expected a text without '$', and a URL without a password")
    return text


class NewProgram(BaseModel):
    """Body of a request to add a participant: an agent, or a participant of `type` with its `value`.

    It gets its role's capabilities. An agent uses the model server of the agent `like`, and its model unless `model` is
    set.
    """

    model_config = ConfigDict(extra="forbid")

    participant: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_new_id)]
    like: str | None = Field(default=None, min_length=1, max_length=200)
    model: str | None = Field(default=None, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")
    system_prompt: str | None = Field(default=None, max_length=20_000, pattern=r"^[^\x00]+$")
    type: Annotated[str, AfterValidator(_addable)] | None = None
    value: (
        Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00-\x1f\x7f]+$"), AfterValidator(_public_value)] | None
    ) = None

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if (self.type is None) != (self.value is None):
            raise ValueError("'type' and 'value' must be given together")
        if self.type is not None and (self.like or self.model or self.system_prompt):
            raise ValueError("'like', 'model' and 'system_prompt' are for an agent without 'type'")
        return self


class ProgramControl(Protocol):
    """Runs the programs of one space."""

    def participants(self) -> tuple[str, ...] | None:
        """Return the participants with programs started here; None if nothing currently runs programs."""
        ...

    async def startable(self) -> tuple[str, ...]:
        """Return the participants with programs that space.yaml declares and nothing has started."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Return the participants whose model server a new agent can use."""
        ...

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        """Return the last lines that a participant's program wrote, without secrets; None if it has no program here."""
        ...

    async def restart(self, participant: str) -> ProgramAnswer:
        """Restart a participant's program with the current settings of space.yaml."""
        ...

    async def add(self, new: NewProgram) -> ProgramAnswer:
        """Add a participant to space.yaml and start its program."""
        ...
