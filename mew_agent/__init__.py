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
`ProposalClosed`, `ProposalRejected`, and for losses `ConnectionLost`, `HistoryGap` and `StreamGap`. Answers of agents
(`Participant.ask_agent`): `Writing`, `Thinking`, `ToolCalled`, `ContextNotice`, `AgentRestarted`, `Answered`. A model
of your own implements `Model`, with `ModelRequest`, `TextDelta`, `ModelReply`, `Usage` and `Window`. Every error is a
`MewAgentError`; see `mew_agent.errors` for the tree.

Each name is loaded when it is first used, so a client imports no server, no command line and no model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mew_agent._version import __version__ as __version__

if TYPE_CHECKING:  # `X as X` makes a name public for type checkers
    from mew_protocol.capability import CapabilitySet as CapabilitySet
    from mew_protocol.codec import StreamFrame as StreamFrame
    from mew_protocol.context_report import AgentMode as AgentMode
    from mew_protocol.context_report import BreakdownPart as BreakdownPart
    from mew_protocol.context_report import CompactionCost as CompactionCost
    from mew_protocol.context_report import ContextReport as ContextReport
    from mew_protocol.context_report import Injection as Injection
    from mew_protocol.context_report import LastCompaction as LastCompaction
    from mew_protocol.context_report import LastReported as LastReported
    from mew_protocol.context_report import PinReport as PinReport
    from mew_protocol.context_report import Progress as Progress
    from mew_protocol.context_report import QueuedMessages as QueuedMessages
    from mew_protocol.context_report import SavingSuggestion as SavingSuggestion
    from mew_protocol.context_report import SenderSpending as SenderSpending
    from mew_protocol.context_report import SessionContext as SessionContext
    from mew_protocol.context_report import Spending as Spending
    from mew_protocol.context_report import Waiting as Waiting
    from mew_protocol.envelope import Envelope as Envelope
    from mew_protocol.payloads.capability import EndedRights as EndedRights
    from mew_protocol.payloads.participant import CompactDone as CompactDone
    from mew_protocol.payloads.participant import PinnedText as PinnedText
    from mew_protocol.payloads.participant import PrefixPart as PrefixPart
    from mew_protocol.payloads.participant import Status as Status
    from mew_protocol.payloads.read_receipts import PromptCall as PromptCall
    from mew_protocol.payloads.read_receipts import ReadReceipt as ReadReceipt
    from mew_protocol.payloads.read_receipts import ReceiptEvent as ReceiptEvent
    from mew_protocol.payloads.text_fit import Fit as Fit
    from mew_protocol.status_word import StatusWord as StatusWord
    from mew_settings.model_facts import ModelFacts as ModelFacts
    from mew_settings.model_facts import ModelPrice as ModelPrice

    from mew_agent.agent.agent import Agent as Agent
    from mew_agent.agent.agent import run_agent as run_agent
    from mew_agent.config.agent_config import AgentConfig as AgentConfig
    from mew_agent.context.policy.actions import Suggestion as Suggestion
    from mew_agent.context.sqlite_store import MemoryStore as MemoryStore
    from mew_agent.context.sqlite_store import SqliteStore as SqliteStore
    from mew_agent.context.sqlite_store import Store as Store
    from mew_agent.context.store import StoreLimits as StoreLimits
    from mew_agent.context.window import Compression as Compression
    from mew_agent.context.window import Occupancy as Occupancy
    from mew_agent.conversation.context_view import ContextView as ContextView
    from mew_agent.conversation.context_view import UsagePoint as UsagePoint
    from mew_agent.conversation.conversation_events import ContextCleared as ContextCleared
    from mew_agent.conversation.conversation_events import ContextCompacted as ContextCompacted
    from mew_agent.conversation.conversation_events import ContextEvent as ContextEvent
    from mew_agent.conversation.conversation_events import LevelChanged as LevelChanged
    from mew_agent.conversation.conversation_events import RedlineApproached as RedlineApproached
    from mew_agent.conversation.conversation_events import RedlineCrossed as RedlineCrossed
    from mew_agent.conversation.conversation_events import SavingSuggested as SavingSuggested
    from mew_agent.errors import AnswerLost as AnswerLost
    from mew_agent.errors import BadAnswer as BadAnswer
    from mew_agent.errors import CertificateRejected as CertificateRejected
    from mew_agent.errors import ChatRefused as ChatRefused
    from mew_agent.errors import ConfigError as ConfigError
    from mew_agent.errors import ContextOverflow as ContextOverflow
    from mew_agent.errors import ControlImpossible as ControlImpossible
    from mew_agent.errors import ControlRefused as ControlRefused
    from mew_agent.errors import GatewayError as GatewayError
    from mew_agent.errors import InvalidReport as InvalidReport
    from mew_agent.errors import MewAgentError as MewAgentError
    from mew_agent.errors import MissingExtra as MissingExtra
    from mew_agent.errors import ModelError as ModelError
    from mew_agent.errors import ModelFailed as ModelFailed
    from mew_agent.errors import ModelRateLimited as ModelRateLimited
    from mew_agent.errors import ModelRefused as ModelRefused
    from mew_agent.errors import ModelStreamCut as ModelStreamCut
    from mew_agent.errors import ModelUnreachable as ModelUnreachable
    from mew_agent.errors import NoAnswer as NoAnswer
    from mew_agent.errors import NotAccepted as NotAccepted
    from mew_agent.errors import NotConfirmed as NotConfirmed
    from mew_agent.errors import NotConnected as NotConnected
    from mew_agent.errors import NotPermitted as NotPermitted
    from mew_agent.errors import PeerAbsent as PeerAbsent
    from mew_agent.errors import PeerError as PeerError
    from mew_agent.errors import PeerFailed as PeerFailed
    from mew_agent.errors import PeerTimeout as PeerTimeout
    from mew_agent.errors import PinRefused as PinRefused
    from mew_agent.errors import PolicyStopped as PolicyStopped
    from mew_agent.errors import Refused as Refused
    from mew_agent.errors import Rejected as Rejected
    from mew_agent.errors import Superseded as Superseded
    from mew_agent.errors import TooLarge as TooLarge
    from mew_agent.errors import ToolsUnsupported as ToolsUnsupported
    from mew_agent.errors import Unauthorized as Unauthorized
    from mew_agent.model.image import Image as Image
    from mew_agent.model.interface import Message as Message
    from mew_agent.model.interface import Model as Model
    from mew_agent.model.interface import ModelEvent as ModelEvent
    from mew_agent.model.interface import ModelIdentity as ModelIdentity
    from mew_agent.model.interface import ModelReply as ModelReply
    from mew_agent.model.interface import ModelRequest as ModelRequest
    from mew_agent.model.interface import ReasoningDelta as ReasoningDelta
    from mew_agent.model.interface import TextDelta as TextDelta
    from mew_agent.model.interface import ToolCall as ToolCall
    from mew_agent.model.interface import ToolSpec as ToolSpec
    from mew_agent.model.interface import Window as Window
    from mew_agent.model.openai_client import OpenAIModel as OpenAIModel
    from mew_agent.model.usage import Usage as Usage
    from mew_agent.participant.answers.agent_answers import AnswerStream as AnswerStream
    from mew_agent.participant.answers.builder import AgentRestarted as AgentRestarted
    from mew_agent.participant.answers.builder import Answered as Answered
    from mew_agent.participant.answers.builder import AnswerEvent as AnswerEvent
    from mew_agent.participant.answers.builder import ContextNotice as ContextNotice
    from mew_agent.participant.answers.builder import Thinking as Thinking
    from mew_agent.participant.answers.builder import ToolCalled as ToolCalled
    from mew_agent.participant.answers.builder import Writing as Writing
    from mew_agent.participant.client import Credentials as Credentials
    from mew_agent.participant.event_handlers import ChatReceived as ChatReceived
    from mew_agent.participant.event_handlers import ContextReported as ContextReported
    from mew_agent.participant.event_handlers import PeerJoined as PeerJoined
    from mew_agent.participant.event_handlers import PeerLeft as PeerLeft
    from mew_agent.participant.event_handlers import PeerLevelChanged as PeerLevelChanged
    from mew_agent.participant.event_handlers import ProposalClosed as ProposalClosed
    from mew_agent.participant.event_handlers import ProposalMade as ProposalMade
    from mew_agent.participant.event_handlers import ProposalRejected as ProposalRejected
    from mew_agent.participant.gaps import ConnectionLost as ConnectionLost
    from mew_agent.participant.gaps import HistoryGap as HistoryGap
    from mew_agent.participant.gaps import SpaceEvent as SpaceEvent
    from mew_agent.participant.gaps import StreamGap as StreamGap
    from mew_agent.participant.mcp_client import Timeouts as Timeouts
    from mew_agent.participant.participant import Participant as Participant
    from mew_agent.participant.peers import Peer as Peer
    from mew_agent.participant.peers import PeerContext as PeerContext
    from mew_agent.participant.peers import Peers as Peers
    from mew_agent.participant.receipts import SentChat as SentChat
    from mew_agent.program import run as run
    from mew_agent.settings import CompactionSettings as CompactionSettings
    from mew_agent.settings import LoopLimits as LoopLimits
    from mew_agent.settings import Summariser as Summariser
    from mew_agent.space import Space as Space
    from mew_agent.tokens.tokenizers import TextCounter as TextCounter
    from mew_agent.tools.functions import Tool as Tool
    from mew_agent.tools.peer_offers import PeerPrompt as PeerPrompt
    from mew_agent.tools.peer_offers import PeerResource as PeerResource
    from mew_agent.tools.peer_offers import PeerTool as PeerTool
    from mew_agent.tools.resources import Resource as Resource
    from mew_agent.tools.results import ToolResult as ToolResult

