"""The identity of a command: options, then the environment, then the running space of the folder."""

import os
from pathlib import Path
from typing import Any

import pytest
from mew_spaces.gateway.auth import token_path
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.run_file import RunFile, end_run, read_run_file, run_file_path, write_run_file

from mew_agent.cli.app.locate import find_run
from mew_agent.cli.app.options import ConnectionOptions, ProgramConnection
from mew_agent.cli.remote.identity import find_gateway, find_identity
from mew_agent.errors import ConfigError, NotConnected

ALL = ProgramConnection(participant="bob", token="t-bob", gateway="ws://host:1", space="other")


def running_space(folder: Path, **more: Any) -> Path:
    """A run file whose gateway is this very process, and tokens of ada and bob."""
    state = folder / ".mew"
    me = os.getpid()
    values = {
        "space": "review",
        "gateway": "http://127.0.0.1:8080",
        "ws": "ws://127.0.0.1:8080",
        "started_at": "now",
        "person": "ada",
        "pids": {"gateway": me},
        "marks": {str(me): started_mark(me)},
        **more,
    }
    path = run_file_path(state)
    write_run_file(path, RunFile.model_validate(values))
    for name in ("ada", "bob"):
        token_path(state, name).parent.mkdir(exist_ok=True)
        token_path(state, name).write_text(f"file-token-of-{name}\n")
    return path


def token_in(api: Any) -> str:
    token: str = api.token
    return token


def test_options_alone_identify_a_participant() -> None:
    api = find_gateway(ALL)
    assert (api.gateway, api.space, api.participant) == ("http://host:1", "other", "bob")
    assert token_in(api) == "t-bob"
    assert api.run_path is None
    assert api.run() is None


def test_running_space_provides_missing_options(tmp_path: Path) -> None:
    path = running_space(tmp_path)
    api = find_gateway(ConnectionOptions())
    assert (api.gateway, api.space, api.participant) == (
        "http://127.0.0.1:8080",
        "review",
        "ada",
    )
    assert token_in(api) == "file-token-of-ada"
    assert api.run_path == path.resolve()
    run = api.run()
    assert run is not None
    assert run.space == "review"


def test_other_participant_uses_its_own_token(tmp_path: Path) -> None:
    running_space(tmp_path)
    assert token_in(find_gateway(ConnectionOptions(participant="bob"))) == "file-token-of-bob"


def test_environment_token_serves_its_participant_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running_space(tmp_path)
    monkeypatch.setenv("MEW_PARTICIPANT_ID", "bob")
    monkeypatch.setenv("MEW_TOKEN", "environment-token")
    assert token_in(find_gateway(ConnectionOptions())) == "environment-token"
    assert token_in(find_gateway(ConnectionOptions(participant="ada"))) == "file-token-of-ada"


def test_folder_token_is_not_sent_to_another_gateway(tmp_path: Path) -> None:
    running_space(tmp_path)
    with pytest.raises(ConfigError, match="no token of 'ada' found"):
        find_gateway(ConnectionOptions(gateway="ws://elsewhere:1", space="review", participant="ada"))
    for gateway in ("ws://127.0.0.1:8080/", "ws://localhost:8080", "http://LOCALHOST:8080", "ws://[::1]:8080"):
        same = find_gateway(ConnectionOptions(gateway=gateway, participant="ada"))
        assert token_in(same) == "file-token-of-ada"


def test_every_gateway_of_the_folder_is_known(tmp_path: Path) -> None:
    running_space(tmp_path)
    (tmp_path / "space.yaml").write_text("space: {id: review}\nparticipants: {ada: {}}\n")
    folder = tmp_path / ".mew" / "gateways"
    folder.mkdir()
    mark = started_mark(os.getpid())
    (folder / "8099.pid").write_text(f"{os.getpid()} {mark} http://127.0.0.1:8099\n")
    (folder / "8098.pid").write_text("4194303 0 http://127.0.0.1:8098\n")
    found = find_identity(ConnectionOptions(gateway="localhost:8099"))
    assert (found.gateway, found.space, found.participant, found.token) == (
        "localhost:8099",
        "review",
        "ada",
        "file-token-of-ada",
    )
    with pytest.raises(ConfigError, match="--space"):
        find_identity(ConnectionOptions(gateway="localhost:8098"))
    run_file_path(tmp_path / ".mew").unlink()
    assert find_identity(ConnectionOptions()).gateway == "http://127.0.0.1:8099"


def test_another_folder_can_be_given(tmp_path: Path) -> None:
    other = tmp_path / "other"
    path = running_space(other)
    assert find_gateway(ConnectionOptions(folder=other)).run_path == path.resolve()
    assert find_run(tmp_path) is None


def test_ended_gateway_is_reported(tmp_path: Path) -> None:
    running_space(tmp_path, marks={})
    (tmp_path / ".mew" / "logs").mkdir()
    (tmp_path / ".mew" / "logs" / "gateway.log").touch()
    with pytest.raises(NotConnected, match=r"it was killed at \d{4}-\S+ \S+ \(\d s ago\); `mew up` starts it again"):
        find_gateway(ConnectionOptions())


@pytest.mark.parametrize(
    ("connection", "missing"),
    [
        (ConnectionOptions(gateway="ws://host:1"), "--space"),
        (ConnectionOptions(gateway="ws://host:1", space="s"), "--participant"),
        (ConnectionOptions(gateway="ws://host:1", space="s", participant="p"), "MEW_TOKEN"),
    ],
)
def test_missing_option_is_named(connection: ConnectionOptions, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        find_gateway(connection)


def test_several_people_require_a_participant(tmp_path: Path) -> None:
    running_space(tmp_path, person=None)
    with pytest.raises(ConfigError, match="--participant"):
        find_gateway(ConnectionOptions())


def test_a_stopped_space_says_how_and_when_it_ended(tmp_path: Path) -> None:
    path = running_space(tmp_path)
    run = read_run_file(path)
    assert run is not None
    end_run(path, run, "was stopped with Ctrl-C")
    said = (
        r"no space is running here: 'review' was stopped with Ctrl-C at \S+ \S+ \(0 s ago\)\. `mew up` starts it again"
    )
    with pytest.raises(ConfigError, match=said):
        find_gateway(ConnectionOptions(folder=tmp_path))


def test_a_folder_without_a_space_is_told_from_a_space_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no space is running here, and there is no space\.yaml: `mew init` creates"):
        find_gateway(ConnectionOptions(folder=tmp_path))
    (tmp_path / "space.yaml").write_text("space: {id: review}\nparticipants: {ada: {}}")
    with pytest.raises(ConfigError, match=r"no space is running here\. Start one with `mew up`, or give --gateway"):
        find_gateway(ConnectionOptions(folder=tmp_path))


def test_an_unknown_participant_is_named_with_those_of_the_space(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: review}\nparticipants: {ada: {}, bob: {}}")
    running_space(tmp_path, config=str(tmp_path / "space.yaml"))
    for name, more in (("eve", r"\(expected ada, bob\)"), ("adda", r"\(did you mean 'ada'\?\)")):
        with pytest.raises(ConfigError, match=f"'{name}' is not in space 'review' ?{more}"):
            find_gateway(ConnectionOptions(folder=tmp_path, participant=name))
