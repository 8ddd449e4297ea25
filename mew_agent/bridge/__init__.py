"""An MCP server as a participant: its tools, resources and prompts are available to everyone in a space.

`run_bridge` starts or reaches the server, joins the space, and restarts the server if it fails. Names are loaded at
first use: `mew_agent.bridge.session` needs the extra `mcp`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mew_agent.bridge.program import ServerFailed
    from mew_agent.bridge.settings import BridgeSettings, HttpServer, StdioServer
    from mew_agent.bridge.supervisor import Bridge, run_bridge

_HOMES = {
    "Bridge": "mew_agent.bridge.supervisor",
    "BridgeSettings": "mew_agent.bridge.settings",
    "HttpServer": "mew_agent.bridge.settings",
    "ServerFailed": "mew_agent.bridge.program",
    "StdioServer": "mew_agent.bridge.settings",
    "run_bridge": "mew_agent.bridge.supervisor",
}

__all__ = ["Bridge", "BridgeSettings", "HttpServer", "ServerFailed", "StdioServer", "run_bridge"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
