"""Traffic of all NICs, all GPUs and each port, now and in the last minutes, compared with the line rate."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.history import History
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import ACTIVE, RdmaFacts
from probes.topology.paths import Topology
from widgets.base.figures import gbps, graph, in_gbps, share, short, tall_graph
from widgets.base.lines import Line, Run, Tone, fit, width_of
from widgets.node.endpoint_lines import LiveFigures, port_state

NO_PORT = "no RDMA port"
SPARK_SECONDS = 120.0
TOTALS = ("NIC ↑", "NIC ↓", "GPU ↑", "GPU ↓")
_MOST_BUCKETS = 120  # a second each
_HEAD_CELLS = 22  # "NIC ↑ 2.36 Tb/s  73% "
_PEAK_CELLS = 10  # " peak 100%"
ROOM_FOR_SCALE = 56  # cells, from which on peaks and the scale are shown


def totals(live: LiveFigures) -> dict[str, float]:
    """Return the sums in Gb/s (10^9 bits): NICs sent and received, GPUs' PCIe from and to."""
    ports, gpus = live.ports.values(), live.gpus.values()
    rates: dict[str, list[Maybe[float]]] = {
        "NIC ↑": [rate.sent_gbps for rate in ports],
        "NIC ↓": [rate.received_gbps for rate in ports],
        "GPU ↑": [in_gbps(gpu.pcie_tx_bytes_per_second) for gpu in gpus],
        "GPU ↓": [in_gbps(gpu.pcie_rx_bytes_per_second) for gpu in gpus],
    }
    read = {name: [rate for rate in each if not isinstance(rate, Unknown)] for name, each in rates.items()}
    return {name: sum(each) for name, each in read.items() if each}


def line_rates(node: Node, topology: Topology, live: LiveFigures) -> dict[str, float]:
    """Return what all ACTIVE ports ("NIC") and all GPUs' PCIe links ("GPU") carry each way, in Gb/s."""
    rates = {"NIC": 0.0, "GPU": 0.0}
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        for port in device.ports:
            if port_state(device, port, live) == ACTIVE and not isinstance(port.rate_gbps, Unknown):
                rates["NIC"] += port.rate_gbps
    for gpu in node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ():
        rates["GPU"] += gpu_link_gbps(topology, gpu.bdf)
    return rates


def gpu_link_gbps(topology: Topology, gpu: str) -> float:
    """Return what the GPU's own link carries: the first link of any path from it."""
    for nic in topology.best_nics.get(gpu, ())[:1]:
        for hop in topology.path(gpu, nic).hops:
            if hop.link == "PCIe" and not isinstance(hop.gbps, Unknown):
                return hop.gbps
    return 0.0


def may_have_ports(node: Node) -> bool:
    """Return whether the node has an RDMA port, or its RDMA devices could not be read."""
    if isinstance(node.rdma, Unknown):
        return node.rdma.reason is not Reason.NOT_THERE
    return any(device.ports for device in node.rdma.devices)


def draw(
    sums: Mapping[str, float],
    history: Mapping[str, History],
    width: int,
    line_rate: Mapping[str, float] | None = None,
    has_ports: bool = True,
    rows: int = 1,
) -> list[Line]:
    """Draw the totals with two minutes of history, scaled to the line rate (see `line_rates`).

    `rows`: the height of each graph.
    """
    most = line_rate or {}
    lines: list[Line] = []
    has_scale = width >= ROOM_FOR_SCALE
    buckets = max(6, width - _HEAD_CELLS - (_PEAK_CELLS if has_scale else 0))
    for name in TOTALS:
        if name not in sums:
            is_absent = name.startswith("NIC") and not has_ports
            lines.append((Run(f"{name} "), Run(f"–  {NO_PORT}" if is_absent else "?  unknown", Tone.DIM)))
            continue
        top = most.get(name[:3], 0.0)
        values = history[name].buckets(buckets, SPARK_SECONDS / buckets) if name in history else []
        peak = max((value for value in values if value is not None), default=sums[name])
        percent, highest = share(sums[name], top), share(peak, top)
        head = Run(f"{name} {gbps(sums[name]):>9} {percent:>5} ")
        tail = Run(f" peak {highest or _brief(peak)}" if has_scale else "", Tone.DIM)
        drawn = tall_graph(values, rows, top or None) if rows > 1 else [graph(values, top or None)]
        blank = Run(" " * len(head.text))
        lines += [(blank, *graph_row) for graph_row in drawn[:-1]]
        lines.append((head, *drawn[-1], tail))
    if not has_scale:
        return lines
    scale = ", ".join(f"{name} {gbps(rate)}" for name, rate in most.items() if rate)
    text = f"2 min, █ = {scale}" if scale else "2 min, █ = the highest value"
    return [*lines, fit((Run(text, Tone.DIM),), width)]


def _brief(rate_gbps: float) -> str:
    return f"{rate_gbps / 1000:.1f}T" if rate_gbps >= 1000 else f"{short(rate_gbps)}G"


def draw_ports(
    node: Node,
    live: LiveFigures,
    history: Mapping[tuple[str, int], tuple[History, History]],
    width: int,
    marks: Mapping[str, Run] | None = None,
    is_tall: bool = False,
) -> list[Line]:
    """Draw one line a port: rates, their shares of the line rate, and two minutes of history.

    `is_tall`: two lines a port, with a graph of twice the length for each direction.
    """
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    ports = [(device, port) for device in devices for port in device.ports]
    if not ports:
        return [(Run(f"unknown: {node.rdma}" if may_have_ports(node) else NO_PORT, Tone.DIM),)]
    labels = {
        (device.name, port.number): f"{device.name}/{port.number}" if len(device.ports) > 1 else device.name
        for device, port in ports
    }
    cells = max(map(len, labels.values()))
    # name, mark, rate of the port, and an arrow, a rate, a share and a graph, twice beside each other
    across = 1 if is_tall else 2
    buckets = min(_MOST_BUCKETS, max(4, (width - cells - 7 - across * 13) // across))
    lines: list[Line] = []
    for device, port in ports:
        key = device.name, port.number
        label = Run(f"{labels[key]:<{cells}}", Tone.NIC, device.name)
        mark = (marks or {}).get(device.name, Run(" "))
        state, rate = port_state(device, port, live), live.ports.get(key)
        if state != ACTIVE or rate is None:
            tone = Tone.DIM if state == ACTIVE else Tone.BAD
            lines.append((label, mark, Run(state if state != ACTIVE else "no rate yet", tone)))
            continue
        top = port.rate_gbps if not isinstance(port.rate_gbps, Unknown) else None
        head: Line = (label, mark, Run(f"{short(port.rate_gbps):>4}G", Tone.DIM))
        directions: list[Line] = []
        for arrow, value, past in (
            ("↑", rate.sent_gbps, history[key][0] if key in history else None),
            ("↓", rate.received_gbps, history[key][1] if key in history else None),
        ):
            values = past.buckets(buckets, SPARK_SECONDS / buckets) if past is not None else []
            figures = Run(f"  {arrow}{short(value):>4} {share(value, port.rate_gbps):>4} ")
            directions.append((figures, *graph(values, top)))
        sent, received = directions
        if is_tall:
            blank = Run(" " * width_of(head), id=device.name)
            lines += [(*head, *sent), (blank, *received)]
        else:
            lines.append((*head, *sent, *received))
    return [*lines, (Run("2 min, █ = line rate", Tone.DIM),)]
