"""The `agent:` sections of a space.yaml: checked as the agent itself will, and made into what its process is given.

Owns what a space adds to an agent's settings: its models' facts, a place for its conversation, the address of the
rehearsal model. Starts nothing; what settings mean is `mew_agent.config.agent_config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mew_protocol.agent_settings import REHEARSAL, WrittenAgentSettings
from mew_spaces.config.loading import SpaceConfig

from mew_agent.cli.space.locate import place_of, space_folder
from mew_agent.config.agent_config import (
    AgentConfig,
    Source,
    build_agent_config,
    check_model_source,
    environment_source,
)
from mew_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AgentSection:
    """An agent's section of space.yaml, as it is written and as it will be understood."""

    written: Mapping[str, Any]
    config: AgentConfig
    notices: tuple[str, ...]


def read_section(
    name: str, section: WrittenAgentSettings, space: SpaceConfig, path: Path, environ: Mapping[str, str]
) -> AgentSection:
    """Read an agent's section as the agent itself will. Raises `ConfigError`."""
    written = section.given()
    facts = {model: known.model_dump(exclude_none=True) for model, known in space.models.items()}
    if facts:
        written["models"] = facts
    where = place_of(path, name, "agent")
    places = {key: place_of(path, name, "agent", at=key) for key in section.model_fields_set}
    # The real gateway and token are not settled yet, and play no part in what can be wrong here.
    identity = Source("mew up", {"gateway": "ws://127.0.0.1", "space": "-", "id": name, "token": "-"})
    config, notices = build_agent_config(
        [environment_source(environ), Source(where, written, places, space_folder(path)), identity], environ=environ
    )
    written["policy"] = config.policy  # a file of its own is named so that it is found from anywhere
    if config.tokenizer_file is not None:
        written["tokenizer_file"] = str(config.tokenizer_file.absolute())
    check_model_source(config, where=where)
    known = space.models.get(config.model)
    length = (known.context_length or known.input_length) if known is not None else None
    if length is not None and config.context_token_limit is None:
        written["context_token_limit"] = length
        config = config.model_copy(update={"context_token_limit": length})
    return AgentSection(written, config, notices)


def handed_over(agent: AgentSection, store: Path, model_port: int | None) -> dict[str, Any]:
    """The settings given to the agent's process; a rehearsal gets the address of the space's own model."""
    settings = {"store": str(store), **agent.written}
    if agent.config.base_url == REHEARSAL:
        settings.pop("api_key_env", None)
        settings |= {"base_url": f"http://127.0.0.1:{model_port}/v1", "api_key": REHEARSAL, "model": REHEARSAL}
        facts = agent.written.get("models", {}).get(agent.config.model)
        if facts is not None:
            settings["models"] = {REHEARSAL: facts}
    return settings


def window_for(rehearsing: list[AgentConfig]) -> tuple[str, ...]:
    """The rehearsal model's window is at least what any of its agents was told to count on."""
    limits = [one.context_token_limit for one in rehearsing if one.context_token_limit]
    return ("--window", str(max(limits))) if limits else ()


def check_rehearsal(agent: AgentConfig, *, runs: bool) -> None:
    """An agent on the rehearsal model needs one that runs. Raises `ConfigError`."""
    if agent.base_url == REHEARSAL and not runs:
        raise ConfigError(
            agent.id, "this space was started without a rehearsal model; `mew down` and `mew up` start one"
        )
