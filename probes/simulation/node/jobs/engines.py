"""Inference engines of a simulated node: prefill and decode, of which one may be on another node.

The KV cache moves in bursts from prefill to decode, and tensor parallelism uses NVLink all the time. What
UCX makes on a NIC: UD queue pairs in RTS before a peer exists (src/uct/ib/mlx5/ib_mlx5.c,
src/uct/ib/ud/base/ud_iface.c). On mlx5, its RC queue pairs are DEVX ones, which the kernel does not list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.simulation.node.devices.network import NODE_ADDRESS
from probes.simulation.node.jobs.processes import (
    add_engine_process,
    end_program,
    library_directory,
    verbs_libraries,
)
from probes.simulation.node.jobs.traffic import replace_traffic
from probes.simulation.node.model.tree import GIB, Connection, Pool, Program, Serving, Tree, Via
from probes.simulation.node.model.workload import OPENED, SteppedTotal, Steps, Wave, angle_of

Rate = Callable[[float], float]  # bytes a second at a moment
_FIRST_PID, _PIDS_OF_ENGINE = 47000, 100
_MOVING_SECONDS, _ROUND_SECONDS, _BETWEEN_BURSTS = 4.0, 6.0, 0.03
_SHARE_OF_NIC = 0.6  # of the usual traffic of a training job
# Bytes a second of each worker. NIXL 1.5.1 moved 0.5 to 1.0 GB/s over TCP on loopback.
_RATES = {"rdma": 0.0, "tcp": 0.28e9, "loopback": 0.6e9, "nvlink": 42e9}
_TENSOR_PARALLEL = 9e9  # over NVLink, of each worker
_FEW = 2e3  # bytes a second
_POOL_SHARE = 0.5  # of the GPU's memory
_SMALL_POOL = 8 * GIB  # where NVML reports no memory
_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
_PACKAGES = "/opt/venv/lib/python3.12/site-packages"
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
    is_local: bool = False  # prefill and decode on this node, each on half of the GPUs
    sees_nics: bool = True  # its container has the devices
    shares_pids: bool = True  # its container has the node's PID namespace
    without: str = ""  # the library that it does not map, by a part of the name


def serve(tree: Tree, engine: EngineDescription) -> None:
    """Let engines serve on this node instead of the training job; nothing runs without the driver."""
    for program in [program for program in tree.programs if program.is_nccl]:
        end_program(tree, program.pid)
    for nic in tree.nics:
        replace_traffic(tree, nic, (Wave(_FEW, 0.0).total, Wave(_FEW, 0.0).total))
    if "nvidia" not in tree.live_modules or not tree.gpus:
        return
    gpus = range(len(tree.gpus))
    if engine.is_local:
        half = max(1, len(gpus) // 2)
        ends = [_add(tree, engine, role, part) for role, part in ((0, gpus[:half]), (1, gpus[half:]))]
    else:
        ends = [_add(tree, engine, tree.description.job_node % 2, gpus)]
    for role, workers in enumerate(ends):
        _move(tree, engine, role if engine.is_local else tree.description.job_node % 2, workers)


def _add(tree: Tree, engine: EngineDescription, role: int, gpus: Sequence[int]) -> list[Program]:
    """Add the processes of an engine (0: prefill, 1: decode), and return its workers."""
    data = read_toml(__package__, "engines.toml")
    words = data[engine.framework]
    first = _FIRST_PID + role * _PIDS_OF_ENGINE
    buffer = f'{{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"{engine.buffer}"}}'
    values = {"model": _MODEL, "size": len(gpus), "role": ("prefill", "decode")[role], "config": buffer}
    launcher = words["launcher"].format(backend=engine.backend, **values)
    nics = tuple(nic.name for nic in tree.nics) if engine.sees_nics and _has_verbs(tree) else ()
    via = Via.TCP if not nics else Via.DMABUF if engine.memory == "cuda" else Via.HOST
    pool = Pool(
        round(tree.description.gpu.memory_gib * GIB * _POOL_SHARE) or _SMALL_POOL, _pairs(tree, engine)
    )
    packages = [
        name for name in data["libraries"][engine.backend] if not engine.without or engine.without not in name
    ]
    libraries = [f"{_PACKAGES}/{name}" for name in packages]
    system = verbs_libraries(tree).values() if engine.backend == "mooncake" else ()
    libraries += [f"{library_directory(tree)}/{name}" for name in system]
    libraries += [
        f"{_PACKAGES}/nvidia/nccl/lib/libnccl.so.2",
        f"{library_directory(tree)}/libcuda.so.{tree.description.driver.version}",
    ]
    add = partial(
        add_engine_process,
        tree,
        number=role,
        namespace=_PID_NAMESPACE + (0 if engine.shares_pids else 400 + role),
    )
    add(Program(first, None, (), (), Via.NONE, 0, is_nccl=False), launcher.replace(" ", "\0"))
    for number, title in enumerate(words["helpers"], 1):
        add(
            Program(first + number, None, (), (), Via.NONE, 0, is_nccl=False, parent=first),
            title,
            is_titled=True,
        )
    parent = first + len(words["helpers"])
    workers = []
    for number, gpu in enumerate(gpus):
        pid = parent + 1 + number
        worker = Program(pid, gpu, nics, nics, via, number, is_nccl=False, pool=pool, parent=parent)
        threads = (
            *(("async",) if engine.backend == "nixl" else ()),
            *(_NCCL_THREADS if len(gpus) > 1 else ()),
        )
        title = words["worker"].format(number=number)
        add(worker, title, is_titled=True, libraries=libraries, threads=threads)
        workers.append(worker)
    return workers


def _has_verbs(tree: Tree) -> bool:
    return any(tree.is_there(f"/sys/class/infiniband/{nic.name}") for nic in tree.nics)


def _pairs(tree: Tree, engine: EngineDescription) -> tuple[tuple[str, int], ...]:
    """Return the queue pairs of a worker on each NIC; UCX's RC ones are listed unless they are DEVX ones."""
    if engine.backend == "mooncake":
        return (("RC", 2),)
    driver = tree.compute_nics[0].kind.driver if tree.compute_nics else ""
    return {"mlx5_core": (("UD", 2),), "efa": (("DRIVER", 1),)}.get(driver, (("UD", 1), ("RC", 1)))


