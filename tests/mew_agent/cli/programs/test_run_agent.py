"""`mew agent`: what it refuses before it connects. tests/interaction runs agents as processes."""

import json
import sys
from pathlib import Path

import anyio
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.programs.run_agent import _running_space
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew
from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW

WHO = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--id", "coder", "--token", "t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--id", "coder"), "--space or MEW_SPACE: required"),
        ((*WHO, "--base-url", "localhost"), "--base-url: base_url: must be a URL"),
        (WHO, "no model is configured for 'coder'"),
        ((*WHO, "--base-url", "rehearsal"), "`mew serve model`"),
        ((*WHO, "--config", "nowhere.yaml"), "nowhere.yaml: no such file"),
        ((*WHO[:4], "--id", "a/b", *WHO[6:]), "invalid characters"),
    ],
)
async def test_invalid_options_are_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    outcome = await mew("agent", "run", *arguments)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.code == 2


async def test_settings_without_effect_give_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEW_AGENT_CONFIG", json.dumps({"mockLLM": True}))
    outcome = await mew("agent", "run", *WHO)
    assert outcome.err.splitlines()[0].startswith("mew: MEW_AGENT_CONFIG: 'mockLLM' has no effect")


def test_running_space_provides_gateway_space_and_token(tmp_path: Path) -> None:
    running_space(tmp_path)
    found = _running_space("ada")
    assert found is not None
    assert found.values == {"gateway": "ws://127.0.0.1:8080", "space": "review", "token": "file-token-of-ada"}
    nobody = _running_space(None)
    assert nobody is not None
    assert "token" not in nobody.values


@pytest.mark.parametrize(
    ("gateway", "given"),
    [("ws://localhost:8080", False), ("ws://[::1]:8080/", False), ("http://127.0.0.1:8080", False), ("ws://x:1", True)],
)
async def test_gateway_is_recognised_by_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gateway: str, given: bool
) -> None:
    running_space(tmp_path)
    token = ("--token", "file-token-of-ada") if given else ()
    outcome = await mew("agent", "run", "--id", "ada", "--gateway", gateway, *token)
    assert "no model is configured for 'ada'" in outcome.err
    monkeypatch.setenv("MEW_TOKEN", "file-token-of-ada")
    assert "no model" in (await mew("agent", "run", "--id", "ada", "--gateway", "ws://y:1")).err


async def test_folder_token_is_not_sent_to_another_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running_space(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    outcome = await mew("agent", "run", "--id", "ada", "--gateway", "ws://127.0.0.1:1")
    assert "'token' is missing for ws://127.0.0.1:1" in outcome.err
    assert outcome.code == 2


@pytest.mark.part("simple_agents")
async def test_simple_agent_needs_a_space() -> None:
    outcome = await mew("agent", "run", "--type", "echo")
    assert "no space is running here" in outcome.err
    assert outcome.code == 2


@pytest.mark.part("simple_agents")
async def test_unknown_type_of_simple_agent_is_refused() -> None:
    outcome = await mew("agent", "start", "-t", "parrot", "-g", "ws://127.0.0.1:1", "-s", "s")
    assert "parrot" in outcome.err
    assert "fulfiller" in outcome.err
    assert outcome.code == 2


@pytest.mark.part("simple_agents")
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
async def test_echo_runs_as_a_process_until_terminated(gateway: RunningGateway) -> None:
    command = [*MEW, "agent", "start", "-t", "echo", "-g", gateway.ws_url]
    command += ["-s", "review", "--id", "coder", "--token", gateway.token_of("coder")]
    async with (
        joined(gateway, "ada") as ada,
        await anyio.open_process(command, stdout=None, stderr=None) as process,
    ):
        await ada.until("system/presence")
        await ada.chat("hello", to=["coder"])
        with anyio.fail_after(PATIENCE_SECONDS):
            while (received := await ada.until("chat"))["from"] != "coder":
                pass
            assert received["payload"]["text"] == "Echo: hello"
            process.terminate()
            assert await process.wait() == 0
