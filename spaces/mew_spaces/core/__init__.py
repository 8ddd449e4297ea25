"""[pure] One space: membership, permissions, proposals, streams and the board. Events in, effects out."""
