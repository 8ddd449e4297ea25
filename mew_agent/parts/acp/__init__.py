"""The Agent Client Protocol: agents of other projects as participants, and agents of a space in editors."""
