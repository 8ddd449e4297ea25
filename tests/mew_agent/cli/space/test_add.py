"""`mew agent add`, and tokens in a running space. tests/interaction runs the programs."""

import json
from pathlib import Path

import pytest
import yaml
from mew_spaces.config.loading import load_space, parse_space
from mew_spaces.gateway.auth import token_path
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.launch.run_file import RunFile

from mew_agent.cli.space.add import NewParticipant, SectionOptions, inviter_of
from mew_agent.errors import ConfigError
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew
from tests.support.gateway_client import joined

SPACE = """# who is here
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}   # me
  guest: {capabilities: [{kind: chat}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def as_running(gateway: RunningGateway, folder: Path, config: Path, person: str = "ada") -> None:
    """A run file of this gateway, and the person's token where commands look for it."""
    running_space(folder, gateway=gateway.url, ws=gateway.ws_url, config=str(config), person=person)
    token_path(folder / ".mew", person).write_text(gateway.token_of(person))


async def test_add_changes_only_the_file_without_a_running_space(config: Path, tmp_path: Path) -> None:
    outcome = await mew("agent", "add", "tool", "--command", "mew agent start -t echo", "-c", '["chat", "mcp/*"]')
    assert (outcome.code, outcome.out) == (0, "tool: added to space.yaml; `mew up` starts the space\n")
    tool = load_space(config).participants["tool"]
    assert (tool.command, tool.args, tool.auto_start) == ("mew", ("agent", "start", "-t", "echo"), True)
    assert [one.kind for one in tool.capabilities or ()] == ["chat", "mcp/*"]
    assert config.read_text().startswith(SPACE)
    assert not (tmp_path / ".mew").exists()


async def test_an_agent_is_added_with_its_model_and_prompt_for_a_later_start(config: Path) -> None:
    flags = ("--model", "small", "--api-key-env", "KEY_OF_CODER", "--prompt", "Answer briefly.", "--no-start")
    assert (await mew("agent", "add", "coder", *flags)).code == 0
    coder = yaml.safe_load(config.read_text())["participants"]["coder"]
    assert coder["auto_start"] is False
    assert coder["agent"] == {"model": "small", "api_key_env": "KEY_OF_CODER", "system_prompt": "Answer briefly."}


async def test_gateway_admits_the_participant_before_the_file_changes(config: Path, tmp_path: Path) -> None:
    async with serve_gateway(load_space(config), state=tmp_path / ".mew") as gateway:
        as_running(gateway, tmp_path, config)
        outcome = await mew("agent", "add", "bob", "--person")
        assert outcome.out == "bob: added; `mew dashboard --participant bob` prints the address that signs in\n"
        token = token_path(tmp_path / ".mew", "bob").read_text().strip()
        assert gateway.tokens.identify(token) == "bob"
        assert "bob" in load_space(config).participants
        assert gateway.service.space.membership.resolve("bob") == "bob"
        async with joined(gateway, "bob") as first, joined(gateway, "bob") as second:
            await second.chat("hello")
            assert (await first.until("chat"))["payload"] == {"text": "hello"}


async def test_missing_invite_capability_changes_nothing(config: Path, tmp_path: Path) -> None:
    async with serve_gateway(load_space(config), state=tmp_path / ".mew") as gateway:
        as_running(gateway, tmp_path, config, person="guest")
        outcome = await mew("agent", "add", "bob", "--person")
        assert "'guest' has no capability that covers 'space/invite'" in outcome.err
        assert outcome.code == 2
        assert config.read_text() == SPACE


async def test_add_without_a_supervisor_says_how_to_start_it(config: Path, tmp_path: Path) -> None:
    async with serve_gateway(load_space(config), state=tmp_path / ".mew") as gateway:
        as_running(gateway, tmp_path, config)
        outcome = await mew("agent", "add", "coder", "--model", "m", "--base-url", "http://127.0.0.1:1/v1")
        assert "`mew agent run --participant coder`" in outcome.out
        assert outcome.code == 0
        person = json.loads((await mew("agent", "add", "eve", "--person", "--json")).out)
        assert (person["participant"], person["added"], person["joined"]) == ("eve", True, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a/b",), "invalid characters"),
        (("bad name!",), "'bad name!' is not a valid id"),
        (("--", "-x"), "'-x' is not a valid id"),
        (("ada",), "'ada' already exists"),
        (("x", "-c", "{"), "--capabilities: is not JSON"),
        (("x", "-c", "[1]"), "--capabilities: has no kind: 1"),
        (("x", "--command", "nosuchprogram"), "program 'nosuchprogram' not found"),
        pytest.param(
            ("x", "--mcp", "file:///etc/passwd"),
            "x: mcp_server.url: must be a URL like https://example.org/mcp",
            marks=pytest.mark.part("mcp"),
        ),
        (("x",), "no model is configured for 'x'"),
    ],
)
async def test_invalid_participant_is_refused_before_any_change(
    config: Path, arguments: tuple[str, ...], said: str
) -> None:
    outcome = await mew("agent", "add", *arguments)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.code == 2
    assert config.read_text() == SPACE


