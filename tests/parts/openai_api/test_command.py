"""`mew serve openai`: what it prints and refuses. tests/interaction runs it as a process."""

import socket
from pathlib import Path

import anyio
import httpx2
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import ConfigError, NotPermitted, Unauthorized
from mew_agent.parts.openai_api.openai_app import create_app, serve_app
from mew_agent.parts.openai_api.serve_openai import read_keys, serve_until_ended
from mew_agent.parts.shared.chat_participant import ChatOptions, ChatParticipant
from mew_agent.parts.shared.serving import served_agents, silent_in
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support import command_space
from tests.support.cli import mew
from tests.support.waiting import PATIENCE_SECONDS

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {agent: {base_url: rehearsal}}
  files: {type: mcp-bridge, mcp_server: {command: files}}
  tool: {command: tool}
"""


def door_of(gateway: RunningGateway, person: str = "ada", *, token: str | None = None) -> ChatParticipant:
    options = ChatOptions(configured=frozenset({"coder"}))
    token = token or gateway.token_of(person)
    return ChatParticipant(gateway.ws_url, space="review", person=person, token=token, options=options)


def asked_by(participant: str) -> Identity:
    return Identity("http://127.0.0.1:1", "review", participant, "token")


def test_several_keys_have_names() -> None:
    assert read_keys("one==") == {"": "one=="}
    assert read_keys("ada=key-a, bob=key=b") == {"ada": "key-a", "bob": "key=b"}


@pytest.mark.parametrize("given", ["ada=one,two", "ada=one,ada=two", "ada=one,bob=one", "ada=,bob=two"])
def test_keys_without_distinct_names_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="different names and values"):
        read_keys(given)


@pytest.mark.parametrize("made_key", ["mew-made", None])
async def test_server_prints_its_url_models_and_generated_key(
    made_key: str | None, gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    door = door_of(gateway)
    app = create_app(door, api_key="mew-made")
    said = ""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await serve_until_ended(door, serve_app(app, door), "127.0.0.1:0", generated_key=made_key)

            tasks.start_soon(serve)
            while "models:" not in said:
                await anyio.sleep(0.005)
                said += capsys.readouterr().out
            base_url = said.split(" at ")[1].split(";")[0]
            async with httpx2.AsyncClient(headers={"authorization": "Bearer mew-made"}) as http:
                models = (await http.get(f"{base_url}/models")).json()
            await door.aclose()
    assert [model["id"] for model in models["data"]] == ["coder"]
    assert "clients act as ada" in said
    assert "models: coder" in said
    assert ("mew-made" in said) is (made_key is not None)


async def test_taken_port_is_reported(gateway: RunningGateway) -> None:
    door = door_of(gateway)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port: cannot listen on 127\.0\.0\.1:{port}"):
            await serve_until_ended(
                door, serve_app(create_app(door, api_key="k"), door, port=port), f"127.0.0.1:{port}", generated_key=None
            )


async def test_refused_token_ends_the_server(gateway: RunningGateway) -> None:
    door = door_of(gateway, token="wrong")
    with pytest.raises(Unauthorized):
        await serve_until_ended(door, serve_app(create_app(door, api_key="k"), door), "127.0.0.1:0", generated_key=None)


async def test_person_without_chat_capability_is_refused() -> None:
    config = parse_space("space: {id: review}\nparticipants: {shy: {capabilities: [{kind: participant/status}]}}")
    async with serve_gateway(config) as other:
        door = door_of(other, "shy")
        with pytest.raises(NotPermitted, match="'shy' has no capability that covers 'chat'"):
            await serve_until_ended(
                door, serve_app(create_app(door, api_key="k"), door), "127.0.0.1:0", generated_key=None
            )


@pytest.mark.part("acp", "mcp", "meter")
def test_agents_come_from_the_configuration() -> None:
    foreign = """
  codex: {acp: codex}
  helper: {command: node, role: agent}
  metered: {meter: "http://127.0.0.1:7100/v1"}
"""
    config = parse_space(f"{SPACE}{foreign}  screen: {{role: observer}}\n")
    assert served_agents(config, asked_by("ada")) == frozenset({"coder", "codex", "helper"})
    assert silent_in(config) == frozenset({"metered", "screen"})
    assert (served_agents(None, asked_by("ada")), silent_in(None)) == (frozenset(), frozenset())


@pytest.mark.parametrize("program", ["coder", "files", "tool"])
@pytest.mark.part("mcp")
def test_acting_as_a_program_is_refused(program: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"'{program}' is a program; acting as it would end its connection .*a person: ada"
    ):
        served_agents(parse_space(SPACE), asked_by(program))


@pytest.mark.parametrize("command", [("serve", "openai"), ("serve", "a2a")])
@pytest.mark.part("a2a")
async def test_missing_space_says_how_to_start_one(command: tuple[str, ...]) -> None:
    outcome = await mew(*command)
    assert outcome.code == 2
    assert "`mew init` creates one" in outcome.err


@pytest.mark.parametrize("command", [("serve", "openai"), ("serve", "a2a")])
@pytest.mark.part("mcp", "a2a")
async def test_program_in_space_yaml_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    running_space(tmp_path, config=str(path))
    outcome = await mew(*command, "--participant", "coder", "MEW_TOKEN=t")
    assert outcome.code == 2
    assert "'coder' is a program" in outcome.err
