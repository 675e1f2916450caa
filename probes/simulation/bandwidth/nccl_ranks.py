"""All-reduce over simulated nodes of one network: gdrtop's own ranks, and nccl-tests by srun or mpirun.

All ranks form one ring, whose slowest NIC limits it (tui/bandwidth/pairs/nccl_rank.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from probes.bandwidth.tools.nccl_tests import RANK_PROGRAM
from probes.base.frozen import frozen
from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth.nccl_tests import Ring, network_ring
from probes.simulation.bandwidth.node_pair import SimulatedNetwork, SimulatedNode, parse_variables
from probes.simulation.bandwidth.playback import NEVER, Line, Script, SimulatedTest, ended
from probes.simulation.bandwidth.speeds import jittered

_STARTS, _SETS_UP = 1.5, 6.0  # seconds
_HEAD = "# size count type redop root time algbw busbw #wrong"


@frozen
class _Ranks:
    """The ranks of one node; the program that waits for the others."""

    node: SimulatedNode
    ring: Ring
    ends: tuple[int, ...]  # the GPUs whose NICs carry the ring
    gpus: int
    first: int
    test: SimulatedTest


def start(node: SimulatedNode, argv: Sequence[str], at: float) -> SimulatedTest:
    """Start the ranks of one node, or a launcher with those of all nodes."""
    environment, words = parse_variables(argv)
    network = node.network
    if network is None:
        return node.run(ended(at + _STARTS, 1, "gdrtop rank failed: no other node"))
    if RANK_PROGRAM not in words:
        return _launched(node, network, environment, words, at)
    first, ranks, identity, *runs = words[words.index(RANK_PROGRAM) + 3 :]
    own = _ring(node, environment)
    if isinstance(own, str):
        return node.run(ended(at + _STARTS, 1, f"gdrtop rank failed: {own}"))
    head = []
    if identity == "new":
        identity = f"{node.number(' '.join(argv), at, 1 << 30):0256x}"
        head = [Line(at + _STARTS, f"gdrtop unique id {identity}")]
    test = node.run(Script(head, NEVER))
    waiting = network.waiting.setdefault(identity, [])
    waiting.append(_Ranks(node, *own, int(first), test))
    members = sorted((each for each in waiting if isinstance(each, _Ranks)), key=lambda each: each.first)
    if sum(each.gpus for each in members) == int(ranks):
        del network.waiting[identity]
        sizes = [tuple(map(int, run.split(":"))) for run in runs]
        _run(members, int(ranks), sizes, at + _SETS_UP)
    return test


def _launched(
    node: SimulatedNode,
    network: SimulatedNetwork,
    environment: Mapping[str, str],
    words: Sequence[str],
    at: float,
) -> SimulatedTest:
    options = dict(pairwise(words))
    passed = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "-x")
    names = [part.partition(":")[0] for part in options.get("-H", options.get("-w", "")).split(",")]
    nodes = [network.nodes[name] for name in names if name in network.nodes]
    test = node.run(Script((), NEVER))
    members: list[_Ranks] = []
    for each in nodes:
        ring = _ring(each, {**environment, **passed})
        if isinstance(ring, str):
            return node.run(
                ended(at + _STARTS, 1, f"{each.hostname()}: Test CUDA failure common.cu:1043 '{ring}'")
            )
        members.append(_Ranks(each, *ring, sum(earlier.gpus for earlier in members), test))
    size, last, sizes = int(options["-b"]), int(options["-e"]), []
    while size <= last:
        sizes.append((size, int(options["-n"])))
        size *= int(options["-f"])
    _run(members, sum(earlier.gpus for earlier in members), sizes, at + _SETS_UP)
    return test


def _ring(node: SimulatedNode, environment: Mapping[str, str]) -> tuple[Ring, tuple[int, ...], int] | str:
    """Return what a node's ranks use between nodes, and their number; or why they do not start."""
    devices = cuda.devices(node.tree, dict(environment))
    if isinstance(devices, int):
        return f"cuInit returned {devices}"
    ring, ends = network_ring(node.examine(), environment, [gpu.bdf for gpu in devices])
    return ring, ends, len(devices)


def _run(members: Sequence[_Ranks], ranks: int, sizes: Sequence[Sequence[int]], at: float) -> None:
    """Let the programs of all nodes go on: their channels, and the rows of the first one."""
    scripts: dict[int, list[Line]] = {}
    for place, each in enumerate(members):
        lines = scripts.setdefault(id(each.test), [])
        after, before = members[(place + 1) % len(members)], members[place - 1]
        prefix = f"{each.node.hostname()}:{40_000 + each.first}:{50_000 + each.first}"
        lines += [Line(at, f"{prefix} [0] NCCL INFO {text}") for text in each.ring.found]
        for gpu, route in zip(each.ends, each.ring.routes, strict=True):
            mine, to, other = (
                each.first + gpu,
                after.first + gpu % after.gpus,
                before.first + gpu % before.gpus,
            )
            for ends, way in (
                (f"{mine}[{gpu}] -> {to}[{gpu}]", "send"),
                (f"{other}[{gpu}] -> {mine}[{gpu}]", "receive"),
            ):
                lines.append(
                    Line(at, f"{prefix} [{gpu}] NCCL INFO Channel {gpu:02d}/0 : {ends} [{way}] via {route}")
                )
    if any(each.ring.is_broken for each in members):
        broken = next(each for each in members if each.ring.is_broken)
        name = broken.node.hostname()
        warning = (
            f"{name}:40000:50000 [0] transport/net_ib.cc:2204 NCCL WARN NET/IB: Got completion with status=4"
        )
        scripts[id(broken.test)].append(Line(at + 2, warning))
        until, status = at + 2, 1
    else:
        until, status = at, 0
        first = scripts[id(members[0].test)]
        first.append(Line(at, _HEAD))
        bus = min(each.ring.bus_gbps * len(each.ends) for each in members) / 8
        for size, iterations in sizes:
            algorithm = jittered(bus * ranks / 2 / (ranks - 1), members[0].node.seed, str(size), at)
            seconds = size / algorithm / 1e9
            until += seconds * iterations
            figures = f"{seconds * 1e6:.1f} {algorithm:.2f} {algorithm * 2 * (ranks - 1) / ranks:.2f} 0"
            first.append(Line(until, f"{size} {size // 4} float sum -1 {figures}"))
    for each in members:
        each.test.follow(Script(scripts.pop(id(each.test), []), until, status))
