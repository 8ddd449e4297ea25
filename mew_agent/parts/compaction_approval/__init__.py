"""Asks a participant before an agent compacts (`compaction:` in the settings of an agent)."""
