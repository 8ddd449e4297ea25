"""[pure] Reads and writes the join message in all its forms.

A client may send a bare frame `{"type": "join", ...}` or an envelope of kind `system/join`. Its keys may be at the top
or in the payload, in either spelling. The third form, a bearer header, is read by the gateway.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from mew_protocol import errors
from mew_protocol.envelope import Draft
from mew_protocol.kinds import SYSTEM_JOIN
from mew_protocol.payloads.system import DeliveryOptions

JOIN_HEADER = "mew-join"
JOIN_BY_FRAME = "frame"
"""Value of the upgrade's header `Mew-Join` of a client that sends a join frame. However slow its link is, the gateway
then does not join it by its bearer header, without the requests in that frame."""


class DeliveryRequest(NamedTuple):
    """The envelopes that a client requests at the start: those after `since`, else the newest `last`, else none.

    `batches_presence`: it accepts several presences in one `system/presence-batch`.
    """

    since: str | None = None
    last: int = 0
    batches_presence: bool = False


class JoinRequest(NamedTuple):
    """A request to join a space. Missing values are None; the gateway chooses defaults."""

    participant: str | None = None
    space: str | None = None
    token: str | None = None
    delivery: DeliveryRequest | None = None


def join_frame(*, space: str, participant: str, token: str, delivery: DeliveryRequest | None = None) -> dict[str, Any]:
    """Return our client's first frame, in the only form that the TypeScript gateway reads."""
    frame: dict[str, Any] = {
        "type": "join",
        "space": space,
        "token": token,
        "participantId": participant,
        "capabilities": [],
    }
    if delivery is not None:
        presence = "batched" if delivery.batches_presence else None
        wanted = {"since": delivery.since, "last": delivery.last, "presence": presence}
        frame["delivery"] = {key: value for key, value in wanted.items() if value}
    return frame


def join_request(draft: Draft) -> JoinRequest | None:
    """Return the join request in a message, or None. Raises `DecodeError` for an invalid `delivery`."""
    kind = draft.kind
    if kind is not None and kind != SYSTEM_JOIN:
        return None
    extra: Mapping[str, Any] = draft.model_extra or {}
    if kind is None and extra.get("type") != "join":
        return None
    places = (extra, draft.body)
    return JoinRequest(
        participant=_first(places, "participantId", "participant_id", "participant") or draft.sender,
        space=_first(places, "space"),
        token=_first(places, "token"),
        delivery=_delivery(places),
    )


def _delivery(places: tuple[Mapping[str, Any], ...]) -> DeliveryRequest | None:
    given = next((place["delivery"] for place in places if place.get("delivery") is not None), None)
    if given is None:
        return None
    try:
        asked = DeliveryOptions.model_validate(given)
    except ValidationError as error:  # a client that asks for what it missed must not join without it
        place, problem = errors.first_mistake(error)
        where = f"delivery.{place}" if place else "delivery"
        raise errors.DecodeError(errors.INVALID_FRAME, f"{where}: {problem}", errors.VALIDATION_ERROR) from None
    return DeliveryRequest(asked.since, asked.last or 0, batches_presence=asked.presence == "batched")


def _first(places: tuple[Mapping[str, Any], ...], *names: str) -> str | None:
    values = (place.get(name) for place in places for name in names)
    return next((value for value in values if isinstance(value, str) and value), None)
