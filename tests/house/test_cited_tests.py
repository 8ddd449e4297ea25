"""Pages that cite tests: the threat model and the requirements name tests and code that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLES = {
    "explanation/threat-model.md": {"Defences": 16, "OWASP: WebSocket security": 16},
    "reference/requirements.md": {
        "Dominds, first version": 15,
        "Dominds, third version": 13,
        "LM Studio autocompaction": 16,
        "MEW proposal a8c": 18,
        "Tachikoma specification 074": 14,
    },
}
"""The tables of each page, by heading, and how many rows each has at least. The last column cites tests."""


def rows_after(page: str, heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    heading = f"## {heading}\n"
    section = text[text.index(heading) + len(heading) :].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.parametrize("page", TABLES)
def test_each_row_names_tests_that_exist(page: str) -> None:
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    for heading, least in TABLES[page].items():
        rows = rows_after(page, heading)
        assert len(rows) >= least
        for point, _, tests in rows:
            named = re.findall(r"`(test_\w+)`", tests)
            assert named, f"{point}: names no test"
            assert set(named) <= known, f"{point}: {set(named) - known}"


def test_each_requirement_names_code_that_exists() -> None:
    for heading in TABLES["reference/requirements.md"]:
        for point, place, _ in rows_after("reference/requirements.md", heading):
            paths = re.findall(r"`([\w/.]+)`", place)
            assert paths, point
            assert all((ROOT / path).exists() for path in paths), f"{point}: {paths}"
