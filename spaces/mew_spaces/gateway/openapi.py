"""[pure] The gateway's HTTP side as an OpenAPI 3.1 document. A test holds it and the routes together."""

from typing import Any

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Board

_REF = "#/components/schemas/{model}"


def openapi_document(*, version: str) -> dict[str, Any]:
    """The document. `version` is the gateway's own."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MEW gateway",
            "version": version,
            "description": "WebSocket is served at every path; what travels there is told in docs/wire.md.",
        },
        "paths": {
            "/health": {"get": _operation("That the gateway lives", _json("Health"))},
            "/openapi.json": {"get": _operation("This document", {"type": "object"})},
            "/participants": {
                "get": _operation("Who belongs to a space", _json("Participants"), parameters=[_SPACE_QUERY])
            },
            "/participants/{participant}/messages": {
                "post": {
                    **_operation(
                        "Say something, as a socket would; what is missing is filled in",
                        _json("Accepted"),
                        parameters=[_PARTICIPANT, _SPACE_QUERY],
                        refusals=("400", "401", "403", "404", "409", "413", "429"),
                    ),
                    "requestBody": {"required": True, "content": {"application/json": {"schema": _json("Draft")}}},
                },
                "get": _operation(
                    "What was said, from a place on",
                    _json("Messages"),
                    parameters=[_PARTICIPANT, _SPACE_QUERY, _query("since", "a `next` of before"), _LIMIT],
                    refusals=("400", "401", "403", "404"),
                ),
            },
            "/spaces/{space}/context": {
                "get": _operation(
                    "The last status of everybody",
                    _json("Board"),
                    parameters=[_SPACE],
                    refusals=("401", "403", "404"),
                )
            },
            "/spaces/{space}/events": {
                "get": _operation(
                    "Everything that happens: `board` first, then every `envelope`",
                    {"type": "string"},
                    media="text/event-stream",
                    parameters=[_SPACE, _query("since", "the last event seen; Last-Event-ID counts before it")],
                    refusals=("401", "403", "404"),
                )
            },
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A participant's token"}},
            "schemas": _schemas(),
        },
    }


def _operation(
    summary: str,
    schema: dict[str, Any],
    *,
    media: str = "application/json",
    parameters: list[dict[str, Any]] | None = None,
    refusals: tuple[str, ...] = (),
) -> dict[str, Any]:
    refused = {"description": "Refused", "content": {"application/json": {"schema": _json("Refusal")}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {media: {"schema": schema}}},
            **dict.fromkeys(refusals, refused),
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if "401" in refusals:
        operation["security"] = [{"token": []}]
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(model=name)}


def _query(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


def _path(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


_PARTICIPANT = _path("participant", "The participant whose token it is, by id or display name")
_SPACE = _path("space", "The space's id; `default` means the one that knows the token")
_SPACE_QUERY = _query("space", "The space's id; without it the one that knows the token is meant")
_LIMIT = _query(
    "limit", "How many messages at most", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
)


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}


def _schemas() -> dict[str, Any]:
    envelope = Envelope.model_json_schema(by_alias=True, ref_template=_REF)
    board = Board.model_json_schema(by_alias=True, ref_template=_REF)
    parts = {**envelope.pop("$defs", {}), **board.pop("$defs", {})}
    draft = {**envelope, "title": "Draft", "required": ["kind"]}
    listed = _object("id connected capabilities", id=_TEXT, connected=_FLAG, capabilities=_OBJECTS)
    return {
        **parts,
        "Envelope": envelope,
        "Draft": draft,
        "Board": board,
        "Health": _object(
            "status spaces clients uptime features",
            status=_TEXT,
            spaces={"type": "integer"},
            clients={"type": "integer"},
            uptime={"type": "number", "description": "seconds"},
            features={"type": "array", "items": _TEXT},
            version=_TEXT,
            protocol=_TEXT,
        ),
        "Participants": _object("participants", participants={"type": "array", "items": listed}),
        "Accepted": _object("id status timestamp", id=_TEXT, status=_TEXT, timestamp=_TEXT),
        "Messages": _object(
            "messages next complete more",
            messages={"type": "array", "items": _json("Envelope")},
            next={**_TEXT, "description": "what to ask from next, as `since`"},
            complete={**_FLAG, "description": "false when some of what followed `since` is not kept any more"},
            more={**_FLAG, "description": "whether more can be had at once"},
        ),
        "Refusal": _object("error message", error=_TEXT, message=_TEXT, code=_TEXT),
    }