_NAMES_OF = {
    "mew_agent.agent.agent": "Agent run_agent",
    "mew_agent.tools.peer_offers": "PeerPrompt PeerResource PeerTool",
    "mew_agent.tools.results": "ToolResult",
    "mew_agent.participant.mcp_client": "Timeouts",
    "mew_agent.config.agent_config": "AgentConfig",
    "mew_agent.context.window": "Compression Occupancy",
    "mew_agent.errors": (
        "AnswerLost BadAnswer CertificateRejected ChatRefused ConfigError ContextOverflow ControlImpossible "
        "ControlRefused GatewayError InvalidReport MewAgentError MissingExtra ModelError ModelFailed ModelRateLimited "
        "ModelRefused ModelStreamCut ModelUnreachable NoAnswer NotAccepted NotConfirmed NotConnected "
        "NotPermitted PeerAbsent PeerError PeerFailed PeerTimeout PinRefused PolicyStopped Refused Rejected "
        "Superseded TooLarge ToolsUnsupported Unauthorized"
    ),
    "mew_agent.participant.event_handlers": (
        "ChatReceived ContextReported PeerJoined PeerLeft PeerLevelChanged ProposalClosed ProposalMade ProposalRejected"
    ),
    "mew_agent.participant.gaps": "ConnectionLost HistoryGap SpaceEvent StreamGap",
    "mew_agent.participant.answers.agent_answers": "AnswerStream",
    "mew_agent.participant.answers.builder": (
        "AgentRestarted AnswerEvent Answered ContextNotice Thinking ToolCalled Writing"
    ),
    "mew_agent.model.image": "Image",
    "mew_agent.model.interface": (
        "Message Model ModelEvent ModelIdentity ModelReply ModelRequest ReasoningDelta TextDelta ToolCall "
        "ToolSpec Window"
    ),
    "mew_agent.model.usage": "Usage",
    "mew_agent.model.openai_client": "OpenAIModel",
    "mew_agent.tools.resources": "Resource",
    "mew_agent.tools.functions": "Tool",
    "mew_agent.participant.client": "Credentials",
    "mew_agent.participant.participant": "Participant",
    "mew_agent.participant.receipts": "SentChat",
    "mew_agent.participant.peers": "Peer PeerContext Peers",
    "mew_agent.program": "run",
    "mew_agent.conversation.conversation_events": (
        "ContextCleared ContextCompacted ContextEvent LevelChanged RedlineApproached RedlineCrossed SavingSuggested"
    ),
    "mew_agent.conversation.context_view": "ContextView UsagePoint",
    "mew_agent.context.sqlite_store": "MemoryStore SqliteStore Store",
    "mew_agent.context.store": "StoreLimits",
    "mew_agent.context.policy.actions": "Suggestion",
    "mew_agent.tokens.tokenizers": "TextCounter",
    "mew_agent.settings": "CompactionSettings LoopLimits Summariser",
    "mew_agent.space": "Space",
    "mew_settings.model_facts": "ModelFacts ModelPrice",
    "mew_protocol.capability": "CapabilitySet",
    "mew_protocol.codec": "StreamFrame",
    "mew_protocol.context_report": (
        "AgentMode BreakdownPart CompactionCost ContextReport Injection LastCompaction LastReported PinReport Progress "
        "QueuedMessages SavingSuggestion SenderSpending SessionContext Spending Waiting"
    ),
    "mew_protocol.envelope": "Envelope",
    "mew_protocol.payloads.capability": "EndedRights",
    "mew_protocol.payloads.text_fit": "Fit",
    "mew_protocol.status_word": "StatusWord",
    "mew_protocol.payloads.participant": "CompactDone PinnedText PrefixPart Status",
    "mew_protocol.payloads.read_receipts": "PromptCall ReadReceipt ReceiptEvent",
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names.split()}

if not TYPE_CHECKING:
    __all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is not None:
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'mew_agent' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
