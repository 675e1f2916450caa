"""The *_perf programs of nccl-tests played, in one process on one node (NVIDIA/nccl-tests src/common.cu)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.command_line import Called
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.nccl_transports import Ways, ways_between
from probes.simulation.bandwidth.node_pair import Stage
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, ended
from probes.simulation.bandwidth.traffic import RECEIVED, SENT, Flow, stop
from probes.simulation.commands.command_result import split_options
from probes.simulation.node.processes import NCCL_VERSION

_TESTS_VERSION = "2.17.6"
_NUMBER = "22707"
_BEGINS, _SETS_UP, _BETWEEN_ROWS = 0.8, 1.6, 0.06
_ELEMENT_BYTES = 4
_SCATTERED = ("all_gather", "reduce_scatter", "alltoall")
_REDUCING = ("all_reduce", "reduce_scatter")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class _Run:
    """The options of one run."""

    what: str  # "all_reduce"
    gpus: int
    begin_bytes: int
    end_bytes: int
    factor: int
    iterations: int
    is_checked: bool

    @property
    def bus_factor(self) -> float:
        """What busbw is over algbw (doc/PERFORMANCE.md)."""
        n = self.gpus
        if self.what == "all_reduce":
            return 2 * (n - 1) / n
        return (n - 1) / n if self.what in _SCATTERED else 1.0

    def sizes(self) -> Iterator[int]:
        """The bytes of each row; what is shared out among ranks is rounded down to 16 bytes for each."""
        size = self.begin_bytes
        unit = 16 * self.gpus if self.what in _SCATTERED else _ELEMENT_BYTES
        while size <= self.end_bytes:
            yield size // unit * unit
            size *= self.factor


def begin(stage: Stage, called: Called, at: float) -> SimulatedTest:
    """A run from its begin to its end."""
    run = _run(called)
    host, pid = stage.hostname(), 50_000 + stage.number(" ".join((called.tool, *called.words)), at, 40_000)
    devices = cuda.devices(stage.tree, called.environment)
    if isinstance(devices, int):
        said = f"{host}: Test CUDA failure common.cu:1043 '{cuda.ERRORS[devices][1]}'"
        gave_up = f" .. {host} pid {pid}: Test failure common.cu:891"
        return stage.test(ended(at + 0.3, 1, said, gave_up))
    if run.gpus > len(devices):
        return stage.test(
            ended(
                at + 0.3,
                1,
                f"Invalid number of GPUs: {run.gpus} requested but only {len(devices)} were found.",
                "Please check the number of processes and GPUs per process.",
            )
        )
    chosen = devices[: run.gpus]
    examination = stage.examine()
    ways = ways_between(examination, stage.tree, called.environment, [one.bdf for one in chosen])
    nccl = f"{host}:{pid}:{pid + 1}"
    head = [Line(at + _BEGINS, text) for text in _head(called, run, chosen, host, pid)]
    told = ways.lines(nccl) if called.environment.get("NCCL_DEBUG") in ("INFO", "TRACE") else []
    version = f"NCCL version {NCCL_VERSION}+cuda{stage.tree.description.driver.cuda}"
    head += [Line(at + _SETS_UP, text) for text in (version, *told)]
    if ways.is_lost:
        said = f"{nccl} [0] net.cc:702 NCCL WARN Failed to initialize any NET plugin"
        failure = f"{host}: Test NCCL failure common.cu:1167 'invalid usage (run with NCCL_DEBUG=WARN) / '"
        lost = (*head, Line(at + _SETS_UP, said), Line(at + _SETS_UP, failure))
        return stage.test(Script(lost, at + _SETS_UP, 3))
    if ways.broken:
        warned = f"{nccl} [0] transport/net_ib.cc:2204 NCCL WARN NET/IB: Got completion with status=4"
        failure = (
            f"{host}: Test NCCL failure common.cu:401 'unhandled system error (run with NCCL_DEBUG=INFO) / '"
        )
        lines = (f"{warned} opcode=0 len=0 vendor err 81 (Send)", failure)
        return stage.test(
            Script((*head, *(Line(at + _SETS_UP + 2, one) for one in lines)), at + _SETS_UP + 2, 3)
        )
    return _measure(stage, called, run, ways, head, at + _SETS_UP)


def _run(called: Called) -> _Run:
    options, _ = split_options(called.words, "tgbeifnwmpcodrazGCRTJN")

    def number(name: str, without: int) -> int:
        text = options.get(name, "")
        unit = _UNITS.get(text[-1:].upper(), 1)
        digits = text[:-1] if unit > 1 else text
        return int(digits[:13]) * unit if digits.isascii() and digits.isdecimal() else without

    return _Run(
        called.tool.removesuffix("_perf"),
        max(1, number("-g", 1)),
        max(1, number("-b", 32 << 20)),
        number("-e", 32 << 20),
        max(2, number("-f", 2)),
        max(1, number("-n", 20)),
        number("-c", 1) != 0,
    )


def _head(called: Called, run: _Run, devices: tuple[CudaDevice, ...], host: str, pid: int) -> list[str]:
    group = "     time   algbw   busbw  #wrong"
    return [
        f"# nccl-tests version {_TESTS_VERSION} nccl-headers={_NUMBER} nccl-library={_NUMBER}",
        f"# Collective test starting: {called.tool}",
        f"# nThread 1 nGpus {run.gpus} minBytes {run.begin_bytes} maxBytes {run.end_bytes} "
        f"step: {run.factor}(factor) warmup iters: 1 iters: {run.iterations} agg iters: 1 "
        f"validation: {int(run.is_checked)} graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {one.index:2d} Group  0 Pid {pid:6d} on {host:>10} device {one.index:2d} "
            f"[{one.bdf.removesuffix('.0')}] {one.name}"
            for one in devices
        ),
        "#",
        f"#{'out-of-place':>73}{'in-place':>35}          ",
        f"#       size         count      type   redop    root{group}{group} ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  "
        "(GB/s)  (GB/s)         ",
    ]


def _measure(
    stage: Stage, called: Called, run: _Run, ways: Ways, head: list[Line], at: float
) -> SimulatedTest:
    """The rows, and the traffic of those that go by NICs."""
    rows: list[Line] = []
    bus: list[float] = []
    flows: list[tuple[str, str, Flow]] = []
    for size in run.sizes():
        groups: list[str] = []
        since = at
        us = ways.latency_us + size * run.bus_factor / (ways.bus_gbps / 8 * 1e3)
        at += _BETWEEN_ROWS + 2 * (run.iterations + 1) * us / 1e6
        for variant in ("out", "in"):
            time = figures.jittered(us, stage.seed, f"{called.tool} {size} {variant}", at)
            algorithm = size / time / 1e3
            bus.append(algorithm * run.bus_factor)
            wrong = "0" if run.is_checked and (variant == "out" or run.what != "alltoall") else "N/A"
            groups.append(f"  {_time(time)}  {algorithm:6.2f}  {bus[-1]:6.2f}  {wrong:>5}")
        operation = "sum" if run.what in _REDUCING or run.what == "sendrecv" else "none"
        count = size // _ELEMENT_BYTES // (run.gpus if run.what in _SCATTERED else 1)
        rows.append(
            Line(at, f"{size:12d}  {count:12d}  {'float':>8}  {operation:>6}  {'-1':>6}{''.join(groups)}")
        )
        for nic, ranks in ways.nics.items():
            for name in (SENT, RECEIVED):
                gbps = bus[-1] * 8 * ranks
                flows.append((nic, name, Flow(stage.seconds(since), gbps, stage.seconds(at))))
    average = sum(bus) / len(bus) if bus else 0.0
    last = (
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {average:g} ",
        "#",
        f"# Collective test concluded: {called.tool}",
        "#",
    )
    for nic, name, flow in flows:
        stage.traffic.add(nic, name, flow, stage.seconds(stage.clock()))
    test = stage.test(Script((*head, *rows, *(Line(at, text) for text in last)), at))
    test.on_end.append(lambda moment: stop((flow for _, _, flow in flows), stage.seconds(moment)))
    return test


def _time(us: float) -> str:
    if us < 1e4:
        return f"{us:7.2f}"
    return f"{us:7.1f}" if us < 1e5 else f"{us:7.0f}"
