"""Which programs a space starts, and what each of them gets."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mew_listener.listen_address import ListenAddress
from mew_settings.environment import COMPAT_VARIABLE
from mew_spaces.config.loading import parse_space
from mew_spaces.errors import SpaceConfigError
from mew_spaces.launch.launch import Launch, Program, substitute

from mew_agent.parts.mcp.settings import BRIDGE_CONFIG, BridgeSettings

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder:
    agent: {model: gpt-4o}
    auto_start: true
  old:
    command: mew
    args: [agent, run, --gateway, "ws://localhost:${PORT}", --space, "${SPACE}", --token, "${TOKEN}${TOKEN}"]
    auto_start: true
  tool:
    command: node
    args: [tool.js, "${HOME}", "${UNSET}"]
    env: {KEY: "${SECRET}", WHERE: "${MEW_GATEWAY}", NOPE: "${UNSET}"}
    cwd: tools
    auto_start: true
    restart_policy: on-failure
  later: {command: node}
  files:
    type: mcp-bridge
    mcp_server: {command: npx, args: [-y, "fs,server", "${HOME}"], env: {KEY: "${SECRET}"}, cwd: shelf}
    bridge_config: {init_timeout: 5000, max_reconnects: 1}
    env: {COLOUR: "off"}
    auto_start: true
  search:
    type: mcp-bridge
    mcp_server: {url: "http://127.0.0.1:7000/mcp", headers: {Authorization: "Bearer ${SECRET}"}}
    auto_start: true
"""
TOKENS = {name: f"token-of-{name}" for name in ("ada", "coder", "old", "tool", "later", "files", "search")}
ENVIRON = {
    "HOME": "/home/ada",
    "SECRET": "s3cret",
    "OPENAI_API_KEY": "sk",
    "MEW_TOKEN_ADA": "token-of-ada",
    "MEW_AGENT_CONFIG": "{}",
    "MEW_BRIDGE_CONFIG": "{}",
    "MEW_PARTICIPANT_ID": "ada",
}


def launch(**more: Any) -> Launch:
    values: dict[str, Any] = {
        "config": parse_space(SPACE),
        "config_path": Path("/spaces/review/space.yaml"),
        "folder": Path("/spaces/review"),
        "address": ListenAddress("127.0.0.1", 8080),
        "run_id": "run-1",
        "mew": ("python", "-m", "mew_agent"),
        "tokens": TOKENS,
        "environ": ENVIRON,
        **more,
    }
    return Launch(**values)


def programs() -> dict[str, Program]:
    return {program.name: program for program in launch().participants()}


def test_only_auto_start_participants_with_a_program_are_started() -> None:
    assert list(programs()) == ["coder", "old", "tool", "files", "search"]


def test_a_bridge_gets_its_settings_in_the_environment_only() -> None:
    program = programs()["files"]
    assert program.command == (
        *("python", "-m", "mew_agent", "bridge", "start"),
        *("--gateway", "ws://127.0.0.1:8080", "--space", "review", "--participant", "files"),
    )
    assert json.loads(program.environment["MEW_BRIDGE_CONFIG"]) == {
        "server": {
            "command": "npx",
            "args": ["-y", "fs,server", "/home/ada"],
            "env": {"COLOUR": "off", "KEY": "s3cret"},
            "cwd": "/spaces/review/shelf",
        },
        "init_timeout": 5_000,
        "request_seconds": 300.0,
        "reconnect": True,
        "max_reconnects": 1,
    }


def test_variables_in_the_headers_of_a_bridge_are_substituted() -> None:
    server = json.loads(programs()["search"].environment["MEW_BRIDGE_CONFIG"])["server"]
    headers = {"Authorization": "Bearer s3cret"}
    assert server == {"url": "http://127.0.0.1:7000/mcp", "headers": headers}


def test_unset_variables_are_reported_with_their_place() -> None:
    assert launch().unset_variables() == [(("participants", "tool", "env", "NOPE"), "UNSET")]
    bare = {name: value for name, value in ENVIRON.items() if name != "SECRET"}
    assert launch(environ=bare).unset_variables() == [
        (("participants", "tool", "env", "KEY"), "SECRET"),
        (("participants", "tool", "env", "NOPE"), "UNSET"),
        (("participants", "files", "mcp_server", "env", "KEY"), "SECRET"),
        (("participants", "search", "mcp_server", "headers", "Authorization"), "SECRET"),
    ]


