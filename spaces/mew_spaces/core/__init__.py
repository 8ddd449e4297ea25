"""[pure] One space: its durable state, membership, streams and status board. Events in, effects out."""
