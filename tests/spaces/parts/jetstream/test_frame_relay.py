"""Stream frames between gateways: delivered in order, or counted as lost."""

import pytest
from mew_protocol.codec import StreamFrame, encode_frame
from mew_spaces.parts.jetstream import frame_relay
from mew_spaces.parts.jetstream.frame_relay import FrameRelay, RemoteFrame

from tests.support.memory_backplane import MemoryHub


def test_frames_that_find_no_room_are_counted_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_relay, "MAX_WAITING_FRAMES", 3)
    hub, delivered = MemoryHub(), list[RemoteFrame]()
    sender, receiver = FrameRelay(hub.connect(), lambda _: None), FrameRelay(hub.connect(), delivered.append)
    sender.batch_applied(5)

    def send(*numbers: int) -> None:
        for number in numbers:
            sender.send(StreamFrame("stream-1", str(encode_frame("stream-1", str(number)))), ())
        receiver._receive(sender._pack())

    send(0, 1)
    send(2, 3, 4)  # behind two that wait for a batch that the receiver has not applied yet
    receiver.batch_applied(5)
    send(5)
    assert [(one.frame.data, one.missed) for one in delivered] == [("0", 0), ("1", 0), ("2", 0), ("5", 2)]
