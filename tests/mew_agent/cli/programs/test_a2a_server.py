"""`mew a2a serve`: what it refuses besides `mew serve`. tests/interaction runs it as a process."""

import pytest

from mew_agent.cli.programs import a2a_server
from tests.support.cli import mew


async def test_missing_extra_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_server, "find_spec", lambda _: None)
    outcome = await mew("a2a", "serve")
    assert outcome.code == 2
    assert "`mew a2a serve` needs the extra 'a2a': pip install 'mew-agent[a2a]'" in outcome.err
