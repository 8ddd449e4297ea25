"""`mew serve acp`: what it refuses. tests/interaction runs it as a process."""

import os

import pytest

from mew_agent.errors import ConfigError
from mew_agent.parts.acp.command import require_pipe


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
