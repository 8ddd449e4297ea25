"""The configuration of a space: its keys, and reading them from space.yaml."""
