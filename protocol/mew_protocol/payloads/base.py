"""[pure] The base of all payload models, and functions that read payloads."""

from typing import Final, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, ValidationError

from mew_protocol.envelope import Draft
from mew_protocol.errors import PayloadError, first_mistake

PAYLOADS: Final[dict[str, type["Payload"]]] = {}
"""The model of each kind; complete once `mew_protocol.payloads.all_kinds` is imported."""


class Payload(BaseModel):
    """A typed payload. Unknown keys are kept: other implementations add their own.

    A model names its kinds where it is defined: `class Grant(Payload, kind=kinds.CAPABILITY_GRANT)`.
    """

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True, defer_build=True)

    def __init_subclass__(cls, *, kind: str | tuple[str, ...] = (), **config: Unpack[ConfigDict]) -> None:
        super().__init_subclass__(**config)
        PAYLOADS.update(dict.fromkeys((kind,) if isinstance(kind, str) else kind, cls))


P = TypeVar("P", bound=Payload)
M = TypeVar("M", bound=BaseModel)


def read_payload(draft: Draft, model: type[P]) -> P:
    """Read an envelope's payload as the given model. Raises `PayloadError` with the name of the field."""
    try:
        return model.model_validate(draft.payload or {})
    except ValidationError as error:
        place, problem = first_mistake(error)
        raise PayloadError(draft.kind or "", f"payload.{place}" if place else "payload", problem) from None


def read_or_none(model: type[M], value: object) -> M | None:
    """Read a part of an envelope as the given model. Returns None if it is invalid."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None
