"""Traffic now and in the last minutes: all NICs, all GPUs, and each of them."""

from __future__ import annotations

from collections.abc import Mapping

from probes.history import History
from probes.unknown import Maybe, Unknown
from widgets.endpoint_lines import Live
from widgets.figures import gbps, in_gbps, short, sparkline
from widgets.lines import Line, Run, Tone

SPARK_SECONDS = 120.0


def totals(live: Live) -> dict[str, float]:
    """Gb/s (10^9 bits) summed over what was read: NICs sent and received, GPU PCIe from and to."""
    sums: dict[str, float] = {}

    def add(name: str, value: Maybe[float]) -> None:
        if not isinstance(value, Unknown):
            sums[name] = sums.get(name, 0.0) + value

    for rate in live.ports.values():
        add("NIC ↑", rate.sent_gbps)
        add("NIC ↓", rate.received_gbps)
    for gpu in live.gpus.values():
        add("GPU ↑", in_gbps(gpu.pcie_tx_bytes_per_second))
        add("GPU ↓", in_gbps(gpu.pcie_rx_bytes_per_second))
    return sums


def draw(
    live: Live,
    history: Mapping[str, History],
    width: int,
    full: bool = False,
    labels: Mapping[str, str] | None = None,
) -> list[Line]:
    """The totals with sparklines of two minutes; with `full` each port and each GPU.

    `labels`: a GPU's BDF -> its name.
    """
    sums = totals(live)
    lines: list[Line] = []
    buckets = max(8, width - 18)
    for name in ("NIC ↑", "NIC ↓", "GPU ↑", "GPU ↓"):
        if name not in sums:
            lines.append((Run(f"{name} "), Run("?  not read", Tone.DIM)))
            continue
        values = history[name].buckets(buckets, SPARK_SECONDS / buckets) if name in history else []
        lines.append((Run(f"{name} {gbps(sums[name]):>10} "), Run(sparkline(values))))
    if not full:
        return lines
    for (device, port), rate in live.ports.items():
        lines.append(
            (
                Run(f"{device}/{port}", Tone.NIC),
                Run(f"  ↑ {gbps(rate.sent_gbps)}  ↓ {gbps(rate.received_gbps)}"),
            )
        )
    for bdf, gpu in live.gpus.items():
        sent, received = in_gbps(gpu.pcie_tx_bytes_per_second), in_gbps(gpu.pcie_rx_bytes_per_second)
        lines.append(
            (
                Run((labels or {}).get(bdf, bdf), Tone.GPU),
                Run(f"  PCIe ↑ {gbps(sent)}  ↓ {gbps(received)}  {short(gpu.power_watts)} W"),
            )
        )
    return lines
