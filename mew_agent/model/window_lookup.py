"""Ask a model server how large the context window of its model is.

Knows the endpoints, their order, and the place of the figure in each server's answer. Makes no request itself: callers
pass `fetch`. Each reader takes a decoded JSON body and returns None for a shape it does not know.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

from mew_protocol.json_values import object_at, objects_at, value_at

from mew_agent.errors import ModelError, ModelUnreachable
from mew_agent.model.dialect import is_openai
from mew_agent.model.interface import Window, WindowBasis
from mew_agent.model.usage import positive_count

Json = Mapping[str, object]
Fetch = Callable[[Literal["GET", "POST"], str, dict[str, object] | None], Awaitable[object]]
"""Takes a method, an absolute URL and a JSON body; returns decoded JSON. Has its own timeout; raises `ModelError`."""

_OLLAMA_PORT: Final = 11434
_OLLAMA_SHOW: Final = "/api/show"
# OpenAI names these owners and has no endpoint with a window; LiteLLM's proxy names `openai` for every model.
_CLOUD_OWNERS: Final = frozenset({"openai", "openai-internal", "openai-dev", "system"})

# Never `max_tokens` or `max_output_tokens`: they bound the reply.
_LISTED_KEYS: Final[tuple[tuple[WindowBasis, tuple[str, ...]], ...]] = (
    ("loaded", ("meta.n_ctx", "n_ctx", "max_model_len", "loaded_context_length", "max_seq_len")),
    ("loaded", ("top_provider.context_length", "context_length", "context_window", "context_size", "max_context")),
    ("trained", ("max_input_tokens", "model_info.max_input_tokens", "limits.max_input_tokens")),
    ("trained", ("inputTokenLimit", "input_token_limit", "max_context_length", "max_context_tokens")),
    ("trained", ("meta.n_ctx_train", "metadata.context_length", "model_spec.availableContextTokens")),
)
"""Where listings put a window, the running instance's before the model's maximum. A dot enters an object."""


async def discover_window(fetch: Fetch, base_url: str, model: str) -> Window | None:
    """Return the window of `model` at `base_url`: the loaded one, else the trained one, else None. Raises nothing."""
    base = base_url.rstrip("/")
    try:
        listing = await fetch("GET", f"{base}/models", None)
    except ModelUnreachable:
        return None
    except ModelError:
        listing = None
    best = read_models(listing, model)
    owners = {entry.get("owned_by") for entry in listed_models(listing)}
    address = urlsplit(base)
    if _is_loaded(best) or is_openai(address.hostname):
        return best
    for path, read in _questions(owners, address.port):
        asked: dict[str, object] | None = {"model": model} if path == _OLLAMA_SHOW else None
        try:
            answer = await fetch("POST" if asked else "GET", f"{base.removesuffix('/v1')}{path}", asked)
        except ModelError:
            continue
        found = read(answer, model)
        if _is_loaded(found):
            return found
        best = best or found
    return best


def _is_loaded(window: Window | None) -> bool:
    return window is not None and window.basis == "loaded"


Question = tuple[str, Callable[[object, str], Window | None]]
"""A path of one kind of server, and the function that reads the window of a model from the answer."""


def _questions(owners: Collection[object], port: int | None) -> Sequence[Question]:
    """Return the requests for the likely kinds of server (by port and by model owners), most likely first."""
    lm_studio: list[Question] = [("/api/v0/models", read_lm_studio), ("/api/v1/models", read_lm_studio)]
    ollama: list[Question] = [("/api/ps", read_ollama_ps), (_OLLAMA_SHOW, lambda body, _: read_ollama_show(body))]
    litellm: list[Question] = [("/model/info", read_litellm)]
    if not _CLOUD_OWNERS.isdisjoint(owners):
        return litellm
    if "library" in owners or port == _OLLAMA_PORT:
        return [*ollama, *lm_studio]
    return [*lm_studio, *ollama, *litellm]


def listed_models(body: object) -> list[Json]:
    """Return the model entries of a listing: under `data`, under `models`, or a bare list."""
    return objects_at(body) or objects_at(body, "data") or objects_at(body, "models")


def read_models(body: object, model: str) -> Window | None:
    """Read `GET /v1/models` of a server or proxy that lists window sizes; see `_LISTED_KEYS`."""
    entry = _entry_for(listed_models(body), model, ("id", "root", "canonical_slug", "name", "model_name"))
    if entry is None:
        return None
    places = ((basis, key) for basis, keys in _LISTED_KEYS for key in keys)
    return _first_known(*((basis, value_at(entry, *key.split(".")), f"/v1/models {key}") for basis, key in places))


def read_litellm(body: object, model: str) -> Window | None:
    """Read `GET /model/info` of LiteLLM's proxy: the smallest window of the model's deployments."""
    deployments = [entry for entry in listed_models(body) if entry.get("model_name") == model]
    figures = [value_at(one, "model_info", "max_input_tokens") for one in deployments]
    known = [tokens for figure in figures if (tokens := positive_count(figure)) is not None]
    return Window(min(known), "trained", "LiteLLM /model/info max_input_tokens") if known else None


def read_lm_studio(body: object, model: str) -> Window | None:
    """Read `GET /api/v0/models` or `/api/v1/models` of LM Studio."""
    entries = listed_models(body)
    for entry in entries:
        for instance in objects_at(entry, "loaded_instances"):
            if instance.get("id") == model:
                return _instance_window(instance) or _trained_window(entry)
    found = _entry_for(entries, model, ("id", "key"))
    if found is None:
        return None
    loaded = [window for instance in objects_at(found, "loaded_instances") if (window := _instance_window(instance))]
    if loaded:
        # The listing does not name the instance that answers; the smallest window is safe for all of them.
        return min(loaded, key=lambda window: window.max_tokens)
    return _first_known(
        ("loaded", found.get("loaded_context_length"), "LM Studio loaded_context_length")
    ) or _trained_window(found)


def read_ollama_ps(body: object, model: str) -> Window | None:
    """Read `GET /api/ps` of Ollama: the models now in memory."""
    for entry in listed_models(body):
        if _with_tag(model) in (_with_tag(entry.get("name")), _with_tag(entry.get("model"))):
            return _first_known(("loaded", entry.get("context_length"), "Ollama /api/ps context_length"))
    return None


def read_ollama_show(body: object) -> Window | None:
    """Read `POST /api/show` of Ollama: the `num_ctx` of the model file if set, else the model's maximum."""
    shown = object_at(body)
    parameters = shown.get("parameters")
    if isinstance(parameters, str) and (
        match := re.search(r"^[^\S\n]*num_ctx\s+(\d+)[^\S\n]*$", parameters, re.MULTILINE)
    ):
        return _first_known(("loaded", int(match[1]), "Ollama /api/show num_ctx"))
    facts = object_at(shown, "model_info")
    name = f"{facts.get('general.architecture')}.context_length"
    figure = facts.get(name)
    if figure is None:
        figure = next((value for key, value in facts.items() if key.endswith(".context_length")), None)
    return _first_known(("trained", figure, "Ollama /api/show context_length"))


def _instance_window(instance: object) -> Window | None:
    return _first_known(("loaded", value_at(instance, "config", "context_length"), "LM Studio loaded_instances"))


def _trained_window(entry: Json) -> Window | None:
    return _first_known(("trained", entry.get("max_context_length"), "LM Studio max_context_length"))


def _first_known(*places: tuple[WindowBasis, object, str]) -> Window | None:
    for basis, figure, source in places:
        if (tokens := positive_count(figure)) is not None:
            return Window(tokens, basis, source)
    return None


def _entry_for(entries: Sequence[Json], model: str, keys: Sequence[str]) -> Json | None:
    """Return the entry of `model`: by its full name, by the part after its last slash, or the only entry."""
    spellings: tuple[Callable[[str], str], ...] = (str, lambda name: name.rpartition("/")[2])
    for spelling in spellings:
        for entry in entries:
            names = [spelling(name) for key in keys if isinstance(name := entry.get(key), str)]
            if spelling(model) in names:
                return entry
    # A server with one model uses it for any name in the request.
    return entries[0] if len(entries) == 1 else None


def _with_tag(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    return name if ":" in name else f"{name}:latest"
