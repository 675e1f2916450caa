"""What can happen to a training job while gdrtop watches; only the live view shows it.

Times in seconds since the node was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import CONNECTX_8
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.simulation.faults.fault import ChangeTree, change_devices, described, replace_content
from probes.simulation.node.devices.ports import add_switch, netdev_of, port_of
from probes.simulation.node.jobs.nccl_log import add_dumps
from probes.simulation.node.jobs.processes import (
    FIRST_RANK,
    JOB,
    OTHER_JOB,
    add_job,
    add_storage_client,
    default_libraries,
    end_program,
    map_libraries,
)
from probes.simulation.node.jobs.programs import ranks, registers_dmabuf, used_nics
from probes.simulation.node.jobs.traffic import (
    ALL_STAGED_SHARE,
    HELD_SHARE,
    add_to,
    carry_over_tcp,
    scale,
    scale_job,
)
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import PlacedNic, Program, Tree, Via, log
from probes.simulation.node.model.workload import OPENED, Steps, changes

STAGED_RANK, STOPPED_RANK, BEHIND_RANK, LOST_RANK, SLOW_RANK, FLAPPING_RANK = 5, 3, 2, 5, 5, 3
"""Ranks with a fault for seed 0; each seed has it on the next rank."""
RESTARTED_PIDS, OTHER_PIDS, STORAGE_PID = 41100, 42000, 46000
STOPPED_AFTER, LOST_AFTER, ENDED_AFTER, CONGESTED_AFTER = 35.0, 15.0, 22.0, 10.0
BEHIND_AFTER = 20.0
HUNG_FOR = 600.0  # until PyTorch's watchdog has timed out
NCCL_WITH_MONITOR = "2.29.7"
RESTART_BEGINS, RESTART_ENDS = 30.0, 38.0
FLAP_FIRST, FLAP_EACH, FLAP_DOWN = 15.0, 20.0, 5.0
_CONGESTED, _COLLIDED, _LESS = 0.6, 0.5, 0.7
RETRAINED_RANK, RETRAINED_AFTER = 6, 15.0
_RETRAINED_SHARE = 0.6  # of the traffic, over half of the PCIe bandwidth
_SLOW_SHARE = 0.33
_SLOW_STALL_PERCENT = 45.0  # of the time it waits for PCIe reads


def rank_on(tree: Tree, number: int) -> Program | None:
    """Return a rank of the training job, another one for each seed; None: there is no job."""
    connected = ranks(tree)
    return connected[(number + tree.seed) % len(connected)] if connected else None


def _of_rank(number: int) -> Callable[[Callable[[Tree, Program], object]], ChangeTree]:
    """Make a change of a rank one of the tree, on nodes with a job."""
    return lambda change: lambda tree: change(tree, rank) if (rank := rank_on(tree, number)) else None


def nic_of(tree: Tree, program: Program) -> PlacedNic:
    """Return the NIC of a rank."""
    return next(nic for nic in tree.nics if nic.name in program.nics)


def _over_dmabuf(tree: Tree) -> None:
    """Let all ranks use DMA-BUF where they can, which shows the path of each even without root."""
    for program in tree.programs:
        if program.via is Via.PEERMEM and registers_dmabuf(tree):
            program.via = Via.DMABUF


def _hold_all_up(tree: Tree, at: float) -> None:
    """End the traffic of all ranks, of an NCCL whose RAS service may be asked repeatedly."""
    scale_job(tree, changes((at, 0.0)))
    newer = max(NCCL_WITH_MONITOR, tree.description.nccl)
    for program in tree.programs:
        if program.is_nccl:
            map_libraries(tree, program.pid, default_libraries(tree, newer))


@_of_rank(STAGED_RANK)
def _rank_staged(tree: Tree, rank: Program) -> None:
    _over_dmabuf(tree)
    rank.via = Via.HOST


def _restarted_staged(tree: Tree) -> None:
    _over_dmabuf(tree)
    if not ranks(tree):
        return
    scale_job(tree, changes((OPENED + RESTART_BEGINS, 0.0), (OPENED + RESTART_ENDS, ALL_STAGED_SHARE)))
    gpus = range(len(tree.gpus))

    def end(tree: Tree) -> None:
        for number in gpus:
            end_program(tree, FIRST_RANK + number)

    def start(tree: Tree) -> None:
        add_job(tree, RESTARTED_PIDS, gpus, JOB, Via.HOST, OPENED + RESTART_ENDS)

    tree.plan(OPENED + RESTART_BEGINS, end)
    tree.plan(OPENED + RESTART_ENDS, start)


def _tcp(tree: Tree) -> None:
    nics = used_nics(tree)
    if not nics:
        return
    tree.references.pop((PEERMEM, "job"), None)
    for program in tree.programs:
        if program.is_nccl:
            program.via = Via.TCP
            files = f"/proc/{program.pid}/fd"
            for name in list(tree.directories.get(files, ())):
                if "/infiniband/" in tree.links.get(f"{files}/{name}", ""):
                    tree.remove(f"{files}/{name}")
    for nic in nics:
        carry_over_tcp(tree, nic)


@_of_rank(SLOW_RANK)
def _nic_slow(tree: Tree, rank: Program) -> None:
    nic = nic_of(tree, rank)
    tree.slow_before.add(nic.name)
    scale(tree, nic, changes(before=_SLOW_SHARE))
    if f"{nic.path}/net" in tree.directories:
        counters = tree.ethtool.get(netdev_of(tree, nic), {})
        counters["outbound_pci_stalled_rd"] = lambda seconds: _SLOW_STALL_PERCENT


def _flaps(share: float) -> Steps:
    """Return the factor of a port that flaps: `share` while it is down."""

    def step(number: int) -> tuple[float, float]:
        begin = OPENED + FLAP_FIRST + number // 2 * FLAP_EACH
        return (begin + FLAP_DOWN, share) if number % 2 else (begin, 1.0)

    return Steps(step)


def _downs(seconds: float) -> tuple[int, float, bool]:
    """Return how often the port went down, for how many seconds in all, and whether it is down."""
    since = seconds - OPENED - FLAP_FIRST
    if since < 0:
        return 0, 0.0, False
    times, within = divmod(since, FLAP_EACH)
    return int(times) + 1, times * FLAP_DOWN + min(within, FLAP_DOWN), within < FLAP_DOWN


@_of_rank(FLAPPING_RANK)
def _nic_flapping(tree: Tree, rank: Program) -> None:
    nic = nic_of(tree, rank)
    port = port_of(nic)
    if f"{port}/counters/link_downed" not in tree.files:  # an EFA's port is always ACTIVE
        return
    while_down = {True: _flaps(0.0), False: _flaps(HELD_SHARE)}
    for other in used_nics(tree):
        scale(tree, other, while_down[other is nic])

    def when_down(down: str, up: str) -> Callable[[float], str]:
        return lambda seconds: f"{down if _downs(seconds)[2] else up}\n"

    for path, content in (
        (f"{port}/state", when_down("1: DOWN", "4: ACTIVE")),
        (f"{port}/phys_state", when_down("2: Polling", "5: LinkUp")),
        (f"{port}/counters/link_downed", lambda seconds: f"{_downs(seconds)[0]}\n"),
        (f"{port}/hw_counters/local_ack_timeout_err", lambda seconds: f"{int(4 * _downs(seconds)[1])}\n"),
    ):
        replace_content(tree, path, content)
    if f"{nic.path}/net" not in tree.directories:
        return
    netdev = netdev_of(tree, nic)
    replace_content(tree, f"{nic.path}/net/{netdev}/operstate", when_down("down", "up"))
    replace_content(
        tree,
        f"{nic.path}/net/{netdev}/carrier_changes",
        lambda seconds: f"{2 + 2 * _downs(seconds)[0] - _downs(seconds)[2]}\n",
    )
    if netdev in tree.ethtool:
        tree.ethtool[netdev]["link_down_events_phy"] = lambda seconds: _downs(seconds)[0]
    _log_flaps(tree, nic, netdev, OPENED + FLAP_FIRST)


def _log_flaps(tree: Tree, nic: PlacedNic, netdev: str, begin: float) -> None:
    """Log a port that goes down and comes back, now and every FLAP_EACH seconds."""

    def down(tree: Tree) -> None:
        log(tree, f"mlx5_core {nic.bdf}: Port module event: module 0, Cable unplugged", begin)
        log(tree, f"mlx5_core {nic.bdf} {netdev}: Link down", begin, 6)
        tree.plan(begin + FLAP_DOWN, up)

    def up(tree: Tree) -> None:
        log(tree, f"mlx5_core {nic.bdf}: Port module event: module 0, Cable plugged", begin + FLAP_DOWN, 6)
        log(tree, f"mlx5_core {nic.bdf} {netdev}: Link up", begin + FLAP_DOWN, 6)
        _log_flaps(tree, nic, netdev, begin + FLAP_EACH)

    tree.plan(begin, down)


@_of_rank(RETRAINED_RANK)
def _nic_link_retrained(tree: Tree, rank: Program) -> None:
    nic, at = nic_of(tree, rank), OPENED + RETRAINED_AFTER
    path = f"{nic.path}/current_link_speed"
    before = tree.text(path)
    half = {"32.0": "16.0", "64.0": "32.0"}.get(before.partition(" ")[0], "8.0")
    replace_content(tree, path, lambda seconds: f"{half} GT/s PCIe\n" if seconds >= at else before)
    scale(tree, nic, changes((at, _RETRAINED_SHARE)))


@_of_rank(STOPPED_RANK)
def _rank_stopped(tree: Tree, rank: Program) -> None:
    rank.stopped_at = OPENED + STOPPED_AFTER
    _hold_all_up(tree, rank.stopped_at)


@_of_rank(BEHIND_RANK)
def _rank_behind(tree: Tree, rank: Program) -> None:
    rank.behind_at = OPENED + BEHIND_AFTER
    _hold_all_up(tree, rank.behind_at)


@_of_rank(BEHIND_RANK)
def _job_hung(tree: Tree, rank: Program) -> None:
    rank.behind_at = OPENED - HUNG_FOR
    _hold_all_up(tree, rank.behind_at)
    add_dumps(tree, rank)


@_of_rank(LOST_RANK)
def _gpu_lost(tree: Tree, rank: Program) -> None:
    number, pid = rank.gpu or 0, rank.pid
    bdf, at = tree.gpus[number].bdf, OPENED + LOST_AFTER
    scale_job(tree, changes((at, 0.0)))

    def lose(tree: Tree) -> None:
        tree.lost.add(number)
        text = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        log(tree, f"NVRM: Xid (PCI:{bdf[:-2]}): {text}", at, 3)
        log(tree, f"NVRM: GPU {bdf}: GPU has fallen off the bus.", at, 3)

    tree.plan(at, lose)
    tree.plan(OPENED + ENDED_AFTER, lambda tree: end_program(tree, pid))


def _congestion(tree: Tree) -> None:
    scale_job(tree, changes((OPENED + CONGESTED_AFTER, _CONGESTED)))
    for nic in used_nics(tree):
        port = port_of(nic)
        replace_content(tree, f"{port}/counters/port_xmit_wait", _rising(200_000))
        if nic.kind.layer != "Ethernet":
            continue
        replace_content(tree, f"{port}/hw_counters/np_ecn_marked_roce_packets", _rising(1200))
        replace_content(tree, f"{port}/hw_counters/np_cnp_sent", _rising(900))
        replace_content(tree, f"{port}/hw_counters/rp_cnp_handled", _rising(700))
        if f"{nic.path}/net" not in tree.directories:
            continue
        counters = tree.ethtool.get(netdev_of(tree, nic), {})
        counters["rx_prio3_pause"] = lambda seconds: 300 * _congested_for(seconds)
        counters["rx_prio3_pause_duration"] = lambda seconds: 120_000 * _congested_for(seconds)  # 12 %


@_of_rank(0)
def _gpu_throttled(tree: Tree, rank: Program) -> None:
    number = rank.gpu or 0
    tree.plan(OPENED + CONGESTED_AFTER, lambda tree: tree.throttled.add(number))


@_of_rank(0)
def _packets_lost(tree: Tree, rank: Program) -> None:
    nic = nic_of(tree, rank)
    replace_content(tree, f"{port_of(nic)}/hw_counters/packet_seq_err", _rising(50))
    if nic.kind.layer == "InfiniBand":  # the switch shows where they are lost
        add_switch(tree, nic)


def _congested_for(seconds: float) -> float:
    return max(0.0, seconds - OPENED - CONGESTED_AFTER)


def _rising(each_second: int) -> Callable[[float], str]:
    return lambda seconds: f"{int(each_second * _congested_for(seconds))}\n"


@_of_rank(SLOW_RANK)
def _ecmp_collision(tree: Tree, rank: Program) -> None:
    nic = nic_of(tree, rank)
    if nic.kind.layer != "Ethernet":
        return
    scale(tree, nic, changes((OPENED + CONGESTED_AFTER, _COLLIDED)))
    replace_content(tree, f"{port_of(nic)}/hw_counters/rp_cnp_handled", _rising(2500))


@_of_rank(SLOW_RANK)
def _uneven(tree: Tree, rank: Program) -> None:
    for nic in used_nics(tree):
        if nic.name not in rank.nics:
            scale(tree, nic, changes(before=_LESS))


def _with_planes(node: NodeDescription) -> NodeDescription:
    """Split each ConnectX-8 of a node into two planes, with a function each, on Ethernet."""
    compute = node.nic.get("compute")
    if compute is None or int(compute.id.partition(":")[2], 16) != CONNECTX_8 or compute.layer == "Ethernet":
        return node
    compute = replace(compute, layer="Ethernet", rate="400 Gb/sec (4X NDR)", gbps=305)
    split = change_devices(
        lambda device: (
            f"{device}+mlx5_{int(device.rpartition('_')[2]) + 8}" if "compute" in device else device
        )
    )
    return split(replace(node, nic={**node.nic, "compute": compute}))


def _plane_unused(tree: Tree) -> None:
    """Let each rank use the first plane of its NIC alone."""
    for rank in ranks(tree):
        for nic in tree.nics:
            if nic.name in rank.nics[1:]:
                scale(tree, nic, changes(before=0.0))
        rank.nics = rank.nics[:1]


def _routed_adaptively(tree: Tree) -> None:
    for nic in used_nics(tree):
        replace_content(tree, f"{port_of(nic)}/hw_counters/out_of_sequence", lambda at: f"{int(400 * at)}\n")


@_of_rank(0)
def _storage_traffic(tree: Tree, rank: Program) -> None:
    nic = nic_of(tree, rank)
    line = nic.kind.line_gbps
    scale(tree, nic, changes(before=0.7))
    add_to(tree, nic, RECEIVED, 0.25 * line)
    add_to(tree, nic, SENT, 0.03 * line)
    add_storage_client(tree, STORAGE_PID, (nic.name,))
    other = rank_on(tree, 1)
    if other is not None:
        tree.kernel_clients[nic_of(tree, other).name] = "ko2iblnd"


def _two_jobs(tree: Tree) -> None:
    if not ranks(tree):
        return
    gpus = len(tree.gpus)
    for number in range(gpus):
        end_program(tree, FIRST_RANK + number)
    add_job(tree, FIRST_RANK, range(gpus // 2), JOB)
    add_job(tree, OTHER_PIDS, range(gpus // 2, gpus), OTHER_JOB)
    _over_dmabuf(tree)  # without root, regions through nvidia_peermem cannot be told apart by job


FAULTS = tuple(described("live", globals(), is_live=True))
