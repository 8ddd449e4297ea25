"""`mew serve acp`: what it refuses. tests/interaction runs it as a process."""

import os

import pytest

from mew_agent.errors import ConfigError
from mew_agent.parts.acp.start_and_serve import require_pipe
from tests.support.cli import mew


def test_serving_an_editor_needs_pipes() -> None:
    reader, writer = os.pipe()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    try:
        require_pipe(reader, "standard input")
        require_pipe(writer, "standard output")
        with pytest.raises(ConfigError, match="standard input: no editor is connected"):
            require_pipe(nowhere, "standard input")
    finally:
        for descriptor in (reader, writer, nowhere):
            os.close(descriptor)


async def test_an_unknown_profile_is_refused_with_a_similar_one() -> None:
    outcome = await mew("acp", "start", "--participant", "coder", "--profile", "claud", "--cwd", "elsewhere")
    assert "--profile: no agent 'claud' is known" in outcome.err
    assert "claude" in outcome.err
    assert outcome.code == 2
