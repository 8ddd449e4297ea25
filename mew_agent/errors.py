"""Everything that `mew_agent` raises on purpose.

    MewAgentError
    ├── ConfigError            the caller's configuration is wrong: where, what, what was expected
    ├── GatewayError           the gateway refused or went away
    │   ├── Unauthorized       this token does not name this participant
    │   ├── Superseded         a newer connection took over this participant's place
    │   └── NotConnected       nothing can be sent now
    ├── NotPermitted           our own capabilities do not allow this envelope
    ├── TooLarge               no gateway takes a message of this size
    ├── PeerError              a peer answered with an error, or did not answer
    │   ├── PeerTimeout
    │   ├── PeerAbsent         the peer is not in the space, or left before it answered
    │   ├── PeerFailed         the peer answered an MCP request with an error
    │   ├── Rejected           somebody rejected what we proposed
    │   ├── AnswerLost         the connection broke before the gateway had what we said
    │   ├── Refused            the gateway did not deliver what we said to a peer
    │   ├── NoAnswer           an agent does not answer what it was asked: busy, stopped, silent, gone
    │   └── BadAnswer          the peer's answer cannot be read
    ├── PolicyStopped          the context's policy ended this reply
    └── ModelError             a call to the language model failed; nothing was recorded
        ├── ModelUnreachable   no connection could be made or kept
        ├── ModelRefused       401 or 403: the key is missing or wrong
        ├── ModelRateLimited   429 after the client's own retries
        ├── ContextOverflow    the request does not fit the model's window
        ├── ModelStreamCut     the stream ended without a finish reason
        ├── ToolsUnsupported   the model takes no tools
        └── ModelFailed        every other answer that is not a reply

Classes build their own message from data attributes, so callers read attributes and people read text.
The one door where vendor errors become `ModelError` is `mew_agent.model.openai_client`.
"""

from dataclasses import dataclass


class MewAgentError(Exception):
    """Base of all errors of this package."""


@dataclass(eq=False)
class ConfigError(MewAgentError):
    """Configuration that cannot be used.

    `where` is a file position or an option name, `problem` what is wrong, `expected` what would be right.
    """

    where: str
    problem: str
    expected: str | None = None

    def __str__(self) -> str:
        tail = f" (expected {self.expected})" if self.expected else ""
        return f"{self.where}: {self.problem}{tail}"


class GatewayError(MewAgentError):
    """The gateway refused us or went away."""


@dataclass(eq=False)
class Unauthorized(GatewayError):
    """The gateway does not accept this token for this participant."""

    participant: str
    detail: str = ""

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"the gateway refused this token for '{self.participant}' (unauthorized){tail}"


@dataclass(eq=False)
class Superseded(GatewayError):
    """Another connection joined with our id; reconnecting would only push it out again."""

    participant: str

    def __str__(self) -> str:
        return f"another connection joined as '{self.participant}'; this one stops"


@dataclass(eq=False)
class NotConnected(GatewayError):
    """Nothing can be sent: there is no joined connection."""

    gateway: str
    cause: str = ""

    def __str__(self) -> str:
        tail = f" ({self.cause})" if self.cause else ""
        return f"not connected to the gateway at {self.gateway}{tail}"


@dataclass(eq=False)
class NotPermitted(MewAgentError):
    """None of our capabilities covers this envelope."""

    participant: str
    kind: str

    def __str__(self) -> str:
        return f"'{self.participant}' has no capability that covers '{self.kind}'"


@dataclass(eq=False)
class TooLarge(MewAgentError):
    """A message is larger than a gateway takes. `limit_bytes` is None where it is the gateway's own bound."""

    size_bytes: int
    limit_bytes: int | None = None

    def __str__(self) -> str:
        bound = "the gateway takes" if self.limit_bytes is None else f"the {self.limit_bytes:,} that one may have"
        return f"a message of {self.size_bytes:,} bytes is larger than {bound}"


@dataclass(eq=False)
class PolicyStopped(MewAgentError):
    """The policy of the context says that a reply cannot go on. `problem` says why."""

    policy: str
    problem: str

    def __str__(self) -> str:
        return f"I had to stop, by my context policy '{self.policy}': {self.problem}"


class PeerError(MewAgentError):
    """A peer answered with an error or not at all."""