@pytest.mark.part("meter")
def test_a_meter_is_started_with_its_upstream_address_and_window() -> None:
    space = """
        space: {id: review}
        participants:
          a: {meter: "https://api.example.org/v1", auto_start: true}
          b: {meter: {upstream: "${UPSTREAM}/v1", listen: 8192, window: 8000}, auto_start: true}
    """
    config, environ = parse_space(space), {**ENVIRON, "UPSTREAM": "http://127.0.0.1:7100"}
    started = launch(config=config, tokens={"a": "token-of-a", "b": "token-of-b"}, environ=environ).participants()
    joins = ("--gateway", "ws://127.0.0.1:8080", "--space", "review", "--participant")
    relay = ("python", "-m", "mew_agent", "meter", "--upstream")
    assert [program.command for program in started] == [
        (*relay, "https://api.example.org/v1", "--listen", "127.0.0.1:8191", *joins, "a"),
        (*relay, "http://127.0.0.1:7100/v1", "--listen", "8192", "--window", "8000", *joins, "b"),
    ]
    assert {config.participants[name].acts_as for name in "ab"} == {"agent"}
    with pytest.raises(SpaceConfigError, match="without a password"):
        parse_space("space: {id: a}\nparticipants: {a: {meter: 'https://me:secret@host/v1'}}")


def test_the_bridge_reads_the_settings_of_its_launch() -> None:
    for name in ("files", "search"):
        handed_over = programs()[name].environment[BRIDGE_CONFIG]
        assert BridgeSettings.model_validate_json(handed_over).init_timeout in (5_000, 30_000)


def test_programs_of_a_space_in_reference_mode_know_it() -> None:
    in_mode = parse_space(SPACE).model_copy(update={"compat": "reference"})
    found = {program.environment.get(COMPAT_VARIABLE) for program in launch(config=in_mode).participants()}
    assert found == {"reference"}
    assert not any(COMPAT_VARIABLE in program.environment for program in programs().values())


def test_an_agent_gets_its_token_in_the_environment_only() -> None:
    settings = {"coder": {"model": "gpt-4o"}}
    program = launch(prepared=settings).participants()[0]
    assert program.command == (
        *("python", "-m", "mew_agent", "agent", "run"),
        *("--gateway", "ws://127.0.0.1:8080", "--space", "review", "--participant", "coder"),
    )
    assert program.environment["MEW_TOKEN"] == "token-of-coder"
    assert json.loads(program.environment["MEW_AGENT_CONFIG"]) == settings["coder"]
    assert program.environment["OPENAI_API_KEY"] == "sk"


SECRETS = {
    "HOME": "/home/ada",
    "PATH": "/bin",
    "LC_ALL": "C",
    "OPENAI_API_KEY": "sk",
    "OPENAI_MODEL": "m",
    "OTHER_KEY": "other",
    "SUMMARY_KEY": "summary",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "SEARCH_KEY": "search",
}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("command: node", set()),
        ("command: node\n    env_from: [SEARCH_KEY]", {"SEARCH_KEY"}),
        ("command: mew\n    args: [agent, run]", {"OPENAI_API_KEY", "OPENAI_MODEL"}),
        ("agent: {model: gpt-4o}", {"OPENAI_API_KEY", "OPENAI_MODEL"}),
        ("agent: {base_url: rehearsal}", {"OPENAI_MODEL"}),
        ("agent: {api_key_env: OTHER_KEY}", {"OTHER_KEY", "OPENAI_MODEL"}),
        ("agent: {api_key_env: OPENAI_API_KEY}", {"OPENAI_API_KEY", "OPENAI_MODEL"}),
        (
            "agent: {summariser: {model: s, api_key_env: SUMMARY_KEY}}",
            {"OPENAI_API_KEY", "OPENAI_MODEL", "SUMMARY_KEY"},
        ),
        ("mcp_server: {command: npx}", set()),
    ],
)
def test_a_program_inherits_only_what_it_needs_or_names(section: str, expected: set[str]) -> None:
    config = parse_space(f"space: {{id: r}}\nparticipants:\n  one:\n    auto_start: true\n    {section}\n")
    (program,) = launch(config=config, tokens={"one": "t"}, environ=SECRETS).participants()
    assert {"HOME", "PATH", "LC_ALL"} <= set(program.environment)
    assert set(program.environment) & (set(SECRETS) - {"HOME", "PATH", "LC_ALL"}) == expected


