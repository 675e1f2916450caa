"""The *_perf programs of nccl-tests on a simulated node, and the transports that NCCL uses for them.

NVIDIA/nccl-tests src/common.cu. NCCL src/transport/{p2p,shm,net}.cc and src/graph/paths.cc: P2P over NVLink
or below one CPU, else shared memory; with both disabled the NICs, which access GPU memory themselves (GDRDMA)
if a path to it is usable and the NIC is as near as PXB, unless NCCL_NET_GDR_LEVEL is LOC. The buffers of its
protocol for small messages are in host memory in any case, so that these take equally long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.facts.gpu.generations import HOPPER, is_before
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.nccl.settings import parse_hca_list
from probes.simulation.bandwidth import cuda, speeds
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import ParsedCommand, SimulatedNode
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, at_once, ended, printed
from probes.simulation.bandwidth.speeds import Flow, Place, stop
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.nccl_paths import NEAR, Nccl

_NVLINK_SHARE, _NVLS_SHARE = 0.8, 1.04  # of a GPU's NVLinks; with reductions inside the switch
_PCIE_SHARE, _SHARED_MEMORY_SHARE = 0.78, 0.55
_MOST_HOST_GBPS = 400.0  # all ranks share the CPU's buffers and its links
_GDR_SHARE, _STAGED_SHARE = 0.94, 0.5
_QUEUE_PAIRS = 8  # of the channels over one NIC: more than a bond has ports
_CPU_CORES, _STAGED_CPU_CORES = 1.0, 1.25  # of each rank: its thread polls the NIC and the GPU
_SHM = "SHM/direct/direct"
_STARTS, _SETS_UP, _BETWEEN_ROWS = 0.8, 1.6, 0.06  # seconds
_ELEMENT_BYTES = 4


@frozen
class _Run:
    """The options of one run."""

    what: str  # "all_reduce"
    gpus: int
    begin_bytes: int
    end_bytes: int
    factor: int
    iterations: int

    @property
    def bus_factor(self) -> float:
        """The ratio of busbw to algbw (doc/PERFORMANCE.md)."""
        n = self.gpus
        return (2 if self.what == "all_reduce" else 1) * (n - 1) / n

    def sizes(self) -> Iterator[int]:
        """Yield the bytes of each row; what is divided among ranks is rounded down to 16 bytes for each."""
        size = self.begin_bytes
        unit = 16 * self.gpus if self.what == "alltoall" else _ELEMENT_BYTES
        while size <= self.end_bytes:
            yield size // unit * unit
            size *= self.factor


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start one collective."""
    run = _run(command)
    host, pid = node.hostname(), 50_000 + node.number(" ".join(command.words), at, 40_000)
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        failure = f"{host}: Test CUDA failure common.cu:1043 '{cuda.error_of(devices).name}'"
        return node.run(ended(at + 0.3, 1, failure, f" .. {host} pid {pid}: Test failure common.cu:891"))
    if run.gpus > len(devices):
        missing = f"Invalid number of GPUs: {run.gpus} requested but only {len(devices)} were found."
        hint = "Please check the number of processes and GPUs per process."
        return node.run(ended(at + 0.3, 1, missing, hint))
    chosen = devices[: run.gpus]
    ring = ring_of(node.examine(), node.tree, command.environment, [gpu.bdf for gpu in chosen])
    nccl = f"{host}:{pid}:{pid + 1}"
    here = node.tree.description
    version = f"NCCL version {here.nccl}+cuda{here.driver.cuda}"
    ready = at + _SETS_UP
    head = [*at_once(at + _STARTS, *_head(command, chosen, host, pid))]
    head += at_once(ready, version, *ring.lines(nccl))
    if ring.is_without_network:
        warning = f"{nccl} [0] net.cc:702 NCCL WARN Failed to initialize any NET plugin"
        failure = f"{host}: Test NCCL failure common.cu:1167 'invalid usage (run with NCCL_DEBUG=WARN) / '"
        return node.run(Script((*head, Line(ready, warning), Line(ready, failure)), ready, 3))
    if ring.is_broken:
        warning = f"{nccl} [0] transport/net_ib.cc:2204 NCCL WARN NET/IB: Got completion with status=4"
        failure = f"{host}: Test NCCL failure common.cu:401 'unhandled system error (…) / '"
        lines = (*head, Line(ready + 2, warning), Line(ready + 2, failure))
        return node.run(Script(lines, ready + 2, 3))
    return _measure(node, command, run, ring, head, ready)


def _run(command: ParsedCommand) -> _Run:
    def number(name: str, default: int, least: int = 1) -> int:
        text = command.option(name)
        return max(least, int(text[:13])) if text.isascii() and text.isdecimal() else default

    what = command.program.removesuffix("_perf")
    begin, end, factor = number("-b", 32 << 20), number("-e", 32 << 20), number("-f", 2, 2)
    return _Run(what, number("-g", 1), begin, end, factor, number("-n", 20))


