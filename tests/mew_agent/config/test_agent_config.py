"""Sources of an agent's settings, and errors for invalid ones."""

import json
from pathlib import Path

import pytest

from mew_agent.config.agent_config import (
    AgentConfig,
    Source,
    build_agent_config,
    check_model_source,
    chosen_policy,
    load_agent_config,
    load_policy,
)
from mew_agent.errors import ConfigError
from mew_agent.settings import IGNORED_KEYS
from mew_agent.tokens.tokenizers import TokenizerSettings

WHO = {"space": "review", "id": "coder", "token": "secret-token"}


def refused(values: dict[str, object], where: str = "space.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        build_agent_config([Source(where, {**WHO, **values})], environ={})
    return str(caught.value)


def loaded(values: dict[str, object]) -> AgentConfig:
    return build_agent_config([Source("test", {**WHO, **values})], environ={})[0]


def test_flags_override_json_then_file_then_environment(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("model: from-file\nbaseURL: http://file:1/v1\nsystemPrompt: from-file\n")
    config, _ = load_agent_config(
        flags={**WHO, "model": "from-flag", "base_url": None},
        environ={
            "MEW_AGENT_CONFIG": json.dumps({"model": "from-json", "baseURL": "http://json:1/v1"}),
            "OPENAI_MODEL": "from-environment",
            "OPENAI_API_KEY": "sk-environment",
            "MEW_GATEWAY": "http://localhost:9",
        },
        file=file,
    )
    assert config.model == "from-flag"
    assert config.base_url == "http://json:1/v1"
    assert config.system_prompt == "from-file"
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "sk-environment"
    assert config.gateway == "ws://localhost:9"


def test_identity_comes_from_the_environment_when_no_flag_names_it() -> None:
    environ = {"MEW_SPACE": "s", "MEW_TOKEN": "t", "MEW_PARTICIPANT_ID": "me"}
    config, _ = load_agent_config(flags={"space": None, "id": None, "token": None}, environ=environ)
    assert (config.space, config.id, config.token) == ("s", "me", "t")


def test_an_empty_variable_counts_as_not_set() -> None:
    config, _ = load_agent_config(flags=WHO, environ={"OPENAI_BASE_URL": "", "OPENAI_MODEL": ""})
    assert config.base_url is None
    assert config.model == "gpt-4o"


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("contextTokenLimit", "context_token_limit"),
        ("context_token_limit", "context_token_limit"),
        ("conversationHistoryLength", "conversation_history_length"),
        ("maxIterations", "max_iterations"),
    ],
)
def test_a_key_is_read_in_either_spelling(written: str, field: str) -> None:
    assert getattr(loaded({written: 77}), field) == 77


def test_the_base_url_is_read_as_the_reference_spells_it() -> None:
    assert loaded({"baseURL": "http://localhost:1234/v1"}).base_url == "http://localhost:1234/v1"


@pytest.mark.parametrize("written", ["requestTimeout", "request_timeout_seconds"])
def test_a_request_timeout_gives_a_notice_in_either_unit(written: str) -> None:
    _, notices = build_agent_config([Source("agent.yaml", {**WHO, written: 1500})], environ={})
    assert notices[0].startswith(f"agent.yaml: '{written}' has no effect")


def test_defaults_keep_the_whole_history_and_ask_for_the_window() -> None:
    config = loaded({})
    assert config.conversation_history_length is None
    assert config.context_token_limit is None
    assert config.policy == "mew"


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert refused({"modle": "x"}) == "space.yaml: unknown key 'modle' (did you mean 'model'?)"
    meant = "unknown key 'context_window' (did you mean 'context_token_limit'?)"
    assert refused({"context_window": 9000}) == f"space.yaml: {meant}"


def test_an_unknown_key_without_a_near_match_lists_all_keys() -> None:
    assert "expected one of name, model, base_url" in refused({"zzz": 1})


def test_an_unknown_key_is_named_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("model: gpt-4o\n# a comment\nsystemPromt: You review.\n")
    with pytest.raises(ConfigError) as caught:
        load_agent_config(flags=WHO, environ={}, file=file)
    assert str(caught.value) == f"{file}:3:1: unknown key 'systemPromt' (did you mean 'system_prompt'?)"