def _burst(number: int) -> tuple[float, float]:
    """Return when a part of the traffic ends, and its share: bursts, and what is between them."""
    rounds, is_between = divmod(number, 2)
    end = OPENED + rounds * _ROUND_SECONDS
    return (end + _ROUND_SECONDS, _BETWEEN_BURSTS) if is_between else (end + _MOVING_SECONDS, 1.0)


def _share(seconds: float) -> float:
    is_moving = max(0.0, seconds - OPENED) % _ROUND_SECONDS < _MOVING_SECONDS
    return 1.0 if is_moving else _BETWEEN_BURSTS


def _move(tree: Tree, engine: EngineDescription, role: int, workers: Sequence[Program]) -> None:
    """Let an engine move its KV cache: prefill sends, also where decode reads; a NIC answers the read."""
    # Both nodes of a pair have the same waves: their seeds differ by a multiple of this.
    angle = angle_of(tree.seed % 56, "KV cache")
    kv, few = Wave(1.0, angle), Wave(_FEW, angle)
    moved = SteppedTotal(kv.total, Steps(_burst))
    shared = {nic.name: nic.kind.gbps * 1e9 / 8 * _SHARE_OF_NIC for nic in tree.compute_nics}
    of_nics = sum(shared.values()) / max(1, len(workers)) if engine.moves == "rdma" else 0.0
    mean = of_nics or _RATES[engine.moves]

    def rate(factor: float) -> Rate:
        return lambda seconds: factor * kv.at(seconds) * _share(seconds)

    def both(out: Callable[[float], float], back: Callable[[float], float]) -> tuple[Rate, Rate]:
        return (back, out) if role else (out, back)

    if engine.moves == "rdma" and workers and workers[0].nics:
        for nic in tree.compute_nics:
            octets = shared[nic.name]
            replace_traffic(
                tree, nic, both(lambda seconds, octets=octets: octets * moved(seconds), few.total)
            )
    is_nvlink = engine.moves == "nvlink" and tree.description.gpu.nvlinks
    parallel = Wave(_TENSOR_PARALLEL if len(workers) > 1 else 0.0, angle).at
    nvlink = both(lambda seconds: rate(mean)(seconds) + parallel(seconds), parallel)
    connections = ()
    if engine.moves in ("tcp", "loopback"):
        connections = tuple(
            _connection(engine, role, worker, tree, both(lambda seconds: mean * moved(seconds), few.total))
            for worker in workers
        )
    busy = Wave(0.55 if role else 0.8, angle).at
    tree.serving.append(
        Serving(
            tuple(worker.gpu for worker in workers if worker.gpu is not None),
            busy,
            both(few.at, few.at) if is_nvlink else both(rate(mean), few.at),
            nvlink if is_nvlink else (parallel, parallel),
            connections,
        )
    )


def _connection(
    engine: EngineDescription, role: int, worker: Program, tree: Tree, totals: tuple[Rate, Rate]
) -> Connection:
    """Return the connection of a worker to that of the other engine with the same rank."""
    ends = [_PORT + worker.slot, _PORT + 500 + worker.slot]
    here = there = "127.0.0.1"
    if engine.moves == "tcp":
        first, last = NODE_ADDRESS.rsplit(".", 1)
        here, there = (f"{first}.{int(last) + number}" for number in (role, 1 - role))
    inode = worker.pid * 10
    tree.link(f"/proc/{worker.pid}/fd/60", f"socket:[{inode}]")
    return Connection(worker.pid, 0, inode, (here, ends[role]), (there, ends[1 - role]), *totals)
