"""The configuration of a space: its keys, and the reading of space.yaml."""
