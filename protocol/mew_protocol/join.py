"""[pure] The join forms of the wire, read as one.

A client may open with a bare frame `{"type": "join", ...}` or with an envelope of kind `system/join`; keys may
stand at the top or in the payload, in either spelling. A bearer header is the gateway's third form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mew_protocol.envelope import Draft
from mew_protocol.kinds import SYSTEM_JOIN


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """What a joiner wants delivered first: what follows `since`, else the newest `last` envelopes, else nothing."""

    since: str | None = None
    last: int = 0


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Who asks to join where. Everything is None that the client left out; the gateway decides what that means."""

    participant: str | None = None
    space: str | None = None
    token: str | None = None
    delivery: DeliveryRequest | None = None


def join_frame(*, space: str, participant: str, token: str, delivery: DeliveryRequest | None = None) -> dict[str, Any]:
    """The frame our client sends first; the TypeScript gateway reads this spelling and no header."""
    frame: dict[str, Any] = {
        "type": "join",
        "space": space,
        "token": token,
        "participantId": participant,
        "capabilities": [],
    }
    if delivery is not None:
        wanted = {"since": delivery.since, "last": delivery.last}
        frame["delivery"] = {key: value for key, value in wanted.items() if value}
    return frame


def join_request(draft: Draft) -> JoinRequest | None:
    """Read a join from a message, or None when it is none."""
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
    for place in places:
        asked = place.get("delivery")
        if isinstance(asked, Mapping):
            since, last = asked.get("since"), asked.get("last")
            return DeliveryRequest(
                since=since if isinstance(since, str) else None,
                last=last if isinstance(last, int) and not isinstance(last, bool) and last > 0 else 0,
            )
    return None


def _first(places: tuple[Mapping[str, Any], ...], *names: str) -> str | None:
    for place in places:
        for name in names:
            value = place.get(name)
            if isinstance(value, str) and value:
                return value
    return None
