"""[pure] What an HTTP route is: its parameters, models and errors, and the OpenAPI 3.1 document made of all routes.

An `Operation` is declared once, in `http`; the router and the document both come from it. Does not know handlers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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

    @property
    def expected(self) -> str:
        """What values are valid, for errors."""
        return "text" if self.maximum is None else f"a whole number from {self.minimum} to {self.maximum}"

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


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    `parameters` are those of the query and all those named in the path. `answer` and `body` are models, or None
    where the schema is open. Errors are HTTP status codes; 401 among them means that a token is required.
    """

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None = None
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    path_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(re.findall(r"{(\w+)}", self.path))
        if missing := names - {parameter.name for parameter in self.parameters}:
            raise ValueError(f"{self.path}: no description of {', '.join(sorted(missing))}")
        object.__setattr__(self, "path_names", names)

    @property
    def needs_token(self) -> bool:
        """Whether a request without a participant's token is refused."""
        return 401 in self.errors


def openapi_document(
    operations: Iterable[Operation], *, title: str, version: str, description: str, error: type[BaseModel]
) -> dict[str, Any]:
    """Return the OpenAPI document of these operations. `error` is the body of every error response."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A participant's token"}},
            "schemas": schemas.found,
        },
    }


def _operation(operation: Operation, schemas: "_Schemas", error: type[BaseModel]) -> dict[str, Any]:
    if operation.answer is not None:
        answer = schemas.reference(operation.answer)
    else:
        answer = {"type": "object" if operation.media_type == "application/json" else "string"}
    failed = {"description": "Error", "content": {"application/json": {"schema": schemas.reference(error)}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": operation.summary, "content": {operation.media_type: {"schema": answer}}},
            **{str(status): failed for status in operation.errors},
        },
    }
    if operation.parameters:
        described["parameters"] = [
            parameter.document(in_path=parameter.name in operation.path_names) for parameter in operation.parameters
        ]
    if operation.body is not None:
        content = {"application/json": {"schema": schemas.reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.needs_token:
        described["security"] = [{"token": []}]
    return described


class _Schemas:
    """The JSON Schemas of the models that operations refer to, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def reference(self, model: type[BaseModel]) -> dict[str, str]:
        """Add a model, with every model it refers to, and return the reference to it."""
        schema = model.model_json_schema(by_alias=True, ref_template=_REF)
        self.found |= schema.pop("$defs", {})
        name = schema["title"]
        self.found[name] = schema
        return {"$ref": _REF.format(model=name)}
