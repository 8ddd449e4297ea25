"""[pure] The errors that `mew_agent` raises deliberately; every one is a `MewAgentError`.

Classes build their message from their attributes: programs read attributes, people read the text. A message states the
problem, its place, and the fix if known. Vendor errors become `ModelError`s in `mew_agent.model`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mew_protocol.envelope import Envelope
from mew_protocol.expectations import most_similar
from mew_settings.setting_problems import did_you_mean


class MewAgentError(Exception):
    """Base of all errors of this package."""


def message_of(error: BaseException) -> str:
    """Return the message of an error, or its type: an error of a program may have no message, or fail to write it."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def described(error: BaseException) -> str:
    """Return the type and the message of an error."""
    name, message = type(error).__name__, message_of(error)
    return name if message == name else f"{name}: {message}"


def problem_of(error: Exception) -> str:
    """Return the public text of an error: the message of our own errors, else only the type."""
    return str(error) if isinstance(error, MewAgentError) else type(error).__name__


@dataclass(eq=False, repr=False)
class ConfigError(MewAgentError):
    """A setting is missing or wrong.

    `where` is a file position or an option's name, `problem` the mistake, `expected` the valid values.
    """

    where: str
    problem: str
    expected: str | None = None

    def __str__(self) -> str:
        tail = f" (expected {self.expected})" if self.expected else ""
        return f"{self.where}: {self.problem}{tail}"


class MissingExtra(ConfigError):
    """The package of an extra is not installed. `where` needs it; `expected` is the command that installs it."""

    def __str__(self) -> str:
        return f"{self.where} needs the extra {self.problem}: {self.expected}"


class InvalidReport(ConfigError):
    """An impossible context report. `where` is the argument of `report_context`."""


class GatewayError(MewAgentError):
    """The gateway refused us or is gone."""


@dataclass(eq=False, repr=False)
class Unauthorized(GatewayError):
    """The gateway does not accept the token for this participant. `detail` is the gateway's own message."""

    participant: str
    detail: str = ""

    def __str__(self) -> str:
        if self.detail.startswith("the gateway needs"):
            return self.detail
        adds_nothing = not self.detail or self.detail.startswith("the gateway refused")
        tail = "" if adds_nothing else f": {self.detail}"
        return f"the gateway refused this token for '{self.participant}' (unauthorized){tail}"


@dataclass(eq=False, repr=False)
class Superseded(GatewayError):
    """A newer connection joined with our id. The client does not reconnect: that would end the newer one."""

    participant: str

    def __str__(self) -> str:
        return (
            f"another connection joined as '{self.participant}' and replaced this one; run one program per participant"
        )


@dataclass(eq=False, repr=False)
class NotConnected(GatewayError):
    """There is no connection to send on. `cause` is why the last one failed."""

    gateway: str
    cause: str = ""

    def __str__(self) -> str:
        tail = f" ({self.cause})" if self.cause else ""
        return f"not connected to the gateway at {self.gateway}{tail}"


@dataclass(eq=False, repr=False)
class CertificateRejected(GatewayError):
    """The gateway's TLS certificate is untrusted, expired or for another host. Nothing was sent.

    `problem` has the reason, `advice` the fix.
    """

    gateway: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"the certificate of {self.gateway} {self.problem}; {self.advice}"


@dataclass(eq=False, repr=False)
class NotConfirmed(GatewayError):
    """The gateway did not confirm an envelope in time, so members may or may not get it. `cause` has the reason.

    Sending the same envelope again is safe: the gateway recognises its id.
    """

    envelope: Envelope
    cause: str = ""

    def __str__(self) -> str:
        tail = f" ({self.cause})" if self.cause else ""
        return f"the gateway did not confirm this {self.envelope.kind}; it may have been delivered{tail}"


@dataclass(eq=False, repr=False)
class NotAccepted(GatewayError):
    """The gateway refused an envelope. `error` is a code of `mew_protocol.errors`, `detail` the gateway's text."""

    envelope: Envelope
    error: str
    detail: str = ""

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"the gateway refused this {self.envelope.kind} ({self.error}){tail}"


