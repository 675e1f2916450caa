"""`make bench`: the budgets of the design, measured here and now.

Ratios are against a peer in the same run; figures in brackets are budgets.
"""

from __future__ import annotations

import argparse
import compileall
import inspect
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.perf.command import Command, measure
from tests.perf.compare import print_comparison
from tests.perf.fleet import bench_fleet, bench_fleet_live, bench_remote_live
from tests.perf.live import bench_live, bench_sampling
from tests.perf.monitors import bench_running
from tests.perf.scale import bench_crowded_dashboard, bench_hours, bench_pci, bench_topologies
from tests.perf.system_calls import bench_system_calls
from tests.perf.table import GDRTOP, NODE, ROWS, best, row
from tests.perf.terminal import Terminal, dashboard
from tests.perf.text_commands import bench_scheduler, bench_text, bench_watch

HERE = Path(__file__).parent


def first_paint(argv: list[str]) -> float:
    """Seconds until the program's first word is on the terminal."""
    terminal = Terminal(dashboard(argv))
    try:
        seconds = terminal.wait_for(terminal.command.output)
        terminal.require_running()
        return seconds
    finally:
        terminal.close()


def bench_first_paint() -> None:
    """First paint against an empty Textual app's, in turns."""
    empty, ours = [], []
    for _ in range(15):
        empty.append(first_paint([sys.executable, str(HERE / "empty_app.py")]))
        ours.append(first_paint(GDRTOP))
    ratio = median(ours) / median(empty)
    row(
        "first paint",
        f"{median(ours) * 1e3:.0f} ms, empty app {median(empty) * 1e3:.0f} ms: × {ratio:.2f}",
        "× 1.2",
        ratio <= 1.2,
        ours,
    )


def bench_probe() -> None:
    """A full probe of a node's files against lstopo on the same files: in turns, both warm; medians.

    lstopo is a process of its own that also reads the CPUs; gdrtop runs already, and also reads modules and
    settings. Neither looks up names: lstopo runs without its plugins. The one for PCI, where it is installed
    with pci.ids, reads that file again for each device whose vendor is not in it.
    """
    from probes.facts.node import probe_node
    from probes.facts.pci.functions import PciFacts
    from probes.host.machine.local import LocalHost
    from probes.simulation.host import SimulatedHost
    from tests.support.simulated_tree import write_cpus, write_functions, write_tree

    with tempfile.TemporaryDirectory() as directory:
        host = SimulatedHost(NODE)
        write_tree(host, Path(directory))
        write_cpus(host, Path(directory))
        write_functions(Path(directory))
        facts = probe_node(LocalHost(directory)).pci
        assert isinstance(facts, PciFacts)
        assert facts.functions
        what = f"full probe, {len(facts.functions)} PCI functions"
        lstopo = shutil.which("lstopo-no-graphics")
        said = measure(Command([lstopo, "--version"], (0,), "lstopo")).text if lstopo is not None else ""
        version = said.split()[-1] if said else ""
        environment = {"HWLOC_COMPONENTS": "linux,stop", "HWLOC_PLUGINS_PATH": os.devnull}
        ours: list[tuple[float, float]] = []  # CPU and wall time
        theirs: list[tuple[float, float]] = []
        for _ in range(15):
            began, cpu = time.perf_counter(), time.process_time()
            probe_node(LocalHost(directory))
            ours.append((time.process_time() - cpu, time.perf_counter() - began))
            if lstopo is not None:
                argv = [lstopo, "--if", "fsroot", "-i", directory, "--whole-io", "--of", "xml"]
                took = measure(Command(argv, (0,), 'type="PCIDev"', environment))
                theirs.append((took.cpu_seconds, took.seconds))
    cpu, wall = (median(values) for values in zip(*ours, strict=True))
    values = [value for value, _ in ours]
    if lstopo is None:
        row(f"{what}, CPU", f"{cpu * 1e3:.0f} ms; lstopo is not installed", "× 1 of lstopo", None, values)
        return
    peer_cpu, peer_wall = (median(values) for values in zip(*theirs, strict=True))
    text = f"{cpu * 1e3:.0f} ms, lstopo {version} {peer_cpu * 1e3:.0f} ms: × {cpu / peer_cpu:.2f}"
    row(f"{what}, CPU", text, "× 1", cpu <= peer_cpu, values)
    text = f"{wall * 1e3:.0f} ms, lstopo {peer_wall * 1e3:.0f} ms: × {wall / peer_wall:.2f}"
    row("  the same, by the clock", text, "", None)


def bench_recording() -> None:
    """What recording adds to the readings that are taken anyway: CPU time of this process, at 1 Hz."""
    from probes.host.protocol import Host
    from probes.simulation.host import SimulatedHost
    from probes.snapshot.node_reader import NodeReader
    from tests.support.pilot import SteppedClock
    from tui.runtime.recorder import Recorder

    readings = 300

    def watched(directory: str | None) -> tuple[float, float, float]:
        """Seconds of the first moment, with its probe, and of one of the rest; bytes a moment."""
        clock = SteppedClock()
        host: Host = SimulatedHost(NODE, clock=clock)
        recorder = None if directory is None else Recorder(host, f"{directory}/recording.tar.gz")
        reader = NodeReader(host if recorder is None else recorder.host)
        began = time.process_time()
        for number in range(readings + 1):
            reader.probe()
            reader.read()
            if recorder is not None:
                recorder.host.end_moment()
            if not number:
                first, began = time.process_time() - began, time.process_time()
                size = recorder.size_bytes if recorder else 0
            clock.now += 1.0
        rest = (time.process_time() - began) / readings
        grown = (recorder.size_bytes - size) / readings if recorder else 0.0
        if recorder is not None:
            recorder.finish()
            assert grown > 0
        return first, rest, grown

    def recorded() -> tuple[float, float, float]:
        with tempfile.TemporaryDirectory() as directory:
            return watched(directory)

    plain, told = [watched(None) for _ in range(5)], [recorded() for _ in range(5)]
    first, first_told = min(timing[0] for timing in plain), min(text[0] for text in told)
    rest, rest_told = min(timing[1] for timing in plain), min(text[1] for text in told)
    more = 100 * (rest_told - rest)
    row(
        "recording, CPU of one core at 1 Hz",
        f"{100 * rest:.2f} % without, {more:+.2f} %; {told[0][2] / 1e3:.1f} kB a moment",
        "+0.5 %",
        more <= 0.5,
    )
    row(
        "recording, its first moment (once)",
        f"{first_told * 1e3:.0f} ms CPU, without {first * 1e3:.0f} ms",
        "+500 ms",
        first_told - first <= 0.5,
    )


