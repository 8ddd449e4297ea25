"""`mew serve mcp`: what it refuses. tests/interaction runs it as a process."""

import pytest
from mew_settings.installation import install_command

from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


async def test_group_alone_lists_its_commands() -> None:
    outcome = await mew("serve", "--help")
    assert outcome.code == 0
    assert "  mcp " in outcome.out


async def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.extras.find_spec", lambda _name: None)
    outcome = await mew("serve", "mcp")
    assert outcome.err == f"mew: `mew serve mcp` needs the extra 'mcp': {install_command('mcp')}\n"
    assert outcome.code == 2


async def test_http_server_needs_an_identity_at_start() -> None:
    outcome = await mew("serve", "mcp", "--http", "0")
    assert "no space is running here" in outcome.err
    assert outcome.code == 2
