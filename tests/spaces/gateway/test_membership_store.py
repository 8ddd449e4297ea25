"""Invitations, removals and tokens are stored and read again."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig
from mew_spaces.core.state import Change, Invitation, ReportedStatus, SpaceState
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import TokenBook, token_path
from mew_spaces.gateway.membership_store import ROSTER_FILE_NAME, MembershipStore
from mew_spaces.log.memory import Bounds, SpaceLog

from tests.support.live_membership import LiveMembership

ADA, EVE = ParticipantId("ada"), ParticipantId("eve")
INVITATION = Invitation(capabilities=({"kind": "chat"},), invited_by="bob", invited_at="now")


def open_store(config: SpaceConfig, folder: Path | None, log: SpaceLog | None = None) -> MembershipStore:
    tokens = TokenBook.generate(config) if folder is None else TokenBook.load(config, folder, environ={})
    return MembershipStore(config, tokens, folder, log)


def stored(store: MembershipStore, changes: Iterable[Change]) -> None:
    """Store changes that were applied."""
    applied = tuple(changes)
    store.stage(applied)
    store.write_roster(applied)


def invite_eve(config: SpaceConfig, store: MembershipStore) -> None:
    stored(store, LiveMembership(config, store.state).invite(EVE, INVITATION))
    store.add_token(EVE, "token-of-eve")


def remove(config: SpaceConfig, store: MembershipStore, participant: ParticipantId) -> None:
    stored(store, LiveMembership(config, store.state).remove(participant)[0])
    store.revoke_tokens(participant)


def test_invitations_and_removals_survive_a_restart(config: SpaceConfig, tmp_path: Path) -> None:
    first = open_store(config, tmp_path)
    invite_eve(config, first)
    old = first.tokens.token_of(ADA)
    remove(config, first, ADA)
    assert (first.tokens.identify("token-of-eve"), first.tokens.identify(old)) == (EVE, None)
    second = open_store(config, tmp_path)
    assert second.tokens.identify("token-of-eve") == EVE
    assert not second.tokens.knows(ADA)
    assert second.state.removed == {ADA}
    assert second.state.invited[EVE].capabilities == INVITATION.capabilities
    assert open_store(config, tmp_path).state == second.state


@pytest.mark.parametrize(("inviter", "is_replaced"), [("ada", False), ("bob", True), ("gone", True)])
def test_space_yaml_gives_no_inviter_more_than_it_holds(
    config: SpaceConfig, tmp_path: Path, inviter: str, is_replaced: bool
) -> None:
    store = open_store(config, tmp_path)
    invitation = INVITATION.model_copy(update={"invited_by": inviter})
    stored(store, LiveMembership(config, store.state).invite(EVE, invitation))
    store.add_token(EVE, "token-of-eve")
    eve = ParticipantConfig.model_validate({"capabilities": [{"kind": "chat"}, {"kind": "space/kick"}]})
    later = config.model_copy(update={"participants": {**config.participants, EVE: eve}})
    restarted = open_store(later, tmp_path)
    assert restarted.tokens.identify("token-of-eve") == (None if is_replaced else EVE)
    token = restarted.tokens.token_of(EVE)
    assert restarted.tokens.identify(token) == EVE
    again = open_store(later, tmp_path)
    assert again.tokens.identify(token) == EVE
    assert again.state == SpaceState()


def test_without_a_folder_membership_ends_with_the_run(config: SpaceConfig) -> None:
    store = open_store(config, None)
    invite_eve(config, store)
    assert store.tokens.identify("token-of-eve") == EVE
    remove(config, store, EVE)
    assert store.tokens.identify("token-of-eve") is None
    assert open_store(config, None).state == SpaceState()


def test_the_file_is_private_and_replaced_in_one_step(config: SpaceConfig, tmp_path: Path) -> None:
    store = open_store(config, tmp_path)
    invite_eve(config, store)
    path = tmp_path / ROSTER_FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    remove(config, store, EVE)
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [ROSTER_FILE_NAME]


def test_other_changes_write_no_file(config: SpaceConfig, tmp_path: Path) -> None:
    store = open_store(config, tmp_path)
    proposal = Envelope.write("mcp/proposal", id="p1", ts="t", sender="coder", payload={"method": "tools/list"})
    stored(store, LiveMembership(config, store.state).proposals.add(proposal, now=datetime(2026, 1, 1, tzinfo=UTC)))
    assert not (tmp_path / ROSTER_FILE_NAME).exists()


def test_a_failure_to_store_is_logged_and_membership_holds(
    config: SpaceConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(config, tmp_path)
    (tmp_path / ROSTER_FILE_NAME).mkdir()
    invite_eve(config, store)
    assert store.tokens.identify("token-of-eve") == EVE
    remove(config, store, ADA)
    assert not store.tokens.knows(ADA)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert "the last change of who may join (eve) ends with this run" in logged[0]
    assert "(ada) ends with this run" in logged[1]


def test_a_removal_holds_if_the_token_file_cannot_be_deleted(config: SpaceConfig, tmp_path: Path) -> None:
    store = open_store(config, tmp_path)
    path = token_path(tmp_path, ADA)
    path.unlink()
    path.mkdir()
    remove(config, store, ADA)
    path.rmdir()
    assert not open_store(config, tmp_path).tokens.knows(ADA)


@pytest.mark.parametrize("text", ["", "{", '{"invited": 5}', '{"unknown": {}}'])
def test_an_invalid_file_is_refused_by_name(config: SpaceConfig, tmp_path: Path, text: str) -> None:
    (tmp_path / ROSTER_FILE_NAME).write_text(text)
    with pytest.raises(SpacesError, match=ROSTER_FILE_NAME):
        open_store(config, tmp_path)


def stored_log() -> SpaceLog:
    log = SpaceLog(epoch="e", bounds=Bounds(entries=1, bytes=1))
    log.durability = "flushed"
    return log


def status(payload: dict[str, Any]) -> ReportedStatus:
    now = datetime.now(UTC)
    return ReportedStatus(status=payload, envelope_id="1", received_at=now, figure_at=now)


def test_a_stored_status_that_is_unreadable_is_left_out(
    config: SpaceConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, valid = stored_log(), status({"messages_in_context": 1})
    log.put("space/statuses/bob", Change("statuses", "bob", valid).encode())
    log.put("space/statuses/ada", Change("statuses", "ada", status({"tokens": "many"})).encode())
    log.publish(log.seal())
    assert open_store(config, tmp_path, log).state.statuses == {"bob": valid}
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["space/statuses/ada"]


def test_a_participant_removed_from_space_yaml_is_forgotten(config: SpaceConfig, tmp_path: Path) -> None:
    log = stored_log()
    reported = status({"messages_in_context": 1})
    store = open_store(config, tmp_path, log)
    until_restart = INVITATION.model_copy(update={"until_restart": True})
    stored(store, LiveMembership(config, store.state).invite(EVE, until_restart))
    stored(store, [Change("statuses", name, reported) for name in (ADA, EVE, "former")])
    log.publish(log.seal())
    restarted = open_store(config, tmp_path, log)
    log.publish(log.seal())
    assert (set(restarted.state.statuses), restarted.state.invited) == ({ADA}, {})
    assert [key for key in log.state() if "statuses" in key] == ["space/statuses/ada"]
