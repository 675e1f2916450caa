"""The output of a simulated training job: NCCL's lines, a line every ten steps; flight recorder dumps.

NCCL's lines are those of 2.27, or of 2.31. Every file descriptor 1 and 2 of the job is this file, as with
`sbatch --output`. The path of a rank in the log is the one that the rank has had since its start.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from probes.simulation.node.jobs.programs import needs_plugin, switches_between
from probes.simulation.node.model.tree import PlacedNic, Program, Tree, Via

PLUGIN_VERSION, LIBFABRIC_VERSION = "1.13.2-aws", "1.22"  # awslabs/awsome-distributed-training, FSDP on P5
_LEVEL = 5  # PXB, the default of NCCL_NET_GDR_LEVEL
_ONE_SWITCH, _FAR = 4, 9  # PIX and SYS in this version
_CHANNELS = 2  # of each rank to the next node
_STEP_SECONDS = 10.0
_MOST_STEPS = 10_000
_GDR = (Via.PEERMEM, Via.DMABUF, Via.PLUGIN)


class JobOutput:
    """What a job prints. With hundreds of ranks the text is large, and each rank's file is the same one."""

    def __init__(self, tree: Tree, programs: Sequence[Program], world: int) -> None:
        self._tree, self._programs, self._world = tree, programs, world
        self._printed: tuple[object, str] = None, ""

    def text(self, seconds: float) -> str:
        """Return what the job has printed up to a moment."""
        nics = tuple(nic.name for nic in self._tree.nics)
        steps = _step_count(self._programs, seconds)
        programs = (tuple(vars(program).values()) for program in self._programs)
        state = (steps, nics, self._tree.description, *programs)
        if state != self._printed[0]:
            self._printed = state, _text(self._tree, self._programs, self._world, steps)
        return self._printed[1]


def _text(tree: Tree, programs: Sequence[Program], world: int, steps: int) -> str:
    lines = [line for program in programs for line in _connect(tree, programs, program, world)]
    lines += [f"step {number * 10} loss {1.7 + 8 / (number + 4):.4f}" for number in range(1, steps + 1)]
    # A warning comes after an empty line.
    lines += [f"\n{_head(tree, program)}{text}" for program in programs for text in program.logged_warnings]
    return "".join(f"{line}\n" for line in lines)


