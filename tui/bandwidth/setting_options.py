"""The values that each setting of a bandwidth test can have on a node, and their texts."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.request import DEFAULT_BYTES, MemoryPath, Mode, Request, Scope
from probes.bandwidth.planning.inventory import inventory
from probes.bandwidth.planning.node_settings import active_port, nearest_nic
from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS
from probes.snapshot.examination import Examination
from widgets.base.figures import binary_size, gbps
from widgets.node.matrix import BEST_MARK, smi_word

_TESTS = {program.name: program.label for program in PROGRAMS}
_MEMORIES = {
    MemoryPath.BEST: "GPU memory, best path on this node",
    MemoryPath.HOST: "host memory",
    MemoryPath.PEERMEM: "GPU memory via nvidia-peermem",
    MemoryPath.DMABUF: "GPU memory via DMA-BUF",
    MemoryPath.COMPARE: "compare host memory, nvidia-peermem, DMA-BUF",
}
_SCOPES = {
    Scope.PAIR: "this GPU and NIC",
    Scope.SWEEP: "every GPU with its best NIC",
    Scope.MATRIX: "every GPU with every NIC",
}
_SIZES = (DEFAULT_BYTES, 4 << 20, 8 << 20, 2, 64, 4096, 64 << 10)
_LATENCY_SIZES = (2, 64, 1024, 4096, 64 << 10)
ALL_SIZES = 0
SECONDS = tuple(dict.fromkeys((Request.duration_s, 10, 30, 60, 300, 3600, 5)))
QUEUE_PAIRS = tuple(dict.fromkeys((Request.queue_pairs, 1, 2, 4, 8, 16)))


@frozen
class Option:
    """A value of a setting, its text, and a short note beside it."""

    value: object
    text: str
    note: str = ""
    is_possible: bool = True


MODES = [
    Option(Mode.LOOPBACK, "loopback: both ends on this node"),
    Option(Mode.SERVER, "server: wait for a peer"),
    Option(Mode.CLIENT, "client: connect to a server on the peer"),
    Option(Mode.BOTH_ENDS, "both ends: start the peer over SSH"),
]
COLLECTIVE_MEMORIES = [
    Option(MemoryPath.BEST, "GPU memory, NCCL's choice"),
    Option(MemoryPath.STAGED, "GPU memory staged, without GPUDirect RDMA"),
    Option(MemoryPath.COMPARE, "compare GPUDirect RDMA and staged"),
]
DIRECTIONS = [Option(False, "no"), Option(True, "yes (sum of both directions)")]
TRANSPORTS = [Option(False, "NVLink or PCIe, as in a job"), Option(True, "NICs, no NVLink or shared memory")]


def tests(examination: Examination | None) -> list[Option]:
    """Return every test, with what its tool cannot do here."""
    found = {} if examination is None else {entry.tool: entry for entry in inventory(examination)}
    options = []
    for tool, text in _TESTS.items():
        entry = found.get(tool)
        note, is_possible = ("", True) if entry is None else (entry.missing, entry.can_run)
        options.append(Option(tool, f"{tool}: {text}", note, is_possible))
    return options


def memories(can_compare: bool) -> list[Option]:
    """Return the memories and paths; comparing takes several tests in a row."""
    return [
        Option(path, text)
        for path, text in _MEMORIES.items()
        if can_compare or path is not MemoryPath.COMPARE
    ]


def scopes(tool: str) -> list[Option]:
    """Return which pairs of GPU and NIC can be measured, or which GPUs."""
    if tool not in (*PERFTEST, *NCCL_TESTS):
        return [Option(Scope.PAIR, "this GPU"), Option(Scope.SWEEP, "every GPU, one after another")]
    return [Option(scope, text) for scope, text in _SCOPES.items()]


def sizes(is_latency: bool) -> list[Option]:
    """Return the message sizes; the first one fits the test."""
    values = _LATENCY_SIZES if is_latency else _SIZES
    first, *rest = [Option(size, binary_size(size)) for size in values]
    return [first, Option(ALL_SIZES, "all, 2 B to 8 MiB"), *rest]


def numbers(values: Sequence[int], unit: str = "") -> list[Option]:
    """Return plain numbers."""
    return [Option(value, f"{value}{unit}") for value in values]


def bindings(tool: str) -> list[Option]:
    """Return whether numactl binds CPU and memory."""
    device = "GPU" if tool in GDRCOPY else "NIC"
    return [Option(True, f"CPU and memory to the {device}'s NUMA node"), Option(False, "no")]


def gpus(examination: Examination | None) -> list[Option]:
    """Return the GPUs by their PCI address."""
    facts = None if examination is None else examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return []
    return [Option(gpu.bdf, f"GPU{gpu.index}", f"{gpu.name} · {gpu.bdf}") for gpu in facts.gpus]


def nics(examination: Examination | None, gpu: object = None) -> list[Option]:
    """Return the RDMA devices: those nearest to the GPU first."""
    rdma = None if examination is None else examination.node.rdma
    if examination is None or not isinstance(rdma, RdmaFacts):
        return []
    topology = examination.topology
    devices = {device.name: device for device in rdma.devices if not isinstance(device.bdf, Unknown)}
    best = topology.best_nics.get(gpu, ()) if isinstance(gpu, str) else ()
    options = []
    for name in dict.fromkeys([*(name for name in best if name in devices), *devices]):
        port = active_port(devices[name])
        path = topology.paths.get((gpu, name)) if isinstance(gpu, str) else None
        word = "" if path is None else smi_word(path) + (BEST_MARK if best[:1] == (name,) else "")
        rate = "no active port" if port is None else gbps(port.rate_gbps)
        options.append(Option(name, f"{name} {word}".rstrip(), rate, port is not None))
    return options


def host_memory_nics(examination: Examination | None) -> list[Option]:
    """Return the RDMA devices for host memory: the first GPU's best one first, as without a choice."""
    cards = [] if examination is None else examination.topology.gpus
    best = nearest_nic(examination.topology, cards[0].id) if examination is not None and cards else None
    return sorted(nics(examination), key=lambda option: option.value != best)


def collective_nics(examination: Examination | None) -> list[Option]:
    """Return the NICs that a collective can use: all of them first, as a job does."""
    return [Option(None, "all, NCCL's choice"), *nics(examination)]


def far_nics(examination: Examination | None, nic: object, is_loopback: bool) -> list[Option]:
    """Return the devices of the other end; a peer's devices are unknown, so it has the names of this node."""
    same = Option(None, "the same port" if is_loopback else "same name as here")
    return [same, *(option for option in nics(examination) if option.value != nic)]
