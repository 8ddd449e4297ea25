"""[pure] The envelope: the one shape everything but a stream frame travels in.

A `Draft` is what a sender wrote, where the gateway may still fill gaps; an `Envelope` is complete. Keys we do
not know are kept and relayed, `ts` stays the string its sender wrote, and a null counts as missing.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mew_protocol.version import PROTOCOL


def _as_list(value: object) -> object:
    """Older clients send a bare string where the wire wants a list."""
    return (value,) if isinstance(value, str) else value


Ids = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Draft(BaseModel):
    """An envelope as it arrived: every header may be missing. `sender` is `from` on the wire."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    protocol: str | None = None
    id: str | None = None
    ts: str | None = None
    sender: str | None = Field(default=None, alias="from")
    to: Ids | None = None
    kind: str | None = None
    correlation_id: Ids | None = None
    context: str | dict[str, Any] | None = None
    payload: dict[str, Any] | None = None

    @property
    def addressees(self) -> tuple[str, ...]:
        """Who it is for; empty means everybody."""
        return self.to or ()

    @property
    def body(self) -> Mapping[str, Any]:
        """The payload, empty when there is none."""
        return self.payload or {}

    @property
    def correlation_ids(self) -> tuple[str, ...]:
        """Ids of the envelopes it refers to; empty when it refers to none."""
        return self.correlation_id or ()

    def refers_to(self, envelope_id: str) -> bool:
        """Whether `correlation_id` names this envelope: the wire's only link from an answer to its request.

        Anybody may write any id there, so a reader also checks who sent the answer.
        """
        return envelope_id in self.correlation_ids

    def encode(self) -> bytes:
        """Compact UTF-8 JSON: headers first, then the sender's own keys, as the reference writes them."""
        # The serializer itself: `model_dump_json` would decode its bytes only for us to encode them again.
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True)

    def as_dict(self) -> dict[str, Any]:
        """The wire's JSON object."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Envelope(Draft):
    """A complete envelope, as members receive it."""

    protocol: str = PROTOCOL
    id: str
    ts: str
    sender: str = Field(alias="from")
    kind: str

    @staticmethod
    def complete(draft: Draft, *, id: str, ts: str, sender: str) -> "Envelope":  # noqa: A002 - the wire's word
        """Fill what the sender left out; what the sender wrote stands. A null header is left out."""
        if isinstance(draft, Envelope):
            return draft
        values: dict[str, Any] = {
            **(draft.model_extra or {}),
            **{name: value for name in _OPTIONAL_FIELDS if (value := getattr(draft, name)) is not None},
            "protocol": draft.protocol or PROTOCOL,
            "id": draft.id or id,
            "ts": draft.ts or ts,
            "from": draft.sender or sender,
            "kind": draft.kind or "",
        }
        # Not `model_construct`: the sender's own keys may have any name, those of its arguments too.
        envelope: Envelope = Envelope.__pydantic_validator__.validate_python(values, by_alias=True, by_name=False)
        return envelope

    @staticmethod
    def write(
        kind: str,
        *,
        id: str,  # noqa: A002 - the wire's word
        ts: str,
        sender: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        to: Iterable[str] = (),
        correlation_id: Iterable[str] = (),
        context: str | None = None,
    ) -> "Envelope":
        """Make an envelope of our own. Empty `to` means everybody and is left out, as is every absent header."""
        body = payload.model_dump(mode="json", exclude_none=True) if isinstance(payload, BaseModel) else payload
        optional: dict[str, Any] = {
            "to": tuple(to) or None,
            "correlation_id": tuple(correlation_id) or None,
            "context": context,
            "payload": dict(body) if body is not None else None,
        }
        present = {name: value for name, value in optional.items() if value is not None}
        return Envelope.model_construct(protocol=PROTOCOL, id=id, ts=ts, sender=sender, kind=kind, **present)

    def is_for(self, participant: str) -> bool:
        """Whether it is addressed to this participant by name or to everybody. Delivery never depends on it."""
        return not self.to or participant in self.to

    def names(self, participant: str) -> bool:
        """Whether it is addressed to this participant by name."""
        return participant in self.addressees


def is_complete(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object has every header an envelope needs, and no null where a value is meant."""
    try:
        return all(_required(value)) and None not in value.values()
    except KeyError:
        return False


_required = itemgetter("protocol", "id", "ts", "from", "kind")
_OPTIONAL_FIELDS = ("to", "correlation_id", "context", "payload")
