"""All-reduce over many nodes: what to start on them, and whether the NICs carried it from GPU memory.

The transport of every channel is read from NCCL's log, as in probes/nccl/log/verdict.py. With NCCL_ALGO=Ring
each byte of the bus bandwidth leaves each node once, so each NIC carries the bus bandwidth divided by the
number of NICs. Whatever the algorithm, the NICs of a GPU carry at least busbw × (k-1)/(n-1) for n ranks on k
nodes: more than their line rate shows that NVLink carried it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from probes.bandwidth.model.command import PCI_ORDER, visible_gpus
from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.rating import Assessment, Rating, rate
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.tools.nccl_tests import BETWEEN_NODES, DIAGNOSTICS, RANK_PROGRAM
from probes.base.frozen import frozen
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Unknown, known
from probes.fleet.fault_search import Fault, Group
from probes.fleet.rails import Rail
from probes.nccl.log.facts import LogFacts
from probes.nccl.log.verdict import NEXT_RUN

SIZES = (256 << 20, 1 << 30, 4 << 30)
_FACTOR = 4  # between two sizes
START_SECONDS = 20.0  # until all ranks are connected; CUDA and NCCL take most of it
_LIMIT_SECONDS = 90.0  # beyond five times the duration
_FEWEST, _MOST_ITERATIONS = 5, 2000
_USUAL_GBPS = 400.0
_MOST_NAMES = 6
_LIBRARIES = ("libcuda.so.1", "libnccl.so.2")


class Launch(Enum):
    """What starts the ranks."""

    OWN = "ssh"  # gdrtop, over its own connections
    SRUN = "srun"
    MPIRUN = "mpirun"


@frozen
class RingNode:
    """What a node takes part with."""

    name: str
    gpus: tuple[int, ...]
    rails: tuple[Rail, ...]  # that are chosen and active
    gpu_of: dict[int, int]  # rail → its nearest GPU
    limits: dict[int, Limit]  # by rail, with that GPU's memory
    key_index: int | None = None  # of the partition key, if it is not 0

    def on(self, rails: Sequence[int]) -> tuple[tuple[int, ...], tuple[Rail, ...]]:
        """Return the GPUs and NICs that use these rails; () means all."""
        if not rails:
            return self.gpus, self.rails
        gpus = {self.gpu_of[rail] for rail in rails if rail in self.gpu_of}
        return tuple(sorted(gpus)), tuple(rail for rail in self.rails if rail.number in rails)


@frozen
class RingSettings:
    """What is the same for all groups."""

    duration_s: int = 5
    launch: Launch = Launch.OWN
    sizes: tuple[int, ...] = SIZES
    diagnoses: bool = False  # NCCL runs its own diagnostics first

    @property
    def seconds(self) -> float:
        """Estimated duration of one group."""
        return START_SECONDS + self.duration_s

    @property
    def time_limit_s(self) -> float:
        """Duration after which it is stopped."""
        return _LIMIT_SECONDS + 5 * self.duration_s


def rank_commands(
    nodes: Sequence[RingNode],
    rails: Sequence[int],
    settings: RingSettings,
    program: str,
    identity: str = "new",
) -> tuple[tuple[str, ...], ...]:
    """Return what gdrtop starts on each node; `program`: the shell command that runs nccl_rank.py."""
    ranks, first, commands = sum(len(node.on(rails)[0]) for node in nodes), 0, []
    runs = [f"{size}:{count}" for size, count in _iterations(nodes, rails, settings)]
    for number, node in enumerate(nodes):
        gpus, nics = node.on(rails)
        environment = [
            f"{name}={value}" for name, value in (*visible_gpus(gpus), *_environment(node, nics, settings))
        ]
        words = (*_LIBRARIES, str(first), str(ranks), identity if number else "new", *runs)
        commands.append(("env", *environment, "sh", "-c", program, RANK_PROGRAM, *words))
        first += len(gpus)
    return tuple(commands)


def launcher_command(
    nodes: Sequence[RingNode], rails: Sequence[int], settings: RingSettings, launch: Launch
) -> tuple[str, ...]:
    """Return the command that starts nccl-tests, built with MPI, on nodes with equally many GPUs."""
    gpus, nics = nodes[0].on(rails)
    names = [node.name.rpartition("@")[2] for node in nodes]
    environment = [
        *_environment(nodes[0], nics, settings),
        *((PCI_ORDER,) if not rails else visible_gpus(gpus)),
    ]
    ranks, here = len(gpus) * len(nodes), str(len(gpus))
    iterations = str(min(count for _, count in _iterations(nodes, rails, settings)))
    sizes = ("-b", str(settings.sizes[0]), "-e", str(settings.sizes[-1]), "-f", str(_FACTOR))
    tool = ("all_reduce_perf", *sizes, "-g", "1", "-n", iterations, "-c", "1")
    if launch is Launch.SRUN:
        per_node = ("--ntasks-per-node", here, "--gpus-per-node", here)
        placed = ("-N", str(len(nodes)), "-w", ",".join(names), *per_node, "--mpi", "pmix")
        return ("env", *(f"{name}={value}" for name, value in environment), "srun", *placed, *tool)
    hosts = ("-np", str(ranks), "-N", here, "-H", ",".join(f"{name}:{here}" for name in names))
    passed = [word for name, value in environment for word in ("-x", f"{name}={value}")]
    return ("mpirun", *hosts, *passed, *tool)


def _environment(node: RingNode, nics: Sequence[Rail], settings: RingSettings) -> tuple[tuple[str, str], ...]:
    debug = tuple((word.partition("=")[0], word.partition("=")[2]) for word in NEXT_RUN.split())
    # "=" matches the names exactly: without it, mlx5_1 matches mlx5_10 as well.
    devices = "=" + ",".join(f"{nic.nic}:{nic.port}" for nic in nics)
    key = () if node.key_index is None else (("NCCL_IB_PKEY", str(node.key_index)),)
    diagnostics = (DIAGNOSTICS,) if settings.diagnoses else ()
    return (*BETWEEN_NODES, ("NCCL_IB_HCA", devices), *key, *debug, *diagnostics)


def _iterations(
    nodes: Sequence[RingNode], rails: Sequence[int], settings: RingSettings
) -> list[tuple[int, int]]:
    """Return how many times each size is sent, so that all take the duration at line rate."""
    gbps = (_nominal(node, rails) or _USUAL_GBPS * len(node.on(rails)[1]) for node in nodes)
    bytes_per_second = min(gbps) / 8 * 1e9
    seconds = settings.duration_s / len(settings.sizes)
    counts = (int(seconds * bytes_per_second / (2 * size)) for size in settings.sizes)
    return [
        (size, min(max(count, _FEWEST), _MOST_ITERATIONS))
        for size, count in zip(settings.sizes, counts, strict=True)
    ]


def _nominal(node: RingNode, rails: Sequence[int]) -> float | None:
    """Return the sum of what the slowest part of each rail carries; None: one is unknown."""
    limits = [node.limits[rail.number] for rail in node.on(rails)[1]]
    least = [limit.least for limit in limits]
    rates = [None if bound is None else known(bound.nominal_gbps, None) for bound in least]
    return sum(rate for rate in rates if rate is not None) if None not in rates else None


class Transport(Enum):
    """How the data went between the nodes."""

    GPUDIRECT = "GPUDirect RDMA"
    STAGED = "host memory"
    NVLINK = "NVLink"
    UNKNOWN = "unknown"


class Outcome(Enum):
    """The answer."""

    PASSED = "passed"
    SLOW = "slow"
    STAGED = "staged"
    FAILED = "failed"  # it gave no figure
    NOT_TESTED = "not tested"  # the NICs did not carry it, or that is not proven


@frozen
class NodeChannels:
    """The network channels of a node, by the log of its ranks."""

    node: str
    gdr: int
    total: int
    staged_nics: tuple[str, ...] = ()  # NICs of ranks with a channel through host memory


@frozen
class RingResult:
    """What a group of nodes reached together."""

    group: Group
    gpus: int
    bus_gbps: Maybe[float]  # nccl-tests' busbw; unknown: the run failed, and why
    size_bytes: int | None
    nic_gbps: float | None  # that each NIC carried; None: unknown
    limit_gbps: float | None  # nominal, of the slowest NIC of a usual node
    assessment: Assessment
    transport: Transport
    why: str  # what the transport is known from
    channels: tuple[NodeChannels, ...]
    diagnostics: tuple[str, ...] = ()  # what NCCL's own diagnostics report
    failed_node: str = ""  # whose process failed first

    @property
    def outcome(self) -> Outcome:
        """Whether the NICs carried it from GPU memory, as fast as they can."""
        if isinstance(self.bus_gbps, Unknown):
            return Outcome.FAILED
        if self.transport is Transport.STAGED:
            return Outcome.STAGED
        if self.transport is not Transport.GPUDIRECT or self.nic_gbps is None:
            return Outcome.NOT_TESTED
        return Outcome.SLOW if self.assessment.is_slow else Outcome.PASSED

    @property
    def staged(self) -> tuple[NodeChannels, ...]:
        """The nodes with channels through host memory."""
        return tuple(each for each in self.channels if each.staged_nics)


@frozen
class RingReport:
    """All that was measured."""

    nodes: tuple[str, ...]
    whole: RingResult | None  # the last result of all that could be judged together
    results: tuple[RingResult, ...]
    faults: tuple[Fault, ...]
    left_out: Mapping[str, str]
    rails_left_out: Mapping[str, str]

    @property
    def staged(self) -> tuple[NodeChannels, ...]:
        """The nodes with channels through host memory, each once."""
        return tuple({each.node: each for result in self.results for each in result.staged}.values())


def judge_ring(
    nodes: Sequence[RingNode],
    usual: RingNode,
    group: Group,
    sample: Sample | None,
    logs: Mapping[str, LogFacts],
    failure: Unknown,
    failed_node: str = "",
) -> RingResult:
    """Judge one run by what the NICs of a usual node carry, so that a port at half its rate is slow.

    `logs`: by node; with a launcher, those of all nodes under "".
    """
    ranks = sum(len(node.on(group.rails)[0]) for node in nodes)
    bus = None if sample is None else sample.bus_gbps
    transport, why, channels = _transport(nodes, logs)
    nic_gbps: float | None = None
    limit_gbps, assessment = None, Assessment()
    if bus is not None and sample is not None:
        gpus, nics = usual.on(group.rails)
        limit = min((usual.limits[nic.number] for nic in nics), key=lambda each: known(each.gbps, 0.0))
        least = limit.least
        limit_gbps = None if least is None else known(least.nominal_gbps, None)
        in_ring = bus / len(nics)
        at_least = bus * (len(nodes) - 1) / (ranks - 1) * len(gpus) / len(nics)
        nic_gbps, assessment = in_ring, rate(_of_nic(sample, in_ring), limit)
        if limit_gbps is not None and at_least > limit_gbps:
            transport = Transport.NVLINK
            why = f"each NIC would have carried {at_least:.0f} of {limit_gbps:.0f} Gb/s, so NVLink carried it"
        elif limit_gbps is not None and in_ring > limit_gbps:
            assessment = rate(_of_nic(sample, at_least), limit)
            nic_gbps = None if assessment.is_slow else at_least
            if assessment.is_slow:
                words = f"at least {assessment.words}"
                assessment = Assessment(Rating.UNKNOWN, words)
                why = f"NCCL used another algorithm than Ring, with which each NIC carries {words}"
    return RingResult(
        group=group,
        gpus=ranks,
        bus_gbps=failure if bus is None else bus,
        size_bytes=None if sample is None else sample.size_bytes,
        nic_gbps=nic_gbps,
        limit_gbps=limit_gbps,
        assessment=assessment,
        transport=transport,
        why=why,
        channels=channels,
        diagnostics=tuple(dict.fromkeys(each.text for log in logs.values() for each in log.diagnostics)),
        failed_node=failed_node,
    )


def usual_node(nodes: Sequence[RingNode]) -> RingNode:
    """Return the node whose NICs carry as much as those of most nodes, of two the better one."""
    return sorted(nodes, key=lambda node: _nominal(node, ()) or 0.0)[len(nodes) // 2]


def _of_nic(sample: Sample, gbps: float) -> Sample:
    return Sample(what=sample.what, raw=sample.raw, gbps=gbps, size_bytes=sample.size_bytes)


def _transport(
    nodes: Sequence[RingNode], logs: Mapping[str, LogFacts]
) -> tuple[Transport, str, tuple[NodeChannels, ...]]:
    """Return how the data went, why that is certain or not, and the channels of each node."""
    of_nodes = {name: _of_log(name, log) for name, log in logs.items()}
    if "" in logs:
        of_nodes = _by_host(logs[""], nodes)
    channels = tuple(of_nodes.values())
    total, gdr = sum(each.total for each in channels), sum(each.gdr for each in channels)
    if nvlink := sum(log.nvlink_channels for log in logs.values()):
        return Transport.NVLINK, f"{plural(nvlink, 'channel')} between nodes use NVLink (MNNVL)", channels
    if staged := [each for each in channels if each.staged_nics]:
        names = join_limited((f"{each.node} {', '.join(each.staged_nics)}" for each in staged), _MOST_NAMES)
        why = f"{gdr} of {plural(total, 'channel')} use GPUDirect RDMA; not on {names}"
        return Transport.STAGED, why, channels
    silent = [node.name for node in nodes if node.name not in of_nodes or not of_nodes[node.name].total]
    if silent:
        why = f"no network channel in the log of {join_limited(silent, _MOST_NAMES)}"
        return Transport.UNKNOWN, why, channels
    if gdr < total or any(log.more_ranks for log in logs.values()):
        return Transport.UNKNOWN, f"{plural(total - gdr, 'channel')} could not be read", channels
    return Transport.GPUDIRECT, f"{plural(total, 'channel')} on {plural(len(channels), 'node')}", channels


def _of_log(name: str, log: LogFacts) -> NodeChannels:
    nics = {number.lstrip("["): name for each in log.nics for number, _, name in [each.text.partition("] ")]}
    staged = dict.fromkeys(
        _without_port(nics.get(device.rpartition("/")[2], device))
        for rank in log.ranks
        if rank.channels.staged
        for device in rank.devices or ("?",)
    )
    return NodeChannels(name, log.channels.gdr, log.channels.total, tuple(staged))


def _without_port(name: str) -> str:
    """Return "mlx5_0" of "mlx5_0:1/IB", and of several the same."""
    return "+".join(part.partition(":")[0] for part in name.split("+"))


def _by_host(log: LogFacts, nodes: Sequence[RingNode]) -> dict[str, NodeChannels]:
    """Return the channels of each node in a launcher's output, which has host names without a domain."""
    names = {node.name.rpartition("@")[2].partition(".")[0]: node.name for node in nodes}
    found: dict[str, NodeChannels] = {}
    for rank in log.ranks:
        if rank.channels.total:
            name = names.get(rank.host.partition(".")[0], rank.host)
            old = found.get(name, NodeChannels(name, 0, 0))
            staged = (*old.staged_nics, *rank.devices) if rank.channels.staged else old.staged_nics
            gdr, total = old.gdr + rank.channels.gdr, old.total + rank.channels.total
            found[name] = NodeChannels(name, gdr, total, tuple(dict.fromkeys(staged)))
    return found
