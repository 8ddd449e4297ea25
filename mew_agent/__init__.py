"""Agents, tools and people in one shared space, where every participant sees how full each context window is.

Start here:

- `Participant` joins a space, sends and receives, offers tools, and sees every peer's context.
- `Agent` is a participant that answers with a language model and reports its own context.
- `run` runs an async function as a whole program.

    from mew_agent import Participant, run

    async def main() -> None:
        async with Participant.from_environment() as me:
            for name in me.peers:
                print(name, me.peers[name].context)

    run(main)

Events: `ChatReceived`, `PeerJoined`, `PeerLeft`, `ContextReported`, `PeerLevelChanged`, `ProposalMade`,
`ProposalClosed`. Answers of agents (`Participant.ask_agent`): `Writing`, `Thinking`, `ToolCalled`, `ContextNotice`,
`Answered`. Every error is a `MewAgentError`; see `mew_agent.errors` for the tree.

Each name is loaded when it is first used, so a client imports no server, no command line and no model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mew_agent._version import __version__

if TYPE_CHECKING:
    from mew_protocol.context_report import ContextReport
    from mew_protocol.envelope import Envelope
    from mew_protocol.payloads.participant import CompactDone, Status

    from mew_agent.agent.agent import Agent, run_agent
    from mew_agent.config.agent_config import AgentConfig
    from mew_agent.context.store import MemoryStore, SqliteStore, Store
    from mew_agent.context.window import Compression, Occupancy
    from mew_agent.conversation.context_view import ContextView, UsagePoint
    from mew_agent.conversation.events import (
        ContextCleared,
        ContextCompacted,
        ContextEvent,
        LevelChanged,
        RedlineApproached,
        RedlineCrossed,
        SavingSuggested,
    )
    from mew_agent.errors import (
        AnswerLost,
        BadAnswer,
        ConfigError,
        ContextOverflow,
        GatewayError,
        MewAgentError,
        ModelError,
        ModelFailed,
        ModelRateLimited,
        ModelRefused,
        ModelStreamCut,
        ModelUnreachable,
        NoAnswer,
        NotAccepted,
        NotConfirmed,
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
        TooLarge,
        ToolsUnsupported,
        Unauthorized,
    )
    from mew_agent.model.interface import Model
    from mew_agent.model.openai_client import OpenAIModel
    from mew_agent.participant.answers.agent_answers import AnswerStream
    from mew_agent.participant.answers.builder import (
        Answered,
        AnswerEvent,
        ContextNotice,
        Thinking,
        ToolCalled,
        Writing,
    )
    from mew_agent.participant.events import (
        ChatReceived,
        ContextReported,
        HistoryGap,
        PeerJoined,
        PeerLeft,
        PeerLevelChanged,
        ProposalClosed,
        ProposalMade,
        SpaceEvent,
    )
    from mew_agent.participant.mcp_client import Timeouts
    from mew_agent.participant.participant import Participant
    from mew_agent.participant.peers import Peer, PeerContext
    from mew_agent.program import run
    from mew_agent.simple_agents.fulfiller import Fulfiller
    from mew_agent.simple_agents.fulfiller_policy import FulfillerPolicy
    from mew_agent.tools.functions import Tool
    from mew_agent.tools.peer_offers import PeerPrompt, PeerResource, PeerTool
    from mew_agent.tools.resources import Resource
    from mew_agent.tools.results import ToolResult

_NAMES_OF = {
    "mew_agent.agent.agent": "Agent run_agent",
    "mew_agent.tools.peer_offers": "PeerPrompt PeerResource PeerTool",
    "mew_agent.tools.results": "ToolResult",
    "mew_agent.participant.mcp_client": "Timeouts",
    "mew_agent.config.agent_config": "AgentConfig",
    "mew_agent.context.window": "Compression Occupancy",
    "mew_agent.errors": (
        "AnswerLost BadAnswer ConfigError ContextOverflow GatewayError MewAgentError ModelError ModelFailed "
        "ModelRateLimited ModelRefused ModelStreamCut ModelUnreachable NoAnswer NotAccepted NotConfirmed NotConnected "
        "NotPermitted PeerAbsent PeerError PeerFailed PeerTimeout PolicyStopped Refused Rejected Superseded TooLarge "
        "ToolsUnsupported Unauthorized"
    ),
    "mew_agent.participant.events": (
        "ChatReceived ContextReported HistoryGap PeerJoined PeerLeft PeerLevelChanged ProposalClosed ProposalMade "
        "SpaceEvent"
    ),
    "mew_agent.participant.answers.agent_answers": "AnswerStream",
    "mew_agent.participant.answers.builder": "AnswerEvent Answered ContextNotice Thinking ToolCalled Writing",
    "mew_agent.model.interface": "Model",
    "mew_agent.model.openai_client": "OpenAIModel",
    "mew_agent.tools.resources": "Resource",
    "mew_agent.tools.functions": "Tool",
    "mew_agent.participant.participant": "Participant",
    "mew_agent.participant.peers": "Peer PeerContext",
    "mew_agent.program": "run",
    "mew_agent.conversation.events": (
        "ContextCleared ContextCompacted ContextEvent LevelChanged RedlineApproached RedlineCrossed SavingSuggested"
    ),
    "mew_agent.conversation.context_view": "ContextView UsagePoint",
    "mew_agent.simple_agents.fulfiller": "Fulfiller",
    "mew_agent.simple_agents.fulfiller_policy": "FulfillerPolicy",
    "mew_agent.context.store": "MemoryStore SqliteStore Store",
    "mew_protocol.context_report": "ContextReport",
    "mew_protocol.envelope": "Envelope",
    "mew_protocol.payloads.participant": "CompactDone Status",
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names.split()}

__all__ = [
    "Agent",
    "AgentConfig",
    "AnswerEvent",
    "AnswerLost",
    "AnswerStream",
    "Answered",
    "BadAnswer",
    "ChatReceived",
    "CompactDone",
    "Compression",
    "ConfigError",
    "ContextCleared",
    "ContextCompacted",
    "ContextEvent",
    "ContextNotice",
    "ContextOverflow",
    "ContextReport",
    "ContextReported",
    "ContextView",
    "Envelope",
    "Fulfiller",
    "FulfillerPolicy",
    "GatewayError",
    "HistoryGap",
    "LevelChanged",
    "MemoryStore",
    "MewAgentError",
    "Model",
    "ModelError",
    "ModelFailed",
    "ModelRateLimited",
    "ModelRefused",
    "ModelStreamCut",
    "ModelUnreachable",
    "NoAnswer",
    "NotAccepted",
    "NotConfirmed",
    "NotConnected",
    "NotPermitted",
    "Occupancy",
    "OpenAIModel",
    "Participant",
    "Peer",
    "PeerAbsent",
    "PeerContext",
    "PeerError",
    "PeerFailed",
    "PeerJoined",
    "PeerLeft",
    "PeerLevelChanged",
    "PeerPrompt",
    "PeerResource",
    "PeerTimeout",
    "PeerTool",
    "PolicyStopped",
    "ProposalClosed",
    "ProposalMade",
    "RedlineApproached",
    "RedlineCrossed",
    "Refused",
    "Rejected",
    "Resource",
    "SavingSuggested",
    "SpaceEvent",
    "SqliteStore",
    "Status",
    "Store",
    "Superseded",
    "Thinking",
    "Timeouts",
    "TooLarge",
    "Tool",
    "ToolCalled",
    "ToolResult",
    "ToolsUnsupported",
    "Unauthorized",
    "UsagePoint",
    "Writing",
    "__version__",
    "run",
    "run_agent",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mew_agent' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
