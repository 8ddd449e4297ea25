"""`mew`, and `python -m mew_agent`: the command line, also for whoever interrupts it while it is still loading."""

import sys


def main() -> None:
    """Run `mew` with the arguments of this process, and end it with the exit code."""
    try:
        from mew_agent.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
