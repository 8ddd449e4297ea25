"""Interactive sessions in a terminal, and raw connections for scripts."""
