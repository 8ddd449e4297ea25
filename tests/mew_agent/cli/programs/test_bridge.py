"""`mew bridge`: what it refuses before it connects. That bridges run is seen where they run as processes."""

import json

import pytest

from mew_agent.cli.programs.bridge import _arguments, _environment, _read_handed_over
from mew_agent.errors import ConfigError
from tests.support.cli import mew

WHO = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--participant-id", "files", "--token", "t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (WHO, "--mcp-command: which MCP server? (expected --mcp-command PROGRAM, or --mcp-url URL)"),
        ((*WHO, "-m", "x", "--mcp-url", "http://x"), "which MCP server?"),
        ((*WHO, "-m", "x", "--mcp-env", "KEY"), "--mcp-env: 'KEY' has no value"),
        ((*WHO, "-m", "x", "--mcp-env", '{"KEY": 5}'), "--mcp-env: the JSON object holds more than texts"),
        ((*WHO, "-m", "x", "--mcp-args", "[1]"), "--mcp-args: the JSON list holds more than texts"),
        ((*WHO, "-m", "x", "--mcp-args", "[oops"), "--mcp-args: is no JSON"),
        ((*WHO, "-m", "x", "--capabilities", "{"), "--capabilities: is no JSON"),
        ((*WHO, "-m", "x", "--reconnect", "perhaps"), "--reconnect: 'perhaps' is neither (expected true or false)"),
        ((*WHO, "--mcp-url", "ftp://x"), "server.url: "),
        (
            (*WHO, "--mcp-url", "http://x", "--mcp-header", "Authorization"),
            "--mcp-header: 'Authorization' has no value",
        ),
        (("-m", "x"), "no space runs here"),
    ],
)
async def test_what_cannot_work_is_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    outcome = await mew("bridge", "start", *arguments)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.code == 2


async def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.bridge.settings.find_spec", lambda _name: None)
    outcome = await mew("bridge", "start", *WHO, "-m", "x")
    assert outcome.err == "mew: the MCP bridge needs the extra 'mcp': pip install 'mew-agent[mcp]'\n"
    assert outcome.code == 2


def test_arguments_and_environment_are_lists_with_commas_or_json() -> None:
    assert _arguments("") == []
    assert _arguments("-y,server,.") == ["-y", "server", "."]
    assert _arguments('["a,b", "c"]') == ["a,b", "c"]
    assert _environment("") == {}
    assert _environment("A=1,B=x=y") == {"A": "1", "B": "x=y"}
    assert _environment('{"A": "1,2"}') == {"A": "1,2"}


def test_what_mew_up_hands_over_is_read_and_its_mistakes_are_placed() -> None:
    told = {"server": {"transport": "stdio", "command": "npx"}, "max_reconnects": 5}
    assert _read_handed_over(json.dumps(told)).max_reconnects == 5
    with pytest.raises(ConfigError, match=r"MEW_BRIDGE_CONFIG: server\.command: "):
        _read_handed_over(json.dumps({"server": {"transport": "stdio"}}))
