"""Which endpoints are asked for the window, in which order, over real HTTP."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from mew_agent.model.interface import Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.rehearsal import RehearsalOptions, serve_rehearsal

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

LISTED = {"data": [{"id": "m", "owned_by": "organization_owner"}]}


@pytest.fixture
async def model(provider: RawProvider) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel("m", provider.base_url)
    yield model
    await model.aclose()


def asked_paths(provider: RawProvider) -> list[str]:
    return [asked.path for asked in provider.asked]


async def test_a_listing_with_the_loaded_window_needs_one_request(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {"/v1/models": provider.json({"data": [{"id": "m", "max_model_len": 8192}]})}
    assert await model.discover_window() == Window(8192, "loaded", "/v1/models max_model_len")
    assert asked_paths(provider) == ["/v1/models"]


async def test_lm_studio_is_asked_when_the_listing_has_no_figure(provider: RawProvider, model: OpenAIModel) -> None:
    loaded = {"data": [{"id": "m", "loaded_context_length": 4096, "max_context_length": 32768}]}
    provider.routes = {"/v1/models": provider.json(LISTED), "/api/v0/models": provider.json(loaded)}
    assert await model.discover_window() == Window(4096, "loaded", "LM Studio loaded_context_length")
    assert asked_paths(provider) == ["/v1/models", "/api/v0/models"]


async def test_a_loaded_window_of_the_newer_lm_studio_beats_a_trained_one_of_the_older(
    provider: RawProvider, model: OpenAIModel
) -> None:
    trained = {"data": [{"id": "m", "max_context_length": 32768}]}
    loaded = {"models": [{"key": "m", "loaded_instances": [{"id": "m", "config": {"context_length": 4096}}]}]}
    provider.routes = {
        "/v1/models": provider.json(LISTED),
        "/api/v0/models": provider.json(trained),
        "/api/v1/models": provider.json(loaded),
    }
    window = await model.discover_window()
    assert window is not None
    assert (window.max_tokens, window.basis) == (4096, "loaded")


async def test_ollama_is_asked_first_where_the_listing_looks_like_it(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {
        "/v1/models": provider.json({"data": [{"id": "m:latest", "owned_by": "library"}]}),
        "/api/ps": provider.json({"models": [{"name": "m:latest", "context_length": 4096}]}),
    }
    assert await model.discover_window() == Window(4096, "loaded", "Ollama /api/ps context_length")
    assert asked_paths(provider) == ["/v1/models", "/api/ps"]


async def test_a_model_that_ollama_has_not_loaded_has_its_trained_window(
    provider: RawProvider, model: OpenAIModel
) -> None:
    missing = provider.json({"error": "not found"}, status=404)
    provider.routes = {
        "/v1/models": provider.json({"data": [{"id": "m:latest", "owned_by": "library"}]}),
        "/api/ps": provider.json({"models": []}),
        "/api/show": provider.json({"model_info": {"general.architecture": "x", "x.context_length": 131072}}),
        "/api/v0/models": missing,
        "/api/v1/models": missing,
    }
    assert await model.discover_window() == Window(131072, "trained", "Ollama /api/show context_length")
    assert next(asked.body for asked in provider.asked if asked.path == "/api/show") == {"model": "m"}


async def test_the_clouds_own_listing_ends_the_search(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {"/v1/models": provider.json({"data": [{"id": "m", "owned_by": "system"}]})}
    assert await model.discover_window() is None
    assert asked_paths(provider) == ["/v1/models"]


@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_server_that_tells_nowhere_is_no_error(provider: RawProvider, model: OpenAIModel, status: int) -> None:
    paths = ("/v1/models", "/api/v0/models", "/api/v1/models", "/api/ps", "/api/show")
    provider.routes = {path: provider.json({"error": "no"}, status=status) for path in paths}
    assert await model.discover_window() is None
    assert asked_paths(provider) == list(paths)


@pytest.mark.parametrize(("body", "content_type"), [(b"{broken", "application/json"), (b"<html>", "text/html")])
async def test_answers_that_are_no_json_tell_nothing(
    provider: RawProvider, model: OpenAIModel, body: bytes, content_type: str
) -> None:
    paths = ("/v1/models", "/api/v0/models", "/api/v1/models", "/api/ps", "/api/show")
    provider.routes = {path: provider.json(body, content_type=content_type) for path in paths}
    assert await model.discover_window() is None


async def test_a_server_that_hangs_up_is_asked_once(provider: RawProvider, model: OpenAIModel) -> None:
    assert await model.discover_window() is None
    assert asked_paths(provider) == ["/v1/models"]


@pytest.mark.parametrize(("is_told", "expected"), [(True, 4096), (False, None)])
async def test_the_rehearsal_model_tells_its_window_unless_told_not_to(is_told: bool, expected: int | None) -> None:
    async with serve_rehearsal(RehearsalOptions(window_tokens=4096, window_told=is_told)) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        window = await model.discover_window()
        await model.aclose()
    assert (window and window.max_tokens) == expected
