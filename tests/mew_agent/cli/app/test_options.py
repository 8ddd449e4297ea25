"""Options that several commands share."""

import logging
from pathlib import Path
from typing import get_args

import pytest
import typer

from mew_agent.cli.app.options import ConnectionOptions, LogLevel, read_log_level, typer_command


@pytest.mark.parametrize("level", get_args(LogLevel))
def test_every_log_level_is_known_to_logging(level: str) -> None:
    assert level.upper() in logging.getLevelNamesMapping()


def test_log_level_of_the_typescript_cli_is_accepted() -> None:
    assert read_log_level("warn") == read_log_level("warning") == "warning"
    with pytest.raises(typer.BadParameter, match="'chatty' is not one of debug, info, warning, error"):
        read_log_level("chatty")


@pytest.fixture
def requested() -> list[tuple[ConnectionOptions, str, int]]:
    """What the command below was called with."""
    return []


@pytest.fixture
def app(requested: list[tuple[ConnectionOptions, str, int]]) -> typer.Typer:
    """A program with one command that takes flags."""
    app = typer.Typer()

    @app.command()
    @typer_command
    def ask(target: str, *, often: int = 1, connection: ConnectionOptions) -> None:
        """Ask a participant."""
        requested.append((connection, target, often))

    return app


def test_connection_options_are_added_to_a_command(
    app: typer.Typer, requested: list[tuple[ConnectionOptions, str, int]], tmp_path: Path
) -> None:
    app(["bob", "--often", "3", "--participant", "ada", "-s", "room", "-d", str(tmp_path)], standalone_mode=False)
    assert requested == [(ConnectionOptions("ada", space="room", folder=tmp_path), "bob", 3)]


def test_missing_connection_options_are_none(
    app: typer.Typer, requested: list[tuple[ConnectionOptions, str, int]]
) -> None:
    app(["bob"], standalone_mode=False)
    assert requested == [(ConnectionOptions(), "bob", 1)]
