"""`mew serve a2a`: what it refuses besides `mew serve openai`. tests/interaction runs it as a process."""

import pytest
from mew_settings.installation import install_command

from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


async def test_missing_extra_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.extras.find_spec", lambda _: None)
    outcome = await mew("serve", "a2a")
    assert outcome.code == 2
    assert f"`mew serve a2a` needs the extra 'a2a': {install_command('a2a')}" in outcome.err
