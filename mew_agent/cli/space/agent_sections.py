"""Checks the `agent:` sections of a space.yaml, and turns them into the settings of the agents' processes.

Adds the space's values to an agent's settings: facts about models, the file of its conversation, and the address of the
space's model server. `mew_agent.config.agent_config` defines the settings.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
from mew_agent.failed_connections import connection_cause
from mew_agent.gateway_address import is_loopback
from mew_agent.model.builtin import BuiltinModel, builtin_model, is_builtin
from mew_agent.settings import WrittenAgentSettings

PROBE_SECONDS: Final = 1.5
"""How long the start of a space waits for a model server to accept a connection."""


@dataclass(frozen=True, slots=True)
class AgentSection:
    """An agent's section of space.yaml, as written and as the agent reads it."""

    written: Mapping[str, Any]
    config: AgentConfig
    notices: tuple[str, ...]


def read_section(
    name: str, section: WrittenAgentSettings, space: SpaceConfig, path: Path, environ: Mapping[str, str]
) -> AgentSection:
    """Read a section as the agent will. Raises `ConfigError`."""
    written = section.given()
    facts = {model: known.model_dump(exclude_none=True) for model, known in space.models.items()}
    if facts:
        written["models"] = facts
    where = place_of(path, name, "agent")
    places = {key: place_of(path, name, "agent", at=key) for key in section.model_fields_set}
    # Placeholders: the real gateway and token are chosen later, and no check here depends on them.
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
    """Return the settings of the agent's process, with the address of the space's own model server if it uses that."""
    settings = {"store": str(store), **agent.written}
    served = served_model(agent.config)
    if served is not None:
        settings.pop("api_key_env", None)
        base_url = f"http://127.0.0.1:{model_port}/v1"
        settings |= {"base_url": base_url, "api_key": served.builtin, "model": served.model.name_of(served.what)}
        facts = agent.written.get("models", {}).get(agent.config.model)
        if facts is not None:
            settings["models"] = {settings["model"]: facts}
    return settings


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model of a space's own server: an entry of the table `mew_agent.models`, and its file or name."""

    builtin: str
    what: str

    @property
    def model(self) -> BuiltinModel:
        """The entry of the table."""
        found = builtin_model(self.builtin)
        assert found is not None, self.builtin
        return found


def served_model(agent: AgentConfig) -> ServedModel | None:
    """Return the model that an agent needs from the space's own server; None if it uses another server.

    Raises the errors of `BuiltinModel.serves`.
    """
    found = builtin_model(agent.base_url)
    return None if found is None else ServedModel(str(agent.base_url), found.serves(agent.model, f"{agent.id}: model"))


def shared_model(agents: Iterable[AgentConfig]) -> ServedModel | None:
    """Return the model that all agents need from the space's own server. Raises `ConfigError` if they need different
    models.
    """
    users: dict[ServedModel, str] = {}
    for agent in agents:
        if (served := served_model(agent)) is not None:
            users.setdefault(served, agent.id)
    if len(users) > 1:
        needs = ", ".join(f"{user} needs {served.what}" for served, user in users.items())
        raise ConfigError("base_url", f"a space starts one model server; {needs}", "the URL of `mew serve model`")
    return next(iter(users), None)


def server_arguments(served: ServedModel, agents: Iterable[AgentConfig]) -> tuple[str, ...]:
    """Return arguments of `mew serve model`. The window is the largest limit of the agents that use it."""
    limits = [one.context_token_limit for one in agents if one.context_token_limit and served_model(one) == served]
    window = ("--window", str(max(limits))) if limits else ()
    return (*window, *served.model.arguments(served.what))


def check_served(agent: AgentConfig, served: ServedModel | None) -> None:
    """Refuse an agent on a model that the running space does not serve. Raises `ConfigError`."""
    wanted = served_model(agent)
    if wanted is not None and wanted != served:
        what = wanted.model.described(wanted.what)
        advice = f"`mew restart` starts it if '{agent.id}' has `auto_start: true` in space.yaml"
        raise ConfigError(agent.id, f"this space runs without {what}; {advice}")


def unreachable_models(agents: Iterable[AgentConfig]) -> Iterator[str]:
    """Warnings about model servers that accept no connection now. Asks each server once, and sends it nothing."""
    users: dict[str, list[str]] = {}
    for agent in agents:
        if agent.base_url is not None and not is_builtin(agent.base_url):
            users.setdefault(agent.base_url, []).append(agent.id)
    for url, names in users.items():
        problem = _connection_problem(url)
        if problem is not None:
            yield f"the model server {url} of {', '.join(names)} does not answer ({problem})"


def _connection_problem(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not is_loopback(host) and not proxy_bypass(host):
        return None  # only the proxy knows
    try:
        socket.create_connection((host, parts.port or (443 if parts.scheme == "https" else 80)), PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        return connection_cause(error)
    return None
