"""Prints the lower bound of each dependency in pyproject.toml as a pip constraint, for `make test-lowest`."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

COMPANIONS = ("click==8.3.1",)
"""Versions that the lowest ones were released with: typer 0.23 misreads the defaults of options with a newer click."""


def constraints() -> Iterator[str]:
    """`name==lowest` for each requirement that names a lower bound, extras of the package included."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(one for extra in extras.values() for one in extra)]:
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?>=([0-9.]+)", requirement)
        if found:
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(sorted({*constraints(), *COMPANIONS})))
