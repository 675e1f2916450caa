"""The figures of a live sample as rows, for a CSV file and for a trace."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TextIO

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.node import Node
from probes.live.model.sample import GpuSample, LiveJob, LiveSample, PortSample
from probes.live.odd_ranks import members_of
from probes.live.processes.jobs import path_summary
from tui.runtime.json_values import host_name, time_json

FIGURES = {
    "sent_gbps": "Gb/s",
    "received_gbps": "Gb/s",
    "pause_percent": "%",
    "pcie_stall_percent": "%",
    "utilization_percent": "%",
    "memory_used_bytes": "B",
    "pcie_sent_bytes_per_second": "B/s",
    "pcie_received_bytes_per_second": "B/s",
    "registered_bytes": "B",
    "peermem_refcnt": "",
}
"""All figures, with their units; what a row does not have, or is unknown, is left out."""
COLUMNS = ("time", "kind", "name", "state", "path", *FIGURES, "text")


@frozen
class LiveRow:
    """The node, a job, a port or a GPU at one moment; or an event, which has no figures."""

    kind: str  # "node", "job", "port", "gpu", "event"
    name: str  # "mlx5_0/1", "GPU0", the host name, the job's name
    at: float  # seconds since 1970
    state: str = ""  # "ACTIVE"; of an event its severity
    path: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    text: str = ""  # of an event; of a node that is simulated or recorded: which


def live_rows(node: Node, sample: LiveSample) -> Iterator[LiveRow]:
    """Yield the rows of a sample, in the order of what is asked first."""
    at, verdict = sample.taken_at, sample.verdict
    state, path = (
        ("", "") if verdict is None else (verdict.state.value, verdict.path.value if verdict.path else "")
    )
    refcnt = _known(peermem_refcnt=sample.peermem.refcnt)
    source, label = node.origin
    text = "" if node.origin.is_running else f"{source.value.upper()} {label}".strip()
    yield LiveRow("node", known(host_name(node), "?"), at, state, path, refcnt, text)
    yield from (_job(sample, job) for job in sample.jobs)
    yield from (_port(at, port) for port in sample.ports)
    yield from (_gpu(at, gpu) for gpu in sample.gpus)
    for event in sample.events:
        yield LiveRow("event", event.subject, event.at, event.severity.value, text=event.text)


def _job(sample: LiveSample, job: LiveJob) -> LiveRow:
    ranks = members_of(job, known(sample.processes, ()))
    registered = (
        sum(rank.registered_bytes for rank in ranks) if all(rank.is_listed for rank in ranks) else None
    )
    figures = _known(sent_gbps=job.sent_gbps, received_gbps=job.received_gbps, registered_bytes=registered)
    return LiveRow("job", job.name, sample.taken_at, path=path_summary(ranks), figures=figures)


def _port(at: float, port: PortSample) -> LiveRow:
    figures = _known(
        sent_gbps=port.sent_gbps,
        received_gbps=port.received_gbps,
        pause_percent=port.pause_percent,
        pcie_stall_percent=port.pcie_stall_percent,
    )
    return LiveRow("port", f"{port.device}/{port.port}", at, known(port.state, ""), figures=figures)


def _gpu(at: float, gpu: GpuSample) -> LiveRow:
    name = gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU{gpu.index}"
    if isinstance(gpu.live, Unknown):
        return LiveRow("gpu", name, at)
    figures = _known(
        utilization_percent=gpu.live.utilization_percent,
        memory_used_bytes=gpu.live.memory_used_bytes,
        pcie_sent_bytes_per_second=gpu.live.pcie_tx_bytes_per_second,
        pcie_received_bytes_per_second=gpu.live.pcie_rx_bytes_per_second,
    )
    return LiveRow("gpu", name, at, figures=figures)


def _known(**figures: Maybe[float] | None) -> dict[str, float]:
    return {
        name: value for name, value in figures.items() if value is not None and not isinstance(value, Unknown)
    }


class CsvWriter:
    """Writes samples as CSV (RFC 4180), with a row of column names first."""

    def __init__(self, out: TextIO) -> None:
        self._rows = csv.writer(out, lineterminator="\n")
        self._rows.writerow(COLUMNS)

    def write(self, node: Node, sample: LiveSample) -> None:
        """Write the rows of a sample."""
        for row in live_rows(node, sample):
            figures = (row.figures.get(name, "") for name in FIGURES)
            rounded = (round(figure, 3) if isinstance(figure, float) else figure for figure in figures)
            self._rows.writerow(
                (time_json(row.at), row.kind, row.name, row.state, row.path, *rounded, row.text)
            )
