"""A package for pytest, so that `context` in conftest.py ends with the last test of this folder."""