def _head(command: ParsedCommand, devices: tuple[CudaDevice, ...], host: str, pid: int) -> tuple[str, ...]:
    ranks = (
        f"#  Rank {gpu.index:2d} Group  0 Pid {pid:6d} on {host:>10} device {gpu.index:2d} "
        f"[{gpu.bdf.removesuffix('.0')}] {gpu.name}"
        for gpu in devices
    )
    return printed("nccl-tests", "head", program=command.program, devices="\n".join(ranks))


def _measure(
    node: SimulatedNode, command: ParsedCommand, run: _Run, ring: Ring, head: list[Line], at: float
) -> SimulatedTest:
    """Return the rows, and add the traffic of those that use NICs."""
    rows: list[Line] = []
    bus: list[float] = []
    flows: list[tuple[str, str, Flow]] = []
    for size in run.sizes():
        groups, since = "", at
        us = ring.latency_us + size * run.bus_factor / (ring.bus_gbps / 8 * 1e3)
        at += _BETWEEN_ROWS + 2 * (run.iterations + 1) * us / 1e6
        for variant in ("out", "in"):
            time = speeds.jittered(us, node.seed, f"{command.program} {size} {variant}", at)
            algorithm = size / time / 1e3
            bus.append(algorithm * run.bus_factor)
            wrong = "N/A" if variant == "in" and run.what == "alltoall" else "0"
            groups += f"  {time:7.{2 if time < 1e4 else 1}f}  {algorithm:6.2f}  {bus[-1]:6.2f}  {wrong:>5}"
        operation = "sum" if run.what == "all_reduce" else "none"
        count = size // _ELEMENT_BYTES // (run.gpus if run.what == "alltoall" else 1)
        rows.append(Line(at, f"{size:12d}  {count:12d}  {'float':>8}  {operation:>6}  {'-1':>6}{groups}"))
        for nic, ranks in ring.nics.items():
            for name in (SENT, RECEIVED):
                flow = Flow(node.seconds(since), bus[-1] * 8 * ranks, node.seconds(at))
                flows.append((nic, name, flow))
    for nic, name, flow in flows:
        node.traffic.add(nic, name, flow, node.seconds(node.clock()))
    average = sum(bus) / max(1, len(bus))
    last = at_once(at, *printed("nccl-tests", "end", bus=average, program=command.program))
    test = node.run(Script((*head, *rows, *last), at, cpu_cores=ring.cpu_cores))
    test.on_signal.append(lambda moment: stop((flow for _, _, flow in flows), node.seconds(moment)))
    return test


@frozen
class Ring:
    """The ring of all ranks."""

    routes: tuple[str, ...]  # "P2P/CUMEM", from each rank to the next
    bus_gbps: float
    latency_us: float
    found: tuple[str, ...]  # what NCCL prints about its NICs
    nics: dict[str, int] = field(default_factory=dict)  # RDMA device → how many ranks send over it
    cpu_cores: float = 1.0
    is_broken: bool = False  # transfers to GPU memory fail
    is_without_network: bool = False  # the requested network is not there

    def lines(self, prefix: str) -> list[str]:
        """Return what NCCL prints with NCCL_DEBUG=INFO."""
        lines = [f"{prefix} [0] NCCL INFO {text}" for text in self.found]
        for rank, route in enumerate(self.routes):
            after = (rank + 1) % len(self.routes)
            send = " [send]" if route.startswith("NET/") else ""
            channel = f"Channel 00/0 : {rank}[{rank}] -> {after}[{after}]{send} via {route}"
            lines.append(f"{prefix} [{rank}] NCCL INFO {channel}")
        return [*lines, f"{prefix} [0] NCCL INFO Init COMPLETE"]


def ring_of(examination: Examination, tree: Tree, environment: Mapping[str, str], gpus: list[str]) -> Ring:
    """Return the ring of these GPUs (BDFs), in the order of their ranks."""
    nics = _nics(examination, environment)
    using = "".join(f" [{number}]{name}:1" for number, name in enumerate(nics))
    found = (f"NET/IB : Using{using} [RO]; OOB eth0:10.0.0.1<0>", "Using network IB")
    if not nics:
        found = ("NET/IB : No device found.", "Using network Socket")
    over_network = environment.get("NCCL_P2P_DISABLE") == "1"  # gdrtop disables shared memory, too
    if not nics and over_network:
        return Ring((), 0.0, 0.0, found[:1], is_without_network=True)
    if len(gpus) < 2:
        return Ring((), 16_000.0, 4.0, found)
    if over_network:
        return _network_ring(examination, gpus, nics, found, environment)
    paths = examination.topology.paths
    pairs = list(zip(gpus, gpus[1:] + gpus[:1], strict=True))
    routes = tuple(_route(examination, a, b) for a, b in pairs)
    if all(paths[pair].nvlinks for pair in pairs):
        share = (
            _NVLS_SHARE
            if len(gpus) > 4 and not is_before(tree.description.gpu.capability, HOPPER)
            else _NVLINK_SHARE
        )
        return Ring(routes, min(speeds.nvlink_gbps(examination, gpu) for gpu in gpus) * share, 14.0, found)
    carried = [
        speeds.gpu_to_gpu_gbps(examination, a, b) * _PCIE_SHARE
        if route != _SHM
        else min(speeds.host_to_gpu_gbps(examination, gpu) for gpu in (a, b)) * _SHARED_MEMORY_SHARE
        for (a, b), route in zip(pairs, routes, strict=True)
    ]
    return Ring(routes, min(*carried, _MOST_HOST_GBPS), 22.0, found)