@dataclass(eq=False, repr=False)
class NotPermitted(MewAgentError):
    """None of our capabilities covers an envelope of this `kind`; nothing was sent.

    `other_arguments`: the request would be allowed with other arguments.
    """

    participant: str
    kind: str
    other_arguments: bool = False

    def __str__(self) -> str:
        tail = " with these arguments" if self.other_arguments else ""
        return f"'{self.participant}' has no capability that covers '{self.kind}'{tail}; add one in space.yaml"


@dataclass(eq=False, repr=False)
class TooLarge(MewAgentError):
    """A message exceeds the size limit. `limit_bytes` is None if the gateway refused it without naming its limit."""

    size_bytes: int
    limit_bytes: int | None = None

    def __str__(self) -> str:
        limit = "the gateway's limit" if self.limit_bytes is None else f"the limit of {self.limit_bytes:,} bytes"
        return f"a message of {self.size_bytes:,} bytes exceeds {limit}"


@dataclass(eq=False, repr=False)
class PolicyStopped(MewAgentError):
    """The context policy ended a reply. `problem` says why."""

    policy: str
    problem: str

    def __str__(self) -> str:
        return f"I had to stop because of my context policy '{self.policy}': {self.problem}"


@dataclass(eq=False, repr=False)
class ControlImpossible(MewAgentError):
    """A participant cannot carry out a control; `problem` is its answer."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class PinRefused(ControlImpossible):
    """A text cannot be pinned or unpinned; `problem` has the field, the mistake and the expected value."""


class PeerError(MewAgentError):
    """A peer answered with an error, or did not answer."""


@dataclass(eq=False, repr=False)
class PeerTimeout(PeerError):
    """A peer did not answer a request of this `kind` in time. `detail` is a likely reason."""

    peer: str
    kind: str
    waited_seconds: float
    detail: str = ""

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        unit = "second" if self.waited_seconds == 1 else "seconds"
        return f"'{self.peer}' did not answer '{self.kind}' within {self.waited_seconds:g} {unit}{tail}"


@dataclass(eq=False, repr=False)
class PeerAbsent(PeerError):
    """The peer is not in the space; if `had_been_asked`, it left before it answered. `known`: the peers that are."""

    peer: str
    had_been_asked: bool = False
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.had_been_asked:
            return f"'{self.peer}' left before it answered"
        return f"'{self.peer}' is not in the space{did_you_mean(self.peer, self.known)}"


@dataclass(eq=False, repr=False)
class PeerFailed(PeerError):
    """A peer answered an MCP request with a JSON-RPC error. `code` is None if the answer has none."""

    peer: str
    code: int | None
    problem: str
    data: object = None

    def __str__(self) -> str:
        tail = f" (error {self.code})" if self.code is not None else ""
        return f"'{self.peer}' answered: {self.problem}{tail}"


@dataclass(eq=False, repr=False)
class Rejected(PeerError):
    """The participant `by` rejected our proposal of a request to `peer`. `reason` is its own text, or a wire code."""

    peer: str
    method: str
    by: str
    reason: str

    def __str__(self) -> str:
        return f"'{self.by}' rejected the proposal of '{self.method}' to '{self.peer}': {self.reason}"


@dataclass(eq=False, repr=False)
class AnswerLost(PeerError):
    """The connection was lost before the gateway confirmed a request, which may have arrived, or for so long that the
    gateway withdrew a proposal.
    """

    peer: str
    kind: str

    def __str__(self) -> str:
        return f"the connection was lost; '{self.peer}' may not have received the '{self.kind}'"


@dataclass(eq=False, repr=False)
class Refused(PeerError):
    """The gateway refused to relay an envelope to a peer. `error` is the wire's error code."""

    peer: str
    kind: str
    error: str
    detail: str = ""

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"the gateway refused '{self.kind}' to '{self.peer}' ({self.error}){tail}"


@dataclass(eq=False, repr=False)
class ChatRefused(PeerError):
    """An agent does not answer a chat; `problem` says why, and if known, when it answers again."""

    peer: str
    problem: str

    def __str__(self) -> str:
        return f"'{self.peer}' refused the message: {self.problem}"


