"""Metrics in Prometheus' text format, and as OpenMetrics, which prometheus_client writes.

The import of prometheus_client takes a tenth of the CPU time of `gdrtop metrics`, so only a scraper that asks
for OpenMetrics causes it.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from probes.export.families import Family

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_NO_FINITE_NUMBER = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def encode(families: Sequence[Family], form: str = TEXT) -> bytes:
    """Return metrics as TEXT or OPEN_METRICS, without timestamps and without any about this process."""
    if form == OPEN_METRICS:
        return _open_metrics(families)
    return "".join(f"{line}\n" for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    """Yield the lines of one metric in the text format."""
    name, about = family.metric.name, _escaped(family.metric.help)
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {family.metric.kind.value}"
    for sample in family.samples:
        number = repr(float(sample.value))
        yield f"{name}{_braced(sample.labels)} {_NO_FINITE_NUMBER.get(number, number)}"


def _braced(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(text, quote=True)}"' for name, text in sorted(labels.items()))
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escaped(text: str, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _open_metrics(families: Sequence[Family]) -> bytes:
    from prometheus_client import Metric
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

    return bytes(openmetrics.generate_latest(Families()))  # type: ignore[no-untyped-call]
