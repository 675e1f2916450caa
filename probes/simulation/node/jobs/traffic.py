"""Traffic of the training job over NICs and GPUs of a simulated node, and what faults do to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

from probes.simulation.node.devices.ports import BYTE_COUNTERS, is_active, netdev_of, port_of
from probes.simulation.node.jobs.programs import (
    nearest_nics,
    needs_plugin,
    path_between,
    path_of,
    ranks,
    settle_paths,
    used_nics,
)
from probes.simulation.node.model.tree import Content, PlacedNic, Program, Tree, Via
from probes.simulation.node.model.workload import COMPUTE_TRAFFIC, SteppedTotal, Steps, changes, phase_at

ONE_STAGED_SHARE = 0.75  # of a rank's traffic, when it alone copies through host memory
ALL_STAGED_SHARE = 0.55
HELD_SHARE = 0.02  # of the traffic: all ranks wait for one
_TCP_SHARE = 0.08  # of the traffic with RDMA

Total = Callable[[float], float]  # since the node started, at a moment in seconds


def scale(tree: Tree, nic: PlacedNic, steps: Steps) -> None:
    """Multiply a NIC's traffic by a factor that changes in steps."""
    tree.traffic.setdefault(nic.name, []).append(steps)
    for name in BYTE_COUNTERS:
        path = f"{port_of(nic)}/{name}"
        content = tree.files.get(path)
        if callable(content):
            tree.add(path, _scaled(content, steps))


def replace_traffic(tree: Tree, nic: PlacedNic, octets: tuple[Total, Total]) -> None:
    """Let the counters of a NIC show other traffic than the training job's, sent and received."""
    for name, (way, unit) in BYTE_COUNTERS.items():
        path = f"{port_of(nic)}/{name}"
        if callable(tree.files.get(path)):
            tree.add(path, partial(_counted, octets[way == "rx"], unit))


def _counted(total: Total, unit: int, seconds: float) -> str:
    return f"{round(total(seconds) / unit)}\n"


def common_steps(tree: Tree) -> list[Steps]:
    """Return what faults do to the traffic of all NICs of the job alike."""
    by_nic = [tree.traffic.get(nic.name, []) for nic in used_nics(tree)]
    shared = by_nic[0] if by_nic else []
    return [steps for steps in shared if all(any(each is steps for each in other) for other in by_nic)]


def scale_job(tree: Tree, steps: Steps) -> None:
    """Multiply the traffic of all NICs of the job by a factor."""
    for nic in used_nics(tree):
        scale(tree, nic, steps)


def settle_jobs(tree: Tree) -> None:
    """Give each rank the path, the NIC and the speed that it has on this node, with all its faults."""
    settle_paths(tree)
    used = used_nics(tree)
    for nic in [nic for nic in tree.nics if not is_active(tree, nic)]:
        if nic in used:
            _leave(tree, nic)
        else:
            scale(tree, nic, changes(before=0.0))
    _slow_down(tree)


def _slow_down(tree: Tree) -> None:
    """Slow down ranks that copy through host memory, more if all do, and stop those without a path."""
    paths = [(program, path_of(tree, program)) for program in ranks(tree)]
    staged = ONE_STAGED_SHARE if any(via is not Via.HOST for _, via in paths) else ALL_STAGED_SHARE
    shares = {Via.HOST: staged, Via.NONE: 0.0}
    if needs_plugin(tree) and not tree.description.system.plugin:
        shares[Via.TCP] = 0.0  # over the management network
    for nic in tree.nics:
        of_nic = [shares.get(via, 1.0) for program, via in paths if nic.name in program.nics]
        if any(share != 1.0 for share in of_nic):
            scale(tree, nic, changes(before=sum(of_nic) / len(of_nic)))


