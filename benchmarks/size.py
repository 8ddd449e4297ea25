"""Counts the lines of the product by room, and the share of the core.

    python -m benchmarks.size

Lines of Python, JavaScript, CSS and HTML, with comments and docstrings; without tests, documents and copied libraries.
The core is everything outside of the folders `parts`. Exits with 1 if it is more than three quarters. Many parts
are commands and small additions, so a second share counts only those of `SYSTEMS` as parts.
"""

from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("mew_agent", "spaces/mew_spaces", "protocol")
SUFFIXES: Final = frozenset({".py", ".js", ".css", ".html"})
MOST_CORE: Final = 0.75
SYSTEMS: Final = (
    *("acp", "a2a", "mcp", "meter", "openai_api", "jetstream", "terminal", "local", "tracing", "policies"),
    *("integrations", "reference", "rehearsal", "tokenizers"),
)
"""The parts with a protocol, a library or a model of their own."""


def rooms() -> Counter[str]:
    """Return the lines of each room: a folder of a package, or of its `parts`."""
    lines = Counter[str]()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*"):
            if file.suffix in SUFFIXES and "vendor" not in file.parts:
                folders = file.relative_to(ROOT / package).parent.parts
                room = (package, *folders[: 2 if folders[:1] == ("parts",) else 1])
                lines["/".join(room)] += len(file.read_text(encoding="utf-8").splitlines())
    return lines


def core_share(lines: Counter[str]) -> float:
    """Return the share of the lines that are outside of the parts."""
    parts = sum(count for room, count in lines.items() if "/parts" in room)
    return 1 - parts / lines.total()


def share_without_systems(lines: Counter[str]) -> float:
    """Return the share of the lines that are outside of the parts of `SYSTEMS`."""
    systems = sum(count for room, count in lines.items() if "/parts/" in room and room.rpartition("/")[2] in SYSTEMS)
    return 1 - systems / lines.total()


def main() -> int:
    """Print the table. Returns 1 if the core is too large."""
    lines = rooms()
    for room, count in lines.most_common():
        print(f"{count:>7,}  {room}")
    share = core_share(lines)
    print(f"{lines.total():>7,}  lines; the core has {share:.1%} of them (at most {MOST_CORE:.0%})")
    print(f"{share_without_systems(lines):>7.1%}  with the parts that are commands and small additions")
    return int(share > MOST_CORE)


if __name__ == "__main__":
    raise SystemExit(main())