@dataclass(eq=False, repr=False)
class ControlRefused(PeerError):
    """A peer did not carry out a control; `problem` says why."""

    peer: str
    kind: str
    problem: str

    def __str__(self) -> str:
        return f"'{self.peer}' refused '{self.kind}': {self.problem}"


@dataclass(eq=False, repr=False)
class NoAnswer(PeerError):
    """An agent will not answer a question.

    `code` is one of `agent_left`, `agent_silent`, `agent_busy`, `program_failed`, `would_overflow`,
    `response_format_unsupported`, `cancelled`, `refused`, `connection_lost`, `closing`.
    """

    peer: str
    code: str
    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False, repr=False)
class BadAnswer(PeerError):
    """A peer's answer cannot be read. `problem` names the field."""

    peer: str
    problem: str

    def __str__(self) -> str:
        return f"cannot read the answer of '{self.peer}': {self.problem}"


@dataclass(eq=False, repr=False)
class ModelError(MewAgentError):
    """A model call failed; nothing was recorded.

    `endpoint` is the base URL, `request_id` the provider's id if it sent one.
    """

    endpoint: str
    model: str
    detail: str = ""
    request_id: str | None = None

    # The status of an agent after this failure of a model call.
    status = "model_error"
    summary = "My model call failed"

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        return f"{self.summary} at {self.endpoint}{tail}"


class ModelUnreachable(ModelError):
    """No connection to the model's server could be made or kept."""

    status = "model_unreachable"
    summary = "I could not reach my model"


class ModelRefused(ModelError):
    """The provider refused our API key (HTTP 401 or 403)."""

    status = "model_unauthorized"
    summary = "My model refused my key"


@dataclass(eq=False, repr=False)
class ModelRateLimited(ModelError):
    """The provider still answers 429 after the client's own retries. `retry_after_seconds` if the provider sent it."""

    retry_after_seconds: float | None = None

    status = "model_rate_limited"
    summary = "My model is rate limited"


@dataclass(eq=False, repr=False)
class ContextOverflow(ModelError):
    """The request does not fit the model's window. Both figures are the provider's, or None."""

    limit_tokens: int | None = None
    requested_tokens: int | None = None

    status = "context_overflow"
    summary = "My request does not fit my model's context window"


@dataclass(eq=False, repr=False)
class ModelStreamCut(ModelError):
    """The stream ended without a finish reason, after `chunks` chunks."""

    chunks: int = 0

    status = "model_stream_cut"
    summary = "My model's answer was cut off"


@dataclass(eq=False, repr=False)
class ModelFailed(ModelError):
    """Any other failure of a call. `http_status` is None if the error came inside a stream."""

    http_status: int | None = None

    @property
    def is_rejection(self) -> bool:
        """Whether the server rejected the request itself, and would reject it again."""
        return self.http_status in (400, 422)


class ToolsUnsupported(ModelError):
    """The server refuses requests with tools: the model, or the server's configuration, does not support tool calls."""

    status = "model_tools_unsupported"
    summary = "My model does not support tool calls"


def first_cause(error: BaseException) -> BaseException:
    """Return the first exception in a group, or in a group of groups; any other exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def unknown_name(where: str, problem: str, name: str, known: Iterable[str], more: str = "") -> ConfigError:
    """Return the error for an unknown name, with the most similar known name, else all names.

    `more` is appended to the list of names.
    """
    known = list(known)
    hint = did_you_mean(name, known)
    return ConfigError(where, f"{problem}{hint}", None if hint else f"one of {', '.join(known)}{more}")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names in one line, `a, b`. Of many names, show the first, and the number of the others."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return f"{', '.join(known[:most])}{more}" or "none"


def refuse_misspelled(environ: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `ConfigError` if a `MEW_` variable looks like one of the `known` variables that is not set.

    Other variables are accepted: a program may have its own with this prefix.
    """
    unset = [name for name in known if not environ.get(name)]
    for name in sorted(environ.keys() - set(known)):
        is_ours = name.startswith("MEW_") and not name.startswith("MEW_TOKEN_")  # MEW_TOKEN_ADA: the token of `ada`
        if is_ours and most_similar(name, unset, similarity=0.8):
            raise ConfigError("environment", f"unknown variable '{name}'{did_you_mean(name, unset)}")
