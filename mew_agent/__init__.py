"""Agents, tools and people in one shared space, each knowing exactly how full everybody's context window is.

`Participant` joins a space and sees every peer's context; `Agent` is a participant that thinks. Names are loaded
when they are first used, so that importing the package (and `mew --help`) costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mew_agent._version import __version__

if TYPE_CHECKING:
    from mew_agent.agent import Agent, run_agent
    from mew_agent.config import AgentConfig
    from mew_agent.errors import (
        ConfigError,
        ContextOverflow,
        GatewayError,
        MewAgentError,
        ModelError,
        NotConnected,
        NotPermitted,
        PeerTimeout,
        Superseded,
        Unauthorized,
    )
    from mew_agent.participant import Participant
    from mew_agent.peers import Peer, PeerContext
    from mew_agent.tools import Tool
    from protocol.context_report import ContextReport
    from protocol.envelope import Envelope
    from protocol.payloads.participant import CompactDone, Status

_HOMES = {
    "Agent": "mew_agent.agent",
    "AgentConfig": "mew_agent.config",
    "CompactDone": "protocol.payloads.participant",
    "ConfigError": "mew_agent.errors",
    "ContextOverflow": "mew_agent.errors",
    "ContextReport": "protocol.context_report",
    "Envelope": "protocol.envelope",
    "GatewayError": "mew_agent.errors",
    "MewAgentError": "mew_agent.errors",
    "ModelError": "mew_agent.errors",
    "NotConnected": "mew_agent.errors",
    "NotPermitted": "mew_agent.errors",
    "Participant": "mew_agent.participant",
    "Peer": "mew_agent.peers",
    "PeerContext": "mew_agent.peers",
    "PeerTimeout": "mew_agent.errors",
    "Status": "protocol.payloads.participant",
    "Superseded": "mew_agent.errors",
    "Tool": "mew_agent.tools",
    "Unauthorized": "mew_agent.errors",
    "run_agent": "mew_agent.agent",
}

__all__ = [
    "Agent",
    "AgentConfig",
    "CompactDone",
    "ConfigError",
    "ContextOverflow",
    "ContextReport",
    "Envelope",
    "GatewayError",
    "MewAgentError",
    "ModelError",
    "NotConnected",
    "NotPermitted",
    "Participant",
    "Peer",
    "PeerContext",
    "PeerTimeout",
    "Status",
    "Superseded",
    "Tool",
    "Unauthorized",
    "__version__",
    "run_agent",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mew_agent' has no attribute '{name}'")
    return getattr(import_module(home), name)
