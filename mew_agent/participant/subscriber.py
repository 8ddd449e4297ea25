"""What a part of a participant implements to follow what arrives."""

from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope

from mew_agent.participant.peers import PeerChanges


class Subscriber:
    """Follows what arrives at a participant. All methods return at once; work that waits runs as a task."""

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """Handle an envelope. `changes` is what it changed in the known peers, which are up to date already."""

    def receive_frame(self, frame: StreamFrame) -> None:
        """Handle a stream frame."""

    def connected(self) -> None:
        """Handle a new connection, the first or a later one; what was sent in between is missed."""
