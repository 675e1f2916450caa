"""What each setting of a bandwidth test can be on a node, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.bandwidth.model.request import MemoryPath, Mode, Scope
from probes.bandwidth.planning.defaults import active_port
from probes.bandwidth.planning.inventory import inventory
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS
from probes.snapshot.examination import Examination
from widgets.base.figures import binary_size, gbps
from widgets.node.matrix import smi_word

_BEST = "★"
_TESTS = {program.name: program.label for program in PROGRAMS}
_SETUPS = {
    Mode.LOOPBACK: "loopback: both ends on this node",
    Mode.SERVER: "server: wait here for a peer",
    Mode.CLIENT: "client: connect to a server on the peer",
    Mode.BOTH_ENDS: "both ends: start the peer by SSH",
}
_MEMORIES = {
    MemoryPath.BEST: "GPU memory, by this node's best path",
    MemoryPath.HOST: "host memory",
    MemoryPath.PEERMEM: "GPU memory by nvidia-peermem",
    MemoryPath.DMABUF: "GPU memory by DMA-BUF",
    MemoryPath.COMPARE: "compare host memory, nvidia-peermem, DMA-BUF",
}
_SCOPES = {
    Scope.PAIR: "this GPU and NIC",
    Scope.SWEEP: "every GPU with its best NIC",
    Scope.MATRIX: "every GPU with every NIC",
}
_SIZES = (1 << 20, 4 << 20, 8 << 20, 2, 64, 4096, 64 << 10)
_LATENCY_SIZES = (2, 64, 1024, 4096, 64 << 10)
ALL_SIZES = 0
SECONDS = (10, 30, 60, 300, 3600, 5)
QUEUE_PAIRS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Option:
    """One value of a setting, and a few dim words beside it."""

    value: object
    text: str
    note: str = ""
    is_possible: bool = True


def tests(examination: Examination | None) -> list[Option]:
    """Every test; one whose tool is missing, or cannot do all, says so."""
    found = {} if examination is None else {one.tool: one for one in inventory(examination)}
    options = []
    for tool, text in _TESTS.items():
        one = found.get(tool)
        lacks = one.lacks if one is not None else ""
        options.append(Option(tool, f"{tool}: {text}", lacks, one is None or one.can_run))
    return options


def setups() -> list[Option]:
    """Where the ends are."""
    return [Option(one, text) for one, text in _SETUPS.items()]


def memories(setup: object) -> list[Option]:
    """Whose memory; one end alone cannot begin one test after another."""
    compares = setup in (Mode.LOOPBACK, Mode.BOTH_ENDS)
    return [Option(one, text) for one, text in _MEMORIES.items() if compares or one is not MemoryPath.COMPARE]


def scopes(tool: str) -> list[Option]:
    """Which pairs, or GPUs."""
    if tool not in (*PERFTEST, *NCCL_TESTS):
        return [Option(Scope.PAIR, "this GPU"), Option(Scope.SWEEP, "every GPU, one after another")]
    return [Option(one, text) for one, text in _SCOPES.items()]


def sizes(is_latency: bool) -> list[Option]:
    """Sizes of messages; the first is what fits the test."""
    first, *rest = [Option(one, binary_size(one)) for one in (_LATENCY_SIZES if is_latency else _SIZES)]
    return [first, Option(ALL_SIZES, "all, 2 B to 8 MiB"), *rest]


def numbers(values: Sequence[int], unit: str = "") -> list[Option]:
    """Plain figures."""
    return [Option(one, f"{one}{unit}") for one in values]


def ways() -> list[Option]:
    """One direction, or both."""
    return [Option(False, "no"), Option(True, "yes, at once (sum of both directions)")]


def binding(tool: str) -> list[Option]:
    """Whether CPU and memory are bound by numactl."""
    of = "GPU" if tool in GDRCOPY else "NIC"
    return [Option(True, f"CPU and memory to the {of}'s NUMA node"), Option(False, "no")]


def through() -> list[Option]:
    """What a collective goes over."""
    return [
        Option(False, "NVLink or PCIe, as in a job"),
        Option(True, "NICs, without NVLink and shared memory"),
    ]


def gpus(examination: Examination | None) -> list[Option]:
    """The GPUs by their PCI address."""
    facts = None if examination is None else examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return []
    return [Option(gpu.bdf, f"GPU{gpu.index}", f"{gpu.name} · {gpu.bdf}") for gpu in facts.gpus]


def nics(examination: Examination | None, gpu: object = None) -> list[Option]:
    """The RDMA devices: a GPU's nearest first, then those that it would not take."""
    rdma = None if examination is None else examination.node.rdma
    if examination is None or not isinstance(rdma, RdmaFacts):
        return []
    by_name = {one.name: one for one in rdma.devices if not isinstance(one.bdf, Unknown)}
    best = examination.topology.best_nics.get(gpu, ()) if isinstance(gpu, str) else ()
    order = [*(name for name in best if name in by_name), *(name for name in by_name if name not in best)]
    options = []
    for name in order:
        port = active_port(by_name[name])
        path = examination.topology.paths.get((gpu, name)) if isinstance(gpu, str) else None
        word = "" if path is None else smi_word(path) + (_BEST if best[:1] == (name,) else "")
        rate = "no active port" if port is None else gbps(port.rate_gbps)
        options.append(Option(name, f"{name} {word}".rstrip(), rate, port is not None))
    return options


def far_nics(examination: Examination | None, nic: object, is_loopback: bool) -> list[Option]:
    """The other end's device; of a peer's only its name can be told."""
    same = Option(None, "the same port" if is_loopback else "same name as here")
    return [same, *(one for one in nics(examination) if one.value != nic)]
