"""The scenarios of the TypeScript reference, run with our `mew` or with its own.

    git clone https://github.com/rjcorwin/mew-protocol
    make test-reference REFERENCE=mew-protocol

Needs Node.js 22 or newer, npm, bash, curl and jq. Each scenario of the reference is a folder with a `test.sh` that
starts a space through the `mew` on its PATH and reads the logs. This program puts a `mew` there, runs the scripts one
at a time, and prints one line for each. Exits with 1 if a scenario failed that is not in `KNOWN`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120
"""The limit of a scenario; the reference's own runner has the same one."""

KNOWN = {"scenario-14-cat-maze": "a race in its narrator: it fails in half of its runs, without any mew in it"}
"""Scenarios that fail whichever `mew` runs, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario: whether it passed, and the end of its output."""

    name: str
    is_passed: bool
    output: str


def build(reference: Path) -> None:
    """Install and compile the reference, unless that is done. Raises `CalledProcessError`."""
    if not (reference / "node_modules").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=reference, check=True)
    if not (reference / "dist/cli/index.js").exists():
        subprocess.run(["npm", "run", "build"], cwd=reference, check=True)


_JQ = """#!/bin/sh
output=$('{jq}' "$@"); code=$?
[ -z "$output" ] || printf '%s\\n' "$output"
[ -z "$output" ] && exit $code
exit 0
"""
"""jq as of version 1.7: `jq -e` succeeds if any line of a log matches. Before, only the last line counted."""


def add_programs(folder: Path, reference: Path, *, is_ours: bool) -> None:
    """Add the programs that the scenarios find first on their PATH: the `mew` to test, and jq. Raises `SystemExit`."""
    jq = shutil.which("jq")
    if jq is None:
        sys.exit("jq not found; the scenarios search the logs with it")
    (folder / "jq").write_text(_JQ.format(jq=jq), encoding="utf-8")
    (folder / "jq").chmod(0o755)
    # PM2, which starts the reference's programs, reads this file as JavaScript, so a shell script would not do.
    program = Path(sys.executable).with_name("mew") if is_ours else reference / "dist/cli/index.js"
    program.chmod(program.stat().st_mode | 0o111)
    (folder / "mew").symlink_to(program)


def run(scenario: Path, folder: Path, compat: str) -> Outcome:
    """Run a scenario in a session of its own, with its own home."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder.parent))
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "PM2_HOME": str(home / "pm2"),
        "MEW_COMPAT": compat,
    }
    process = subprocess.Popen(
        ["bash", "test.sh"],
        cwd=scenario,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output = f"{process.communicate()[0]}\nno end after {SECONDS} s"
    return Outcome(scenario.name, process.returncode == 0, output)


def main() -> None:
    """Run the scenarios and print which pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=__doc__.partition("\n")[0])
    parser.add_argument("reference", type=Path, help="a checkout of the TypeScript reference")
    parser.add_argument("--only", nargs="+", default=(), help="names of scenarios, or parts of them")
    parser.add_argument("--compat", default="reference", help="MEW_COMPAT for our programs (default: reference)")
    parser.add_argument("--own-mew", action="store_true", help="use the reference's mew instead of ours")
    parser.add_argument("--output", type=Path, help="folder that keeps the output of each scenario")
    options = parser.parse_args()
    reference = options.reference.resolve()
    build(reference)
    failed = []
    with tempfile.TemporaryDirectory(prefix="mew-reference-") as temporary:
        folder = Path(temporary) / "bin"
        folder.mkdir()
        add_programs(folder, reference, is_ours=not options.own_mew)
        scenarios = sorted(one.parent for one in reference.glob("e2e/scenario-*/test.sh"))
        for scenario in scenarios:
            if options.only and not any(part in scenario.name for part in options.only):
                continue
            outcome = run(scenario, folder, options.compat)
            known = "" if options.own_mew else KNOWN.get(outcome.name, "")
            print(f"{'passed' if outcome.is_passed else 'FAILED'}  {outcome.name}  {known}".rstrip(), flush=True)
            if options.output is not None:
                options.output.mkdir(parents=True, exist_ok=True)
                (options.output / f"{outcome.name}.log").write_text(outcome.output, encoding="utf-8")
            elif not outcome.is_passed and not known:
                print(outcome.output[-3000:], flush=True)
            if not outcome.is_passed:
                failed.append(outcome.name)
            shutil.rmtree(scenario / ".workspace", ignore_errors=True)
    unexpected = [name for name in failed if options.own_mew or name not in KNOWN]
    print(f"{len(failed)} failed, {len(unexpected)} of them unexpected")
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
