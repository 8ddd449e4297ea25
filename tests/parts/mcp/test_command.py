"""`mew bridge`: what it refuses before it connects. tests/interaction runs bridges as processes."""

import pytest
from mew_settings.installation import install_command

from mew_agent.errors import ConfigError
from mew_agent.parts.mcp.bridge_and_serve import _parse_arguments, _parse_environment, _settings
from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


WHO = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--participant-id", "files", "--token", "t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (WHO, "--mcp-command: give one MCP server (expected --mcp-command PROGRAM or --mcp-url URL)"),
        ((*WHO, "-m", "x", "--mcp-url", "http://x"), "give one MCP server"),
        ((*WHO, "-m", "x", "--mcp-env", "KEY"), "--mcp-env: 'KEY' has no value"),
        ((*WHO, "-m", "x", "--mcp-env", '{"KEY": 5}'), "--mcp-env: is not a JSON object of strings"),
        ((*WHO, "-m", "x", "--mcp-args", "[1]"), "--mcp-args: is not a JSON list of strings"),
        ((*WHO, "-m", "x", "--mcp-args", "[oops"), "--mcp-args: is not JSON"),
        ((*WHO, "-m", "x", "--capabilities", "{"), "--capabilities: is not JSON"),
        ((*WHO, "-m", "x", "--reconnect", "perhaps"), "--reconnect: is 'perhaps' (expected true or false)"),
        ((*WHO, "--mcp-url", "ftp://x"), "server.url: "),
        (
            (*WHO, "--mcp-url", "http://x", "--mcp-header", "Authorization"),
            "--mcp-header: 'Authorization' has no value",
        ),
        (("-m", "x"), "no space is running here"),
    ],
)
async def test_invalid_options_are_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    outcome = await mew("bridge", "start", *arguments)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.code == 2


async def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.extras.find_spec", lambda _name: None)
    outcome = await mew("bridge", "start", *WHO, "-m", "x")
    assert outcome.err == f"mew: the MCP bridge needs the extra 'mcp': {install_command('mcp')}\n"
    assert outcome.code == 2


def test_arguments_and_environment_are_read_from_commas_or_json() -> None:
    assert _parse_arguments("") == []
    assert _parse_arguments("-y,server,.") == ["-y", "server", "."]
    assert _parse_arguments('["a,b", "c"]') == ["a,b", "c"]
    assert _parse_environment("") == {}
    assert _parse_environment("A=1,B=x=y") == {"A": "1", "B": "x=y"}
    assert _parse_environment('{"A": "1,2"}') == {"A": "1,2"}


def test_settings_from_mew_up_are_read_and_checked() -> None:
    reported = {"server": {"command": "npx"}, "max_reconnects": 5}
    assert _settings(reported, where="MEW_BRIDGE_CONFIG").max_reconnects == 5
    with pytest.raises(ConfigError, match="MEW_BRIDGE_CONFIG: server: needs either 'command' or 'url'"):
        _settings({"server": {}}, where="MEW_BRIDGE_CONFIG")
