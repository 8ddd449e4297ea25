"""[pure] What all payload models share."""

from pydantic import BaseModel, ConfigDict


class Payload(BaseModel):
    """A typed payload. Unknown keys are kept: other implementations add their own."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)
