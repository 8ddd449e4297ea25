"""A roster survives a restart."""

from pathlib import Path

import pytest
from mew_spaces.core.roster import Invited, Roster
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.roster_file import ROSTER_FILE_NAME, read_roster, write_roster


def test_what_was_written_is_read_and_only_its_owner_may(tmp_path: Path) -> None:
    place = Invited(capabilities=({"kind": "chat"},), invited_by="ada", invited_at="now")
    roster = Roster(invited={"eve": place}, removed=frozenset({"coder"}))
    write_roster(tmp_path / "new", roster)
    assert read_roster(tmp_path / "new") == roster
    path = tmp_path / "new" / ROSTER_FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    write_roster(tmp_path / "new", Roster())
    assert [one.name for one in path.parent.iterdir()] == [ROSTER_FILE_NAME]
    assert read_roster(tmp_path / "new") == Roster()


def test_without_a_file_nobody_was_invited_or_removed(tmp_path: Path) -> None:
    assert read_roster(tmp_path) == Roster()


@pytest.mark.parametrize("text", ["", "{", '{"invited": 5}', '{"unknown": {}}'])
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / ROSTER_FILE_NAME).write_text(text)
    with pytest.raises(SpacesError, match=ROSTER_FILE_NAME):
        read_roster(tmp_path)
