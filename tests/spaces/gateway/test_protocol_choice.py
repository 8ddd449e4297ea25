"""The direct protocol is used where uvicorn's private parts are as expected, and only there."""

import asyncio
import logging
import sys
from typing import Any

import pytest
import uvicorn
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.direct_websocket import DirectWebSocketProtocol
from mew_spaces.gateway.gateway import serve_gateway
from mew_spaces.gateway.protocol_choice import check_protocol, choose_protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tests.support.gateway_client import joined

pytestmark = pytest.mark.usefixtures("direct_writes")


async def test_the_installed_uvicorn_passes_the_check(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mew_spaces"):
        assert await choose_protocol() is DirectWebSocketProtocol
    assert [record.message for record in caplog.records] == [
        f"uvicorn {uvicorn.__version__}: writing directly to transports"
    ]


async def test_the_check_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    await choose_protocol()
    assert asyncio.all_tasks() == before


async def test_asgi_is_used_on_request_without_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mew_spaces"):
        assert await choose_protocol(direct=False) is None
    assert not caplog.records


async def test_a_removed_method_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(WebSocketsSansIOProtocol, "keepalive_timeout")
    with pytest.raises(Exception, match="no keepalive_timeout"):
        await check_protocol(DirectWebSocketProtocol)


async def test_a_changed_signature_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_close", lambda self, event, code: None)
    with pytest.raises(Exception, match="handle_close takes other parameters"):
        await check_protocol(DirectWebSocketProtocol)


async def test_a_missing_attribute_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = WebSocketsSansIOProtocol.__init__

    def without_close_sent(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        del self.close_sent

    monkeypatch.setattr(WebSocketsSansIOProtocol, "__init__", without_close_sent)
    with pytest.raises(AttributeError, match="close_sent"):
        await check_protocol(DirectWebSocketProtocol)


async def test_messages_delivered_elsewhere_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_cont", lambda self, event: self.frames.clear())
    with pytest.raises(Exception, match="messages are delivered differently"):
        await check_protocol(DirectWebSocketProtocol)


async def test_a_gateway_falls_back_to_asgi_and_logs_the_cause(
    config: SpaceConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mew_spaces.gateway.direct_websocket", None)
    async with serve_gateway(config) as gateway, joined(gateway, "ada") as ada:
        assert not gateway.writes_directly
        await ada.chat("by ASGI")
        assert (await ada.next())["payload"] == {"text": "by ASGI"}
    (record,) = [one for one in caplog.records if "uvicorn" in one.message]
    assert record.message.startswith(f"uvicorn {uvicorn.__version__}: using ASGI send, direct writes unavailable (")
