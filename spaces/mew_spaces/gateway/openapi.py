"""[pure] HTTP routes with their parameters, models and errors, and the OpenAPI 3.1 document made of all of them.

Each `Operation` is declared once, in `http`; the router and the document both come from it. Does not know handlers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query or a path. With `maximum` it is a whole number, else text."""

    name: str
    description: str
    minimum: int = 1
    maximum: int | None = None
    default: int | None = None

    def parse_number(self, text: str) -> int | None:
        """Return the number in a query string, None if it is not valid."""
        if self.maximum is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(self.maximum))):
            return None
        number = int(text)
        return number if self.minimum <= number <= self.maximum else None

    def document(self, *, in_path: bool) -> dict[str, Any]:
        """Return the parameter as OpenAPI describes it."""
        schema: dict[str, Any] = {"type": "string"}
        if self.maximum is not None:
            schema = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum, "default": self.default}
        where = {"in": "path", "required": True} if in_path else {"in": "query"}
        return {"name": self.name, **where, "description": self.description, "schema": schema}


PATH_PARAMETERS = {
    "space": "The space's id; `default` selects the space that the token belongs to",
    "participant": "The participant, by id or display name",
}
"""The meaning of the names in paths."""

TOKEN_ERRORS = (401, 403, 404, 429)
"""The errors of every route that needs a token."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    `parameters` are those of the query. `answer` and `body` are models, or None where the schema is open. `errors` are
    HTTP status codes besides those that follow from the token, the body and the parameters. `is_for_owner`: the token
    must be that of the participant in the path.
    """

    method: str
    path: str
    answer: type[BaseModel] | None = None
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    needs_token: bool = True
    is_for_owner: bool = False


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
    required = {*operation.errors, *(TOKEN_ERRORS if operation.needs_token else ())}
    if operation.body is not None:
        required |= {400, 413}
    if any(one.maximum is not None for one in operation.parameters):
        required.add(400)
    described: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {operation.media_type: {"schema": answer}}},
            **{str(status): failed for status in sorted(required)},
        },
    }
    names = re.findall(r"{(\w+)}", operation.path)
    described["parameters"] = [
        *(Parameter(name, PATH_PARAMETERS[name]).document(in_path=True) for name in names),
        *(one.document(in_path=False) for one in operation.parameters),
    ]
    if operation.body is not None:
        content = {"application/json": {"schema": _reference(operation.body, schemas)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.needs_token:
        described["security"] = [{"token": []}]
    return described


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    """Add a model, with every model it refers to, to the schemas, and return the reference to it."""
    schema = model.model_json_schema(by_alias=True, ref_template=_REF)
    schemas |= schema.pop("$defs", {})
    schemas[schema["title"]] = schema
    return {"$ref": _REF.format(model=schema["title"])}
