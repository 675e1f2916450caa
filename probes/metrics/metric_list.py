"""Every metric that gdrtop exports: its name, its type and what it means.

Base units, "_total" for counters. Labels that mean the same as node_exporter's (device, port) and
dcgm-exporter's (gpu, pci_bus_id) have the same values, so that both can be joined. None has a pid, a job or
a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

# Metrics as data: a name, what it means, and samples with labels.

MOST_SAMPLES = 2000  # of one metric
_MOST_CHARACTERS = 128  # of a label's value

Labels = Mapping[str, str]


class Kind(Enum):
    """The types of metrics, by Prometheus' names."""

    GAUGE = "gauge"
    COUNTER = "counter"


@frozen
class Metric:
    """One metric. `base` is its name without the "_total" of a counter."""

    base: str
    help: str  # one sentence
    kind: Kind = Kind.GAUGE

    @property
    def name(self) -> str:
        """The name by which queries ask for it."""
        return f"{self.base}_total" if self.kind is Kind.COUNTER else self.base


@frozen
class Sample:
    """One value of a metric."""

    labels: Labels
    value: float


@frozen
class Family:
    """A metric and its samples, each with labels of its own."""

    metric: Metric
    samples: tuple[Sample, ...]
    unknown: int = 0  # values that should be there and could not be read
    omitted: int = 0  # samples beyond MOST_SAMPLES, and those with the labels of another one


def family(metric: Metric, values: Iterable[tuple[Labels, Maybe[float]]]) -> Family:
    """Return the samples of a metric: those with a known value.

    NOT_THERE means that the node has no such value. Every other reason is counted as unknown. Prometheus
    rejects a whole scrape if two samples have the same labels, so only the first of them stays.
    """
    samples: dict[tuple[tuple[str, str], ...], Sample] = {}
    unknown = omitted = 0
    for labels, value in values:
        if isinstance(value, Unknown):
            unknown += value.reason is not Reason.NOT_THERE
            continue
        cleaned = {name: text for name, raw in labels.items() if (text := printable(raw, _MOST_CHARACTERS))}
        key = tuple(cleaned.items())
        if key in samples or len(samples) >= MOST_SAMPLES:
            omitted += 1
        else:
            samples[key] = Sample(cleaned, value)
    return Family(metric, tuple(samples.values()), unknown, omitted)


BUILD = Metric("gdrtop_build_info", "1; version is gdrtop's, source is live, tree, simulated or recorded.")
VERDICT = Metric("gdrtop_verdict", "1 for the state that the node has now, 0 for the others.")
GPUS = Metric("gdrtop_gpus", "GPUs that could use GPUDirect RDMA.")
GPUS_DIRECT = Metric("gdrtop_gpus_direct", "GPUs with a direct path to a NIC that no finding takes away.")
NICS_DIRECT = Metric("gdrtop_nics_direct", "NICs that serve these GPUs.")
FINDING = Metric("gdrtop_finding", "1 for each active finding and each device that it affects.")
FINDINGS = Metric("gdrtop_findings", "Active findings, those with one cause counted once.")
CHECKS = Metric("gdrtop_checks", "Checks by outcome; unknown ones could not run.")
PATH = Metric("gdrtop_path_info", "1; path is NCCL's word for the path between a GPU and a NIC.")
PEERMEM_LOADED = Metric("gdrtop_peermem_loaded", "Whether nvidia_peermem or nv_peer_mem is loaded.")
PEERMEM_REFCNT = Metric("gdrtop_peermem_refcnt", "Reference count of that module.")
JOBS = Metric("gdrtop_jobs", "Running jobs with at least one process here on this path.")
PROCESSES = Metric("gdrtop_job_processes", "Processes of running jobs by path.")
SILENT = Metric(
    "gdrtop_job_silent_seconds",
    "Longest time that a running job has moved no data while its ranks wait; 0 below a minute.",
)
KERNEL_CLIENT = Metric(
    "gdrtop_kernel_client_info",
    "1 for each client in the kernel, such as Lustre, with connected queue pairs on the NIC.",
)
WAIT = Metric(
    "gdrtop_port_transmit_wait_ratio",
    "Wait ticks / (wait ticks + words of 4 bytes sent) since the reading before. Not a share of time.",
)
STALL = Metric(
    "gdrtop_port_pcie_stall_ratio", "Share of a second in which the NIC could not issue PCIe reads or writes."
)
PAUSE = Metric(
    "gdrtop_port_pause_seconds",
    "Time of pauses. received: the port must wait; transmitted: it makes its peers wait.",
    Kind.COUNTER,
)
SENT = Metric("gdrtop_port_data_transmitted_bytes", "Bytes sent through the port.", Kind.COUNTER)
RECEIVED = Metric("gdrtop_port_data_received_bytes", "Bytes received through the port.", Kind.COUNTER)
LAST_CHECK = Metric("gdrtop_last_check_timestamp_seconds", "When the node was last checked, since 1970.")
DURATION = Metric("gdrtop_check_duration_seconds", "How long that check took.")
UNKNOWN = Metric("gdrtop_unknown_values", "Values of this metric that could not be read, so have no sample.")
OMITTED = Metric("gdrtop_omitted_samples", "Samples left out: too many, or with the labels of another one.")


def _port_events(name: str, text: str) -> Metric:
    return Metric(f"gdrtop_port_{name}", text, Kind.COUNTER)


# node_exporter has the hw_counters of mlx5 only, and those of ethtool -S only if its collector is enabled.
PORT_EVENTS = {
    # ethtool -S of mlx5
    "rx_discards_phy": _port_events(
        "phy_receive_discards_packets", "Packets that the port discarded for want of buffers."
    ),
    "tx_discards_phy": _port_events(
        "phy_transmit_discards_packets", "Packets that the port discarded instead of sending them."
    ),
    "outbound_pci_buffer_overflow": _port_events(
        "pci_buffer_overflow_packets", "Packets dropped because PCIe was too slow."
    ),
    # hw_counters of bnxt_re
    "tx_cnp_pkts": _port_events("cnp_transmitted_packets", "Congestion notifications sent."),
    "rx_cnp_pkts": _port_events("cnp_received_packets", "Congestion notifications received."),
    "rx_ecn_marked_pkts": _port_events("ecn_marked_received_packets", "Packets received with an ECN mark."),
    "to_retransmits": _port_events("timeout_retransmits_packets", "Packets sent again after a timeout."),
    # hw_counters of EFA
    "retrans_pkts": _port_events("retransmitted_packets", "Packets sent again."),
    "retrans_timeout_events": _port_events("retransmit_timeouts", "Timeouts before packets are sent again."),
    "unresponsive_remote_events": _port_events("unresponsive_peers", "Times that a peer did not answer."),
    "rx_drops": _port_events("receive_drops_packets", "Received packets that were dropped."),
}
"""The kernel's name of a counter → its metric."""
