"""Participants that are agents of other projects, over the Agent Client Protocol."""