def _route(examination: Examination, a: str, b: str) -> str:
    path = examination.topology.paths[a, b]
    near = bool(path.nvlinks) or path.nccl in (Nccl.C2C, Nccl.NVB) or path.nccl_pcie in (*NEAR, Nccl.PHB)
    return "P2P/CUMEM" if near else _SHM


def _nics(examination: Examination, environment: Mapping[str, str]) -> list[str]:
    """Return the active devices that NCCL_IB_HCA allows."""
    wanted = parse_hca_list(environment.get("NCCL_IB_HCA", ""))
    return [
        device.name
        for device in speeds.devices_of(examination)
        if not is_down(device) and any(wanted.uses(device.name, port.number) for port in device.ports)
    ]


def network_ring(
    examination: Examination, environment: Mapping[str, str], gpus: list[str]
) -> tuple[Ring, tuple[int, ...]]:
    """Return what these GPUs use between nodes, and which of them do: those nearest to the NICs."""
    nics = _nics(examination, environment)
    if not nics:
        found = ("NET/IB : No device found.", "Using network Socket")
        return Ring(("NET/Socket/0",), 10.0, 60.0, found), (0,)
    using = "".join(f" [{number}]{name}:1/IB" for number, name in enumerate(nics))
    found = (f"NET/IB : Using{using} [RO]; OOB eth0:10.0.0.1<0>", "Using network IB")
    best = examination.topology.best_nics
    nearest = (next((gpu for gpu in gpus if best.get(gpu, ())[:1] == (nic,)), None) for nic in nics)
    chosen = [gpu for gpu in nearest if gpu is not None] or gpus[:1]
    ring = _network_ring(examination, chosen, nics, found, environment, is_loopback=False)
    return ring, tuple(gpus.index(gpu) for gpu in chosen)


def _network_ring(
    examination: Examination,
    gpus: list[str],
    nics: list[str],
    found: tuple[str, ...],
    environment: Mapping[str, str],
    is_loopback: bool = True,
) -> Ring:
    best = examination.topology.best_nics
    chosen = [next(nic for nic in (*best.get(gpu, ()), *nics) if nic in nics) for gpu in gpus]
    pairs = zip(gpus, chosen, strict=True)
    direct = [_is_direct(examination, gpu, nic, environment) for gpu, nic in pairs]
    ranks = {nic: chosen.count(nic) for nic in chosen}
    carried, routes, is_broken = [], [], False
    for gpu, nic, gdr in zip(gpus, chosen, direct, strict=True):
        device = speeds.device_of(examination, nic)
        ports = [port.number for port in device.ports if port.is_active] if device else []
        place = Place(examination, nic, next(iter(ports), 1), gpu if gdr else None, _QUEUE_PAIRS)
        # One port serves both neighbors of the ring: on one node in loopback.
        gbps = min(speeds.sustained(place, reads, is_loopback) for reads in (True, False))
        carried.append(gbps * (_GDR_SHARE if gdr else _STAGED_SHARE) / ranks[nic])
        routes.append(f"NET/IB/{nics.index(nic)}{'/GDRDMA' if gdr else ''}")
        is_broken = is_broken or (gdr and speeds.is_unreachable(examination, gpu, nic))
    cores = 1.0 + sum(_CPU_CORES if gdr else _STAGED_CPU_CORES for gdr in direct)
    return Ring(tuple(routes), min(carried), 38.0, found, ranks, cores, is_broken)


def _is_direct(examination: Examination, gpu: str, nic: str, environment: Mapping[str, str]) -> bool:
    """Return whether NCCL lets this NIC access this GPU's memory."""
    facts = examination.node.gpudirect
    path = examination.topology.paths.get((gpu, nic))
    is_staged = "NCCL_NET_GDR_LEVEL" in environment  # LOC
    if not isinstance(facts, GpuDirectFacts) or path is None or is_staged:
        return False
    by_dmabuf = facts.dmabuf.usable is True and facts.nic_dmabuf.get(nic) is not False
    distance = path.nccl if path.nccl is Nccl.P2C else path.nccl_pcie
    return distance in NEAR and (by_dmabuf or facts.peermem.usable is True)
