"""Chat messages."""

import pytest
from mew_protocol.codec import read_draft
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.chat import Chat


def test_a_chat_has_a_text() -> None:
    assert read_payload(read_draft({"kind": "chat", "payload": {"text": "hi", "mood": 1}}), Chat).text == "hi"


@pytest.mark.parametrize("payload", [None, {}, {"text": ""}, {"text": 5}])
def test_a_chat_without_text_is_refused_by_name(payload: object) -> None:
    with pytest.raises(PayloadError) as caught:
        read_payload(read_draft({"kind": "chat", "payload": payload}), Chat)
    assert (caught.value.kind, caught.value.field) == ("chat", "payload.text")
