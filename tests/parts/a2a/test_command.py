"""`mew a2a serve`: what it refuses besides `mew serve`. tests/interaction runs it as a process."""

import pytest

from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


async def test_missing_extra_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.errors.find_spec", lambda _: None)
    outcome = await mew("a2a", "serve")
    assert outcome.code == 2
    assert "`mew a2a serve` needs the extra 'a2a': pip install 'mew-agent[a2a]'" in outcome.err
