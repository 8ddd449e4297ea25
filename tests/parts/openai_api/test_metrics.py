"""The figures of a real agent in `/metrics` of the gateway and of `mew serve openai`, and what reads them."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from mew_agent.parts.openai_api.serve_openai import metrics_of
from tests.parts.openai_api.conftest import KEY, StartChatApi

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "reference" / "metrics.md"

Samples = dict[str, list[tuple[dict[str, str], float]]]

OF_SOME_AGENTS = {"mew_participant_waiting", "mew_context_spent_amount_total", "mew_gateway_attention_items"}
"""Metrics without a sample here: nothing waits, and no price is configured."""


async def scrape(url: str, token: str) -> tuple[Samples, dict[str, str]]:
    """The samples and the kinds of all metrics by name."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
        answer = await client.get(url, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    samples: Samples = {}
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, re.MULTILINE))
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples, kinds


def queries(dashboard: dict[str, Any]) -> list[str]:
    """All queries of a dashboard, those of its variables included."""
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return variables + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def unknown_keys(given: object, known: object, path: str = "") -> Iterator[str]:
    """Where a value has a key or a value that its copy through Grafana's types lacks."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            yield from unknown_keys(value, known.get(key, ...), f"{path}/{key}")
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for at, (one, other) in enumerate(zip(given, known, strict=True)):
            yield from unknown_keys(one, other, f"{path}/{at}")
    elif given != known:
        yield path


def test_grafanas_own_types_read_the_dashboard_completely() -> None:
    register_default_plugins()
    given = json.loads(DASHBOARD.read_text(encoding="utf-8"))

    def problems(dashboard: dict[str, Any]) -> list[str]:
        return list(unknown_keys(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))

    assert problems(given) == []
    assert problems({**given, "panels": [{**given["panels"][0], "gridpos": {"x": 0}}]}) == ["/panels/0/gridpos"]


async def test_gateway_and_mew_serve_expose_the_figures_of_the_board(
    chat: StartChatApi, text: Callable[[int], str]
) -> None:
    async with chat(app={"sessions": "shared", "write_metrics": metrics_of("demo")}, reply_tokens=40) as built:
        for _ in range(4):
            await built.ask(text(200))
        done = await built.driver.ada.compact("coder")
        await built.driver.recorder.until(lambda: "compacted" in built.driver.recorder.words("coder"))
        await built.ask("Which way does the gauge drift?")
        gateway = built.driver.gateway
        board = {entry.id: entry for entry in gateway.board().participants}
        own, own_kinds = await scrape(f"{gateway.url}/metrics", gateway.token_of("ada"))
        url = built.base_url.removesuffix("/v1")
        served, served_kinds = await scrape(f"{url}/metrics", KEY)
        async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/ready")).json() == {"status": "ready"}
    status = board["coder"].status
    assert status is not None
    assert status.context is not None
    assert done.cost is not None
    assert done.cost.prompt_tokens is not None
    assert done.cost.completion_tokens is not None
    who = {"space": "demo", "participant": "coder"}
    for found in (own, served):
        assert found["mew_context_tokens"] == [({**who, "basis": "reported"}, status.tokens)]
        assert found["mew_context_window_tokens"] == [({**who, "basis": "configured"}, 8192)]
        assert found["mew_context_level"] == [({**who, "level": "healthy", "basis": "reported"}, 0)]
        assert found["mew_context_compactions_total"] == [(who, 1)]
        compaction = {**who, "trigger": "requested"}
        freed = found["mew_context_last_compaction_freed_tokens"]
        assert freed == [({**compaction, "basis": done.basis}, done.freed_tokens)]
        spent = done.cost.prompt_tokens + done.cost.completion_tokens
        assert found["mew_context_last_compaction_spent_tokens"] == [(compaction, spent)]
        assert status.context.spending is not None
        assert found["mew_context_spent_tokens_total"] == [(who, status.context.spending.spent_tokens)]
        calls = [({**who, "usage": "reported"}, 4 + 1 + done.cost.calls), ({**who, "usage": "unknown"}, 0)]
        assert found["mew_context_calls_total"] == calls
    assert served["mew_serve_open_requests"] == [({"space": "demo"}, 0)]
    _check_dashboard({**own, **served}, {**own_kinds, **served_kinds})
    described = re.findall(r"^\| `(mew_\w+)`.*\| (gauge|counter) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(described) == {**own_kinds, **served_kinds}


def _check_dashboard(samples: Samples, kinds: dict[str, str]) -> None:
    """Check that each query reads metrics and labels that exist."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    read = set[str]()
    for query in queries(dashboard):
        names = set(re.findall(r"mew_\w+", query))
        assert names, query
        read |= names
        assert names <= kinds.keys(), query
        for name, labels in re.findall(r"(mew_\w+)\{([^}]*)\}", query):
            wanted = set(re.findall(r"(\w+)=~?", labels)) - {"job"}  # Prometheus adds this one
            assert name in OF_SOME_AGENTS or all(wanted <= sample.keys() for sample, _ in samples[name]), query
    assert read - samples.keys() <= OF_SOME_AGENTS
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    used = dict[tuple[int, int], str]()
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert used.setdefault((x, y), panel["title"]) == panel["title"], "panels overlap"
