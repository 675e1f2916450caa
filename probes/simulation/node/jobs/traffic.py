"""Traffic of the training job over NICs and GPUs of a simulated node, and what faults do to it."""

from __future__ import annotations

from collections.abc import Callable

from probes.simulation.node.devices.ports import netdev_of, port_of
from probes.simulation.node.jobs.training import gpu_traffic
from probes.simulation.node.model.program import Via
from probes.simulation.node.model.tree import Content, PlacedNic, Tree
from probes.simulation.node.model.waves import SteppedTotal, Steps, changes

SENT, RECEIVED = "port_xmit_data", "port_rcv_data"
ONE_STAGED_SHARE = 0.75  # of a rank's traffic, when it alone copies through host memory
ALL_STAGED_SHARE = 0.55
_TCP_SHARE = 0.08  # of the traffic with RDMA


def scale(tree: Tree, nic: PlacedNic, steps: Steps) -> None:
    """Multiply a NIC's traffic by a factor that changes in steps."""
    tree.traffic.setdefault(nic.name, []).append(steps)
    for name in (SENT, RECEIVED):
        path = f"{port_of(nic)}/counters/{name}"
        content = tree.files.get(path)
        if callable(content):
            tree.add(path, _scaled(content, steps))


def slow_down_staged(tree: Tree) -> None:
    """Slow down the ranks that copy through host memory; if all do, they compete for it."""
    ranks = [program for program in tree.programs if program.is_nccl and program.nics]
    staged = {name for program in ranks if program.via is Via.HOST for name in program.nics}
    is_alone = any(program.via is not Via.HOST for program in ranks)
    for nic in tree.nics:
        if nic.name in staged:
            scale(tree, nic, changes(before=ONE_STAGED_SHARE if is_alone else ALL_STAGED_SHARE))


def leave_port(tree: Tree, nic: PlacedNic) -> None:
    """Move a job off a port that is not active, which NCCL skips when it starts.

    Its ranks share the nearest other NIC of the job, and the whole job runs at the pace of that port.
    """
    scale(tree, nic, changes(before=0.0))
    ranks = [program for program in tree.programs if program.is_nccl and program.nics]
    moved = [program for program in ranks if nic.name in program.nics]
    used = {name for program in ranks for name in program.nics} - {nic.name}
    others = [other for other in tree.nics if other.name in used]
    if not moved or not others:
        return
    place = tree.nics.index(nic)
    nearest = min(
        others, key=lambda other: (other.numa != nic.numa, abs(tree.nics.index(other) - place))
    )
    for program in moved:
        program.nics = (nearest.name,)
    for program in ranks:
        listed = program.logged_nics or tuple(one.name for one in tree.nics if one.kind is nic.kind)
        program.logged_nics = tuple(name for name in listed if name != nic.name)
    sharing = sum(nearest.name in program.nics for program in ranks)
    for other in others:
        if other is not nearest:
            scale(tree, other, changes(before=1 / sharing))


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


def carry_over_tcp(tree: Tree, nic: PlacedNic) -> None:
    """Let a NIC carry the job's traffic as TCP/IP; RDMA counters leave it out on Ethernet."""
    scale(tree, nic, changes(before=_TCP_SHARE))
    net = f"{nic.path}/net/{netdev_of(tree, nic)}" if f"{nic.path}/net" in tree.directories else ""
    for counter, direction in ((SENT, "tx"), (RECEIVED, "rx")):
        path = f"{port_of(nic)}/counters/{counter}"
        content = tree.files.get(path)
        if not callable(content):
            continue
        if net:
            tree.add(f"{net}/statistics/{direction}_bytes", _octets(content))
        if nic.kind.layer == "Ethernet":
            tree.add(path, "3200000000\n")


def _octets(units: Callable[[float], str | bytes]) -> Content:
    return lambda seconds: f"{int(units(seconds)) * 4}\n"
