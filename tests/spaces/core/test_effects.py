"""Effects are data."""

import dataclasses

import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.core.effects import Admit, Broadcast, ConnectionId, Receipt, Send


def test_effects_are_equal_by_what_they_say_and_never_change() -> None:
    envelope = Envelope.write("chat", id="1", ts="t", sender="a")
    assert Broadcast(envelope) == Broadcast(envelope)
    assert Send(envelope, (ConnectionId(1),)) != Send(envelope, (ConnectionId(2),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Admit(ConnectionId(1)).connection = ConnectionId(2)  # type: ignore[misc]


def test_a_receipt_says_nothing_more_unless_told() -> None:
    receipt = Receipt(())
    assert (receipt.accepted, receipt.refused, receipt.answer) == (None, None, {})
