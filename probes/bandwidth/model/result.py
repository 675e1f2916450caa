"""The result of a test, saved as JSON and shown long after it, and which memory the test really used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from probes.bandwidth.model.planned_series import Load, Pair, PlannedTest
from probes.bandwidth.model.rating import Assessment
from probes.bandwidth.model.samples import (
    GPU_PATHS,
    HOST_MEMORY,
    INTEGRATED_MEMORY,
    STAGED,
    About,
    Fact,
    Sample,
)
from probes.base.codec import Bounds, Codec, CodecError
from probes.base.text import printable

MOST_SAMPLES = 400


class Ending(Enum):
    """How a test ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one test. Names and order of the fields are those of saved results."""

    taken_at: float  # start, seconds since 1970
    seconds: float
    node: str  # host name
    machine: str  # the machine type, by which baselines are saved: "Supermicro SYS-821GE-TNHR, 8 × H100, …"
    origin: str  # "live", or "simulated hgx-h100": results of different origins are not compared
    title: str
    tool: str
    setup: str  # value of request.Mode
    pair: Pair = Pair()  # noqa: RUF009 - frozen
    memory: str  # as PlannedTest.memory
    size_bytes: int | None  # None: all sizes, or the tool's own
    queue_pairs: int = 1
    is_bidirectional: bool
    over_network: bool = False  # a collective that was to use the NICs, not NVLink or PCIe
    commands: tuple[str, ...]  # of each process, quoted for a shell
    ending: Ending
    figure: Sample | None  # the sample that stands for the test; None: nothing was measured
    judgment: Assessment = Assessment()  # noqa: RUF009 - frozen
    limit_gbps: float | None  # nominal, of the limiting part
    limit_by: str  # "port 1 of mlx5_0"
    expected_gbps: float | None = None  # what this machine type should reach; None: not known
    expected_machine: str = ""  # "Azure ND H100 v5"
    failure: str = ""  # sentences: what failed, why, and what to do
    failure_line: str = ""  # the line it was read from
    facts: tuple[Fact, ...]
    samples: tuple[Sample, ...]  # in the order measured; the newest MOST_SAMPLES
    cpu_seconds: float | None = None  # user and system time of its processes on this node; None: unknown

    @property
    def gbps(self) -> float | None:
        """Bandwidth of the figure; for a collective the bus bandwidth; None for latencies."""
        if self.figure is None:
            return None
        return self.figure.gbps if self.figure.bus_gbps is None else self.figure.bus_gbps

    @property
    def what_failed(self) -> str:
        """What failed, without the causes and the cure."""
        return self.failure.partition(". ")[0]

    @property
    def cpu_cores(self) -> float | None:
        """CPU cores that its processes on this node used on average, start included."""
        return None if self.cpu_seconds is None or not self.seconds else self.cpu_seconds / self.seconds

    @property
    def path(self) -> str:
        """The path that it used on this node, as `LeftOut.path`."""
        return f"{self.pair.gpu_label} → {self.pair.nic}" if self.pair.gpu_label else self.pair.nic

    @property
    def key(self) -> tuple[object, ...]:
        """What two results must have in common to be compared: everything but node, machine and time."""
        load = Load(self.size_bytes, self.queue_pairs, self.is_bidirectional)
        return _key(self.pair, self.title, self.tool, self.setup, self.memory, load)


def _key(pair: Pair, title: str, tool: str, setup: str, memory: str, load: Load) -> tuple[object, ...]:
    # The title distinguishes the far end's GPU, and collectives over NICs from those inside the node.
    ends = (pair.gpu_label, pair.nic, pair.port, pair.far_nic, pair.peer)
    return (*ends, title, tool, setup, memory, *load)


def planned_key(test: PlannedTest) -> tuple[object, ...]:
    """Return `Result.key` of the result that a test will have."""
    return _key(test.pair, test.title, test.tool, test.setup.value, test.memory, test.settings.load)


# Saved results as JSON objects, and back. Reading is lenient: people copy these files and edit them.
#
# Bandwidths are in Gb/s (10^9 bits a second), sizes in bytes, times in seconds or microseconds, as the names
# say. Unknown fields are ignored.

SCHEMA = 2
_YEAR_2100 = 4102444800.0
_MOST_BYTES = 1 << 62
_COUNT = Bounds(least=0, most=_MOST_BYTES)
_CODEC = Codec(
    clean=printable,
    is_lenient=True,
    sparse=(Sample,),
    bounds={
        "": Bounds(text=300, least=0, most=1e15),
        "taken_at": Bounds(least=0, most=_YEAR_2100),
        "size_bytes": _COUNT,
        "iterations": _COUNT,
        "wrong": _COUNT,
        "queue_pairs": Bounds(least=1, most=_MOST_BYTES),
        "why": Bounds(text=4096),
        "failure": Bounds(text=1024),
        "commands": Bounds(text=4096, items=8),
        "samples": Bounds(items=-MOST_SAMPLES),
        "facts": Bounds(items=100),
        "findings": Bounds(items=16),
        "latencies": Bounds(items=16),
    },
)


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as a JSON object."""
    fields: dict[str, Any] = {"schema": SCHEMA}
    for name, value in _CODEC.encode(result).items():
        if name == "figure":
            fields["gbps"] = result.gbps  # for those who read the file; derived from the figure
        fields[name] = value
    return fields


