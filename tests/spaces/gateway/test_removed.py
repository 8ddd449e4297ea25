"""A participant that was removed leaves nothing behind, so that invitations and removals cost no memory."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import parse_space
from mew_spaces.core.events import ConnectionId
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.service import SpaceService

from tests.support.channels import RecordingChannel

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
"""
FIGURES = {"tokens": 900, "max_tokens": 8192, "messages_in_context": 2, "status": "idle"}
REPORT = {**FIGURES, "context": {"basis": "reported", "measured_at": "2026-01-01T00:00:00Z"}}
EVE = ParticipantId("eve")
REMEMBERED = {"removed", "revoked", "_removed"}
"""That it was removed: by the state, for joins with a token checked earlier, and for readers of views."""


class Space:
    """A space and its clock."""

    def __init__(self) -> None:
        config, self.now = parse_space(SPACE), datetime(2026, 1, 1, tzinfo=UTC)
        self.service = SpaceService(config, TokenBook.generate(config), clock=lambda: self.now)
        self.service.attention.views.followers = 1

    def join(self) -> ConnectionId:
        connection = self.service.new_connection()
        self.service.attach(connection, RecordingChannel())
        self.service.join(connection, EVE)
        return connection

    def send(self, sender: str, kind: str, payload: dict[str, Any], **headers: Any) -> None:
        draft = read_draft({"kind": kind, "payload": payload, **headers})
        assert self.service.receive(None, ParticipantId(sender), draft).receipt.accepted is not None

    def look(self) -> None:
        self.service.attention.refresh()
        self.service.board()

    def places(self, name: str) -> Iterator[str]:
        """Yield the tables that have a name."""
        space, service = self.service.space, self.service
        parts: list[Any] = [space, space.board, space.board.requests, space.connections, space.membership, space.state]
        parts += [service, service.attention, service.attention.views, service.performer, service.sessions]
        for part in parts:
            for field in vars(part) if hasattr(part, "__dict__") else part.__slots__:
                held = getattr(part, field)
                if isinstance(held, dict | set) and name in (*held, *(held.values() if isinstance(held, dict) else ())):
                    yield field


def test_nothing_is_kept_of_a_removed_participant() -> None:
    space = Space()
    for status in (FIGURES, REPORT):
        space.send("ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [{"kind": "*"}]})
        connection = space.join()
        for _ in range(2):
            space.send("eve", "participant/status", status)
            space.send("eve", "chat", {"text": "Hello."})
            space.now += timedelta(seconds=10)
            space.look()
        space.service.leave(connection)
        space.send("ada", "chat", {"text": "Are you there?"}, to=["eve"])
        space.look()
        connection = space.join()
        space.look()
        assert len(set(space.places("eve"))) > 3
        space.send("ada", "space/kick", {"participant_id": "eve"})
        space.service.leave(connection)
        space.look()
        assert set(space.places("eve")) <= REMEMBERED


def test_a_participant_that_is_invited_again_was_not_away_before() -> None:
    space = Space()
    for hours in (0, 1):
        space.now += timedelta(hours=hours)
        space.send("ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [{"kind": "*"}]})
        space.look()
        space.send("eve", "participant/status", REPORT)
        space.look()
        assert not space.service.attention.items
        space.send("ada", "space/kick", {"participant_id": "eve"})
        space.look()