def test_a_bad_value_is_named_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("model: gpt-4o\ncontextTokenLimit: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_agent_config(flags=WHO, environ={}, file=file)
    assert str(caught.value).startswith(f"{file}:2:1: context_token_limit: ")
    assert "greater than 0, not 0" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models:\n  small: {}\n  big:\n    context_length: -1\n", ":4:5: models.big.context_length: must be greater"),
        ("summariser:\n  model: small\n  base_url: there\n", ":3:3: summariser.base_url: must be a URL"),
        ("summariser:\n  model: small\n  api_key_env: UNSET\n", ":3:3: the environment variable 'UNSET' is not set"),
    ],
)
def test_a_bad_nested_value_is_named_with_its_own_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_agent_config(flags=WHO, environ={}, file=file)
    assert str(caught.value).startswith(f"{file}{said}")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("agent.yaml", "model: [", "invalid YAML"),
        ("agent.json", '{"model": }', "malformed JSON"),
        ("agent.yaml", "- a list\n", "agent.yaml: must be a mapping of settings"),
        ("agent.yaml", "model: \x00", "invalid YAML"),
        ("agent.yaml", "model: one\nmodel: two\n", "agent.yaml:2:1: duplicate key 'model'; remove one of the two"),
        ("agent.yaml", "models: &all\n  small: *all\n", "agent.yaml:1:9: an anchor contains itself"),
        ("agent.yaml", "model one\nid: two\n", "agent.yaml:1:1: a colon is missing, write `model: one`"),
    ],
)
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_agent_config(flags=WHO, environ={}, file=file)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_agent_config(flags=WHO, environ={}, file=tmp_path / "nowhere.yaml")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("# nothing yet\n")
    assert load_agent_config(flags=WHO, environ={}, file=file)[0] == loaded({})


def test_malformed_json_in_the_variable_names_the_variable_and_the_place() -> None:
    with pytest.raises(ConfigError, match="MEW_AGENT_CONFIG:1:2: malformed JSON"):
        load_agent_config(flags=WHO, environ={"MEW_AGENT_CONFIG": "{model}"})


def test_a_missing_identity_says_which_flag_or_variable_gives_it() -> None:
    with pytest.raises(ConfigError, match="--token or MEW_TOKEN: required"):
        load_agent_config(flags={"space": "s", "id": "i"}, environ={})


def test_a_bad_flag_is_named_as_it_is_typed() -> None:
    with pytest.raises(ConfigError, match="--base-url: base_url: must be a URL like"):
        load_agent_config(flags={**WHO, "base_url": "localhost:1234"}, environ={})


@pytest.mark.parametrize(
    "values",
    [
        {"gateway": "localhost:8080"},
        {"gateway": "ftp://host"},
        {"gateway": "ws://"},
        {"id": "a/b"},
        {"policy": "no-such-policy"},
        {"context_token_limit": True},
        {"log_level": "chatty"},
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, object]) -> None:
    assert refused(values)


def test_two_spellings_of_one_key_in_one_place_are_refused() -> None:
    assert "'base_url' is given twice" in refused({"baseURL": "http://a/v1", "base_url": "http://b/v1"})


@pytest.mark.parametrize("key", sorted(IGNORED_KEYS))
def test_a_key_without_effect_gives_a_notice_with_the_reason(key: str) -> None:
    _, notices = build_agent_config([Source("agent.yaml", {**WHO, key: {}})], environ={})
    assert notices == (f"agent.yaml: '{key}' has no effect: {IGNORED_KEYS[key]}",)


def test_an_api_key_may_come_from_a_named_variable() -> None:
    sources = [Source("a", {**WHO, "api_key": "weaker"}), Source("b", {"apiKeyEnv": "MY_KEY"})]
    config, _ = build_agent_config(sources, environ={"MY_KEY": "sk-mine"})
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "sk-mine"
    with pytest.raises(ConfigError, match="b: the environment variable 'MY_KEY' is not set"):
        build_agent_config(sources, environ={})


def test_a_stronger_source_may_give_the_key_itself() -> None:
    sources = [Source("a", {**WHO, "api_key_env": "UNSET"}), Source("b", {"api_key": "sk-direct"})]
    config, _ = build_agent_config(sources, environ={})
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "sk-direct"


def test_secrets_appear_in_no_text() -> None:
    config = loaded({"api_key": "sk-hidden"})
    assert "sk-hidden" not in repr(config)
    assert "secret-token" not in repr(config)
    assert "sk-hidden" not in refused({"api_key": ["sk-hidden"]})


def test_an_agent_without_a_model_server_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError) as caught:
        check_model_source(loaded({}), where="space.yaml")
    for word in ("'coder'", "OPENAI_API_KEY", "OPENAI_BASE_URL", "base_url: rehearsal"):
        assert word in str(caught.value)
    check_model_source(loaded({"base_url": "rehearsal"}), where="space.yaml")
    check_model_source(loaded({"api_key": "sk"}), where="space.yaml")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded({}).model = "other"  # type: ignore[misc]


