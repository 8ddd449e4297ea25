"""The base of all commands: their list, options, help, terminal output, errors and exit codes."""
