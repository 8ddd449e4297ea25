"""What an agent's model may call: its own functions, peers' tools, the board, what left the context."""
