"""Turning an exception into one line and an exit code."""

from pathlib import Path

import pytest
from mew_spaces.errors import PortInUse, SpaceConfigError, SpacesError, TokenError

from mew_agent.cli.app.reported_errors import report_error
from mew_agent.errors import ConfigError, ModelRefused, NotConnected, NotPermitted, PeerTimeout, Unauthorized
from tests.support.cli import mew


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("space.yaml", "is wrong"), 2),
        (Unauthorized("coder"), 2),
        (NotPermitted("ada", "chat"), 2),
        (SpaceConfigError(Path("space.yaml"), "is wrong", 1, 2), 2),
        (TokenError("no token"), 2),
        (PortInUse("127.0.0.1", 8080), 2),
        (NotConnected("ws://x"), 4),
        (PeerTimeout("coder", "participant/compact", 1.0), 4),
        (ModelRefused("http://x", "gpt-4o"), 1),
        (SpacesError("broken"), 1),
        (ZeroDivisionError("a bug"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_class_decides_the_exit_code(capsys: pytest.CaptureFixture[str], error: BaseException, code: int) -> None:
    assert report_error(error) == code
    said = capsys.readouterr().err
    assert said.count("\n") == (0 if code in (130, 141) else 1)
    assert said.startswith("mew: ") or code in (130, 141)


def test_first_error_of_a_group_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    inner = ExceptionGroup("inner", [NotConnected("ws://x"), ValueError()])
    assert report_error(ExceptionGroup("outer", [inner])) == 4
    assert "not connected to the gateway at ws://x" in capsys.readouterr().err


def test_refused_token_names_the_command_that_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(Unauthorized("coder", "the gateway refused this token for 'coder'"))
    report_error(Unauthorized("coder", "the gateway needs a token for 'coder'"))
    report_error(Unauthorized("coder", "the door is shut"))
    advice = "In the folder of the space, `mew token coder` prints its token"
    assert capsys.readouterr().err.splitlines() == [
        f"mew: the gateway refused this token for 'coder' (unauthorized). {advice}",
        f"mew: the gateway needs a token for 'coder'. {advice}",
        f"mew: the gateway refused this token for 'coder' (unauthorized): the door is shut. {advice}",
    ]


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("serve model", "--model x", "No such option: --model (did you mean '--model-name'? "),
        ("forget", "coder -n 0", "Invalid value for '--entries': must be at least 1, not '0' ("),
        ("forget", "coder -n x", "Invalid value for '--entries': must be a whole number, not 'x' ("),
    ],
)
async def test_misused_option_is_named_by_its_long_name(command: str, arguments: str, said: str) -> None:
    outcome = await mew(*command.split(), *arguments.split())
    assert (outcome.code, outcome.err) == (2, f"mew: {said}see `mew {command} --help`)\n")


@pytest.mark.parametrize(
    ("command", "argument", "expected"),
    [
        pytest.param("token ada", "bob", "PARTICIPANT", marks=pytest.mark.part("tokens")),
        ("dashboard", "ada", "--participant ada"),
        ("logs ada", "bob", "NAME"),
        ("down", "ada", "options only"),
    ],
)
async def test_unexpected_argument_names_the_expected_ones(command: str, argument: str, expected: str) -> None:
    outcome = await mew(*command.split(), argument)
    help_of = command.removesuffix(" ada")
    said = f"mew: Unexpected argument: {argument}; expected {expected} (see `mew {help_of} --help`)\n"
    assert (outcome.code, outcome.err) == (2, said)


def test_error_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(ConfigError("x", "first\n  second"))
    assert capsys.readouterr().err == "mew: x: first second\n"


def test_unexpected_error_says_how_to_see_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(KeyError("oops"))
    assert capsys.readouterr().err == "mew: KeyError: 'oops' (MEW_DEBUG=1 shows the traceback)\n"


def test_system_error_keeps_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(OSError(28, "No space left on device")) == 1
    assert report_error(PermissionError(13, "Permission denied", ".mew")) == 1
    assert capsys.readouterr().err == "mew: No space left on device\nmew: .mew: Permission denied\n"
