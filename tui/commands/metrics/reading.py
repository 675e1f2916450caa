"""Read and judge a node for its metrics: as `gdrtop check` does, with the counters of its ports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import judge
from probes.facts.node import Node, probe_node
from probes.host.protocol import Host
from probes.live.job_examination import examine_and_sample
from probes.live.live_sampler import LiveSampler
from probes.metrics.metric_list import PORT_EVENTS, Family
from probes.metrics.metrics import WAIT, Observation, PortTotals, families, read_port_totals
from probes.snapshot.examination import Examination
from tui.bandwidth.slow_results import with_slow_results
from tui.files.version import version

_SECONDS = 1.0  # at least, between two readings of the counters
_COUNTERS = (WAIT, *PORT_EVENTS)
_STILL = Unknown(Reason.NOT_RECORDED, WAIT, "the counters of files do not move")


class MetricsReader:
    """Reads a node again and again; what a check and the ratios compare with is the reading before."""

    def __init__(
        self, host: Host, with_bytes: bool = False, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self._host = host
        self._with_bytes = with_bytes
        self._wait = wait
        self._before: Examination | None = None
        self._sampler = LiveSampler(settles=False)
        self._ports: Maybe[tuple[PortTotals, ...]] = _STILL
        self._ports_at: float | None = None  # None: not read yet

    def read(self) -> tuple[Family, ...]:
        """Check the node and return its metrics; the first time, it takes a second."""
        host, source = self._host, self._host.origin.source
        if source is Source.RECORDED:
            return self._recorded()
        is_moving = source is not Source.TREE
        began = host.monotonic()
        node = probe_node(host)
        if is_moving and self._ports_at is None:
            self._read_ports(node)
        examination, sample = examine_and_sample(host, node, self._before, sampler=self._sampler)
        self._before = examination
        examination = with_slow_results(host, examination)
        judgment = judge(examination)
        seconds = host.monotonic() - began
        if self._ports_at is not None:
            self._wait(max(0.0, self._ports_at + _SECONDS - host.monotonic()))
        before = self._ports
        self._read_ports(node)
        seen = Observation(
            version(),
            examination,
            judgment,
            sample if is_moving else None,
            self._ports,
            before if is_moving else _STILL,
            seconds,
        )
        return families(seen, self._with_bytes)

    def _read_ports(self, node: Node) -> None:
        self._ports_at = self._host.monotonic()
        self._ports = read_port_totals(self._host, node, _COUNTERS)

    def _recorded(self) -> tuple[Family, ...]:
        from tui.runtime.snapshot import take_snapshot

        began = time.monotonic()
        seen = take_snapshot(self._host)
        examination = with_slow_results(self._host, seen.examination)
        judgment = judge(examination)
        seconds = time.monotonic() - began
        ports = read_port_totals(self._host, examination.node, _COUNTERS)
        observed = Observation(version(), examination, judgment, seen.sample, ports, _STILL, seconds)
        return families(observed, self._with_bytes)


# Metrics in Prometheus' text format and as OpenMetrics, written by prometheus_client.

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
