"""An agent's conversation with its model: turns, calls, context state and policy actions."""