LOG_BYTES = 256 << 20


def bench_log() -> None:
    """Read logs of 256 MiB against grep -c, in CPU time: few lines of NCCL, only channels, long lines.

    A channel's line that differs from another one of its writer only in the number of the channel is only
    counted. So the log of 64 ranks, with 16 channels a path, is the fast case; in that of 4,096 ranks, whose
    lines come in random order, 24,576 lines have to be read in full.
    """
    from tests.support.nccl_versions import log_of

    begin = log_of("2.26.2").encode()
    pointer = "0x7fc2d8000000"
    line = (
        f"node1:100:201 [0] NCCL INFO AllReduce: opCount 5 sendbuff {pointer} recvbuff {pointer}"
        f" count 2097152 datatype 7 op 0 root 0 comm {pointer} [nranks=16] stream {pointer}\n"
    ).encode()
    # One line of a thousand says something, as in a job that reconnects again and again.
    _bench_log_of("", begin + line * 30_000, 50)
    _bench_log_of(", all channels", "".join(_channel_lines(64, (8,))).encode() * 20, 85)
    mixed = list(_channel_lines(4096, (8, 16, 24)))
    random.Random(1).shuffle(mixed)
    _bench_log_of(", 4,096 ranks mixed", "".join(mixed).encode(), 85)
    _bench_log_of(", long lines", begin + (b"x " * 30_000 + b"\n") * 50, 50)


def _channel_lines(ranks: int, distances: Sequence[int]) -> Iterator[str]:
    """Yield the lines of 16 channels between all ranks that are so far apart, of senders and receivers."""
    for rank in range(ranks):
        for number in range(16):
            for distance in distances:
                for peers in (
                    f"{rank}[0] -> {(rank + distance) % ranks}[0] [send]",
                    f"{(rank - distance) % ranks}[0] -> {rank}[0] [receive]",
                ):
                    yield (
                        f"node{rank // 8}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO"
                        f" Channel {number:02d}/0 : {peers} via NET/IB/{rank % 8}/GDRDMA\n"
                    )


def _bench_log_of(kind: str, block: bytes, budget: int) -> None:
    from tui.command_line.options import OutputOptions
    from tui.commands.nccl_log import write_nccl_log

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.log"
        with path.open("wb") as file:
            while file.tell() < LOG_BYTES:
                file.write(block)
        megabytes = path.stat().st_size / 1e6

        def read() -> float:
            began = time.process_time()
            status = write_nccl_log([str(path)], out := io.StringIO(), OutputOptions())
            seconds = time.process_time() - began
            assert status in (0, 1, 2), status
            assert "GPUDirect RDMA" in out.getvalue(), out.getvalue()[:200]
            return seconds

        def grep() -> float:
            return measure(Command(["grep", "-c", "NET/.*/GDRDMA", str(path)], (0,), "^[1-9]")).cpu_seconds

        ours, theirs = best(read, 3), best(grep, 3)
    row(
        f"gdrtop nccl-log{kind}, MB/s on one core",
        f"{megabytes / ours:.0f} MB/s, grep -c {megabytes / theirs:.0f} MB/s: × {ours / theirs:.1f}",
        f"{budget} MB/s",
        megabytes / ours >= budget,
    )


BENCHES: tuple[Callable[[], None], ...] = (
    bench_first_paint,
    bench_probe,
    bench_running,
    bench_live,
    bench_sampling,
    bench_system_calls,
    bench_topologies,
    bench_pci,
    bench_crowded_dashboard,
    bench_hours,
    bench_recording,
    bench_text,
    bench_scheduler,
    bench_watch,
    bench_log,
    bench_fleet,
    bench_fleet_live,
    bench_remote_live,
)


def main() -> None:
    """The table, or with --compare what has changed between two of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf")
    parser.add_argument("--json", metavar="FILE", help="also write the measurements to FILE")
    parser.add_argument("--only", metavar="WORD", default="", help="measure only what has WORD in its name")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="say what changed from one to the other")
    options = parser.parse_args()
    if options.compare:
        sys.exit(print_comparison(*options.compare))
    for package in ("probes", "widgets", "tui"):  # a first start would compile them
        compileall.compile_dir(package, quiet=1)
    print(f"{'what':<46} {'measured':<44} {'budget':<16}")
    failed: list[str] = []
    for bench in BENCHES:
        if options.only in bench.__name__:
            print(f"\n{inspect.getdoc(bench)}")
            try:
                bench()
            except AssertionError as error:
                failed.append(bench.__name__)
                print(f"FAILED: {error}", flush=True)
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": sys.version.split()[0]}
        text = json.dumps({"machine": machine, "rows": ROWS}, indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
