"""The entry point of `mew` and `python -m mew_agent`. Ctrl-C ends it quietly even while it is still loading."""

import signal
import sys
from importlib.util import find_spec
from typing import NoReturn

from mew_settings.installation import SPACE_PACKAGE, install_command

from mew_agent.cli.app.signals import end_on_interrupt


def main() -> NoReturn:
    """Run `mew` with the arguments of this process, and exit with its exit code."""
    end_on_interrupt()
    if find_spec(SPACE_PACKAGE) is None:
        print(f"mew: gateway and command line need the extra 'space': {install_command('space')}", file=sys.stderr)
        sys.exit(2)
    from mew_agent.cli.main import run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # how this ends is decided
    # A KeyboardInterrupt that passes through an `exec` of text (dataclasses use it) leaves a flag with which `python
    # -m` would end by the signal, whatever the exit code. Another `exec` of text clears it.
    exec("")  # noqa: S102
    sys.exit(code)


if __name__ == "__main__":
    main()
