"""The OpenAPI document describes the routes that the gateway serves."""

from typing import Any

import httpx2
import pytest
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.gateway.http import HttpApi
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService


@pytest.fixture
def document(config: SpaceConfig) -> dict[str, Any]:
    return HttpApi(SpaceRegistry([SpaceService(config, TokenBook.generate(config))]), version="1").document()


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(references(one) for one in value))
    return set()


def test_every_reference_has_a_schema(document: dict[str, Any]) -> None:
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document)
    assert references(document) <= names


def test_path_parameters_are_required_and_query_parameters_are_not(document: dict[str, Any]) -> None:
    parameters = document["paths"]["/participants/{participant}/messages"]["get"]["parameters"]
    assert [(one["name"], one["in"], one.get("required", False)) for one in parameters] == [
        ("participant", "path", True),
        ("space", "query", False),
        ("since", "query", False),
        ("before", "query", False),
        ("limit", "query", False),
        ("view", "query", False),
    ]
    assert parameters[-2]["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}


def test_only_three_operations_need_no_token(document: dict[str, Any]) -> None:
    operations = {path: one for path, methods in document["paths"].items() for one in methods.values()}
    assert {path for path, one in operations.items() if "security" not in one} == {
        "/health",
        "/ready",
        "/openapi.json",
    }


async def test_the_openapi_document_is_served(gateway: RunningGateway) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        described = (await http.get("/openapi.json")).json()
        version = (await http.get("/health")).json()["version"]
    assert described["openapi"].startswith("3.1")
    assert described["info"]["version"] == version
