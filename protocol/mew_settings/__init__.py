"""Settings, private files and lines of programs, and the tables that plug-ins extend: shared by spaces and agents.

Imports `mew_protocol` and neither side. `plugins` must stay quick to import: `mew --help` needs it.
"""
