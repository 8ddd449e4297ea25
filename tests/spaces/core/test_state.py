"""The durable state is one value that changes rebuild exactly."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from mew_protocol.ids import ParticipantId
from mew_spaces.core.state import (
    ActivePause,
    CapabilityGrant,
    Change,
    GrantsChange,
    Invitation,
    InvitationChange,
    OpenProposal,
    PauseChange,
    ProposalChange,
    RemovalChange,
    ShutdownChange,
    SpaceState,
    Stream,
    StreamChange,
)
from pydantic import TypeAdapter

ADA = ParticipantId("ada")
STREAM = Stream(number=3, owner=ADA, writers=(ADA,), created="now", metadata={"n": [1]}, names=frozenset({"r"}))
CHANGES: list[Change] = [
    InvitationChange(key="eve", value=Invitation(capabilities=({"kind": "chat"},), invited_by="ada", invited_at="now")),
    RemovalChange(key="bob", value=True),
    GrantsChange(key="eve", value=(CapabilityGrant(names=frozenset({"g"}), granter="ada", patterns=({"kind": "x"},)),)),
    PauseChange(key="eve", value=ActivePause(until=datetime(2026, 1, 1, tzinfo=UTC), reason="loud")),
    ShutdownChange(key="coder", value=True),
    ProposalChange(key="p1", value=(OpenProposal(proposer="coder", peers=("files",), method="tools/list"),)),
    StreamChange(key="stream-3", value=STREAM),
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
    stored = TypeAdapter(list[Change]).dump_json(CHANGES)
    state = SpaceState()
    for change in TypeAdapter(list[Change]).validate_json(stored):
        state.apply(change)
    assert state == full_state()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.table)
def test_removing_an_entry_undoes_setting_it(change: Change) -> None:
    state = SpaceState()
    state.apply(change)
    state.apply(replace(change, value=None))
    assert state == SpaceState(streams_opened=state.streams_opened)
    state.apply(replace(change, value=None))


def test_stream_numbers_outlive_their_streams() -> None:
    state = full_state()
    state.apply(StreamChange(key="stream-3", value=None))
    assert (state.streams, state.streams_opened) == ({}, 3)


def test_a_stream_description_contains_the_metadata_of_its_request() -> None:
    assert STREAM.describe().model_dump(exclude_unset=True) == {
        "stream_id": "stream-3",
        "owner": "ada",
        "authorized_writers": ("ada",),
        "created": "now",
        "n": [1],
    }