@pytest.mark.part("policies")
def test_a_policy_file_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("name: team\nbased_on: mew\n")
    (tmp_path / "agent.yaml").write_text("policy: ./team.yaml\n")
    config, _ = load_agent_config(flags=WHO, environ={}, file=tmp_path / "agent.yaml")
    assert chosen_policy(config).policy.name == "team"


def test_a_missing_policy_file_is_refused_where_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^space\.yaml:3:5: policy file early\.yaml does not exist$"):
        load_policy("early.yaml", where="space.yaml:3:5")


@pytest.mark.part("policies")
def test_a_contradicting_policy_file_is_refused_with_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("name: team\nbased_on: mew\nmeasure: cumulative\n")
    (tmp_path / "agent.yaml").write_text("policy: team.yaml\n")
    with pytest.raises(ConfigError, match=r"team\.yaml: a cumulative figure cannot be compared"):
        load_agent_config(flags=WHO, environ={}, file=tmp_path / "agent.yaml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"policy": ""}, "space.yaml: unknown policy ''"),
        ({"policy": "mewe"}, "space.yaml: unknown policy 'mewe' (did you mean 'mew'?)"),
        ({"policy": "mew", "policy_settings": {"speed": 3}}, "unknown setting 'speed'"),
        ({"policy": {"name": "x", "scope": "lmstudio"}, "provider": "openai"}, "is for lmstudio, not for openai"),
        ({"policy_scope": "some"}, "policy_scope: must be 'any'"),
        ({"models": {"m": {"length": 3}}}, "unknown key 'length' in models.m (did you mean 'input_length'?)"),
        (
            {"models": {"m": {"price": {"input": 1, "ouput": 2, "currency": "EUR"}}}},
            "unknown key 'ouput' in models.m.price (did you mean 'output'?)",
        ),
        ({"summariser": {"modle": "x"}}, "unknown key 'modle' in summariser (did you mean 'model'?)"),
        ({"summariser": {"base_url": "http://x/v1"}}, "space.yaml: 'summariser.model' is missing"),
    ],
)
def test_policies_and_their_settings_are_checked_when_they_are_read(values: dict[str, object], said: str) -> None:
    assert said in refused(values)


def test_a_summariser_is_a_name_or_a_server() -> None:
    assert loaded({}).summariser_model() is None
    named = loaded({"summariser": "small"}).summariser_model()
    assert named is not None
    assert (named.model, named.base_url, named.api_key) == ("small", None, None)
    values = {"summariser": {"model": "small", "base_url": "http://x/v1", "api_key_env": "SMALL"}}
    config, _ = build_agent_config([Source("test", {**WHO, **values})], environ={"SMALL": "sk-small"})
    assert config.summariser is not None
    assert config.summariser.api_key is not None
    assert config.summariser.api_key.get_secret_value() == "sk-small"
    assert "sk-small" not in repr(config)
    with pytest.raises(ConfigError, match="'SMALL' is not set"):
        build_agent_config([Source("test", {**WHO, **values})], environ={})


@pytest.mark.part("policies")
def test_a_policy_may_name_the_summariser() -> None:
    config = loaded({"policy": {"name": "team", "based_on": "mew", "summariser": "small"}})
    named = config.summariser_model()
    assert named is not None
    assert named.model == "small"
    assert loaded({"policy": {"name": "team", "summariser": "same"}}).summariser_model() is None


# -- tokenizers ------------------------------------------------------------------------------------------------


def test_a_tokenizer_is_chosen_by_the_model_name_by_default() -> None:
    config = loaded({})
    assert (config.tokenizer, config.tokenizer_file) == ("auto", None)
    assert loaded({"tokenizer": False}).tokenizer == "off", "YAML reads a bare `off` as false"
    assert loaded({"model": "gpt-4o"}).tokenizer_settings == TokenizerSettings("gpt-4o", None)


def test_a_vocabulary_file_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("tokenizer: off\ntokenizer_file: vocabularies/tokenizer.json\n")
    config, _ = load_agent_config(flags=WHO, environ={}, file=tmp_path / "agent.yaml")
    assert config.tokenizer_file == tmp_path / "vocabularies" / "tokenizer.json"
    config, _ = load_agent_config(flags=WHO, environ={"MEW_TOKENIZER_FILE": "/vocabularies/o200k_base.tiktoken"})
    assert config.tokenizer_file == Path("/vocabularies/o200k_base.tiktoken")


def test_an_unknown_tokenizer_is_refused() -> None:
    assert "unknown tokenizer 'bpe' (expected one of auto, off" in refused({"tokenizer": "bpe"})
