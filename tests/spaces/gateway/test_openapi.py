"""The description and the routes are the same thing told twice."""

import re
from typing import Any

from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.http import DEFAULT_POLL, MAX_POLL, HttpRoutes
from mew_spaces.gateway.openapi import openapi_document
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService
from starlette.routing import Route

DOCUMENT = openapi_document(version="1")


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(references(one) for one in value))
    return set()


def test_every_route_is_described_and_nothing_else(config: SpaceConfig) -> None:
    registry = SpaceRegistry([SpaceService(config, TokenBook.generate(config))])
    served = {
        (route.path, method.lower())
        for route in HttpRoutes(registry, version="1").routes()
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path != "/" and not route.path.startswith("/dashboard")
    }
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert served == described


def test_every_reference_leads_somewhere() -> None:
    names = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT)
    assert references(DOCUMENT) <= names


def test_every_parameter_of_a_path_is_described() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))


def test_what_needs_a_token_says_so() -> None:
    open_ones = {
        path
        for path, methods in DOCUMENT["paths"].items()
        if "security" not in methods["get" if "get" in methods else "post"]
    }
    assert open_ones == {"/health", "/openapi.json", "/participants"}


def test_the_limits_of_a_poll_are_those_of_the_route() -> None:
    (limit,) = [
        one
        for one in DOCUMENT["paths"]["/participants/{participant}/messages"]["get"]["parameters"]
        if one["name"] == "limit"
    ]
    assert (limit["schema"]["default"], limit["schema"]["maximum"]) == (DEFAULT_POLL, MAX_POLL)
