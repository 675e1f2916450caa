"""One GPU or one NIC in one line, with its live figures."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from probes.gpus import Gpu
from probes.nvml import NvmlLive
from probes.rates import PortRate
from probes.rdma import RdmaDevice, RdmaPort
from probes.unknown import Unknown, known
from widgets.figures import UNKNOWN_MARK, gibibytes, in_gbps, percent, short
from widgets.lines import Line, Run, Tone


@dataclass(frozen=True)
class Live:
    """The moving figures that a drawing may show; empty before the first readings."""

    gpus: dict[str, NvmlLive] = field(default_factory=dict)  # by BDF
    ports: dict[tuple[str, int], PortRate] = field(default_factory=dict)
    states: dict[tuple[str, int], str] = field(default_factory=dict)  # newer than the node's


NOTHING_LIVE = Live()


def model(name: str) -> str:
    """The word by which admins call the GPU: "H100" of "NVIDIA H100 80GB HBM3"."""
    inside = re.search(r"\[(.+?)\]", name)
    words = (inside.group(1) if inside else name).replace("NVIDIA", "").replace("Corporation", "").split()
    words = [word for word in words if word not in ("Tesla", "GeForce", "RTX", "Quadro", "Graphics")] or words
    return words[0].split("-")[0] if words else "GPU"


def gpu_line(gpu: Gpu, label: str, live: Live, tone: Tone, wide: bool) -> Line:
    """As "GPU0 H100  92%  ↑328 ↓320 Gb/s"; arrows are PCIe traffic from and to the GPU."""
    runs = [Run(label, tone, gpu.bdf), Run(f" {model(gpu.name)} ", Tone.PLAIN)]
    if isinstance(gpu.nvml, Unknown) and not isinstance(gpu.driver, Unknown) and gpu.driver == "nvidia":
        runs.append(Run("no NVML", Tone.WARNING))
    elif isinstance(gpu.driver, Unknown):
        runs.append(Run("no driver", Tone.WARNING))
    elif gpu.driver != "nvidia":
        runs.append(Run(gpu.driver, Tone.WARNING))
    now = live.gpus.get(gpu.bdf)
    if now is not None:
        runs.append(Run(f"{percent(now.utilisation_percent):>4}"))
        sent, received = in_gbps(now.pcie_tx_bytes_per_second), in_gbps(now.pcie_rx_bytes_per_second)
        runs.append(Run(f" ↑{short(sent):>3} ↓{short(received):>3} Gb/s"))
        if wide:
            runs.append(Run(f"  {gibibytes(now.memory_used_bytes)}"))
            runs.append(Run(f" {known(now.temperature_celsius, UNKNOWN_MARK)}°C"))
            runs.append(Run(f" {short(now.power_watts)} W"))
    if wide:
        runs.append(Run(f"  {gpu.bdf}", Tone.DIM))
        links = known(gpu.nvlinks, 0)
        if links:
            runs.append(Run(f" NV{links}", Tone.DIM))
    if known(gpu.c2c_links, 0):
        runs.append(Run(" C2C", Tone.DIM))
    return tuple(runs)


def port_state(device: RdmaDevice, port: RdmaPort, live: Live) -> str:
    """The port's state as last read: "ACTIVE", "DOWN", …, or `?`."""
    return live.states.get((device.name, port.number)) or known(port.state, UNKNOWN_MARK)


def port_speed(port: RdmaPort, wide: bool) -> str:
    """As "400G"; with room for it "NDR 400" on InfiniBand."""
    rate = short(port.rate_gbps)
    if wide and known(port.link_layer, "") == "InfiniBand" and not isinstance(port.rate_text, Unknown):
        return f"{port.rate_text.split()[-1] if port.rate_text else ''} {rate}".strip()
    return f"{rate}G"


def nic_line(
    device: RdmaDevice, port: RdmaPort | None, label: str, live: Live, tone: Tone, wide: bool
) -> Line:
    """As "mlx5_0 400G ↑372 ↓371 Gb/s"; arrows are RDMA traffic sent and received."""
    runs = [Run(label, tone, device.name)]
    if port is None:
        return (*runs, Run(" no port", Tone.WARNING))
    state = port_state(device, port, live)
    if state == "ACTIVE":
        runs.append(Run(f" {port_speed(port, wide)}"))
        rate = live.ports.get((device.name, port.number))
        if rate is not None:
            runs.append(Run(f" ↑{short(rate.sent_gbps):>3} ↓{short(rate.received_gbps):>3} Gb/s"))
    elif state == UNKNOWN_MARK:
        runs.append(Run(" state ?", Tone.WARNING))
    else:
        # The physical state is read with the whole node only: beside a newer state it would be stale.
        physical = known(port.physical_state, "") if state == known(port.state, "") else ""
        runs.append(Run(f" {state}{f' ({physical})' if physical else ''}", Tone.BAD))
    if wide:
        runs.append(Run(f"  {known(device.bdf, '')}", Tone.DIM))
        netdev = known(port.netdev, "")
        if netdev:
            runs.append(Run(f" {netdev}", Tone.DIM))
    return tuple(runs)


def bare_nic_line(label: str, name: str, tone: Tone) -> Line:
    """A PCI NIC that has no RDMA device: its driver is not loaded or does not claim it."""
    return Run(label, tone, label), Run(f" {name}" if name else ""), Run(" no RDMA device", Tone.WARNING)
