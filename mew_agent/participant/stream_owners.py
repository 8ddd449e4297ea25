"""[pure] Who owns each open stream. A frame names what it is about itself, so only its owner can be believed."""

from collections.abc import Iterator

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY_IDS
from mew_protocol.json_values import objects_at


class StreamOwners:
    """The owners of streams, by what the gateway has said."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def receive(self, envelope: Envelope) -> None:
        """Follow what an envelope says about streams."""
        match envelope.kind:
            case kinds.SYSTEM_WELCOME if envelope.sender in GATEWAY_IDS:
                self._owners = dict(_owners_in(envelope.body.get("active_streams")))
            case kinds.STREAM_OPEN if envelope.sender in GATEWAY_IDS:
                self._owners |= _owners_in([envelope.body])
            case kinds.STREAM_CLOSE:
                stream_id = str(envelope.body.get("stream_id"))
                if envelope.sender in GATEWAY_IDS or envelope.sender == self._owners.get(stream_id):
                    self._owners.pop(stream_id, None)
            case _:
                pass

    def owner(self, stream_id: str) -> str | None:
        """Return the participant that opened a stream; None if that is not known."""
        return self._owners.get(stream_id)


def _owners_in(streams: object) -> Iterator[tuple[str, str]]:
    for stream in objects_at(streams):
        if isinstance(stream.get("stream_id"), str):
            yield stream["stream_id"], str(stream.get("owner") or "")
