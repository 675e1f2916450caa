"""Inference engines of a simulated node: prefill and decode, of which one may be on another node.

The KV cache moves in bursts from prefill to decode, and tensor parallelism uses NVLink all the time. What
UCX makes on a NIC: UD queue pairs in RTS before a peer exists (src/uct/ib/mlx5/ib_mlx5.c,
src/uct/ib/ud/base/ud_iface.c). On mlx5, its RC queue pairs are DEVX ones, which the kernel does not list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Literal

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.facts.pci.nic_families import CONNECTX, VERBS_MODULES
from probes.host.tcp_sockets import TcpSocket
from probes.simulation.node.devices.network import NODE_ADDRESS
from probes.simulation.node.jobs.processes import (
    add_engine_process,
    end_program,
    library_directory,
    verbs_libraries,
)
from probes.simulation.node.jobs.programs import needs_plugin
from probes.simulation.node.jobs.traffic import Total, replace_traffic
from probes.simulation.node.model.tree import GIB, EngineLoad, Pool, Program, Tree, Via
from probes.simulation.node.model.workload import OPENED, SteppedTotal, Steps, Wave, angle_of

_FIRST_PID, _PIDS_OF_ENGINE = 47000, 100
_MOVING_SECONDS, _ROUND_SECONDS, _BETWEEN_BURSTS = 4.0, 6.0, 0.03
_SHARE_OF_NIC = 0.6  # of the usual traffic of a training job
# Bytes a second of each worker. NIXL 1.5.1 moved 0.5 to 1.0 GB/s over TCP on loopback.
_RATES = {"tcp": 0.28e9, "loopback": 0.6e9, "nvlink": 42e9}
_TENSOR_PARALLEL = 9e9  # over NVLink, of each worker
_few = Wave(2e3, 0.0)  # bytes a second
_POOL_SHARE = 0.5  # of the GPU's memory
_SMALL_POOL = 8 * GIB  # where NVML reports no memory
_PACKAGES = "/opt/venv/lib/python3.12/site-packages"
_DISTRIBUTIONS = (
    *("nvidia_nccl_cu12-2.27.7.dist-info", "nixl_cu12-1.5.1.dist-info"),
    "mooncake_transfer_engine-0.3.13.post1.dist-info",
)
_VERBS = "libuct_ib"
_NCCL_THREADS = ("NCCL Service  0", "NCCL IbAsync  0", "pt_nccl_watchdg")
_PORT = 41000
_PID_NAMESPACE = 4026531836  # the first one's inode, include/linux/proc_ns.h


@frozen
class EngineDescription:
    """Engines of one kind, their memory and the path of their KV cache."""

    framework: str  # a table of engines.toml
    backend: Literal["nixl", "mooncake"]
    moves: Literal["rdma", "tcp", "loopback", "nvlink"]
    memory: Literal["cuda", "cpu"] = "cuda"  # that is registered with the NICs
    buffer: Literal["cuda", "cpu"] = "cuda"  # as the command line says
    is_parallel: bool = True  # tensor parallel over its GPUs
    is_local: bool = False  # prefill and decode on this node, each on half of the GPUs
    sees_nics: bool = True  # its container has the devices
    shares_pids: bool = True  # its container has the node's PID namespace
    without: str = ""  # the library that it does not map, by a part of the name


def serve(tree: Tree, engine: EngineDescription) -> None:
    """Let engines serve on this node instead of the training job; nothing runs without the driver."""
    for program in [program for program in tree.programs if program.is_nccl]:
        end_program(tree, program.pid)
    for nic in tree.nics:
        replace_traffic(tree, nic, (_few.total, _few.total))
    if "nvidia" not in tree.live_modules or not tree.gpus:
        return
    if engine.moves == "nvlink" and not tree.description.gpu.nvlinks:
        engine = replace(engine, moves="loopback")  # UCX reads no GPU memory over PCIe: cuda_ipc_iface.c
    gpus, role = range(len(tree.gpus)), tree.description.job_node % 2
    half = max(1, len(gpus) // 2)
    parts = ((0, gpus[:half]), (1, gpus[half:])) if engine.is_local else ((role, gpus),)
    for number, part in parts:
        _Engine(tree, engine, number, part).add()
    opened = sum(len(program.opened) for program in tree.programs)
    for module, holder in list(tree.references):
        if holder == "job" and module in ("ib_uverbs", *VERBS_MODULES):
            tree.references[module, holder] = lambda seconds: opened


class _Engine:
    """An engine with role 0, prefill, or 1, decode."""

    def __init__(self, tree: Tree, description: EngineDescription, role: int, gpus: Sequence[int]) -> None:
        self._tree, self._description, self._role, self._gpus = tree, description, role, gpus
        self._first = _FIRST_PID + role * _PIDS_OF_ENGINE
        has_verbs = any(tree.is_there(f"/sys/class/infiniband/{nic.name}") for nic in tree.nics)
        self._is_open = has_verbs and description.sees_nics and description.without != _VERBS
        # Both nodes of a pair have the same waves: their seeds differ by a multiple of this.
        self._kv = Wave(1.0, angle_of(tree.seed % 56, "KV cache"))
        self._moved = SteppedTotal(self._kv.total, Steps(_burst))

    def add(self) -> None:
        """Add its processes, and let it move its KV cache."""
        data = read_toml(__package__, "engines.toml")
        words = data[self._description.framework]
        libraries = self._libraries(data)
        if self._description.is_parallel:
            return self._move(self._workers(words, self._first, self._gpus, libraries))
        # One engine on each GPU: its core is the worker, and it does not use NCCL.
        alone = {**words, "helpers": [], "worker": words["alone"]}
        engines = [
            self._workers(alone, self._first + 2 * number, [gpu], libraries)
            for number, gpu in enumerate(self._gpus)
        ]
        self._move([worker for workers in engines for worker in workers])

    def _workers(
        self, words: Mapping[str, Any], first: int, gpus: Sequence[int], libraries: Sequence[str]
    ) -> list[Program]:
        """Add the processes of an engine on these GPUs, and return its workers."""
        node, engine, size = self._tree.description, self._description, len(gpus)
        nics = tuple(nic.name for nic in self._tree.nics) if self._is_open else ()
        via = Via.TCP if not nics else Via.DMABUF if engine.memory == "cuda" else Via.HOST
        pool = Pool(round(node.gpu.memory_gib * GIB * _POOL_SHARE) or _SMALL_POOL, self._queue_pairs())
        role = ("prefill", "decode")[self._role]
        values = {"size": size, "role": role, "backend": engine.backend, "buffer": engine.buffer}
        self._process(
            Program(first, None, (), (), Via.NONE, 0, is_nccl=False), words["launcher"].format(**values)
        )
        pids, parent = count(first + 1), first
        for title in words["helpers"]:
            helper = Program(next(pids), None, (), (), Via.NONE, 0, is_nccl=False, parent=first)
            self._process(helper, title)
            parent = helper.pid
        threads = ("async",) * (engine.backend == "nixl") + _NCCL_THREADS * (size > 1)
        workers = []
        for number, gpu in enumerate(gpus):
            slot = self._gpus.index(gpu)
            worker = Program(next(pids), gpu, nics, nics, via, slot, is_nccl=False, pool=pool, parent=parent)
            self._process(worker, words["worker"].format(number=number), libraries, threads)
            workers.append(worker)
        return workers

    def _process(
        self, program: Program, command: str, libraries: Sequence[str] = (), threads: Sequence[str] = ()
    ) -> None:
        engine = self._description
        namespace = _PID_NAMESPACE if engine.shares_pids else _PID_NAMESPACE + 400 + self._role
        files = len(self._tree.nics) if engine.sees_nics else 0
        add_engine_process(
            self._tree, program, command, self._role, namespace, files, libraries=libraries, threads=threads
        )
        for package in _DISTRIBUTIONS:
            self._tree.directory(f"/proc/{program.pid}/root{_PACKAGES}/{package}")

    def _libraries(self, data: Mapping[str, Any]) -> list[str]:
        engine, tree = self._description, self._tree
        names = (*data["libraries"][engine.backend], *data["libraries"]["torch"])
        mapped = [f"{_PACKAGES}/{name}" for name in names if not engine.without or engine.without not in name]
        system = [f"libcuda.so.{tree.description.driver.version}"]
        if engine.backend == "mooncake":  # the wheel of NIXL has its own
            system += verbs_libraries(tree).values()
        return mapped + [f"{library_directory(tree)}/{name}" for name in system]

    def _queue_pairs(self) -> tuple[tuple[str, int], ...]:
        """Return those of a worker on each NIC; UCX's RC ones are listed unless they are DEVX ones."""
        if self._description.backend == "mooncake":
            return (("RC", 2),)
        if needs_plugin(self._tree):
            return (("DRIVER", 1),)
        has_devx = any(nic.kind.driver == CONNECTX.pci_drivers[0] for nic in self._tree.compute_nics)
        return (("UD", 2),) if has_devx else (("UD", 1), ("RC", 1))

    def _both(self, of_cache: Total, of_rest: Total) -> tuple[Total, Total]:
        """Return what is sent and received: prefill sends, also where decode reads from it."""
        return (of_rest, of_cache) if self._role else (of_cache, of_rest)

    def _move(self, workers: Sequence[Program]) -> None:
        tree, moves, kv = self._tree, self._description.moves, self._kv
        shares = {nic.name: nic.kind.gbps * 1e9 / 8 * _SHARE_OF_NIC for nic in tree.compute_nics}
        mean = _RATES.get(moves) or sum(shares.values()) / len(workers)
        for name, share in shares.items() if moves == "rdma" and self._is_open else ():
            replace_traffic(tree, tree.nic(name), self._both(partial(_times, share, self._moved), _few.total))
        if moves in ("tcp", "loopback"):
            totals = self._both(partial(_times, mean, self._moved), _few.total)
            for worker in workers:
                self._connect(worker, totals)
        parallel = Wave(_TENSOR_PARALLEL * self._description.is_parallel, kv.angle)
        rate = self._both(lambda seconds: mean * kv.at(seconds) * _share(seconds), _few.at)
        pcie, nvlink = rate, (parallel.at, parallel.at)
        if moves == "nvlink":
            pcie = (_few.at, _few.at)
            nvlink = (
                lambda seconds: rate[0](seconds) + parallel.at(seconds),
                lambda seconds: rate[1](seconds) + parallel.at(seconds),
            )
        load = Wave(0.55 if self._role else 0.8, kv.angle)
        tree.engine_loads.append(EngineLoad(tuple(self._gpus), load.at, pcie, nvlink))

    def _connect(self, worker: Program, totals: tuple[Total, Total]) -> None:
        """Connect a worker to that of the other engine with the same rank."""
        inode = worker.pid * 10
        self._tree.link(f"/proc/{worker.pid}/fd/60", f"socket:[{inode}]")
        ports = [_PORT + worker.slot, _PORT + 500 + worker.slot]
        here = there = "127.0.0.1"
        if self._description.moves == "tcp":
            network, last = NODE_ADDRESS.rsplit(".", 1)
            number = self._tree.description.job_node
            here, there = (f"{network}.{int(last) + each}" for each in (number, number ^ 1))
        ends = (here, ports[self._role], there, ports[1 - self._role])
        self._tree.sockets.append(
            lambda seconds: TcpSocket(inode, 0, *ends, *(round(total(seconds)) for total in totals))
        )


def _times(factor: float, total: Total, seconds: float) -> float:
    return factor * total(seconds)


def _burst(number: int) -> tuple[float, float]:
    """Return when a part of the traffic ends, and its share: bursts, and what is between them."""
    rounds, is_between = divmod(number, 2)
    end = OPENED + rounds * _ROUND_SECONDS
    return (end + _ROUND_SECONDS, _BETWEEN_BURSTS) if is_between else (end + _MOVING_SECONDS, 1.0)


def _share(seconds: float) -> float:
    is_moving = max(0.0, seconds - OPENED) % _ROUND_SECONDS < _MOVING_SECONDS
    return 1.0 if is_moving else _BETWEEN_BURSTS