def from_json(value: object) -> Result | None:
    """Return the result in any JSON value; None if there is none or it is incomplete. Raises nothing."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    try:
        result: Result = _CODEC.decode(Result, value)
    except CodecError:
        return None
    return result if result.tool and result.title else None


# Which memory a test really used, and how the NIC accessed it, compared with what was requested.
#
# perftest prints before its rows what it registers. PerftestOutput takes a test that prints no line about a
# GPU buffer for one of host memory: only this is inferred. NCCL prints the transport of each channel, with
# /GDRDMA behind it if the NIC accesses GPU memory itself (NCCL src/transport/net.cc); without it, it copies
# through host memory.

_NETWORK, _SOCKET, _DIRECT = "NET/", "NET/Socket", "/GDRDMA"


def memory_used(result: Result) -> str:
    """Return the memory that the tool reported, as in `Result.memory`; if none, the requested one."""
    if result.over_network:
        return _memory_of_nccl(result)
    if result.memory not in GPU_PATHS:
        return result.memory
    if any(memory.startswith(HOST_MEMORY) for memory in facts_about(result, About.MEMORY)):
        return HOST_MEMORY
    registered = facts_about(result, About.REGISTERED)
    return result.memory if not registered or result.memory in registered else registered[0]


def _memory_of_nccl(result: Result) -> str:
    """Return `Result.memory` if the routes are as requested; else what was used instead.

    Staged needs every route to be; GPUDirect RDMA any, since NCCL may send through host memory by default.
    """
    routes = nic_routes(result)
    if any(route.startswith(_SOCKET) for route in routes):
        return "TCP instead of RDMA"
    if not routes:
        return "an unknown path"
    is_direct = any(_DIRECT in route for route in routes)
    if result.memory == STAGED:
        return "GPUDirect RDMA" if is_direct else STAGED
    return result.memory if is_direct else HOST_MEMORY


def nic_routes(result: Result) -> list[str]:
    """Return the network routes that NCCL reported."""
    return [route for route in facts_about(result, About.ROUTE) if route.startswith(_NETWORK)]


def staged_routes(result: Result) -> list[str]:
    """Return the network routes on which NCCL copied through host memory."""
    return [route for route in nic_routes(result) if _DIRECT not in route]


def is_as_requested(result: Result) -> bool:
    """Return whether the test used the requested memory, as far as gdrtop can tell."""
    return memory_used(result) == result.memory


def is_measured(result: Result) -> bool:
    """Return whether the result can stand for its test: it is done, with the requested memory."""
    return result.ending is Ending.DONE and is_as_requested(result)


def mismatch_evidence(result: Result) -> str:
    """Return what the tool reported about memory that is not the requested one; "" if it is."""
    used = memory_used(result)
    if used == result.memory:
        return ""
    if result.over_network:
        return f"{used}: {_nccl_evidence(result)}"
    if INTEGRATED_MEMORY in facts_about(result, About.MEMORY):
        return f"the tool reports {INTEGRATED_MEMORY}; {result.memory} was requested"
    if used == HOST_MEMORY:
        return (
            "the tool printed no line about a GPU buffer, so it used host memory;"
            f" {result.memory} was requested"
        )
    return f"the tool reports registration via {used}, but {result.memory} was requested"


def _nccl_evidence(result: Result) -> str:
    if not (routes := nic_routes(result)):
        return "NCCL reported no route over a NIC, so gdrtop cannot tell whether it used GPUDirect RDMA"
    if any(route.startswith(_SOCKET) for route in routes):
        return "NCCL found no RDMA NIC that it could use (gdrtop check shows why)"
    if direct := [route for route in routes if _DIRECT in route]:
        return f"NCCL used {direct[0]} although NCCL_NET_GDR_LEVEL=LOC forbids it"
    return "no route has GDRDMA: NCCL copied through host memory (gdrtop check shows why)"


def facts_about(result: Result, about: About) -> list[str]:
    """Return the values that the tool reported about something, each once."""
    return list(dict.fromkeys(fact.value for fact in result.facts if fact.about is about))
