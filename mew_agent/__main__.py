"""`mew`, and `python -m mew_agent`: the command line, also for whoever interrupts it while it is still loading."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run `mew` with the arguments of this process, and end it with the exit code."""
    try:
        from mew_agent.cli.main import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    # An interruption that passes through an `exec` of text (dataclasses use it) leaves a mark with which `python -m`
    # would end by the signal, whatever the exit code; the next `exec` of text takes it away.
    exec("")  # noqa: S102
    sys.exit(code)


if __name__ == "__main__":
    main()
