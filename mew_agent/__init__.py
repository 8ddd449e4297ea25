"""Agents, tools and people in one shared space, each knowing exactly how full everybody's context window is.

`Participant` joins a space and sees every peer's context; `Agent` is a participant that thinks. Names are loaded
when they are first used, so that importing the package (and `mew --help`) costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mew_agent._version import __version__

if TYPE_CHECKING:
    from mew_agent.agent import Agent, run_agent
    from mew_agent.asking.peer_offers import PeerTool, ToolResult
    from mew_agent.asking.proposals import Waits
    from mew_agent.config import AgentConfig
    from mew_agent.errors import (
        AnswerLost,
        BadAnswer,
        ConfigError,
        ContextOverflow,
        GatewayError,
        MewAgentError,
        ModelError,
        NotConnected,
        NotPermitted,
        PeerAbsent,
        PeerError,
        PeerFailed,
        PeerTimeout,
        PolicyStopped,
        Refused,
        Rejected,
        Superseded,
        Unauthorized,
    )
    from mew_agent.offers.tools import Tool
    from mew_agent.participant import Participant
    from mew_agent.peers import Peer, PeerContext
    from mew_agent.remedies.events import (
        ContextCleared,
        ContextCompacted,
        LevelChanged,
        RedlineApproached,
        RedlineCrossed,
        SavingSuggested,
    )
    from mew_agent.remedies.gauge import ContextGauge
    from mew_agent.simple_agents.fulfiller import Fulfiller
    from mew_agent.simple_agents.fulfiller_policy import FulfillerPolicy
    from protocol.context_report import ContextReport
    from protocol.envelope import Envelope
    from protocol.payloads.participant import CompactDone, Status

_HOMES = {
    "Agent": "mew_agent.agent",
    "AgentConfig": "mew_agent.config",
    "AnswerLost": "mew_agent.errors",
    "BadAnswer": "mew_agent.errors",
    "CompactDone": "protocol.payloads.participant",
    "ConfigError": "mew_agent.errors",
    "ContextCleared": "mew_agent.remedies.events",
    "ContextCompacted": "mew_agent.remedies.events",
    "ContextGauge": "mew_agent.remedies.gauge",
    "ContextOverflow": "mew_agent.errors",
    "ContextReport": "protocol.context_report",
    "Envelope": "protocol.envelope",
    "Fulfiller": "mew_agent.simple_agents.fulfiller",
    "FulfillerPolicy": "mew_agent.simple_agents.fulfiller_policy",
    "GatewayError": "mew_agent.errors",
    "LevelChanged": "mew_agent.remedies.events",
    "MewAgentError": "mew_agent.errors",
    "ModelError": "mew_agent.errors",
    "NotConnected": "mew_agent.errors",
    "NotPermitted": "mew_agent.errors",
    "Participant": "mew_agent.participant",
    "Peer": "mew_agent.peers",
    "PeerAbsent": "mew_agent.errors",
    "PeerContext": "mew_agent.peers",
    "PeerError": "mew_agent.errors",
    "PeerFailed": "mew_agent.errors",
    "PeerTimeout": "mew_agent.errors",
    "PeerTool": "mew_agent.asking.peer_offers",
    "PolicyStopped": "mew_agent.errors",
    "RedlineApproached": "mew_agent.remedies.events",
    "RedlineCrossed": "mew_agent.remedies.events",
    "Refused": "mew_agent.errors",
    "Rejected": "mew_agent.errors",
    "SavingSuggested": "mew_agent.remedies.events",
    "Status": "protocol.payloads.participant",
    "Superseded": "mew_agent.errors",
    "Tool": "mew_agent.offers.tools",
    "ToolResult": "mew_agent.asking.peer_offers",
    "Unauthorized": "mew_agent.errors",
    "Waits": "mew_agent.asking.proposals",
    "run_agent": "mew_agent.agent",
}

__all__ = [
    "Agent",
    "AgentConfig",
    "AnswerLost",
    "BadAnswer",
    "CompactDone",
    "ConfigError",
    "ContextCleared",
    "ContextCompacted",
    "ContextGauge",
    "ContextOverflow",
    "ContextReport",
    "Envelope",
    "Fulfiller",
    "FulfillerPolicy",
    "GatewayError",
    "LevelChanged",
    "MewAgentError",
    "ModelError",
    "NotConnected",
    "NotPermitted",
    "Participant",
    "Peer",
    "PeerAbsent",
    "PeerContext",
    "PeerError",
    "PeerFailed",
    "PeerTimeout",
    "PeerTool",
    "PolicyStopped",
    "RedlineApproached",
    "RedlineCrossed",
    "Refused",
    "Rejected",
    "SavingSuggested",
    "Status",
    "Superseded",
    "Tool",
    "ToolResult",
    "Unauthorized",
    "Waits",
    "__version__",
    "run_agent",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mew_agent' has no attribute '{name}'")
    return getattr(import_module(home), name)
