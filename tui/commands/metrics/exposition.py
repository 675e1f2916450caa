"""Metrics in Prometheus' text format and as OpenMetrics, written by prometheus_client."""

from __future__ import annotations

from collections.abc import Sequence

from probes.metrics.metric_list import Family

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def encode(families: Sequence[Family], form: str = TEXT) -> bytes:
    """Return metrics as TEXT or OPEN_METRICS, without timestamps and without any about this process."""
    from prometheus_client import Metric, generate_latest
    from prometheus_client.openmetrics import exposition as openmetrics
    from prometheus_client.registry import Collector

    metrics: list[Metric] = []
    for family in families:
        metric = Metric(family.metric.base, family.metric.help, family.metric.kind.value)
        for sample in family.samples:
            metric.add_sample(family.metric.name, dict(sample.labels), sample.value)
        metrics.append(metric)

    class Families(Collector):
        """What prometheus_client asks for metrics."""

        def collect(self) -> list[Metric]:
            return metrics

    if form == OPEN_METRICS:
        return bytes(openmetrics.generate_latest(Families()))  # type: ignore[no-untyped-call]
    return generate_latest(Families())
