"""Agents of other libraries as participants: they report their provider's usage and are asked to compact."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent import Participant
from mew_agent.rehearsal import RehearsalOptions, serve_rehearsal
from tests.mew_agent.conftest import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  helper: {command: python, role: agent}
"""


@pytest.mark.parametrize(("script", "package"), [("pydantic_ai_agent", "pydantic_ai")])
async def test_its_figures_are_the_servers_before_and_after_a_compaction(script: str, package: str) -> None:
    assert find_spec(package) is not None, f"{package} is not installed; `make .venv/.installed` installs it"
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        serve_rehearsal(RehearsalOptions(window_tokens=8192)) as server,
        Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada,
    ):
        recorder = EnvelopeRecorder(ada)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))},
            "MEW_GATEWAY": gateway.ws_url,
            "MEW_SPACE": "demo",
            "MEW_PARTICIPANT_ID": "helper",
            "MEW_TOKEN": gateway.token_of("helper"),
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "rehearsal",
        }
        program = subprocess.Popen([sys.executable, str(EXAMPLES / f"{script}.py")], env=environment)
        try:
            await recorder.until(lambda: "helper" in ada.peers)

            async def ask(text: str) -> None:
                answer = await ada.ask(
                    "chat", {"text": text}, to="helper", answer="chat", timeout_seconds=PATIENCE_SECONDS
                )
                assert answer.body["text"]
                asked = server.requests[-1]
                status = await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)
                assert status.context is not None
                assert (status.tokens, status.context.basis) == (
                    asked.prompt_tokens + (asked.completion_tokens or 0),
                    "reported",
                )

            for question in ("What is a context window?", "And a token?", "And a summary?"):
                await ask(question)
            done = await ada.compact("helper", timeout_seconds=PATIENCE_SECONDS)
            assert not done.skipped
            after = await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)
            assert after.context is not None
            assert (after.tokens, after.context.reason) == (None, "compacted")
            await ask("What did I ask last?")
            report = (await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)).context
            assert report is not None
            assert report.last_compaction is not None
            assert (report.last_compaction.freed_tokens or 0) > 0
        finally:
            program.terminate()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(program.wait)
