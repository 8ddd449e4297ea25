"""What the HTTP API can do with the programs of a space: read their logs, restart one, add an agent.

Owns the permissions for it. Who runs the programs is up to `ProgramControl`; a gateway that `mew up` did not start has
none, and the API says so.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from mew_protocol import errors
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from pydantic import BaseModel, ConfigDict, Field

from mew_spaces.gateway.api_error import ApiError
from mew_spaces.gateway.service import SpaceService

READ_LOG: Final = "program/log"
RESTART: Final = "program/restart"
ADD: Final = "program/add"
"""The kinds that a capability names to permit these requests. No envelope has them."""


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """Whether a request was carried out, and what came of it, for people."""

    is_done: bool
    text: str


class NewAgent(BaseModel):
    """Body of a request to add an agent. It gets the capabilities of the role `agent` and runs no other program.

    It uses the model server of the agent `like`, and its model unless `model` names another.
    """

    model_config = ConfigDict(extra="forbid")

    participant: str = Field(min_length=1, max_length=200)
    like: str | None = Field(default=None, min_length=1, max_length=200)
    model: str | None = Field(default=None, min_length=1, max_length=200)
    system_prompt: str | None = Field(default=None, min_length=1, max_length=20_000)


class ProgramControl(Protocol):
    """Runs the programs of one space."""

    def participants(self) -> tuple[str, ...] | None:
        """The participants whose programs were started here; None if nothing runs programs now."""
        ...

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        """The last lines that a participant's program wrote, without secrets; None if it has no program here."""
        ...

    async def restart(self, participant: str) -> ProgramOutcome:
        """Restart a participant's program with the settings that space.yaml has now."""
        ...

    async def add(self, agent: NewAgent) -> ProgramOutcome:
        """Add an agent to space.yaml and start it."""
        ...


def permitted_control(
    space: SpaceService, control: ProgramControl | None, sender: ParticipantId | None, *drafts: Draft
) -> ProgramControl:
    """Return what runs the programs of a space. Raises `ApiError` if the sender may not, or if nothing does."""
    # An observer has no id, so no capability.
    view = next((one for one in space.snapshot().participants if one.id == sender), None)
    held = CapabilitySet(() if view is None else view.capabilities)
    missing = next((draft.kind for draft in drafts if not held.allows(draft)), None)
    if missing is not None:
        raise ApiError(403, errors.CAPABILITY_VIOLATION, f"{sender or 'an observer'} lacks the capability {missing}")
    if control is None:
        what = "this gateway does not run the programs of its participants; `mew up` starts one that does"
        raise ApiError(409, errors.INVALID_REQUEST, what)
    return control