@pytest.mark.part("mcp", "meter")
def test_a_new_participant_gets_the_role_that_fits() -> None:
    agent = NewParticipant("a", model="m", api_key_env="KEY").settings()
    assert agent == {"agent": {"model": "m", "api_key_env": "KEY"}, "auto_start": True, "role": "agent"}
    program = NewParticipant("p", command="node 'my tool.js'", starts=False).settings()
    assert program == {"command": "node", "args": ["my tool.js"], "auto_start": False, "role": "tool"}
    python = NewParticipant("p", command="bot.py --loud").settings()
    assert (python["command"], python["args"]) == ("${MEW_PYTHON}", ["bot.py", "--loud"])
    bot = NewParticipant("b", command="node bot.js", role="agent", capabilities='["a/b"]').settings()
    assert (bot["role"], bot["capabilities"]) == ("agent", [{"kind": "a/b"}])
    meter = NewParticipant("m", SectionOptions(meter="http://127.0.0.1:7100/v1")).settings()
    assert meter == {"meter": "http://127.0.0.1:7100/v1", "auto_start": True, "role": "agent"}
    with pytest.raises(ConfigError, match=r"--meter: .*cannot be combined with --person"):
        NewParticipant("m", SectionOptions(meter="http://127.0.0.1:7100/v1"), is_person=True).settings()
    server = NewParticipant("s", SectionOptions(mcp_server="https://x.example/mcp")).settings()
    assert server == {"mcp_server": {"url": "https://x.example/mcp"}, "auto_start": True, "role": "tool"}
    assert NewParticipant("c", is_person=True).settings() == {"role": "person"}


def test_without_a_default_any_inviter_adds_a_participant() -> None:
    config = parse_space("space: {id: a}\nparticipants: {ada: {}, bob: {capabilities: [{kind: space/*}]}, cid: {}}")
    run = RunFile(space="a", gateway="", ws="", started_at="")
    assert inviter_of(config, run) == "bob"
    assert inviter_of(config, run.model_copy(update={"person": "cid"})) == "cid"


@pytest.mark.part("tokens")
async def test_token_create_invites_into_the_running_space(config: Path, tmp_path: Path) -> None:
    refused = await mew("token", "create", "-p", "eve", "-c", '["chat"]')
    assert "requires a running space" in refused.err
    assert refused.code == 2
    async with serve_gateway(load_space(config), state=tmp_path / ".mew") as gateway:
        as_running(gateway, tmp_path, config)
        made = await mew("token", "create", "-p", "eve", "-c", '["chat"]', "-o", "json")
        assert gateway.tokens.identify(json.loads(made.out)["token"]) == "eve"
        config.write_text(SPACE + "  late: {}\n")
        late = (await mew("token", "create", "-p", "late")).out.strip()
        assert gateway.tokens.identify(late) == "late"
        assert (await mew("token", "create", "-p", "late")).out.strip() == late
        assert "already has capabilities" in (await mew("token", "create", "-p", "ada", "-c", '["chat"]')).err


@pytest.mark.part("acp")
async def test_an_acp_agent_is_added_once_its_program_is_installed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = await mew("agent", "add", "helper", "--acp", "codex")
    assert outcome.code == 2
    assert "npm install --global @agentclientprotocol/codex-acp" in outcome.err
    assert config.read_text() == SPACE
    (tmp_path / "codex-acp").write_text("#!/bin/sh\n")
    (tmp_path / "codex-acp").chmod(0o755)
    outcome = await mew("agent", "add", "helper", "--acp", "codex")
    assert (outcome.code, outcome.out) == (0, "helper: added to space.yaml; `mew up` starts the space\n")
    helper = load_space(config).participants["helper"]
    assert (helper.section("acp").agent, helper.acts_as, helper.auto_start) == ("codex", "agent", True)
    outcome = await mew("agent", "add", "other", "--acp", "codx")
    assert "did you mean 'codex'?" in outcome.err
