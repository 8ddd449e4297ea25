"""What all commands share: the list of commands, options, help, terminal output, errors and exit codes."""
