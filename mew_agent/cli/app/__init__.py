"""What all commands share: options, help, terminal output, errors and exit codes."""
