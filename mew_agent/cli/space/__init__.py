"""Commands that create, start, change and stop a space."""
