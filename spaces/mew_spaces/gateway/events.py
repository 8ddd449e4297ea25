"""Server-sent events: a space for readers without a WebSocket connection, live and resumable.

Sends only what a member would receive: the board first, then each accepted envelope with its position in the history.
A reader that reconnects with its last position gets what it missed, or a `reset` event if that is no longer stored. If
the gateway restarted meanwhile, the board follows: nobody announced that the members of before were disconnected.
"""

from collections.abc import AsyncGenerator

import anyio
from mew_protocol.position import Position

from mew_spaces.gateway.service import SpaceService

KEEP_ALIVE_SECONDS = 15.0

_BATCH = 256
"""How many events are written at once at most."""


async def event_stream(
    service: SpaceService,
    since: str | None,
    *,
    token: str | None = None,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a space from `since` (`<epoch>-<sequence>`) or from now, until the gateway stops.

    Also ends when the reader's `token` is revoked, even if the participant was invited again with another.
    """
    history = service.log
    place = Position.parse(since) if since else None
    is_from_earlier_run = place is not None and place.sequence < service.started_position.sequence
    if since is None:
        place = history.position
        yield _board(service, place)
    while not history.is_closed and (token is None or service.tokens.may_read(token)):
        entries = history.since(place, limit=_BATCH) if place is not None else None
        if entries is None or place is None:
            place = history.position
            is_from_earlier_run = False
            yield event("reset", b'{"reason":"history_gone"}') + _board(service, place)
        elif entries:
            place = Position(history.epoch, entries[-1].sequence)
            yield b"".join(
                event("envelope", entry.data, id=str(Position(history.epoch, entry.sequence))) for entry in entries
            )
        elif is_from_earlier_run:
            is_from_earlier_run = False
            yield _board(service, place)
        else:
            with anyio.move_on_after(keep_alive_seconds) as waiting:
                await history.wait_beyond(place)
            if waiting.cancelled_caught:
                yield b": keep-alive\n\n"


def event(name: str, data: bytes, *, id: str | None = None) -> bytes:  # noqa: A002 - the field's name in the format
    """Format one event. `data` is JSON without line breaks, as our encoder writes it."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


def _board(service: SpaceService, place: Position) -> bytes:
    data = service.board().model_dump_json(by_alias=True, exclude_unset=True).encode()
    return event("board", data, id=str(place))
