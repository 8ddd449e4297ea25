"""The routes of the gateway's HTTP API with their models, each declared once as an `Operation`.

The router and `/openapi.json` come from these declarations. Does not know how a request is handled; see `http`.
"""

from typing import Any

from mew_protocol.attention import Attention
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads.figures import KEPT_SECONDS, ContextHistory
from mew_protocol.payloads.fit import Fit
from mew_protocol.payloads.mcp import UndecidedProposals
from mew_protocol.payloads.participant import Board
from pydantic import BaseModel, ConfigDict, Field

from mew_spaces.gateway.events import MAX_LAST
from mew_spaces.gateway.openapi import Operation, Parameter
from mew_spaces.gateway.programs import NewProgram
from mew_spaces.log.figures import RAW_SECONDS

# Models. Their titles name them in the OpenAPI document.


class HealthAnswer(BaseModel):
    """Answer of `/health`."""

    model_config = ConfigDict(title="Health")

    status: str
    spaces: int
    clients: int
    uptime: float = Field(description="seconds")
    features: list[str]
    version: str
    protocol: str


class ReadyAnswer(BaseModel):
    """Answer of `/ready`."""

    model_config = ConfigDict(title="Readiness")

    status: str


class ListedParticipant(BaseModel):
    """One entry of `/participants`."""

    id: str
    connected: bool
    capabilities: list[dict[str, Any]]


class ParticipantList(BaseModel):
    """Answer of `/participants`."""

    model_config = ConfigDict(title="Participants")

    participants: list[ListedParticipant]


class PostedEnvelope(Draft):
    """Body of a posted message: an envelope of which only the kind is required."""

    model_config = ConfigDict(title="Draft")

    kind: str


class AcceptedEnvelope(BaseModel):
    """Answer to a posted message. Requests with a special answer add its keys."""

    model_config = ConfigDict(title="Accepted", extra="allow")

    id: str
    status: str
    timestamp: str


class MessagePage(BaseModel):
    """Part of a space's history. Describes what `poll_messages` assembles from stored JSON without parsing it."""

    model_config = ConfigDict(title="Messages")

    messages: list[Envelope]
    next: str = Field(description="pass it as `since`, or as `before`, to continue")
    complete: bool = Field(description="false when some of the messages are no longer stored")
    more: bool = Field(description="whether more messages are available now")


class ProgramList(BaseModel):
    """Which participants have a program that runs, or ran, next to the gateway."""

    model_config = ConfigDict(title="Programs")

    running: bool = Field(description="whether the gateway can start and restart programs")
    participants: list[str]
    startable: list[str] = Field(description="participants whose programs space.yaml declares and nothing has started")


class ProgramLog(BaseModel):
    """The end of what a program wrote, without secrets."""

    participant: str
    lines: list[str]


class ProgramAnswer(BaseModel):
    """What came of a request about a program."""

    participant: str
    done: bool
    text: str


class ErrorAnswer(BaseModel):
    """Body of every error response. Some errors add keys."""

    model_config = ConfigDict(title="Refusal", extra="allow")

    error: str
    message: str
    code: str = ""


# Routes

_SPACE_QUERY = Parameter("space", "The space's id (default: the space that the token belongs to)")
LIMIT = Parameter("limit", "How many messages to return at most", minimum=1, maximum=1_000, default=100)
TOKENS = Parameter(
    "tokens", "Size of the text in tokens; the gateway counts none itself", minimum=0, maximum=10**9, default=0
)
SECONDS = Parameter("seconds", "How far back, in seconds", minimum=1, maximum=KEPT_SECONDS, default=RAW_SECONDS)
MOST = Parameter("limit", "How many statuses to return at most, the newest", minimum=1, maximum=10_000, default=1_000)
LINES = Parameter("lines", "How many lines to return at most", minimum=1, maximum=1_000, default=200)
BEFORE = Parameter("before", "Instead of `since`: the newest messages before this position, without statuses")
_ONE = Parameter("participant", "Only this participant's")
_SINCE = Parameter("since", "The last event seen; the header Last-Event-ID takes precedence")
LAST = Parameter("last", "Without `since`: how many envelopes other than statuses precede the board", 0, MAX_LAST, 0)
FRAMES = Parameter("frames", "1 to receive the text frames of streams too, as `frame` events", 0, 1, 0)