def _connect(tree: Tree, programs: Sequence[Program], program: Program, world: int) -> Iterator[str]:
    gpu, local = program.gpu or 0, program.slot
    rank = local + len(programs) * tree.description.job_node
    head = f"{_head(tree, program)}NCCL INFO "
    if rank == 0:
        cuda = ".".join(tree.description.driver.cuda.split(".")[:2])
        yield f"{_head(tree, program, 0)}NCCL INFO NCCL version {tree.description.nccl}+cuda{cuda}"
    numbers = {nic.name: number for number, nic in enumerate(_listed(tree, program))}
    nics = [nic for nic in tree.nics if nic.name in program.nics]
    # A job may choose another network by NCCL_NET; NCCL's own code for IB then finds no NICs.
    network = "AWS Libfabric" if needs_plugin(tree) else tree.description.job.get("NCCL_NET", "") or "IB"
    network = "Socket" if program.path_in_log is Via.TCP or not numbers else network
    yield from (f"{head}{text}" for text in program.logged_lines)
    yield from (f"{head}{text}" for text in _network(tree, programs, program, network))
    if program.path_in_log is Via.DMABUF:
        yield f"{head}DMA-BUF is available on GPU device 0"
    yield f"{head}Using network {network}"
    bus = tree.gpus[gpu].bdf.replace(":", "").replace(".", "").lstrip("0")
    comm = f"comm 0x55{program.pid:010x} rank {rank}"
    about = f"{comm} nranks {world} cudaDev 0 nvmlDev {gpu} busId {bus} commId 0x7d1cf3a2b4e59686"
    yield f"{head}ncclCommInitRankConfig {about} - Init START"
    version = tuple(map(int, tree.description.nccl.split(".")))
    if network != "Socket" and version < (2, 30):
        yield from (f"{head}{text}" for text in _distances(tree, program, nics, numbers))
    nodes = max(1, world // len(programs))
    yield f"{head}{comm} nRanks {world} nNodes {nodes} localRanks {len(programs)} localRank {local} MNNVL 0"
    yield f"{head}ncclCommInitRankConfig {about} - Init COMPLETE"
    if program.path_in_log is Via.NONE:
        return
    taken = [numbers.get(nic.name, 0) for nic in nics] if network != "Socket" else []
    flush = "/flush=None" if program.path_in_log in _GDR and version >= (2, 31) else ""
    next_rank, last_rank = (rank + len(programs)) % world, (rank - len(programs)) % world
    for channel in range(max(_CHANNELS, len(taken))):
        name = f"Channel {channel:02d}/0 : "
        number = taken[channel % len(taken)] if taken else 0
        path = f"via NET/{network}/{number}{'/GDRDMA' if program.path_in_log in _GDR else ''}"
        yield f"{head}{name}{last_rank}[{gpu}] -> {rank}[{gpu}] [receive] {path}{flush}"
        yield f"{head}{name}{rank}[{gpu}] -> {next_rank}[{gpu}] [send] {path}"
        if local + 1 < len(programs):
            yield f"{head}{name}{rank}[{gpu}] -> {rank + 1}[{gpu + 1}] via P2P/CUMEM"
    is_gdr = all(program.path_in_log in _GDR for program in programs)
    yield f"{head}Connected all rings, use ring PXN 0 GDR {int(is_gdr)}"


def _head(tree: Tree, program: Program, thread: int = 600) -> str:
    host = tree.description.hostname.partition(".")[0]
    return f"{host}:{program.pid}:{program.pid + thread} [0] "


def _network(tree: Tree, programs: Sequence[Program], program: Program, network: str) -> Iterator[str]:
    """Return the lines about the NICs that NCCL finds."""
    nics = _listed(tree, program)
    if network == "Socket":
        yield "NET/IB : No device found."
        yield "NET/Socket : Using [0]eno1:10.0.0.1<0>"
        return
    if network != "IB":
        if not needs_plugin(tree):
            yield f"NET/Plugin: Loaded net plugin {network} (v10)"
            return
        provider = nics[0].kind.driver.partition("_")[0] if nics else "efa"
        yield f"NET/OFI Initializing aws-ofi-nccl {PLUGIN_VERSION}"
        yield f"NET/OFI Using Libfabric version {LIBFABRIC_VERSION}"
        yield f"NET/OFI Selected provider is {provider}, fabric is {provider} (found {len(nics)} nics)"
        return
    compute = tree.compute_nics  # NCCL prints the whole setting, and then leaves out ports that are down
    selected = compute if all(nic in compute for nic in nics) else nics
    yield f"NCCL_IB_HCA set to ={','.join(nic.name for nic in selected)}"
    layer = {nic.name: "RoCE" if nic.kind.layer == "Ethernet" else "IB" for nic in nics}
    listed = " ".join(f"[{number}]{nic.name}:1/{layer[nic.name]}" for number, nic in enumerate(nics))
    yield f"NET/IB : Using {listed} [RO]; OOB eno1:10.0.0.1<0>"
    state = "Enabled" if any(program.path_in_log in _GDR for program in programs) else "Disabled"
    for number, nic in enumerate(nics):
        yield f"NET/IB : GPU Direct RDMA {state} for HCA {number} '{nic.name}'"


def _distances(
    tree: Tree, program: Program, nics: Sequence[PlacedNic], numbers: dict[str, int]
) -> Iterator[str]:
    for nic in nics:
        pair = f"GPU {program.slot} / HCA {numbers.get(nic.name, 0):x}"
        if program.path_in_log in _GDR:
            switches = switches_between(tree, program.gpu or 0, nic)
            if not switches:
                continue  # C2C, or by NVLink and another GPU
            limit = f"(distance {_ONE_SWITCH if switches == 1 else _LEVEL} <= {_LEVEL}), read 1 mode Default"
            yield f"GPU Direct RDMA Enabled for {pair} {limit}"
        elif program.gpu is not None and tree.gpus[program.gpu].numa != nic.numa:
            yield f"GPU Direct RDMA Disabled for {pair} (distance {_FAR} > {_LEVEL})"


def _step_count(programs: Sequence[Program], seconds: float) -> int:
    since = min((program.since for program in programs), default=seconds)
    stopped = [program.stopped_at for program in programs if program.stopped_at is not None]
    return min(int((min([seconds, *stopped]) - since) / _STEP_SECONDS), _MOST_STEPS)


def _listed(tree: Tree, program: Program) -> list[PlacedNic]:
    """Return the NICs that NCCL uses, in its order."""
    names = program.logged_nics
    return tree.compute_nics if names is None else [nic for nic in tree.nics if nic.name in names]


# Dumps of PyTorch's flight recorder, as the watchdogs of a job that hangs write them.

_CALLED = 5213  # collectives, when one rank stops
_KEPT = 20
_BEHIND = 3


def add_dumps(tree: Tree, late: Program) -> None:
    """Write the dump of each rank on this node; `late` has not called the last collectives.

    They have no times: the simulated node's clock is not known before it is opened.
    """
    ranks = [program for program in tree.programs if program.is_nccl]
    first = len(ranks) * tree.description.job_node
    world = len(ranks) * tree.description.job_nodes
    for program in ranks:
        called = _CALLED - _BEHIND if program is late else _CALLED
        dump = pickle.dumps(_dump(called, world), 2)
        tree.add(f"/proc/{program.pid}/root/tmp/nccl_trace_rank_{first + program.slot}", dump)


def _dump(called: int, world: int) -> dict[str, Any]:
    completed = _CALLED - _BEHIND
    return {
        "version": "2.7",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": called,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        },
        "entries": [_entry(number, number <= completed) for number in range(called - _KEPT, called + 1)],
    }


def _entry(number: int, is_completed: bool) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[33_554_432]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[33_554_432]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_completed else "scheduled",
        "is_p2p": False,
    }
