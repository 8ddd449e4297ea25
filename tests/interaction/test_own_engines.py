"""Agents of other libraries and languages as participants: they report their provider's usage and are asked to compact.

`make test-frameworks` installs the other libraries into environments of their own and adds their examples.
"""

import json
import os
import subprocess
import sys
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import playwright
import pytest
from mew_protocol import schema
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent import Participant
from mew_agent.parts.meter.meter import run_meter
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.frameworks import ENVIRONMENT_OF, interpreters
from tests.support.agents import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS, until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  helper: {command: agent, role: agent}
  meter: {command: meter, role: agent}
"""
# The browser tests bring a Node that is new enough; the machine may have none.
NODE = str(Path(playwright.__file__).parent / "driver" / "node")
PROGRAMS = {"javascript_agent.mjs": NODE}
if find_spec("pydantic_ai"):  # absent from `make test-lowest`: it needs a newer openai
    PROGRAMS["pydantic_ai_agent.py"] = sys.executable
PROGRAMS |= {script: interpreters()[name] for script, name in ENVIRONMENT_OF.items() if name in interpreters()}
WITH_ADAPTER = ("langgraph_agent.py", "openai_agents_agent.py", "pydantic_ai_agent.py", "crewai_agent.py")
"""Programs that have a tool, and clear their history when asked."""
SUMS = ("crewai_agent.py",)
"""Programs whose library reports only the sum of the calls of a turn."""


@cache
def validator(name: str) -> Any:
    """The JSON Schema validator of one of our schemas."""
    from jsonschema import Draft202012Validator  # here, because its import takes a second in each worker

    return Draft202012Validator(json.loads((schema.FOLDER / name).read_text()))


@pytest.mark.parametrize("script", PROGRAMS)
async def test_figures_equal_the_server_before_and_after_a_compaction(script: str) -> None:
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        serve_rehearsal(RehearsalOptions(window_tokens=8192)) as server,
        Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada,
        anyio.create_task_group() as tasks,
    ):
        recorder, metered = EnvelopeRecorder(ada), list[str]()
        meter = Participant(gateway.ws_url, space="demo", id="meter", token=gateway.token_of("meter"))
        tasks.start_soon(partial(run_meter, meter, server.base_url, ready=metered.append))
        await until(lambda: metered)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))},
            "MEW_GATEWAY": gateway.ws_url,
            "MEW_SPACE": "demo",
            "MEW_PARTICIPANT_ID": "helper",
            "MEW_TOKEN": gateway.token_of("helper"),
            "OPENAI_BASE_URL": metered[0],
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "rehearsal",
        }
        program = subprocess.Popen([PROGRAMS[script], str(EXAMPLES / script)], env=environment)
        try:
            await recorder.until(lambda: "helper" in ada.peers)

            async def ask(text: str, calls: int = 1) -> None:
                answer = await ada.ask(
                    "chat", {"text": text}, to="helper", answer="chat", timeout_seconds=PATIENCE_SECONDS
                )
                assert answer.body["text"]
                counted = [one.prompt_tokens + (one.completion_tokens or 0) for one in server.requests[-calls:]]
                is_sum = calls > 1 and script in SUMS
                status = await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)
                assert status.context is not None
                expected = (sum(counted), "provisional") if is_sum else (counted[-1], "reported")
                assert (status.tokens, status.context.basis) == expected

            async def agrees() -> None:
                """The meter between the program and its model server comes to the same figure."""
                await until(lambda: ada.peers["meter"].context.tokens == ada.peers["helper"].context.tokens)

            await ask("What is a context window?")
            for question in ("And a token?", "And a summary?"):
                await ask(question)
                await agrees()  # it needs two calls to know a conversation without tools
            done = await ada.compact("helper", timeout_seconds=PATIENCE_SECONDS)
            assert not done.skipped
            after = await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)
            assert after.context is not None
            assert (after.tokens, after.context.reason) == (None, "compacted")
            await ask("What did I ask last?")
            await ask("And before that?")
            await agrees()
            if script in WITH_ADAPTER:
                await ask('call count_words with {"text": "one two"}', calls=2)
            report = (await ada.request_status("helper", timeout_seconds=PATIENCE_SECONDS)).context
            assert report is not None
            assert report.last_compaction is not None
            assert (report.last_compaction.freed_tokens or 0) > 0
            for control, payload in (("forget", {"direction": "oldest"}), ("clear", {}), ("restart", {})):
                asked = await ada.send(f"participant/{control}", payload, to="helper")
                answer = await recorder.first("helper", "participant/status", about=asked)
                done_word = {"clear": "cleared", "restart": "restarted"} if script in WITH_ADAPTER else {}
                assert answer.body["status"] == done_word.get(control, "refused:not_supported")
        finally:
            program.terminate()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(program.wait)
            tasks.cancel_scope.cancel()
    for envelope in recorder.sent_by("helper"):
        validator("envelope.json").validate(envelope.model_dump(mode="json", by_alias=True, exclude_none=True))
        validator(schema.file_name(envelope.kind)).validate(envelope.body)
