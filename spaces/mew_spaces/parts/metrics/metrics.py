"""The gateway's own metrics, and the writer of all metrics.

`context_metrics` has those of participants. Does not check readers. The functions for the table `mew_spaces.documents`
are `metrics_of_gateway` and `metrics_of_board`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from mew_protocol.payloads.participant import BoardEntry

from mew_spaces.parts.metrics.context_metrics import Metric, context_metrics

if TYPE_CHECKING:  # `mew serve openai` needs no gateway
    from mew_spaces.gateway.http import WriteMetrics
    from mew_spaces.gateway.service import SpaceService

OPEN_METRICS = "application/openmetrics-text"


def metrics_of_gateway(services: Sequence["SpaceService"]) -> "WriteMetrics":
    """Collect the metrics of a gateway and of all participants of these spaces. Returns the function that writes them.

    It takes half a second of CPU for 10,000 participants, so servers call it in a thread.
    """
    own, boards = _gateway_metrics(services), [(one.space.id, one.board().participants) for one in services]
    return lambda accept: _written((*own, *context_metrics(boards)), accept)


def metrics_of_board(
    space: str, board: Iterable[BoardEntry], gauges: Iterable[tuple[str, str, float]], accept: str
) -> tuple[bytes, str]:
    """Return the metrics of the participants of a space, and gauges of a server of it: name, help and value."""
    own = [Metric(name, text, ("space",), [((space,), value)]) for name, text, value in gauges]
    return _written((*own, *context_metrics([(space, board)])), accept)


def _gateway_metrics(services: Iterable["SpaceService"]) -> tuple[Metric, ...]:
    """Return the metrics of a gateway itself, for these spaces."""
    metrics: dict[str, Metric] = {}
    attention = Metric("mew_gateway_attention_items", "What needs a person", ("space", "kind", "level"))
    for service in services:
        space, load = service.space.id, service.load()
        figures: tuple[tuple[str, str, float], ...] = (
            ("connections", "Connections that have joined", service.connections),
            ("start_timestamp_seconds", "When the gateway opened the space", service.started_at.timestamp()),
            ("envelopes_total", "Envelopes in the history, deleted ones too", service.log.position.sequence),
            ("deliveries_total", "Broadcasts and stream frames, once for each member", load.deliveries),
            ("slow_consumers_total", "Slow consumers that were disconnected", load.slow_consumers),
            ("queued_bytes", "Bytes that wait for members to read them", load.queued_bytes),
            ("unstored_items", "Envelopes and effects that wait for the disk", load.unstored_items),
            ("is_storing", "1 while envelopes can be stored, else 0", service.storage.is_storing),
            ("open_proposals", "Proposals without a decision", load.open_proposals),
        )
        for name, text, value in figures:
            metrics.setdefault(name, Metric(f"mew_gateway_{name}", text, ("space",))).add(value, space)
        service.attention.refresh()
        for (item, level), count in Counter((one.kind, one.level) for one in service.attention.single).items():
            attention.add(count, space, item, level)
    return (*metrics.values(), attention)


def _written(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, and its media type: OpenMetrics if the `Accept` header `accept` requests it."""
    from prometheus_client.exposition import choose_encoder  # takes a while, and most gateways are never scraped

    # Versions in the header are left out: the encoders fail on those that are not numbers.
    encode, media_type = choose_encoder(OPEN_METRICS if OPEN_METRICS in accept else "")
    collected = SimpleNamespace(collect=lambda: _families(metrics))  # the only method of a registry that encoders need
    return encode(collected), media_type


def _families(metrics: Iterable[Metric]) -> Iterator[object]:
    from prometheus_client.metrics_core import Metric as Family

    for metric in metrics:
        family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
        for labels, value in metric.samples:
            family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
        yield family