def test_a_bridged_server_gets_the_variables_that_its_participant_names() -> None:
    one = "{mcp_server: {command: npx}, env_from: [SEARCH_KEY, NONE], auto_start: true}"
    text = f"space: {{id: r}}\nparticipants:\n  one: {one}"
    space = launch(config=parse_space(text), tokens={"one": "t"}, environ=SECRETS)
    (program,) = space.participants()
    assert json.loads(program.environment["MEW_BRIDGE_CONFIG"])["server"]["env"] == {"SEARCH_KEY": "search"}
    assert space.unset_variables() == [(("participants", "one", "env_from"), "NONE")]


def test_a_command_named_mew_needs_no_path() -> None:
    command = programs()["old"].command
    assert command[:5] == ("python", "-m", "mew_agent", "agent", "run")
    assert command[6] == "ws://localhost:8080"
    assert command[8] == "review"
    assert command[10] == "token-of-oldtoken-of-old"


def test_known_variables_are_substituted_and_unknown_ones_stay() -> None:
    tool = programs()["tool"]
    assert tool.command == ("node", "tool.js", "/home/ada", "${UNSET}")
    assert tool.environment["KEY"] == "s3cret"
    assert tool.environment["WHERE"] == "ws://127.0.0.1:8080"
    assert tool.environment["NOPE"] == "${UNSET}"
    assert tool.folder == Path("/spaces/review/tools")
    assert tool.restart == "on-failure"


def test_a_program_gets_only_its_own_token_and_settings() -> None:
    for name, program in programs().items():
        held = " ".join(program.environment.values())
        assert f"token-of-{name}" in held
        assert "token-of-ada" not in held
        assert "MEW_AGENT_CONFIG" not in program.environment
        assert ("MEW_BRIDGE_CONFIG" in program.environment) == (name in ("files", "search"))
        assert program.environment["MEW_PARTICIPANT_ID"] == name


def test_the_gateway_keeps_the_tokens_of_the_environment() -> None:
    gateway = launch().gateway()
    assert gateway.environment["MEW_TOKEN_ADA"] == "token-of-ada"
    assert gateway.opens == ListenAddress("127.0.0.1", 8080)
    assert gateway.command[9:11] == ("--config", "/spaces/review/space.yaml")


def test_the_rehearsal_model_gets_no_token() -> None:
    model = launch().model(9000, ("--window", "4096"))
    assert model.command[-6:] == ("serve", "model", "--port", "9000", "--window", "4096")
    assert model.opens == ListenAddress("127.0.0.1", 9000)
    assert not [key for key in model.environment if key.startswith("MEW_TOKEN")]
    assert model.label == "model server"


def test_secrets_appear_in_no_representation() -> None:
    assert "token-of" not in repr(launch()) + repr(programs()["coder"])


def test_substitute_replaces_every_occurrence() -> None:
    assert substitute("${A}-${A}-${B}-$A", {"A": "1"}) == "1-1-${B}-$A"


def test_a_person_with_fifos_gets_a_client() -> None:
    text = """
space: {id: review}
participants:
  script: {fifo: true, auto_connect: true}
  logged: {fifo: true, auto_connect: true, output_log: ./logs/out.jsonl}
  later: {fifo: true}
  tool: {fifo: true, auto_connect: true, command: node}
"""
    tokens = {name: f"token-of-{name}" for name in ("script", "logged", "later", "tool")}
    script, logged = launch(config=parse_space(text), tokens=tokens).participants()
    assert script.command[3:] == (
        *("connect", "--json", "--gateway", "ws://127.0.0.1:8080", "--space", "review", "--participant", "script"),
        *("--fifo-in", "/spaces/review/fifos/script-in", "--fifo-out", "/spaces/review/fifos/script-out"),
    )
    assert [str(path) for path in script.fifos] == ["/spaces/review/fifos/script-in", "/spaces/review/fifos/script-out"]
    assert script.environment["MEW_TOKEN"] == "token-of-script"
    assert logged.command[-2:] == ("--output-file", os.devnull)
