"""Questions to agents, and their answers as streams of events."""
