"""`/metrics`: figures of the gateway and of the participants, in the formats of Prometheus and OpenMetrics.

Owns the gateway's own metrics and how metrics are written. Those of participants are in `mew_protocol.metrics`. Does
not know who may read them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mew_protocol.metrics import Metric

if TYPE_CHECKING:  # `mew serve` needs no gateway
    from mew_spaces.gateway.service import SpaceService

OPEN_METRICS = "application/openmetrics-text"


def gateway_metrics(services: Iterable["SpaceService"]) -> tuple[Metric, ...]:
    """Return the metrics of a gateway itself, for these spaces."""
    labels = ("space",)
    connections = Metric("mew_gateway_connections", "gauge", "Connections that have joined", labels)
    started = Metric("mew_gateway_start_timestamp_seconds", "gauge", "When the gateway opened the space", labels)
    envelopes = Metric("mew_gateway_envelopes_total", "counter", "Envelopes in the history, deleted ones too", labels)
    deliveries = Metric(
        "mew_gateway_deliveries_total", "counter", "Broadcasts and stream frames, once for each member", labels
    )
    slow = Metric("mew_gateway_slow_consumers_total", "counter", "Slow consumers that were disconnected", labels)
    queued = Metric("mew_gateway_queued_bytes", "gauge", "Bytes that wait for members to read them", labels)
    unstored = Metric("mew_gateway_unstored_items", "gauge", "Envelopes and effects that wait for the disk", labels)
    storing = Metric("mew_gateway_is_storing", "gauge", "1 while envelopes can be stored, else 0", labels)
    proposals = Metric("mew_gateway_open_proposals", "gauge", "Proposals without a decision", labels)
    attention = Metric("mew_gateway_attention_items", "gauge", "What needs a person", (*labels, "kind", "level"))
    for service in services:
        space, load = service.space.id, service.load()
        connections.add(service.connections, space)
        started.add(service.started_at.timestamp(), space)
        envelopes.add(service.log.position.sequence, space)
        deliveries.add(load.deliveries, space)
        slow.add(load.slow_consumers, space)
        queued.add(load.queued_bytes, space)
        unstored.add(load.unstored_items, space)
        storing.add(service.is_storing, space)
        proposals.add(load.open_proposals, space)
        service.refresh_attention()
        for (kind, level), count in Counter((one.kind, one.level) for one in service.attention.single).items():
            attention.add(count, space, kind, level)
    return (connections, started, envelopes, deliveries, slow, queued, unstored, storing, proposals, attention)


def write_metrics(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, and its media type: OpenMetrics if the `Accept` header `accept` asks for it.

    Takes half a second of CPU for 10,000 participants, so servers call it in a thread.
    """
    from prometheus_client.exposition import choose_encoder  # takes a while, and most gateways are never scraped

    # Versions in the header are left out: the encoders fail on those that are not numbers.
    encode, media_type = choose_encoder(OPEN_METRICS if OPEN_METRICS in accept else "")
    return encode(_Families(metrics)), media_type  # type: ignore[arg-type] # encoders only collect


class _Families:
    """Metrics as the encoders of prometheus_client collect them."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[object]:
        from prometheus_client.metrics_core import Metric as Family

        for metric in self._metrics:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in metric.samples:
                family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
            yield family
