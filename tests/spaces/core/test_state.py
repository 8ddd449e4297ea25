"""The durable state is one value that changes rebuild exactly."""

from datetime import UTC, datetime

import pytest
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.system import ActiveStream
from mew_spaces.core.state import (
    ActivePause,
    CapabilityGrant,
    Change,
    Invitation,
    KnownProposal,
    SpaceState,
    Stream,
)
from pydantic import ValidationError

ADA = ParticipantId("ada")
STREAM = Stream(number=3, owner=ADA, writers=(ADA,), created="now", metadata={"n": [1]}, names=frozenset({"r"}))
CHANGES: list[Change] = [
    Change(
        "invited",
        "eve",
        Invitation(capabilities=({"kind": "chat"},), through=((),), invited_by="ada", invited_at="now"),
    ),
    Change("removed", "bob", True),
    Change(
        "grants",
        "eve",
        (CapabilityGrant(names=frozenset({"g"}), granter="ada", patterns=({"kind": "x"},), through=((),)),),
    ),
    Change("pauses", "eve", ActivePause(until=datetime(2026, 1, 1, tzinfo=UTC), reason="loud")),
    Change("shut_down", "coder", True),
    Change("proposals", "p1", KnownProposal(proposer="coder", peers=("files",), method="tools/list", digest="d")),
    Change("streams", "stream-3", STREAM),
]


def full_state() -> SpaceState:
    state = SpaceState()
    for change in CHANGES:
        state.apply(change)
    return state


def test_a_state_survives_serialisation() -> None:
    state = full_state()
    assert SpaceState.model_validate_json(state.model_dump_json()) == state
    assert all(getattr(state, change.table) for change in CHANGES)


def test_stored_changes_rebuild_the_state() -> None:
    state = SpaceState()
    for change in CHANGES:
        state.apply(Change.decode(change.encode()))
    assert state == full_state()


@pytest.mark.parametrize(
    "stored", [b"[]", b"{", b'{"table":"unknown","key":"a","value":true}', b'{"table":"pauses","key":"a","value":true}']
)
def test_an_unreadable_change_is_refused(stored: bytes) -> None:
    with pytest.raises(ValidationError):
        Change.decode(stored)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.table)
def test_removing_an_entry_undoes_setting_it(change: Change) -> None:
    state = SpaceState()
    state.apply(change)
    state.apply(change._replace(value=None))
    assert state == SpaceState(streams_opened=state.streams_opened)
    state.apply(change._replace(value=None))


def test_stream_numbers_outlive_their_streams() -> None:
    state = full_state()
    state.apply(Change("streams", "stream-3"))
    assert (state.streams, state.streams_opened) == ({}, 3)


def test_a_stream_description_contains_the_metadata_of_its_request() -> None:
    assert ActiveStream.model_validate(STREAM.describe()).model_dump(exclude_unset=True) == {
        "stream_id": "stream-3",
        "owner": "ada",
        "authorized_writers": ("ada",),
        "created": "now",
        "n": [1],
    }
