"""[pure] Whether an envelope is one that its sender could send at all, before anybody asks what it may send."""

from mew_protocol import errors, kinds
from mew_protocol.envelope import Draft
from mew_protocol.payloads.system import SystemError as ErrorPayload

ID_LENGTHS = 4
"""How many times as long as a name an envelope's id may be: some clients build ids from ids."""

_REQUIRED_TEXT = {kinds.CHAT: "text", kinds.MCP_REQUEST: "method"}


def problem_of(draft: Draft, sender: str, *, name_chars: int) -> ErrorPayload | None:
    """What is wrong with an envelope of this sender, in the order in which it is looked for; None if nothing is."""
    kind, envelope_id, claimed = draft.kind, draft.id, draft.sender
    if not kind or kind.isspace():
        return invalid(errors.INVALID_ENVELOPE, "'kind' is missing")
    if len(kind) > name_chars:
        return invalid(errors.INVALID_ENVELOPE, f"a kind has at most {name_chars} characters")
    if envelope_id is not None and len(envelope_id) > ID_LENGTHS * name_chars:
        return invalid(errors.INVALID_ENVELOPE, f"an id has at most {ID_LENGTHS * name_chars} characters")
    if claimed is not None and claimed != sender:
        text = f"you are '{sender}' and cannot speak as '{claimed}'"
        return ErrorPayload(error=errors.IDENTITY_MISMATCH, message=text, attempted_kind=kind)
    needed = _REQUIRED_TEXT.get(kind)
    if needed is None and kinds.is_reserved(kind):
        return _reserved(kind)
    if needed is not None:
        value = draft.body.get(needed)
        if not isinstance(value, str) or not value:
            return invalid(errors.INVALID_PAYLOAD, f"{kind}: payload.{needed} must be a text that is not empty")
    return None


def invalid(error: str, message: str) -> ErrorPayload:
    """A refusal of something malformed."""
    return ErrorPayload(error=error, message=message, code=errors.VALIDATION_ERROR)


def _reserved(kind: str) -> ErrorPayload:
    # The reference knows only one reserved kind, under this error; its clients look for these words.
    error = errors.INVALID_REQUEST if kind == kinds.SYSTEM_REGISTER else errors.RESERVED_KIND
    return ErrorPayload(error=error, message=f"{kind} is reserved for the gateway", attempted_kind=kind)
