"""Tokens and their files."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from mew_protocol.ids import MAX_ID_BYTES, id_problem
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.errors import TokenError
from mew_spaces.gateway.auth import (
    TokenBook,
    ensure_token,
    observer_path,
    read_token,
    read_token_file,
    space_folder,
    state_dir,
    token_path,
    token_variable,
    write_new_token,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_folder_is_next_to_space_yaml_or_around_it(tmp_path: Path) -> None:
    assert state_dir(tmp_path / "space.yaml") == tmp_path.resolve() / ".mew"
    assert state_dir(tmp_path / ".mew" / "space.yaml") == tmp_path.resolve() / ".mew"
    assert space_folder(tmp_path / ".mew") == tmp_path
    assert space_folder(tmp_path / "elsewhere") == tmp_path / "elsewhere"


def test_a_token_is_generated_once_and_private(tmp_path: Path) -> None:
    first = ensure_token(tmp_path, "ada", environ={})
    path = token_path(tmp_path, "ada")
    assert len(first) == 43
    assert path.read_text(encoding="utf-8").strip() == first
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert (path.parent / ".gitignore").read_text(encoding="utf-8") == "*\n"
    assert [one.name for one in path.parent.glob("*ada*")] == ["ada.token"]
    assert ensure_token(tmp_path, "ada", environ={}) == first
    assert ensure_token(tmp_path, "bob", environ={}) != first


def test_a_token_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokens").symlink_to(tmp_path / "gone" / "folder")
    with pytest.raises(TokenError, match=r"ada\.token: cannot be stored"):
        ensure_token(tmp_path, "ada", environ={})


def test_the_state_folder_of_a_space_is_private(tmp_path: Path) -> None:
    state = tmp_path / ".mew"
    state.mkdir(mode=0o755)
    ensure_token(state, "ada", environ={})
    assert (mode(state), mode(state / "tokens")) == (0o700, 0o700)


def test_a_readable_token_file_is_made_private(tmp_path: Path) -> None:
    ensure_token(tmp_path, "ada", environ={})
    token_path(tmp_path, "ada").chmod(0o644)
    ensure_token(tmp_path, "ada", environ={})
    assert mode(token_path(tmp_path, "ada")) == 0o600


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    assert token_variable("file-server") == "MEW_TOKEN_FILE_SERVER"
    environ = {"MEW_TOKEN_FILE_SERVER": " given "}
    assert ensure_token(tmp_path, "file-server", environ=environ) == "given"
    assert not token_path(tmp_path, "file-server").exists()
    assert read_token(tmp_path, "file-server", environ={"MEW_TOKEN_FILE_SERVER": ""}) is None


def test_an_empty_or_unreadable_token_file_is_named(tmp_path: Path) -> None:
    path = token_path(tmp_path, "ada")
    path.parent.mkdir()
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(TokenError, match=r"ada\.token: is empty"):
        read_token(tmp_path, "ada", environ={})
    path.write_bytes(b"\xff\xff")
    with pytest.raises(TokenError, match=r"ada\.token: cannot be read"):
        read_token(tmp_path, "ada", environ={})


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("in the way", encoding="utf-8")
    with pytest.raises(TokenError):
        ensure_token(tmp_path, "ada", environ={})


def test_every_token_identifies_its_participant(tmp_path: Path, config: SpaceConfig) -> None:
    book = TokenBook.load(config, tmp_path, environ={"MEW_TOKEN_BOB": "from-environment"})
    assert book.identify("token-of-coder") == "coder"
    assert book.identify(token_path(tmp_path, "coder").read_text(encoding="utf-8").strip()) == "coder"
    assert book.identify("from-environment") == "bob"
    assert book.token_of("bob") == "from-environment"
    assert book.token_of("nobody") is None


@pytest.mark.parametrize("token", [None, "", "wrong", "token-of-code", "token-of-coder ", "\udcff"])
def test_an_unknown_token_identifies_no_participant(token: str | None, config: SpaceConfig) -> None:
    assert TokenBook.generate(config).identify(token) is None


def test_two_participants_cannot_share_a_token(tmp_path: Path) -> None:
    book = TokenBook([("ada", "t")])
    book.add("ada", "t")
    with pytest.raises(TokenError, match="'bob' and 'ada' have the same token"):
        book.add("bob", "t")
    with pytest.raises(TokenError, match="empty"):
        book.add("bob", "")
    alike = parse_space("space: {id: a}\nparticipants: {a-b: {}, a_b: {}}")
    with pytest.raises(TokenError, match="MEW_TOKEN_A_B"):
        TokenBook.load(alike, tmp_path, environ={"MEW_TOKEN_A_B": "same"})


def test_generated_tokens_differ_and_keep_configured_ones(config: SpaceConfig) -> None:
    book = TokenBook.generate(config)
    assert book.token_of("coder") == "token-of-coder"
    assert len({book.token_of(name) for name in config.participants}) == len(config.participants)


def test_a_removed_participant_has_no_valid_token(config: SpaceConfig) -> None:
    book = TokenBook.generate(config)
    book.remove("coder")
    assert book.identify("token-of-coder") is None
    assert book.token_of("coder") is None
    assert book.token_of("ada") is not None


class Clocks:
    """A wall clock and a monotonic clock set by hand."""

    def __init__(self) -> None:
        self.wall, self.elapsed = datetime.now(UTC), 100.0

    def book(self, folder: Path) -> TokenBook:
        book = TokenBook(clock=lambda: self.wall, monotonic=lambda: self.elapsed)
        book.load_token("ada", folder, environ={})
        return book


def test_a_deleted_token_file_ends_its_token_on_the_next_use(tmp_path: Path) -> None:
    book = Clocks().book(tmp_path)
    token = book.token_of("ada")
    assert (book.identify(token), book.refresh()) == ("ada", ())
    token_path(tmp_path, "ada").unlink()
    assert book.identify(token) is None
    assert (book.refresh(), book.refresh(), book.knows("ada")) == (("ada",), (), False)


def test_a_replaced_token_file_changes_the_token(tmp_path: Path) -> None:
    clocks = Clocks()
    book = clocks.book(tmp_path)
    old, new = book.token_of("ada"), write_new_token(token_path(tmp_path, "ada")).token
    clocks.elapsed += 1
    assert (book.identify(new), book.identify(old), book.token_of("ada")) == ("ada", None, new)
    assert book.refresh() == ("ada",)


@pytest.mark.parametrize(("wall", "elapsed"), [(3601, 0), (0, 3601), (-86_400, 3601), (86_400, 5)])
def test_no_clock_change_prolongs_a_token(tmp_path: Path, wall: int, elapsed: int) -> None:
    clocks = Clocks()
    token = write_new_token(token_path(tmp_path, "ada"), clocks.wall + timedelta(hours=1)).token
    book = clocks.book(tmp_path)
    assert book.identify(token) == "ada"
    clocks.wall += timedelta(seconds=wall)
    clocks.elapsed += elapsed
    assert book.identify(token) is None
    assert book.refresh() == ("ada",)
    clocks.wall = datetime.now(UTC) - timedelta(days=9)
    assert book.identify(token) is None
    assert book.identify(token) is None


def test_a_token_file_with_a_second_line_is_refused(tmp_path: Path) -> None:
    path = token_path(tmp_path, "ada")
    path.parent.mkdir()
    path.write_text("a-token\nexpires 2999-01-01T00:00:00+00:00\n")
    with pytest.raises(TokenError, match="has more than one line"):
        read_token_file(path)


def test_a_reader_never_sees_an_expiring_token_without_its_expiry(tmp_path: Path) -> None:
    path, expires_at = token_path(tmp_path, "ada"), datetime.now(UTC) + timedelta(hours=1)
    write_new_token(path, expires_at)
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(lambda: [write_new_token(path, expires_at) for _ in range(50)])
        read = 0
        while not writer.done():
            stored = read_token_file(path)
            assert stored is not None
            assert stored.expires_at == expires_at
            read += 1
    assert (writer.result()[-1], read > 1) == (read_token_file(path), True)


def test_the_longest_id_has_a_token_file(tmp_path: Path) -> None:
    name = "é" * (MAX_ID_BYTES // 2)
    stored = write_new_token(token_path(tmp_path, name), datetime.now(UTC) + timedelta(hours=1))
    assert (id_problem(name), read_token_file(token_path(tmp_path, name))) == (None, stored)


@pytest.mark.parametrize("content", ["[1]", "[" * 100_000, "{", '{"a": "soon"}', '{"a": "2020-01-01"}', ""])
def test_an_unreadable_expiry_ends_its_token(tmp_path: Path, content: str) -> None:
    path, clocks = token_path(tmp_path, "ada"), Clocks()
    token = write_new_token(path, datetime.now(UTC) + timedelta(hours=1)).token
    book = clocks.book(tmp_path)
    path.with_name("ada.token.expires").write_text(content)
    with pytest.raises(TokenError, match="must be an object of times"):
        read_token_file(path)
    os.utime(path, (1, 1))
    assert (book.refresh(), book.identify(token)) == (("ada",), None)
    replaced = write_new_token(path, datetime.now(UTC) + timedelta(hours=1))
    assert (read_token_file(path), clocks.book(tmp_path).identify(replaced.token)) == (replaced, "ada")


@pytest.mark.parametrize(
    ("time", "counts"), [("9999-12-31T23:59:59-23:59", True), ("0001-01-01T00:00:00+23:59", False)]
)
def test_an_expiry_at_the_end_of_time_is_read(tmp_path: Path, time: str, counts: bool) -> None:
    path = token_path(tmp_path, "ada")
    token = write_new_token(path, datetime.now(UTC) + timedelta(hours=1)).token
    expiries = path.with_name("ada.token.expires")
    expiries.write_text(json.dumps(dict.fromkeys(json.loads(expiries.read_text()), time)))
    book = Clocks().book(tmp_path)
    assert (book.identify(token) == "ada") is counts


def test_an_expired_token_is_replaced_when_a_gateway_starts(tmp_path: Path) -> None:
    expired = write_new_token(token_path(tmp_path, "ada"), datetime.now(UTC) - timedelta(seconds=1)).token
    book = Clocks().book(tmp_path)
    assert book.identify(expired) is None
    assert book.identify(ensure_token(tmp_path, "ada", environ={})) == "ada"


def test_a_new_token_counts_right_after_a_refusal(tmp_path: Path, config: SpaceConfig) -> None:
    book = TokenBook.load(config, tmp_path, environ={})
    assert not book.may_read("wrong")
    token = write_new_token(observer_path(tmp_path, "screen")).token
    os.utime(observer_path(tmp_path, "screen").parent, ns=(0, 10**18))  # two changes may share a tick of the clock
    assert book.may_read(token)


def test_an_observer_may_read_and_is_no_participant(tmp_path: Path, config: SpaceConfig) -> None:
    token = write_new_token(observer_path(tmp_path, "screen")).token
    book = TokenBook.load(config, tmp_path, environ={})
    assert (book.may_read(token), book.identify(token)) == (True, None)
    assert book.may_read(book.token_of("ada"))
    observer_path(tmp_path, "screen").unlink()
    assert not book.may_read(token)


def test_a_deleted_observer_file_is_no_longer_checked(
    tmp_path: Path, config: SpaceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, find_status, looked_at = observer_path(tmp_path, "screen"), Path.stat, list[Path]()

    def noted(file: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        looked_at.append(file)
        return find_status(file, follow_symlinks=follow_symlinks)

    write_new_token(path)
    book = TokenBook.load(config, tmp_path, environ={})
    path.unlink()
    book.refresh()
    monkeypatch.setattr(Path, "stat", noted)
    book.refresh()
    assert path not in looked_at
    token = write_new_token(path).token
    book.refresh()
    assert book.may_read(token)


def test_an_unknown_token_has_no_file_looked_at_unless_one_is_new(
    tmp_path: Path, config: SpaceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    book = TokenBook.load(config, tmp_path, environ={})
    book._monotonic = lambda: clocks.elapsed
    look = Mock(side_effect=Path.stat)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", lambda path, **more: look(path, **more))
        for _ in range(3):
            clocks.elapsed += 1
            assert not book.may_read("wrong")
    assert {call.args[0] for call in look.call_args_list} == {tmp_path / "tokens"}
    token_path(tmp_path, "ada").write_text("another\n")
    book.look()
    assert book.identify("another") == "ada"


def test_a_removed_participant_cannot_return_by_its_token_file(tmp_path: Path) -> None:
    clocks = Clocks()
    book = clocks.book(tmp_path)
    os.utime(token_path(tmp_path, "ada"))
    book.look()
    book.remove("ada")
    token = write_new_token(token_path(tmp_path, "ada")).token
    clocks.elapsed += 1
    assert book.identify(token) is None
    assert book.refresh() == ()
