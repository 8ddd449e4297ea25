"""Effects are values."""

import dataclasses

import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.core.effects import Broadcast, Deliver, Receipt, StartDelivery
from mew_spaces.core.events import ConnectionId


def test_effects_compare_by_value_and_are_immutable() -> None:
    envelope = Envelope.write("chat", id="1", ts="t", sender="a")
    assert Broadcast(envelope) == Broadcast(envelope)
    assert Deliver(envelope, (ConnectionId(1),)) != Deliver(envelope, (ConnectionId(2),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        StartDelivery(ConnectionId(1)).connection = ConnectionId(2)  # type: ignore[misc]


def test_an_empty_receipt_has_no_outcome() -> None:
    receipt = Receipt(())
    assert (receipt.accepted, receipt.refused, receipt.answer) == (None, None, {})
