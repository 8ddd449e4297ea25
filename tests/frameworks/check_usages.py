"""Usage objects of installed libraries have the figures that the server counted; `make test-frameworks` runs this."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import anyio
import pytest

from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.frameworks import interpreters

SCRIPT = Path(__file__).with_name("usages.py")


@pytest.mark.parametrize("environment", interpreters())
async def test_objects_of_installed_libraries_have_the_servers_figures(environment: str) -> None:
    async with serve_rehearsal(RehearsalOptions(window_tokens=8192)) as server:
        command = [interpreters()[environment], str(SCRIPT), environment, server.base_url]
        run = partial(
            subprocess.run, capture_output=True, text=True, env={**os.environ, "CREWAI_TRACING_ENABLED": "false"}
        )
        done = await anyio.to_thread.run_sync(partial(run, command))
        assert done.returncode == 0, done.stderr[-3000:]
        made = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"library"')]
        assert made
        counted = [one.prompt_tokens + (one.completion_tokens or 0) for one in server.requests]
        for one in made:
            print(one)
            calls = [counted.pop(0) for _ in range(one["calls"])] or [402]
            expected = {"reported": calls[-1], "provisional": sum(calls)}
            assert one["basis"] == "reported" or len(calls) > 1
            assert one["tokens"] == expected[one["basis"]], one
        assert not counted
