"""Invitations, removals and tokens are stored and read again."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig
from mew_spaces.core.state import CapabilityGrant, Change, Invitation, ReportedStatus, SpaceState
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import TokenBook, token_path
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.log.memory import Bounds, SpaceLog

from tests.support.live_membership import LiveMembership

ADA, EVE = ParticipantId("ada"), ParticipantId("eve")
INVITATION = Invitation(capabilities=({"kind": "chat"},), through=((),), invited_by="bob", invited_at="now")


@pytest.fixture
def log() -> SpaceLog:
    return SpaceLog(epoch="e", bounds=Bounds(entries=1, bytes=1))


def open_store(config: SpaceConfig, folder: Path | None, log: SpaceLog) -> MembershipStore:
    log.publish(log.seal())
    tokens = TokenBook.generate(config) if folder is None else TokenBook.load(config, folder, environ={})
    return MembershipStore(config, tokens, folder, log)


def invite_eve(config: SpaceConfig, store: MembershipStore, invitation: Invitation = INVITATION) -> None:
    store.write_token(EVE, "token-of-eve")
    store.stage(LiveMembership(config, store.state).invite(EVE, invitation))
    store.add_token(EVE, "token-of-eve")


def remove(config: SpaceConfig, store: MembershipStore, participant: ParticipantId) -> None:
    store.stage(LiveMembership(config, store.state).remove(participant)[0])
    store.revoke_tokens(participant)


def test_invitations_and_removals_survive_a_restart(config: SpaceConfig, tmp_path: Path, log: SpaceLog) -> None:
    first = open_store(config, tmp_path, log)
    invite_eve(config, first)
    old = first.tokens.token_of(ADA)
    remove(config, first, ADA)
    assert (first.tokens.identify("token-of-eve"), first.tokens.identify(old)) == (EVE, None)
    second = open_store(config, tmp_path, log)
    assert second.tokens.identify("token-of-eve") == EVE
    assert not second.tokens.knows(ADA)
    assert second.state.removed == {ADA}
    assert second.state.invited[EVE].capabilities == INVITATION.capabilities
    assert open_store(config, tmp_path, log).state == second.state


@pytest.mark.parametrize("is_removed_again", [False, True])
def test_a_removal_holds_again_after_an_invitation_for_one_run(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, *, is_removed_again: bool
) -> None:
    store = open_store(config, tmp_path, log)
    old = store.tokens.token_of(ADA)
    remove(config, store, ADA)
    store.stage(LiveMembership(config, store.state).invite(ADA, INVITATION.model_copy(update={"until_restart": True})))
    if is_removed_again:
        remove(config, store, ADA)
    for _ in range(2):
        restarted = open_store(config, tmp_path, log)
        assert (restarted.state.invited, restarted.state.removed) == ({}, {ADA})
        assert restarted.tokens.identify(old) is None


@pytest.mark.parametrize(("inviter", "is_replaced"), [("ada", False), ("bob", True), ("gone", True)])
def test_space_yaml_gives_no_inviter_more_than_it_holds(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, inviter: str, is_replaced: bool
) -> None:
    invite_eve(config, open_store(config, tmp_path, log), INVITATION.model_copy(update={"invited_by": inviter}))
    eve = ParticipantConfig.model_validate({"capabilities": [{"kind": "chat"}, {"kind": "space/kick"}]})
    later = config.model_copy(update={"participants": {**config.participants, EVE: eve}})
    restarted = open_store(later, tmp_path, log)
    assert restarted.tokens.identify("token-of-eve") == (None if is_replaced else EVE)
    token = restarted.tokens.token_of(EVE)
    assert restarted.tokens.identify(token) == EVE
    again = open_store(later, tmp_path, log)
    assert again.tokens.identify(token) == EVE
    assert again.state == SpaceState()


def test_without_a_folder_tokens_end_with_the_run(config: SpaceConfig, log: SpaceLog) -> None:
    store = open_store(config, None, log)
    invite_eve(config, store)
    assert store.tokens.identify("token-of-eve") == EVE
    remove(config, store, EVE)
    assert store.tokens.identify("token-of-eve") is None


def test_only_invitations_and_removals_are_stored_on_the_disk_at_once(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog
) -> None:
    log.durability = "flushed"
    store = open_store(config, tmp_path, log)
    proposal = Envelope.write("mcp/proposal", id="p1", ts="t", sender="coder", payload={"method": "tools/list"})
    store.stage(LiveMembership(config, store.state).proposals.add(proposal, now=datetime(2026, 1, 1, tzinfo=UTC)))
    batch = log.seal()
    assert (list(batch.state), dict(batch.synced_state)) == (["space/proposals/p1"], {})
    invite_eve(config, store)
    assert list(log.seal().synced_state) == ["synced/space/invited/eve"]


def test_a_token_that_cannot_be_stored_is_logged_and_holds_for_the_run(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(config, tmp_path, log)
    token_path(tmp_path, EVE).mkdir(parents=True)
    invite_eve(config, store)
    assert store.tokens.identify("token-of-eve") == EVE
    assert "the token of eve is not stored" in caplog.text


def test_a_removal_holds_if_the_token_file_cannot_be_deleted(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog
) -> None:
    store = open_store(config, tmp_path, log)
    path = token_path(tmp_path, ADA)
    path.unlink()
    path.mkdir()
    remove(config, store, ADA)
    path.rmdir()
    assert not open_store(config, tmp_path, log).tokens.knows(ADA)


@pytest.mark.parametrize("text", ["", "{", '{"table": "removed", "key": 5}', '{"unknown": {}}'])
def test_an_unreadable_removal_is_refused_by_name(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, text: str
) -> None:
    log.put("synced/space/removed/ada", text.encode())
    with pytest.raises(SpacesError, match="synced/space/removed/ada"):
        open_store(config, tmp_path, log)


def test_rights_and_their_sources_have_the_same_number(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, caplog: pytest.LogCaptureFixture
) -> None:
    grant = CapabilityGrant(names=frozenset(), granter="bob", patterns=({"kind": "chat"},), through=((),))
    odd_grant = Change("grants", "ada", (grant.model_copy(update={"through": ()}),))
    log.put("space/grants/ada", odd_grant.encode())
    log.publish(log.seal())
    assert open_store(config, tmp_path, log).state.grants == {}
    assert "space/grants/ada: not restored" in caplog.text
    odd = Change("invited", "eve", INVITATION.model_copy(update={"through": ((), ())}))
    log.put("synced/space/invited/eve", odd.encode())
    log.publish(log.seal())
    with pytest.raises(SpacesError, match="synced/space/invited/eve"):
        open_store(config, tmp_path, log)


def status(payload: dict[str, Any]) -> ReportedStatus:
    now = datetime.now(UTC)
    return ReportedStatus(status=payload, envelope_id="1", received_at=now, figure_at=now)


def test_a_stored_status_that_is_unreadable_is_left_out(
    config: SpaceConfig, tmp_path: Path, log: SpaceLog, caplog: pytest.LogCaptureFixture
) -> None:
    valid = status({"messages_in_context": 1})
    log.put("space/statuses/bob", Change("statuses", "bob", valid).encode())
    log.put("space/statuses/ada", Change("statuses", "ada", status({"tokens": "many"})).encode())
    log.publish(log.seal())
    assert open_store(config, tmp_path, log).state.statuses == {"bob": valid}
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["space/statuses/ada"]


def test_a_participant_removed_from_space_yaml_is_forgotten(config: SpaceConfig, tmp_path: Path, log: SpaceLog) -> None:
    log.durability = "flushed"
    reported = status({"messages_in_context": 1})
    store = open_store(config, tmp_path, log)
    invite_eve(config, store, INVITATION.model_copy(update={"until_restart": True}))
    store.stage(Change("statuses", name, reported) for name in (ADA, EVE, "former"))
    restarted = open_store(config, tmp_path, log)
    assert (set(restarted.state.statuses), restarted.state.invited) == ({ADA}, {})
    again = open_store(config, tmp_path, log)
    assert again.state == restarted.state
    assert list(log.state()) == ["space/statuses/ada"]
