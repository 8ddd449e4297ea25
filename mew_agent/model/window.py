"""Asking a server how large the window of its model is.

Owns which endpoints are asked in which order and how long. What their answers mean is in `window_facts`; the
requests go through the one door that `openai_client` is, which hands in `fetch`.
"""

from collections.abc import Awaitable, Callable
from typing import Literal
from urllib.parse import urlsplit

from mew_agent.errors import ModelError, ModelUnreachable
from mew_agent.model import window_facts
from mew_agent.model.interface import Window

Fetch = Callable[[Literal["GET", "POST"], str, dict[str, object] | None], Awaitable[object]]
"""Method, absolute URL and JSON body -> decoded JSON. Bounded in time by itself; raises `ModelError`."""

_OLLAMA_PORT = 11434
# What the cloud says of its own models; it has no other endpoint worth asking.
_CLOUD_OWNERS = frozenset({"openai", "openai-internal", "openai-dev", "system"})


async def discover_window(fetch: Fetch, base_url: str, model: str) -> Window | None:
    """The window of `model` at `base_url`: loaded if any endpoint tells it, else trained, else None.

    One request where the listing has the figure. Errors mean that a server does not tell.
    """
    base = base_url.rstrip("/")
    try:
        listing = await fetch("GET", f"{base}/models", None)
    except ModelUnreachable:
        return None
    except ModelError:
        listing = None
    best = window_facts.from_models(listing, model)
    owners = {entry.get("owned_by") for entry in window_facts.listed_models(listing)}
    if (best is not None and best.basis == "loaded") or owners & _CLOUD_OWNERS:
        return best
    root = base.removesuffix("/v1")
    asking = [_ask_lm_studio, _ask_ollama]
    if "library" in owners or urlsplit(base).port == _OLLAMA_PORT:
        asking.reverse()
    for ask in asking:
        found = await ask(fetch, root, model)
        if found is not None and found.basis == "loaded":
            return found
        best = best or found
    return best


async def _ask_lm_studio(fetch: Fetch, root: str, model: str) -> Window | None:
    best: Window | None = None
    for version in ("v0", "v1"):
        found = window_facts.from_lm_studio(await _quiet(fetch, "GET", f"{root}/api/{version}/models"), model)
        if found is not None and found.basis == "loaded":
            return found
        best = best or found
    return best


async def _ask_ollama(fetch: Fetch, root: str, model: str) -> Window | None:
    running = window_facts.from_ollama_ps(await _quiet(fetch, "GET", f"{root}/api/ps"), model)
    if running is not None:
        return running
    return window_facts.from_ollama_show(await _quiet(fetch, "POST", f"{root}/api/show", {"model": model}))


async def _quiet(
    fetch: Fetch, method: Literal["GET", "POST"], url: str, body: dict[str, object] | None = None
) -> object:
    try:
        return await fetch(method, url, body)
    except ModelError:
        return None
