"""The settings of a bridge."""

import pytest
from pydantic import ValidationError

from mew_agent.parts.mcp.settings import BridgeSettings, McpServerSettings


def test_a_server_inherits_no_secret_variables() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "LC_ALL": "C.UTF-8",
        "MEW_RUN": "run-1",
        "MEW_TOKEN": "secret",
        "TOKEN": "secret",
        "OPENAI_API_KEY": "secret",
    }
    seen = McpServerSettings(command="x", env={"API_KEY": "its own", "HOME": "/srv"}).environment(environ)
    assert seen == {"PATH": "/bin", "HOME": "/srv", "LC_ALL": "C.UTF-8", "MEW_RUN": "run-1", "API_KEY": "its own"}


def test_settings_survive_json() -> None:
    program = McpServerSettings(command="npx", args=("-y", "a,b"))
    for server in (program, McpServerSettings(url="https://x/mcp", headers={"A": "b"})):
        configured = BridgeSettings(server=server, max_reconnects=7)
        assert BridgeSettings.model_validate_json(configured.model_dump_json()) == configured


@pytest.mark.parametrize(
    "server",
    [
        {"command": ""},
        {"url": "ftp://x"},
        {"url": "http://x", "command": "npx"},
        {"command": "npx", "transport": "pigeon"},
    ],
)
def test_a_contradictory_server_is_refused(server: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        BridgeSettings.model_validate({"server": server})


def test_a_url_is_shown_without_its_query() -> None:
    assert str(McpServerSettings(url="https://x/mcp?key=secret")) == "https://x/mcp"
