"""Runs a benchmark by turns in this tree and in another revision of it, and compares the figures.

    python -m benchmarks.against REVISION fanout --members 100 --durability memory
    python -m benchmarks.against REVISION decisions --items 10 1000 [--turns 5] [--limit 1.02]

The other revision is checked out into a temporary folder and runs its own code of the benchmark, with the installed
libraries of this environment. Both run once in each turn, and change their order from turn to turn, so that other load
affects both. The table shows the medians of each figure on both sides, and of the ratio of ours to the other one's in
each turn. Cells are compared by their place: the benchmark must print the same table in both. With `--column` and
`--limit`, the exit code is 1 if the ratio of that column exceeds the limit in any row.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("", "protocol", "spaces")
"""The folders of the import packages in a tree."""

NUMBER = re.compile(r"[\d,]+(?:\.\d+)?$")

Cells = list[list[str]]


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision, while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def run_in(tree: Path, arguments: Sequence[str]) -> Cells:
    """Run a benchmark of a tree. Returns the words of each line that it prints."""
    paths = os.pathsep.join(str(tree / one) for one in PACKAGES)
    command = [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:]]
    environment = {**os.environ, "PYTHONPATH": paths}
    found = subprocess.run(command, cwd=tree, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    if not found.stdout:
        raise SystemExit(f"{' '.join(command)} printed nothing in {tree}")
    return [line.split() for line in found.stdout.splitlines()]


def figures_at(runs: Sequence[Cells], row: int, column: int) -> list[float]:
    """Return what one cell was in each run; nothing unless it is a number in all of them."""
    try:
        words = [run[row][column] for run in runs]
    except IndexError:
        return []
    return [float(word.replace(",", "")) for word in words] if all(NUMBER.match(word) for word in words) else []


def main() -> int:
    """Print the comparison. The exit code is 1 if a ratio exceeds the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revision", help="revision to compare with")
    parser.add_argument("--turns", type=int, default=5, help="how often each runs (default: 5)")
    parser.add_argument("--column", type=int, help="the column that `--limit` is for, from 0 (default: none)")
    parser.add_argument("--limit", type=float, help="largest ratio of ours to the other one's in that column")
    options, arguments = parser.parse_known_args()
    if not arguments:
        parser.error("name a benchmark, such as fanout")
    ours: list[Cells] = []
    others: list[Cells] = []
    with checkout(options.revision) as other:
        for turn in range(options.turns):
            sides = [(ROOT, ours), (other, others)]
            for tree, runs in sides if turn % 2 == 0 else sides[::-1]:
                runs.append(run_in(tree, arguments))
    print(f"load average {os.getloadavg()[0]:.1f}; medians of {options.turns} turns: ours/{options.revision}=ratio")
    is_over = False
    for row, words in enumerate(ours[0]):
        shown = []
        for column, word in enumerate(words):
            here, there = figures_at(ours, row, column), figures_at(others, row, column)
            if not here or not there or not all(there) or here == there:
                shown.append(word)
                continue
            ratio = statistics.median(one / other for one, other in zip(here, there, strict=True))
            shown.append(f"{statistics.median(here):g}/{statistics.median(there):g}={ratio:.3f}")
            is_over |= options.limit is not None and column == options.column and ratio > options.limit
        print(" ".join(shown))
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
