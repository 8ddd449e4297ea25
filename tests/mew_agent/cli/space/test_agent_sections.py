"""The `agent:` sections of a space.yaml, as their processes get them."""

from pathlib import Path

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.config.settings import ModelMetadata

from mew_agent.cli.space.agent_sections import AgentSection, check_rehearsal, handed_over, read_section, window_for
from mew_agent.config.agent_config import ModelFacts
from mew_agent.errors import ConfigError

HEAD = "space: {id: s}\nmodels: {big: {context_length: 4096, critical_max_tokens: 4000}}\nparticipants:\n"


def section(tmp_path: Path, agent: str, *, head: str = HEAD, **environ: str) -> AgentSection:
    path = tmp_path / "space.yaml"
    path.write_text(f"{head}  coder: {{agent: {{{agent}}}}}\n")
    space = parse_space(path.read_text(), path=path)
    found = space.participants["coder"].agent
    assert found is not None
    return read_section("coder", found, space, path, environ)


def test_a_space_takes_the_same_facts_of_a_model_as_an_agent() -> None:
    assert set(ModelMetadata.model_fields) == set(ModelFacts.model_fields)


def test_what_the_space_knows_of_a_model_goes_with_the_agent(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: http://here/v1")
    settings = handed_over(read, tmp_path / "coder.db", None)
    assert settings["models"] == {"big": {"context_length": 4096, "critical_max_tokens": 4000}}
    assert settings["context_token_limit"] == read.config.context_token_limit == 4096
    assert settings["base_url"] == "http://here/v1"
    assert settings["store"] == str(tmp_path / "coder.db")


def test_a_limit_of_its_own_stands_above_the_models(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: http://here/v1, context_token_limit: 1000")
    assert handed_over(read, tmp_path, None)["context_token_limit"] == 1000


def test_a_rehearsal_gets_the_address_of_the_spaces_own_model(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: rehearsal, api_key_env: SOME_KEY", SOME_KEY="k")
    settings = handed_over(read, tmp_path / "coder.db", 8100)
    assert (settings["base_url"], settings["model"]) == ("http://127.0.0.1:8100/v1", "rehearsal")
    assert settings["models"] == {"rehearsal": {"context_length": 4096, "critical_max_tokens": 4000}}
    assert "api_key_env" not in settings
    check_rehearsal(read.config, runs=True)
    with pytest.raises(ConfigError, match="coder: this space was started without a rehearsal model"):
        check_rehearsal(read.config, runs=False)


def test_the_rehearsal_has_room_for_whoever_counts_on_most(tmp_path: Path) -> None:
    small, large, unsaid = (
        section(tmp_path, f"base_url: rehearsal{more}").config
        for more in (", context_token_limit: 500", ", context_token_limit: 9000", "")
    )
    assert window_for([small, large, unsaid]) == ("--window", "9000")
    assert window_for([unsaid]) == ()


def test_a_setting_that_cannot_be_meant_is_refused_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"space\.yaml:4:\d+: participants\.coder\.agent"):
        section(tmp_path, "base_url: rehearsal, policy: no-such-policy")
