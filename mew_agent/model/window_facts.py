"""[pure] Reading a context window out of what model servers say about their models.

Owns the places where each server has its figure, and which basis it has: `loaded` is what the running instance
works with, `trained` what the model could do at most. A function takes a decoded JSON body and returns None for
anything it does not recognise. Knows no URL.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from mew_agent.model.interface import Window, WindowBasis

Json = Mapping[str, object]


def listed_models(body: object) -> list[Json]:
    """The model entries of any listing: `data`, `models`, or a bare list."""
    entries: object = body
    if isinstance(body, Mapping):
        entries = body.get("data") if isinstance(body.get("data"), list) else body.get("models")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def from_models(body: object, model: str) -> Window | None:
    """`GET /v1/models` of llama.cpp, vLLM, OpenRouter and others that put a figure there."""
    entry = _entry_for(listed_models(body), model, ("id", "root", "canonical_slug"))
    if entry is None:
        return None
    meta, provider = _mapping(entry.get("meta")), _mapping(entry.get("top_provider"))
    return _first_known(
        ("loaded", meta.get("n_ctx"), "/v1/models meta.n_ctx"),
        ("loaded", entry.get("max_model_len"), "/v1/models max_model_len"),
        ("loaded", entry.get("loaded_context_length"), "/v1/models loaded_context_length"),
        ("loaded", provider.get("context_length"), "/v1/models top_provider.context_length"),
        ("loaded", entry.get("context_length"), "/v1/models context_length"),
        ("loaded", entry.get("context_window"), "/v1/models context_window"),
        ("trained", meta.get("n_ctx_train"), "/v1/models meta.n_ctx_train"),
        ("trained", entry.get("max_context_length"), "/v1/models max_context_length"),
    )


def from_lm_studio(body: object, model: str) -> Window | None:
    """`GET /api/v0/models` or `/api/v1/models` of LM Studio."""
    entries = listed_models(body)
    for entry in entries:
        for instance in _sequence(entry.get("loaded_instances")):
            if _mapping(instance).get("id") == model:
                return _of_instance(instance) or _trained(entry)
    found = _entry_for(entries, model, ("id", "key"))
    if found is None:
        return None
    loaded = [window for instance in _sequence(found.get("loaded_instances")) if (window := _of_instance(instance))]
    if loaded:
        # Which instance answers is not said; the smallest is the one that holds for all.
        return min(loaded, key=lambda window: window.max_tokens)
    return _first_known(
        ("loaded", found.get("loaded_context_length"), "LM Studio loaded_context_length"),
    ) or _trained(found)


def from_ollama_ps(body: object, model: str) -> Window | None:
    """`GET /api/ps` of Ollama: the models now in memory."""
    for entry in listed_models(body):
        if _with_tag(model) in (_with_tag(entry.get("name")), _with_tag(entry.get("model"))):
            return _first_known(("loaded", entry.get("context_length"), "Ollama /api/ps context_length"))
    return None


def from_ollama_show(body: object) -> Window | None:
    """`POST /api/show` of Ollama: what the model is loaded with when its file says so, else its maximum."""
    shown = _mapping(body)
    parameters = shown.get("parameters")
    if isinstance(parameters, str) and (match := re.search(r"^\s*num_ctx\s+(\d+)\s*$", parameters, re.MULTILINE)):
        return _first_known(("loaded", int(match[1]), "Ollama /api/show num_ctx"))
    facts = _mapping(shown.get("model_info"))
    name = f"{facts.get('general.architecture')}.context_length"
    figure = facts.get(name)
    if figure is None:
        figure = next((value for key, value in facts.items() if key.endswith(".context_length")), None)
    return _first_known(("trained", figure, "Ollama /api/show context_length"))


def _of_instance(instance: object) -> Window | None:
    config = _mapping(_mapping(instance).get("config"))
    return _first_known(("loaded", config.get("context_length"), "LM Studio loaded_instances"))


def _trained(entry: Json) -> Window | None:
    return _first_known(("trained", entry.get("max_context_length"), "LM Studio max_context_length"))


def _first_known(*places: tuple[WindowBasis, object, str]) -> Window | None:
    for basis, figure, source in places:
        if isinstance(figure, int) and not isinstance(figure, bool) and figure > 0:
            return Window(figure, basis, source)
    return None


def _entry_for(entries: Sequence[Json], model: str, keys: Sequence[str]) -> Json | None:
    """The entry of `model`: by its whole name, by the name behind its last slash, or the only one there is."""
    ways: tuple[Callable[[str], str], ...] = (str, lambda name: name.rpartition("/")[2])
    for shortened in ways:
        for entry in entries:
            names = [shortened(name) for key in keys if isinstance(name := entry.get(key), str)]
            if shortened(model) in names:
                return entry
    # A server with one model answers with it whatever name it is asked for.
    return entries[0] if len(entries) == 1 else None


def _with_tag(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    return name if ":" in name else f"{name}:latest"


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
