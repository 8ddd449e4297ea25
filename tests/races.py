"""Run failed tests again, each alone: one that passes then is a race, and fails the run unless it is listed.

`.ci/run` calls it after a failed run. `.ci/known-races` lists races that are known, one a line: the test, the date on
which it was added, and the reason. A listed race is to be mended; the date shows how long it has waited.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / ".ci" / "known-races"
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST_FAILED = 20
"""With more failures, something is broken for all tests, and none is run again."""

_LINE = re.compile(r"(?P<test>\S+::\S.*?)\s+(?P<date>\d{4}-\d\d-\d\d)\s+(?P<reason>\S.*)")


@dataclass(frozen=True)
class Verdict:
    """The failed tests of a run: broken (failed alone, too), races that nobody listed, and listed ones."""

    broken: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        return not (self.broken or self.races)


def read_known(text: str) -> dict[str, str]:
    """Read a list of races: each test with its reason. Raises `ValueError` for a line without date or reason."""
    known = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise ValueError(f"{KNOWN.name}:{number}: expected TEST YYYY-MM-DD REASON, got {line!r}")
            known[found["test"]] = found["reason"]
    return known


def judge(failed: Sequence[str], known: Mapping[str, str], passes_alone: Callable[[str], bool]) -> Verdict:
    """Return the verdict on the failed tests of a run."""
    if len(failed) > MOST_FAILED:
        return Verdict(broken=tuple(failed))
    alone = [one for one in failed if passes_alone(one)]
    return Verdict(
        tuple(one for one in failed if one not in alone),
        tuple(one for one in alone if one not in known),
        tuple(one for one in alone if one in known),
    )


def main() -> int:
    """Judge the last run, print the verdict, and return the exit code."""
    failed = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []
    if not failed:
        print("the run failed without a failed test")
        return 1

    def passes_alone(test: str) -> bool:
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0

    verdict = judge(failed, read_known(KNOWN.read_text(encoding="utf-8")), passes_alone)
    for title, tests in (
        ("broken", verdict.broken),
        ("races (they passed alone): mend them, or list them in .ci/known-races", verdict.races),
        ("known races", verdict.known),
    ):
        if tests:
            print(f"{title}:", *tests, sep="\n  ")
    return 0 if verdict.passes else 1


if __name__ == "__main__":
    sys.exit(main())
