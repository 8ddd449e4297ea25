"""space.yaml: its keys, and loading it with file, line and column for each error."""
