"""[pure] The base of all payload models, and how a payload is read."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mew_protocol.envelope import Draft
from mew_protocol.errors import PayloadError


class Payload(BaseModel):
    """A typed payload. Unknown keys are kept: other implementations add their own."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True, defer_build=True)


P = TypeVar("P", bound=Payload)


def read_payload(draft: Draft, model: type[P]) -> P:
    """Read an envelope's payload as the given model. Raises `PayloadError` with the name of the field."""
    try:
        return model.model_validate(draft.payload or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(["payload", *(str(part) for part in first["loc"])])
        raise PayloadError(draft.kind or "", field, first["msg"]) from None
