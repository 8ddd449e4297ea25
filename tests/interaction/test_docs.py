"""The commands that the documents show are run as they stand."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.interaction.test_failures import TABLE

DOCS = Path(__file__).parents[2] / "docs"
COMMAND_SECONDS = 120


def commands(page: Path) -> list[str]:
    """The lines after `$ ` in the page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command as a reader would type it, with our `mew` first on the PATH."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def test_getting_started_works_from_its_first_command_to_its_last(
    tmp_path: Path, unused_port: int, request: pytest.FixtureRequest
) -> None:
    page = DOCS / "getting-started.md"
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "space.yaml").write_text(yaml, encoding="utf-8")
    request.addfinalizer(lambda: run("mew down", tmp_path))
    told: dict[str, str] = {}
    for command in commands(page):
        done = run(command.replace("8090", str(unused_port)), tmp_path)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        told[command] = done.stdout
    assert re.search(r"coder: freed [\d,]+ tokens", told['mew compact coder --reason "long review ahead"'])
    assert "projected" in told["mew status"]


def test_the_mcp_page_brings_a_published_server_into_a_space(
    tmp_path: Path, unused_port: int, request: pytest.FixtureRequest
) -> None:
    page = DOCS / "mcp.md"
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "space.yaml").write_text(yaml, encoding="utf-8")
    request.addfinalizer(lambda: run("mew down", tmp_path))
    told: dict[str, str] = {}
    for command in commands(page):
        done = run(command.replace("8090", str(unused_port)), tmp_path)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        told[command] = done.stdout
    assert "clock: joined" in told["mew up --detach --port 8090"]
    for tool in ("send_chat", "read_board", "request_compaction", "list_participants", "recent_chat"):
        assert f"`{tool}(" in page.read_text(encoding="utf-8")


def test_the_agents_page_brings_a_rule_into_a_space(
    tmp_path: Path, unused_port: int, request: pytest.FixtureRequest
) -> None:
    page = DOCS / "agents.md"
    files = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for name, text in zip(("space.yaml", "keeper.yaml"), files, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    request.addfinalizer(lambda: run("mew down", tmp_path))
    answers: list[str] = []
    for command in commands(page):
        done = run(command.replace("8090", str(unused_port)), tmp_path)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        if command.startswith("mew chat"):
            answers.append(done.stdout)
    summed, refused, board = answers
    assert "5" in summed
    assert "'keeper' rejected the proposal" in refused
    assert "only sums and products" in refused
    assert "coder (you): " in board


def test_the_agents_page_names_the_failures_that_are_tested() -> None:
    page = (DOCS / "agents.md").read_text(encoding="utf-8")
    table = page[page.index("## When something fails") : page.index("Each row is a test")]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert rows[1:] == [row.name for row in TABLE]


def test_every_page_comes_with_an_installed_package() -> None:
    """`mew demo` reads them."""
    packaging = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    shipped = packaging["targets"]["wheel"]["force-include"]
    assert shipped == {f"docs/{page.name}": f"mew_agent/_docs/{page.name}" for page in DOCS.glob("*.md")}


def test_the_readme_names_every_page_and_none_that_is_not_there() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    missing = [link for link in links if not (DOCS.parent / link).exists()]
    assert not missing
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= set(links)
