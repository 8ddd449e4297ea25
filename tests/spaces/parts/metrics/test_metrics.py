"""`/metrics` and `/ready` of a real gateway."""

from pathlib import Path

import httpx2
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import HostedSpace, RunningGateway, serve_gateway
from mew_spaces.log.sqlite import SqliteLog
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from tests.support.full_disk import full_disk
from tests.support.gateway_client import joined

OTHER = parse_space("space: {id: other}\nparticipants: {eve: {capabilities: [{kind: chat}]}}")


async def scrape(gateway: RunningGateway, token: str | None, accept: str = "") -> httpx2.Response:
    headers = {"accept": accept} | ({"authorization": f"Bearer {token}"} if token else {})
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        return await client.get("/metrics", headers=headers)


async def test_metrics_show_the_spaces_that_a_token_may_read(config: SpaceConfig, tmp_path: Path) -> None:
    observer = tmp_path / "tokens" / "grafana.observer"
    observer.parent.mkdir(mode=0o700)
    observer.write_text("token-of-an-observer")
    observer.chmod(0o600)
    book = TokenBook.load(OTHER, tmp_path)
    async with serve_gateway(config, others=[HostedSpace(OTHER, tokens=book)]) as gateway:
        assert (await scrape(gateway, None)).status_code == 401
        assert (await scrape(gateway, "wrong")).status_code == 403
        for token, space in ((gateway.token_of("bob"), "demo"), ("token-of-an-observer", "other")):
            answer = await scrape(gateway, token)
            shown = {
                sample.labels["space"]
                for family in prometheus(answer.text)
                for sample in family.samples
                if "space" in sample.labels
            }
            assert shown == {space}


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=x"])
async def test_deliveries_and_connections_are_counted(gateway: RunningGateway, accept: str) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.until("system/presence")
        before = gateway.service.load().deliveries
        await bob.chat("hello")
        await ada.until("chat")
        accepted = gateway.service.log.position.sequence
        answer = await scrape(gateway, gateway.token_of("bob"), accept)
    parse = open_metrics if "openmetrics" in accept else prometheus
    found = {sample.name: sample.value for family in parse(answer.text) for sample in family.samples}
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    assert found["mew_gateway_deliveries_total"] == before + 2
    assert found["mew_gateway_connections"] == 2
    assert found["mew_gateway_envelopes_total"] == accepted
    assert found["mew_gateway_slow_consumers_total"] == 0


async def test_attention_items_are_counted(gateway: RunningGateway) -> None:
    waiting = {"kind": "model", "what": "http://localhost:1", "since": "2026-01-01T00:00:00Z"}
    context = {"basis": "unknown", "reason": "no_call_yet", "waiting": [waiting]}
    async with joined(gateway, "coder") as coder:
        status = {"messages_in_context": 1, "status": "model_unreachable", "context": context}
        await coder.send_envelope("participant/status", status)
        await coder.until("participant/status")
        answer = await scrape(gateway, gateway.token_of("bob"))
    samples = [one for family in prometheus(answer.text) for one in family.samples]
    (counted,) = (one for one in samples if one.name == "mew_gateway_attention_items")
    assert (counted.labels["kind"], counted.value) == ("model_unreachable", 1)


async def test_a_gateway_that_cannot_store_is_not_ready(config: SpaceConfig, tmp_path: Path) -> None:
    async with (
        serve_gateway(config, state=tmp_path) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client,
        joined(gateway, "ada") as ada,
    ):
        assert (await client.get("/ready")).json() == {"status": "ready"}
        log = gateway.service.log
        assert isinstance(log, SqliteLog)
        with full_disk(log):
            await ada.chat("not stored")
            await ada.error()
            refused = await client.get("/ready")
    assert (refused.status_code, refused.json()["error"]) == (503, "not_stored")
