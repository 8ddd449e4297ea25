"""`mew a2a serve`: what it refuses. tests/interaction runs it as a process."""

from pathlib import Path

import pytest

from mew_agent.cli.programs import a2a_server
from tests.mew_agent.cli.programs.test_serve import SPACE
from tests.mew_agent.cli.remote.test_session import running_space
from tests.support.cli import mew


async def test_missing_space_says_how_to_start_one() -> None:
    outcome = await mew("a2a", "serve")
    assert outcome.code == 2
    assert "Start one with `mew up`" in outcome.err


async def test_acting_as_a_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    running_space(tmp_path, config=str(path))
    outcome = await mew("a2a", "serve", "--participant", "coder", "--token", "t")
    assert outcome.code == 2
    assert "'coder' is a program" in outcome.err


async def test_missing_extra_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_server, "find_spec", lambda _: None)
    outcome = await mew("a2a", "serve")
    assert outcome.code == 2
    assert "`mew a2a serve` needs the extra 'a2a': pip install 'mew-agent[a2a]'" in outcome.err
