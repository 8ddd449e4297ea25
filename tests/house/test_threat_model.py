"""The threat model names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading."""
    section = PAGE[PAGE.index(heading) + len(heading) :].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_each_defence_names_tests_that_exist() -> None:
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    for heading in ("## Defences", "## OWASP: WebSocket security"):
        rows = rows_after(heading)
        assert len(rows) > 15
        for point, _, tests in rows:
            named = re.findall(r"`(test_\w+)`", tests)
            assert named, f"{point}: names no test"
            assert set(named) <= known, f"{point}: {set(named) - known}"
