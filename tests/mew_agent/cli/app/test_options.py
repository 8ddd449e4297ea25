"""Options that several commands share."""

import logging
from pathlib import Path

import pytest
import typer

from mew_agent.cli.app.options import ConnectionOptions, LogLevel, with_connection_options


@pytest.mark.parametrize("level", list(LogLevel))
def test_every_level_is_one_the_log_knows(level: LogLevel) -> None:
    assert level.upper() in logging.getLevelNamesMapping()


@pytest.fixture
def asked() -> list[tuple[ConnectionOptions, str, int]]:
    """What the command below was called with."""
    return []


@pytest.fixture
def app(asked: list[tuple[ConnectionOptions, str, int]]) -> typer.Typer:
    """A program with one command that takes flags."""
    app = typer.Typer()

    @app.command()
    @with_connection_options
    def ask(connection: ConnectionOptions, target: str, *, often: int = 1) -> None:
        """Ask somebody."""
        asked.append((connection, target, often))

    return app


def test_a_command_with_connection_options_has_an_option_for_each_behind_its_own(
    app: typer.Typer, asked: list[tuple[ConnectionOptions, str, int]]
) -> None:
    app(["bob", "--often", "3", "--participant", "ada", "-s", "room", "-d", "there"], standalone_mode=False)
    assert asked == [(ConnectionOptions("ada", space="room", folder=Path("there")), "bob", 3)]


def test_flags_that_are_not_given_are_found_elsewhere(
    app: typer.Typer, asked: list[tuple[ConnectionOptions, str, int]]
) -> None:
    app(["bob"], standalone_mode=False)
    assert asked == [(ConnectionOptions(), "bob", 1)]
