"""Questions to agents and the events of their answers."""