HEALTH = Operation("GET", "/health", "Health check", HealthAnswer, needs_token=False)
READY = Operation(
    "GET",
    "/ready",
    "Readiness check: 503 while envelopes cannot be stored",
    ReadyAnswer,
    errors=(503,),
    needs_token=False,
)
METRICS = Operation(
    "GET",
    "/metrics",
    "Read the metrics of every space that the token may read, in the format of Prometheus",
    media_type="text/plain",
)
OPENAPI = Operation("GET", "/openapi.json", "This document", needs_token=False)
PARTICIPANTS = Operation(
    "GET", "/participants", "List the participants of a space", ParticipantList, parameters=(_SPACE_QUERY,)
)
POST_MESSAGE = Operation(
    "POST",
    "/participants/{participant}/messages",
    "Send an envelope as the participant that the token belongs to; missing headers are filled in",
    AcceptedEnvelope,
    parameters=(_SPACE_QUERY,),
    body=PostedEnvelope,
    errors=(400, 409, 413, 503),
)
POLL_MESSAGES = Operation(
    "GET",
    "/participants/{participant}/messages",
    "Read the messages after or before a position, as the participant that the token belongs to",
    MessagePage,
    parameters=(_SPACE_QUERY, Parameter("since", "The `next` of an earlier answer"), BEFORE, LIMIT),
    errors=(400,),
)
CONTEXT = Operation("GET", "/spaces/{space}/context", "Read the last status of every participant", Board)
FIT = Operation(
    "GET",
    "/spaces/{space}/context/{participant}/fit",
    "Ask whether a number of tokens fits into a participant's context, by its last status",
    Fit,
    parameters=(TOKENS,),
    errors=(400,),
)
CONTEXT_HISTORY = Operation(
    "GET",
    "/spaces/{space}/context/history",
    "Read what participants reported over time, and their compactions",
    ContextHistory,
    parameters=(SECONDS, MOST, _ONE),
    errors=(400,),
)
ATTENTION = Operation("GET", "/spaces/{space}/attention", "List what needs a person, the most urgent first", Attention)
PROPOSALS = Operation(
    "GET",
    "/spaces/{space}/proposals",
    "List the proposals that need a decision, and who may make each request",
    UndecidedProposals,
)
PROGRAMS = Operation(
    "GET", "/spaces/{space}/programs", "List the participants whose programs run next to the gateway", ProgramList
)
PROGRAM_LOG = Operation(
    "GET",
    "/spaces/{space}/programs/{participant}/log",
    "Read the end of what a participant's program wrote; needs the capability `program/log`",
    ProgramLog,
    parameters=(LINES,),
    errors=(400, 409),
)
RESTART_PROGRAM = Operation(
    "POST",
    "/spaces/{space}/programs/{participant}/restart",
    "Start or restart a participant's program, and wait until it has joined; needs the capability `program/restart`",
    ProgramAnswer,
    errors=(409,),
)
ADD_PROGRAM = Operation(
    "POST",
    "/spaces/{space}/programs",
    "Add an agent or the tools of an MCP server to space.yaml, and start its program; needs the capabilities"
    " `program/add` and `space/invite`",
    ProgramAnswer,
    body=NewProgram,
    errors=(400, 409, 413),
)
EVENTS = Operation(
    "GET",
    "/spaces/{space}/events",
    "Follow a space: one `board` event, then each `envelope`, and `attention` whenever it changes",
    media_type="text/event-stream",
    parameters=(_SINCE, LAST, FRAMES),
    errors=(400,),
)
