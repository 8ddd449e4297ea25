"""Who has a place lasts, as far as it can be written."""

from pathlib import Path

import pytest
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.roster import Invited, Roster
from mew_spaces.gateway.auth import TokenBook, token_path
from mew_spaces.gateway.roster_file import ROSTER_FILE_NAME
from mew_spaces.gateway.token_registry import Register

ADA, EVE = ParticipantId("ada"), ParticipantId("eve")
INVITED = Roster().with_invited("eve", Invited(invited_by="ada", invited_at="now"))


def register(config: SpaceConfig, state: Path | None) -> Register:
    tokens = TokenBook.generate(config) if state is None else TokenBook.load(config, state, environ={})
    return Register(config, tokens, state)


def test_an_invitation_and_a_removal_outlive_a_run(config: SpaceConfig, tmp_path: Path) -> None:
    first = register(config, tmp_path)
    first.enrol(EVE, "token-of-eve", INVITED)
    old = first.tokens.token_of(ADA)
    first.strike(ADA, INVITED.without("ada"))
    assert (first.tokens.identify("token-of-eve"), first.tokens.identify(old)) == (EVE, None)
    second = register(config, tmp_path)
    assert second.tokens.identify("token-of-eve") == EVE
    assert not second.tokens.knows(ADA)
    assert second.roster == INVITED.without("ada")


def test_without_a_folder_both_last_as_long_as_the_run(config: SpaceConfig) -> None:
    one = register(config, None)
    one.enrol(EVE, "token-of-eve", INVITED)
    assert one.tokens.identify("token-of-eve") == EVE
    one.strike(EVE, INVITED.without("eve"))
    assert one.tokens.identify("token-of-eve") is None
    assert register(config, None).roster == Roster()


def test_what_cannot_be_stored_counts_until_the_end_and_is_said(
    config: SpaceConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = register(config, tmp_path)
    (tmp_path / ROSTER_FILE_NAME).mkdir()
    one.enrol(EVE, "token-of-eve", INVITED)
    assert one.tokens.identify("token-of-eve") == EVE
    one.strike(ADA, INVITED.without("ada"))
    assert not one.tokens.knows(ADA)
    assert [record.getMessage().partition(" is not kept")[0] for record in caplog.records] == [
        "the invitation of eve",
        "the removal of ada",
    ]


def test_a_removal_counts_though_the_token_cannot_be_taken_away(config: SpaceConfig, tmp_path: Path) -> None:
    one = register(config, tmp_path)
    path = token_path(tmp_path, ADA)
    path.unlink()
    path.mkdir()
    one.strike(ADA, Roster().without("ada"))
    path.rmdir()
    assert not register(config, tmp_path).tokens.knows(ADA)
