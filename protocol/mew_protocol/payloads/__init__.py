"""[pure] What each kind's payload holds, one module per namespace.

`payload_model(kind)` names the model of a kind, `read_payload` applies it. All models keep unknown keys:
strict in what we write, liberal in what we read.
"""

from typing import TypeVar

from pydantic import ValidationError

from mew_protocol.envelope import Draft
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import capability, chat, mcp, participant, reasoning, space, stream, system
from mew_protocol.payloads.base import Payload

PAYLOADS: dict[str, type[Payload]] = {
    **system.PAYLOADS,
    **mcp.PAYLOADS,
    **capability.PAYLOADS,
    **space.PAYLOADS,
    **chat.PAYLOADS,
    **reasoning.PAYLOADS,
    **participant.PAYLOADS,
    **stream.PAYLOADS,
}


P = TypeVar("P", bound=Payload)


def payload_model(kind: str) -> type[Payload] | None:
    """The model of a kind's payload; None for kinds of other people's making."""
    return PAYLOADS.get(kind)


def read_payload(draft: Draft, model: type[P]) -> P:
    """Read an envelope's payload as the given model. Raises `PayloadError` naming the field."""
    try:
        return model.model_validate(draft.payload or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["payload", *(str(part) for part in first["loc"])])
        raise PayloadError(draft.kind or "", where, first["msg"]) from None
