"""Options that several commands share."""

import logging

import pytest

from mew_agent.cli.options import LogLevel


@pytest.mark.parametrize("level", list(LogLevel))
def test_every_level_is_one_the_log_knows(level: LogLevel) -> None:
    assert level.upper() in logging.getLevelNamesMapping()
