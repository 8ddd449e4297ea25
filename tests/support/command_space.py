"""A space for commands to act on, and an environment without settings."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  guest: {capabilities: [{kind: chat}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: chat/acknowledge}, {kind: participant/status}, {kind: participant/compact-done},
                   {kind: reasoning/start}]
"""


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("MEW_", "OPENAI_")) or name in {"NO_COLOR", "COLUMNS"}:  # some test runners set a width
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with serve_gateway(parse_space(SPACE)) as running:
        yield running
