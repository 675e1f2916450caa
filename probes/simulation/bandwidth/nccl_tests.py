"""The *_perf programs of nccl-tests on a simulated node (NVIDIA/nccl-tests src/common.cu)."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.frozen import frozen
from probes.simulation.bandwidth import cuda, speeds
from probes.simulation.bandwidth.command_line import ParsedCommand
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.nccl_transports import Ring, ring_of
from probes.simulation.bandwidth.node_pair import SimulatedNode
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, ended
from probes.simulation.bandwidth.traffic import RECEIVED, SENT, Flow, stop
from probes.simulation.node.jobs.processes import NCCL_VERSION

_STARTS, _SETS_UP, _BETWEEN_ROWS = 0.8, 1.6, 0.06  # seconds
_ELEMENT_BYTES = 4
_SCATTERED = ("all_gather", "reduce_scatter", "alltoall")
_REDUCING = ("all_reduce", "reduce_scatter", "sendrecv")
_GROUP = "     time   algbw   busbw  #wrong"
_HEAD = f"""\
# nccl-tests version 2.17.6 nccl-headers=22707 nccl-library=22707
# Collective test starting: {{program}}
#
# Using devices
{{devices}}
#
#{"out-of-place":>73}{"in-place":>35}          
#       size         count      type   redop    root{_GROUP}{_GROUP} 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)"""


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
        if self.what == "all_reduce":
            return 2 * (n - 1) / n
        return (n - 1) / n if self.what in _SCATTERED else 1.0

    def sizes(self) -> Iterator[int]:
        """Yield the bytes of each row; what is divided among ranks is rounded down to 16 bytes for each."""
        size = self.begin_bytes
        unit = 16 * self.gpus if self.what in _SCATTERED else _ELEMENT_BYTES
        while size <= self.end_bytes:
            yield size // unit * unit
            size *= self.factor


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start one collective."""
    run = _run(command)
    host, pid = node.hostname(), 50_000 + node.number(" ".join(command.words), at, 40_000)
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        failure = f"{host}: Test CUDA failure common.cu:1043 '{cuda.ERRORS[devices][1]}'"
        return node.run(ended(at + 0.3, 1, failure, f" .. {host} pid {pid}: Test failure common.cu:891"))
    if run.gpus > len(devices):
        missing = f"Invalid number of GPUs: {run.gpus} requested but only {len(devices)} were found."
        hint = "Please check the number of processes and GPUs per process."
        return node.run(ended(at + 0.3, 1, missing, hint))
    chosen = devices[: run.gpus]
    ring = ring_of(node.examine(), node.tree, command.environment, [gpu.bdf for gpu in chosen])
    nccl = f"{host}:{pid}:{pid + 1}"
    version = f"NCCL version {NCCL_VERSION}+cuda{node.tree.description.driver.cuda}"
    ready = at + _SETS_UP
    head = [Line(at + _STARTS, text) for text in _head(command, chosen, host, pid)]
    head += [Line(ready, text) for text in (version, *ring.lines(nccl))]
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


def _head(command: ParsedCommand, devices: tuple[CudaDevice, ...], host: str, pid: int) -> list[str]:
    ranks = (
        f"#  Rank {gpu.index:2d} Group  0 Pid {pid:6d} on {host:>10} device {gpu.index:2d} "
        f"[{gpu.bdf.removesuffix('.0')}] {gpu.name}"
        for gpu in devices
    )
    return _HEAD.format(program=command.program, devices="\n".join(ranks)).split("\n")


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
        operation = "sum" if run.what in _REDUCING else "none"
        count = size // _ELEMENT_BYTES // (run.gpus if run.what in _SCATTERED else 1)
        rows.append(Line(at, f"{size:12d}  {count:12d}  {'float':>8}  {operation:>6}  {'-1':>6}{groups}"))
        for nic, ranks in ring.nics.items():
            for name in (SENT, RECEIVED):
                flow = Flow(node.seconds(since), bus[-1] * 8 * ranks, node.seconds(at))
                flows.append((nic, name, flow))
    for nic, name, flow in flows:
        node.traffic.add(nic, name, flow, node.seconds(node.clock()))
    last = (
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {sum(bus) / max(1, len(bus)):g} ",
        "#",
        f"# Collective test concluded: {command.program}",
    )
    test = node.run(Script((*head, *rows, *(Line(at, text) for text in last)), at, cpu_cores=ring.cpu_cores))
    test.on_signal.append(lambda moment: stop((flow for _, _, flow in flows), node.seconds(moment)))
    return test
