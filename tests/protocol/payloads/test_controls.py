"""Reading controls, and which participants a control is for."""

from typing import Any

import pytest
from mew_protocol import kinds
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads.participant import (
    CONTROLS,
    MAY_ADDRESS_EVERYBODY,
    Forget,
    Pause,
    Restart,
    is_control_for,
    read_control,
)

CHANGING = sorted(CONTROLS.keys() - MAY_ADDRESS_EVERYBODY)


def control(kind: str, *to: str, sender: str = "ada", **payload: Any) -> Envelope:
    return Envelope.write(kind, id="c", ts="t", sender=sender, to=to, payload=payload)


def test_a_control_is_read_as_its_payload() -> None:
    assert read_control(control(kinds.PARTICIPANT_PAUSE, timeout_seconds=5)) == Pause(timeout_seconds=5)
    assert read_control(Draft(kind=kinds.PARTICIPANT_RESTART)) == Restart()
    with pytest.raises(PayloadError, match=r"payload\.direction"):
        read_control(control(kinds.PARTICIPANT_FORGET, direction="middle"))
    assert isinstance(read_control(control(kinds.PARTICIPANT_FORGET, direction="oldest")), Forget)


@pytest.mark.parametrize("kind", [None, kinds.CHAT, kinds.PARTICIPANT_STATUS, kinds.PARTICIPANT_COMPACT_DONE])
def test_statuses_and_answers_are_not_controls(kind: str | None) -> None:
    assert read_control(Draft(kind=kind, payload={"messages_in_context": 0})) is None
    assert not is_control_for(control(kind or "x", "coder"), "coder")


@pytest.mark.parametrize("kind", sorted(MAY_ADDRESS_EVERYBODY))
def test_some_controls_may_address_all_but_their_sender(kind: str) -> None:
    assert is_control_for(control(kind), "coder")
    assert is_control_for(control(kind, "files", "coder"), "coder")
    assert not is_control_for(control(kind, "files"), "coder")
    assert not is_control_for(control(kind, sender="coder"), "coder")


@pytest.mark.parametrize("kind", CHANGING)
def test_a_control_that_changes_a_history_must_name_its_addressee(kind: str) -> None:
    assert not is_control_for(control(kind), "coder")
    assert is_control_for(control(kind, "coder"), "coder")
    assert not is_control_for(control(kind, "files"), "coder")
