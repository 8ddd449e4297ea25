"""The bodies of the gateway's HTTP API outside the protocol, including error bodies.

The OpenAPI document names the models by their titles.
"""

import json
from typing import Any

from mew_board.answers import ShownAnswer
from mew_protocol import errors
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads.attention_items import TextChange
from mew_settings.roles import Role
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


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


class AllowedCall(BaseModel):
    """A call that a participant may make without approval, in words, and the capability for it."""

    text: str
    pattern: dict[str, Any]


class ListedParticipant(BaseModel):
    """One entry of `/participants`."""

    id: str
    connected: bool
    capabilities: list[dict[str, Any]]
    allowed: list[AllowedCall] | None = Field(None, description="calls that somebody allowed for good; absent if none")


class ParticipantList(BaseModel):
    """Answer of `/participants`."""

    model_config = ConfigDict(title="Participants")

    participants: list[ListedParticipant]


class PostedEnvelope(Draft):
    """Body of a posted message: an envelope; only its kind is required."""

    model_config = ConfigDict(title="Draft")

    kind: str


class AcceptedEnvelope(BaseModel):
    """Answer to a posted message. Requests with a special answer add its keys."""

    model_config = ConfigDict(title="Accepted", extra="allow")

    id: str
    status: str
    timestamp: str
    position: str | None = Field(default=None, description="where it is stored in the space; absent if it is not")
    text: str | None = Field(default=None, description="what a change of rights or of the membership did, for people")


class MessagePage(BaseModel):
    """Part of a space's history. Describes the answer of `poll_messages`, which is assembled from stored JSON."""

    model_config = ConfigDict(title="Messages")

    messages: list[Envelope]
    positions: list[str] = Field(description="where each of them is stored in the space")
    next: str = Field(description="pass it as `since`, or as `before`, to continue")
    complete: bool = Field(description="false when some of the messages are no longer stored")
    more: bool = Field(description="whether more messages are available now")
    said: list[ShownAnswer | None] | None = Field(None, description="with `view=1`: each answer in words")


class AddableType(BaseModel):
    """A participant type that can be added with one value."""

    type: str = Field(description="its key in space.yaml")
    role: Role
    title: str
    value: str = Field(description="the name of the value")
    help: str
    choices: list[str] = Field(description="all possible values; without any, the value is a text")


class ProgramList(BaseModel):
    """The participants with a program that runs, or ran, next to the gateway."""

    model_config = ConfigDict(title="Programs")

    running: bool = Field(description="whether the gateway can start and restart programs")
    participants: list[str]
    startable: list[str] = Field(description="participants whose programs space.yaml declares and nothing has started")
    models: list[str] = Field(description="participants whose model server a new agent can use, as `like`")
    types: list[AddableType] = Field(description="what can be added in addition to an agent")


class ProgramLog(BaseModel):
    """The end of a program's output, without secrets."""

    participant: str
    lines: list[str]


class ProgramAnswer(BaseModel):
    """The outcome of a request about a program. `text` is for people."""

    participant: str
    done: bool
    text: str


class CallArguments(BaseModel):
    """The arguments of a proposed call."""

    arguments: dict[str, Any]


class CallChanges(BaseModel):
    """The text changes in the arguments of a call, by place, in the form of `attention` items."""

    changes: dict[str, TextChange]


class ErrorAnswer(BaseModel):
    """Body of every error response. Some errors add keys."""

    model_config = ConfigDict(title="Refusal", extra="allow")

    error: str
    message: str
    code: str = ""


class ApiError(HTTPException):
    """A refused request: `{"error", "message", ...}` under an HTTP status."""

    def __init__(self, status: int, error: str, message: str, /, **more: Any) -> None:
        super().__init__(status, message, {"www-authenticate": "Bearer"} if status == 401 else None)
        self.body = {"error": error, "message": message, **more}


def describe_error(code: str, message: str) -> bytes:
    """Return the body of an error response."""
    return json.dumps({"error": code, "message": message}).encode()


async def respond_to_error(_request: Request, error: Exception) -> Response:
    """Return a refusal as JSON, and an internal error without its details."""
    if not isinstance(error, HTTPException):
        error = ApiError(500, errors.INTERNAL_ERROR, "the gateway failed to process this request")
    elif not isinstance(error, ApiError):
        names = {404: "not_found", 405: "method_not_allowed"}
        name, headers = names.get(error.status_code, "http_error"), error.headers
        error = ApiError(error.status_code, name, error.detail)
        error.headers = headers
    return JSONResponse(error.body, status_code=error.status_code, headers=error.headers)
