"""Traffic of the training job over NICs and GPUs of a simulated node, and what faults do to it."""

from __future__ import annotations

from probes.simulation.node.ports import port_of
from probes.simulation.node.training import gpu_traffic
from probes.simulation.node.tree import Content, PlacedNic, Tree
from probes.simulation.node.waves import SteppedTotal, Steps

SENT, RECEIVED = "port_xmit_data", "port_rcv_data"


def scale(tree: Tree, nic: PlacedNic, steps: Steps) -> None:
    """Multiply a NIC's traffic by a factor that changes in steps."""
    tree.traffic.setdefault(nic.name, []).append(steps)
    for name in (SENT, RECEIVED):
        path = f"{port_of(nic)}/counters/{name}"
        content = tree.files.get(path)
        if callable(content):
            tree.add(path, _scaled(content, steps))


def _scaled(content: Content, steps: Steps) -> Content:
    def units(seconds: float) -> float:
        return float(content(seconds)) if callable(content) else 0.0

    total = SteppedTotal(units, steps)
    return lambda seconds: f"{round(total(seconds))}\n"


def add_to(tree: Tree, nic: PlacedNic, name: str, gbps: float) -> None:
    """Add constant traffic of another program to a counter."""
    path = f"{port_of(nic)}/counters/{name}"
    content = tree.files.get(path)
    if callable(content):
        tree.add(path, lambda seconds: f"{int(content(seconds)) + round(gbps * 1e9 / 32 * seconds)}\n")


def traffic_of_gpu(tree: Tree, gpu: int, seconds: float) -> float:
    """Return the factor by which the phase and the faults of its NICs change a GPU's traffic."""
    factor = gpu_traffic(tree.seed, seconds)
    for program in tree.programs:
        if program.gpu == gpu and program.nics:
            for steps in tree.traffic.get(program.nics[0], ()):
                factor *= steps.at(seconds)
            break
    return factor
