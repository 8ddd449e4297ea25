"""Checks the `agent:` sections of a space.yaml, and turns them into the settings of the agents' processes.

Owns what a space adds to an agent's settings: facts about models, the file of its conversation, the address of the
model server that the space starts. What settings mean is in `mew_agent.config.agent_config`.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from mew_protocol.agent_settings import LOCAL, REHEARSAL, WrittenAgentSettings
from mew_spaces.config.loading import SpaceConfig

from mew_agent.cli.app.locate import place_of, space_folder
from mew_agent.config.agent_config import (
    AgentConfig,
    Source,
    build_agent_config,
    check_model_source,
    environment_source,
)
from mew_agent.errors import ConfigError
from mew_agent.gateway_address import cause_of, is_loopback
from mew_agent.model.local_server import find_gguf, name_of

PROBE_SECONDS: Final = 1.5
"""How long the start of a space waits for a model server to accept a connection."""


@dataclass(frozen=True, slots=True)
class AgentSection:
    """An agent's section of space.yaml, as written and as the agent will read it."""

    written: Mapping[str, Any]
    config: AgentConfig
    notices: tuple[str, ...]


def read_section(
    name: str, section: WrittenAgentSettings, space: SpaceConfig, path: Path, environ: Mapping[str, str]
) -> AgentSection:
    """Read a section in the way the agent will. Raises `ConfigError`."""
    written = section.given()
    facts = {model: known.model_dump(exclude_none=True) for model, known in space.models.items()}
    if facts:
        written["models"] = facts
    where = place_of(path, name, "agent")
    places = {key: place_of(path, name, "agent", at=key) for key in section.model_fields_set}
    # Placeholders: the real gateway and token are chosen later, and nothing checked here depends on them.
    identity = Source("mew up", {"gateway": "ws://127.0.0.1", "space": "-", "id": name, "token": "-"})
    config, notices = build_agent_config(
        [environment_source(environ), Source(where, written, places, space_folder(path)), identity], environ=environ
    )
    written["policy"] = config.policy  # the path of a policy file is absolute now
    if config.tokenizer_file is not None:
        written["tokenizer_file"] = str(config.tokenizer_file.absolute())
    check_model_source(config, where=where)
    length = config.windows.get(config.model)
    if length is not None and config.context_token_limit is None:
        written["context_token_limit"] = length
        config = config.model_copy(update={"context_token_limit": length})
    return AgentSection(written, config, notices)


def process_settings(agent: AgentSection, store: Path, model_port: int | None) -> dict[str, Any]:
    """The settings that the agent's process gets; for the space's own model server, with its address."""
    settings = {"store": str(store), **agent.written}
    serves = served_model(agent.config)
    if serves is not None:
        settings.pop("api_key_env", None)
        name = REHEARSAL if serves == REHEARSAL else name_of(Path(serves))
        settings |= {"base_url": f"http://127.0.0.1:{model_port}/v1", "api_key": REHEARSAL, "model": name}
        facts = agent.written.get("models", {}).get(agent.config.model)
        if facts is not None:
            settings["models"] = {name: facts}
    return settings


def served_model(agent: AgentConfig) -> str | None:
    """What the space's own model server has to serve: `rehearsal`, or the path of a GGUF file.

    None if the agent uses another server. Raises `ConfigError` and `MissingExtra` as `find_gguf` does.
    """
    if agent.base_url == LOCAL:
        return str(find_gguf(agent.model, where=f"{agent.id}: model"))
    return REHEARSAL if agent.base_url == REHEARSAL else None


def shared_model(agents: Iterable[AgentConfig]) -> str | None:
    """What the space's model server serves to all agents that use it. Raises `ConfigError` if they need two."""
    users: dict[str, str] = {}
    for agent in agents:
        if (serves := served_model(agent)) is not None:
            users.setdefault(serves, agent.id)
    if len(users) > 1:
        needs = ", ".join(f"{user} needs {serves}" for serves, user in users.items())
        raise ConfigError("base_url", f"a space starts one model server; {needs}", "the URL of `mew model serve`")
    return next(iter(users), None)


def server_arguments(serves: str, agents: Iterable[AgentConfig]) -> tuple[str, ...]:
    """Arguments of `mew model serve`. The window is as large as the largest limit of the agents that use it."""
    limits = [one.context_token_limit for one in agents if one.context_token_limit and served_model(one) == serves]
    window = ("--window", str(max(limits))) if limits else ()
    return (*window, *(("--gguf", serves) if serves != REHEARSAL else ()))


def check_served(agent: AgentConfig, serves: str | None) -> None:
    """Refuse an agent on a model that the running space does not serve. Raises `ConfigError`."""
    wanted = served_model(agent)
    if wanted is not None and wanted != serves:
        what = "a rehearsal model" if wanted == REHEARSAL else f"a server for {wanted}"
        raise ConfigError(agent.id, f"this space runs without {what}; restart it with `mew down` and `mew up`")


def unreachable_models(agents: Iterable[AgentConfig]) -> Iterator[str]:
    """Warnings about model servers that accept no connection now. Asks each server once, and sends it nothing."""
    users: dict[str, list[str]] = {}
    for agent in agents:
        if agent.base_url not in (None, REHEARSAL, LOCAL):
            users.setdefault(agent.base_url, []).append(agent.id)
    for url, names in users.items():
        problem = _connection_problem(url)
        if problem is not None:
            yield f"the model server {url} of {', '.join(names)} does not answer ({problem})"


def _connection_problem(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not is_loopback(host) and not proxy_bypass(host):
        return None  # only the proxy can tell
    try:
        socket.create_connection((host, parts.port or (443 if parts.scheme == "https" else 80)), PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        return cause_of(error)
    return None