def _leave(tree: Tree, nic: PlacedNic) -> None:
    """Move a job off a port that is not active, which NCCL skips when it starts.

    Its ranks share the nearest other NIC, and the whole job runs at the pace of that port.
    """
    scale(tree, nic, changes(before=0.0))
    near = nearest_nics(tree)
    moved = [program for program in ranks(tree) if nic.name in program.nics]
    if not moved or not near:
        return
    for program in moved:
        gpu = program.gpu or 0
        program.nics = tuple(name for name in program.nics if name != nic.name) or (near[gpu].name,)
        if program.via.is_gdr and path_between(tree, gpu, near[gpu]) is Via.HOST:
            program.via = Via.HOST
    for program in ranks(tree):
        listed = program.logged_nics or tuple(
            candidate.name for candidate in tree.nics if candidate.kind is nic.kind
        )
        program.logged_nics = tuple(name for name in listed if name != nic.name)
    sharing = Counter(name for program in ranks(tree) for name in program.nics)
    for other in used_nics(tree):
        share = sharing[other.name] / max(sharing.values())
        if share != 1.0:
            scale(tree, other, changes(before=share))


def _scaled(content: Callable[[float], str], steps: Steps) -> Content:
    total = SteppedTotal(lambda seconds: float(content(seconds)), steps)
    return lambda seconds: f"{round(total(seconds))}\n"


def change_count(tree: Tree, nic: PlacedNic, name: str, change: Callable[[int, float], int]) -> None:
    """Change a counter of a port: `change` returns its count from that of the job and the seconds."""
    path = f"{port_of(nic)}/counters/{name}"
    content = tree.files.get(path)
    if callable(content):
        tree.add(path, lambda seconds: f"{change(int(content(seconds)), seconds)}\n")


def add_to(tree: Tree, nic: PlacedNic, name: str, gbps: float) -> None:
    """Add constant traffic of another program to a counter."""
    change_count(tree, nic, name, lambda count, seconds: count + round(gbps * 1e9 / 32 * seconds))


def traffic_of_gpu(tree: Tree, gpu: int, seconds: float) -> float:
    """Return the factor by which the phase and the faults of its NICs change a GPU's traffic."""
    rank = _rank_of(tree, gpu)
    usual = COMPUTE_TRAFFIC[phase_at(tree.seed, seconds)]
    return usual * (1.0 if rank is None else _fault_share(tree, rank, seconds))


def held_rank(tree: Tree, gpu: int, seconds: float) -> Program | None:
    """Return the rank of a GPU, if its job stands still at a moment because a rank or the network fails."""
    rank = _rank_of(tree, gpu)
    is_held = rank is not None and rank.via is not Via.TCP and _fault_share(tree, rank, seconds) <= HELD_SHARE
    return rank if is_held else None


def _rank_of(tree: Tree, gpu: int) -> Program | None:
    return next((program for program in tree.programs if program.gpu == gpu and program.nics), None)


def nics_of_gpu(tree: Tree, gpu: int) -> float:
    """Return how many NICs the rank of a GPU has, of a shared one its part; 1 without a rank."""
    rank = _rank_of(tree, gpu)
    if rank is None:
        return 1.0
    sharing = Counter(name for other in ranks(tree) for name in other.nics)
    return sum(1 / max(1, sharing[name]) for name in rank.nics)


def _fault_share(tree: Tree, rank: Program, seconds: float) -> float:
    """Return the share of its traffic that a rank has, on average of its NICs."""
    shares = [math.prod(steps.at(seconds) for steps in tree.traffic.get(name, ())) for name in rank.nics]
    return sum(shares) / len(shares)


def carry_over_tcp(tree: Tree, nic: PlacedNic) -> None:
    """Let a NIC carry the job's traffic as TCP/IP; RDMA counters leave it out on Ethernet."""
    scale(tree, nic, changes(before=_TCP_SHARE))
    net = f"{nic.path}/net/{netdev_of(tree, nic)}" if f"{nic.path}/net" in tree.directories else ""
    for counter, (direction, unit) in BYTE_COUNTERS.items():
        path = f"{port_of(nic)}/{counter}"
        content = tree.files.get(path)
        if not callable(content):
            continue
        if net:
            tree.add(f"{net}/statistics/{direction}_bytes", partial(_octets, content, unit))
        if nic.kind.layer == "Ethernet":
            tree.add(path, "3200000000\n")


def _octets(units: Callable[[float], str | bytes], unit: int, seconds: float) -> str:
    return f"{int(units(seconds)) * unit}\n"
