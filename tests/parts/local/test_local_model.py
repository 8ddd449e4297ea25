"""A local model: what its server counts and reports, agents of a space on it, and what goes wrong with it."""

import json
import signal
import socket
from contextlib import aclosing
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import psutil
import pytest
from mew_spaces.launch.run_file import read_run_file, run_file_path

from mew_agent.agent.sessions import open_resources
from mew_agent.config.agent_config import AgentConfig, load_agent_config
from mew_agent.model.interface import Message, Model, ModelReply, ModelRequest
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.local.llama_server import find_gguf
from tests.interaction.test_docs import DOCS, Reader, blocks_of, reader
from tests.parts.local.conftest import WINDOW_TOKENS
from tests.support.waiting import until_in_thread

__all__ = ["reader"]  # a fixture

ASK = ModelRequest((Message("system", "Answer in one word."), Message("user", "Is snow white or black?")))
SPACE = """
space: {id: s}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: &local {agent: {base_url: local, context_token_limit: 2048}, auto_start: true}
  editor: *local
"""


async def reply_of(model: Model, request: ModelRequest = ASK) -> ModelReply:
    last = None
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            last = event
    assert isinstance(last, ModelReply)
    return last


async def test_the_counted_prompt_is_the_reported_one(base_url: str) -> None:
    model = OpenAIModel("SmolLM2-135M-Instruct", base_url)
    try:
        window = await model.discover_window()
        counted = await model.count_prompt(ASK)
        reply = await reply_of(model)
    finally:
        await model.aclose()
    assert window is not None
    assert (window.max_tokens, window.basis) == (WINDOW_TOKENS, "loaded")
    assert reply.text
    assert reply.usage is not None
    assert counted == reply.usage.prompt_tokens


def test_the_server_tokenizes_and_shows_its_template(base_url: str) -> None:
    def post(path: str, body: object) -> dict[str, object]:
        request = Request(f"{base_url.removesuffix('/v1')}{path}", json.dumps(body).encode(), method="POST")
        request.add_header("content-type", "application/json")
        with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
            assert answer.headers.get("access-control-allow-origin") not in ("*", "null")
            return dict(json.loads(answer.read()))

    assert post("/tokenize", {"content": "hello world"}) == {"tokens": [28120, 905]}
    messages = [{"role": "user", "content": "hello"}]
    assert "<|im_start|>user\nhello<|im_end|>" in str(post("/apply-template", {"messages": messages})["prompt"])


async def test_an_agent_without_a_space_runs_the_model_in_its_process() -> None:
    config, _ = load_agent_config(
        flags={"gateway": "ws://127.0.0.1", "space": "s", "id": "a", "token": "t", "base_url": "local"}, environ={}
    )
    resources = open_resources(config)
    try:
        assert resources.model.identity.model == "SmolLM2-135M-Instruct"
        reply = await reply_of(resources.model, ModelRequest(ASK.messages, max_output_tokens=4))
        assert reply.usage is not None
    finally:
        await resources.aclose()
    assert isinstance(config, AgentConfig)


def test_agents_of_a_space_share_one_server_that_ends_with_it(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    assert reader.run("mew up --detach").code == 0
    run = read_run_file(run_file_path(tmp_path / ".mew"))
    assert run is not None
    assert run.pids.model is not None
    server = psutil.Process(run.pids.model)
    asked = [reader.run(f"mew chat {name} 'Is snow white? Answer in one word.'") for name in ("coder", "editor")]
    assert [one.code for one in asked] == [0, 0]
    rows = json.loads(reader.run("mew status --json").out)
    contexts = [row["status"]["context"] for row in rows if row["id"] in ("coder", "editor")]
    assert [one["basis"] for one in contexts] == ["reported", "reported"]
    assert {one["model"] for one in contexts} == {"SmolLM2-135M-Instruct"}
    server.send_signal(signal.SIGKILL)
    server.wait(30)

    # The supervisor starts it again. Until then the agent says what failed.
    def is_answered() -> bool:
        answer = reader.run("mew chat coder 'Are you there?'").out
        return answer != "" and "model call failed" not in answer

    until_in_thread(is_answered)
    run = read_run_file(run_file_path(tmp_path / ".mew"))
    assert run is not None
    assert run.pids.model not in (None, server.pid)
    assert reader.run("mew down").code == 0
    assert not psutil.pid_exists(run.pids.model or 0)


def test_a_damaged_file_is_named(reader: Reader, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    with find_gguf("local", where="").open("rb") as whole:
        damaged.write_bytes(whole.read(1_000_000))
    outcome = reader.run("mew serve model --gguf damaged.gguf --port 0")
    assert outcome.code == 2
    assert outcome.err.startswith(f"mew: {damaged}: llama.cpp cannot load it: damaged")
    assert outcome.err.count("\n") == 1


def test_a_taken_port_is_named(reader: Reader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = reader.run(f"mew serve model --local --port {taken.getsockname()[1]}")
    assert outcome.err.startswith("mew: --port: cannot listen on 127.0.0.1:")
    assert outcome.err.count("\n") == 1


def test_the_commands_of_the_page_run(reader: Reader) -> None:
    blocks = blocks_of(DOCS / "how-to" / "local.md")
    commands = [block for block in blocks if "tests/parts/local" in block.note]
    assert commands
    for block in blocks:
        if block.title:
            reader.save(block)
    for block in commands:
        for command in block.commands:
            if "second terminal" in block.note:
                with reader.keeps_running(command):
                    continue
            done = reader.run(command)
            assert done.code == 0, f"$ {command}\n{done.out}{done.err}"


def test_a_page_of_another_site_spends_no_local_model(base_url: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    page = Request(f"{base_url}/chat/completions", body, {"Origin": "https://evil.example"})
    with pytest.raises(HTTPError, match="403"):
        build_opener(ProxyHandler({})).open(page)
    port = urlsplit(base_url).port
    programs = (one for one in psutil.Process().children(recursive=True) if one.net_connections())
    listening = {at.laddr.port for one in programs for at in one.net_connections() if at.status == "LISTEN"}
    assert port in listening
    for other in listening - {port}:  # llama.cpp's own
        asked = Request(f"http://127.0.0.1:{other}/v1/chat/completions", body)
        with pytest.raises(HTTPError, match="401"):
            build_opener(ProxyHandler({})).open(asked)
    assert len(listening) > 1
