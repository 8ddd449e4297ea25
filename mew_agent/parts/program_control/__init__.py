"""Logs of programs, and restarts and additions of participants, for the dashboard of a space under `mew up`."""
