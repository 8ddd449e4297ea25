"""[pure] The OpenAPI 3.1 document of the gateway's HTTP API, built from its operations."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from mew_spaces.gateway.operations import Operation, Parameter

_REF = "#/components/schemas/{model}"

PATH_PARAMETERS = {
    "space": "The space's id; `default` selects the space that the token belongs to",
    "participant": "The participant, by id or display name",
}
"""The meaning of the names in paths."""

TOKEN_ERRORS = (401, 403, 404, 429)
"""The errors of every route that needs a token."""


def openapi_document(summaries: Mapping[Operation, str], *, version: str, error: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI document of these operations, each with its summary.

    `error` is the body of every error response.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation, summary in summaries.items():
        described = _operation(operation, summary.removesuffix("."), schemas, error)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    description = "WebSocket is served at every path; docs/reference/wire.md describes the messages."
    return {
        "openapi": "3.1.0",
        "info": {"title": "MEW gateway", "version": version, "description": description},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A participant's token"}},
            "schemas": schemas,
        },
    }


def _operation(operation: Operation, summary: str, schemas: dict[str, Any], error: type[BaseModel]) -> dict[str, Any]:
    if operation.answer is not None:
        answer = _reference(operation.answer, schemas)
    else:
        answer = {"type": "object" if operation.media_type == "application/json" else "string"}
    failed = {"description": "Error", "content": {"application/json": {"schema": _reference(error, schemas)}}}
    described: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {operation.media_type: {"schema": answer}}},
            **{str(status): failed for status in sorted(_errors_of(operation))},
        },
    }
    names = re.findall(r"{(\w+)}", operation.path)
    described["parameters"] = [
        *(_parameter(Parameter(name, PATH_PARAMETERS[name]), in_path=True) for name in names),
        *(_parameter(one, in_path=False) for one in operation.parameters),
    ]
    if operation.body is not None:
        content = {"application/json": {"schema": _reference(operation.body, schemas)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.needs_token:
        described["security"] = [{"token": []}]
    return described


def _errors_of(operation: Operation) -> set[int]:
    """Return the status codes of an operation's errors, including those for token, body and parameters."""
    errors = {*operation.errors, *(TOKEN_ERRORS if operation.needs_token else ())}
    if operation.body is not None:
        errors |= {400, 413}
    if any(one.maximum is not None for one in operation.parameters):
        errors.add(400)
    return errors


def _parameter(one: Parameter, *, in_path: bool) -> dict[str, Any]:
    """Return a parameter as OpenAPI describes it."""
    schema: dict[str, Any] = {"type": "string"}
    if one.maximum is not None:
        schema = {"type": "integer", "minimum": one.minimum, "maximum": one.maximum, "default": one.default}
    where = {"in": "path", "required": True} if in_path else {"in": "query"}
    return {"name": one.name, **where, "description": one.description, "schema": schema}


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    """Add a model, with every model it refers to, to the schemas, and return the reference to it."""
    schema = model.model_json_schema(by_alias=True, ref_template=_REF)
    schemas |= schema.pop("$defs", {})
    schemas[schema["title"]] = schema
    return {"$ref": _REF.format(model=schema["title"])}