@dataclass(eq=False)
class PeerTimeout(PeerError):
    """A peer did not answer within the bound."""

    peer: str
    kind: str
    waited_seconds: float
    detail: str = ""

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        return f"'{self.peer}' did not answer '{self.kind}' within {self.waited_seconds:g} seconds{tail}"


@dataclass(eq=False)
class PeerAbsent(PeerError):
    """There is nobody of this name in the space. `had_been_asked`: it was there, and left before it answered."""

    peer: str
    had_been_asked: bool = False

    def __str__(self) -> str:
        return f"'{self.peer}' left before it answered" if self.had_been_asked else f"'{self.peer}' is not in the space"


@dataclass(eq=False)
class PeerFailed(PeerError):
    """A peer answered an MCP request with a JSON-RPC error. `code` is None when it named none."""

    peer: str
    code: int | None
    problem: str
    data: object = None

    def __str__(self) -> str:
        tail = f" (error {self.code})" if self.code is not None else ""
        return f"'{self.peer}' answered: {self.problem}{tail}"


@dataclass(eq=False)
class Rejected(PeerError):
    """Somebody rejected our proposal to ask `peer`; `reason` is one of the wire's words, or a text of theirs."""

    peer: str
    method: str
    by: str
    reason: str

    def __str__(self) -> str:
        return f"'{self.by}' rejected the proposal of '{self.method}' to '{self.peer}': {self.reason}"


@dataclass(eq=False)
class AnswerLost(PeerError):
    """The connection broke after we sent something and before the gateway showed that it had it."""

    peer: str
    kind: str

    def __str__(self) -> str:
        return f"the connection broke: whether '{self.peer}' got the '{self.kind}' is not known"


@dataclass(eq=False)
class Refused(PeerError):
    """The gateway refused an envelope meant for a peer. `error` is the wire's code."""

    peer: str
    kind: str
    error: str
    detail: str = ""

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"the gateway refused '{self.kind}' to '{self.peer}' ({self.error}){tail}"


@dataclass(eq=False)
class NoAnswer(PeerError):
    """An agent that was asked something will not answer it.

    `code` is one of `agent_left`, `agent_silent`, `agent_busy`, `cancelled`, `refused`, `connection_lost`, `closing`.
    """

    peer: str
    code: str
    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class BadAnswer(PeerError):
    """A peer's answer does not hold what its kind promises. `problem` names the field."""

    peer: str
    problem: str

    def __str__(self) -> str:
        return f"'{self.peer}' answered what cannot be read: {self.problem}"


@dataclass(eq=False)
class ModelError(MewAgentError):
    """A model call failed. `endpoint` is the base URL, `request_id` the provider's id when it gave one."""

    endpoint: str
    model: str
    detail: str = ""
    request_id: str | None = None

    # What the status of an agent shows while its model is in this state.
    status = "model_error"
    summary = "My model call failed"

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        return f"{self.summary} at {self.endpoint}{tail}"


@dataclass(eq=False)
class ModelUnreachable(ModelError):
    """No connection to the model's server."""

    status = "model_unreachable"
    summary = "I could not reach my model"


@dataclass(eq=False)
class ModelRefused(ModelError):
    """The provider refused our key (HTTP 401 or 403)."""

    status = "model_unauthorized"
    summary = "My model refused my key"


@dataclass(eq=False)
class ModelRateLimited(ModelError):
    """The provider still answers 429 after the client's own retries. `retry_after_seconds` if it said so."""

    retry_after_seconds: float | None = None

    status = "model_rate_limited"
    summary = "My model is rate limited"


@dataclass(eq=False)
class ContextOverflow(ModelError):
    """The request does not fit the window. Both figures are the provider's own, when it named them."""

    limit_tokens: int | None = None
    requested_tokens: int | None = None

    status = "context_overflow"
    summary = "My request does not fit my model's context window"


@dataclass(eq=False)
class ModelStreamCut(ModelError):
    """The stream ended without a finish reason. `chunks` is how many chunks arrived before that."""

    chunks: int = 0

    status = "model_stream_cut"
    summary = "My model's answer was cut off"


@dataclass(eq=False)
class ModelFailed(ModelError):
    """Any other failure of a call. `http_status` is None when the error came inside a stream."""

    http_status: int | None = None


@dataclass(eq=False)
class ToolsUnsupported(ModelError):
    """The server refuses requests that offer tools: this model, or its server as it runs, cannot call any."""

    status = "model_tools_unsupported"
    summary = "My model takes no tools"
