"""Outputs of benchmarks: what was measured, with which memory, and whether that is much.

The figures are compared only with what the text itself shows: ports and PCIe links of standard rates, host
memory over the same NIC, other GPUs. A job's path is proven only by GPU memory that a NIC has carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from probes.bandwidth.model.expected import NEAR_PCIE
from probes.bandwidth.model.limits import payload_share
from probes.bandwidth.model.rating import LIKE_HOST, best_row, short_gbps, stalls, steady
from probes.bandwidth.model.samples import GPU_MEMORY, INTEGRATED_MEMORY, About, Fact, Sample
from probes.bandwidth.results.against_earlier import gbps_text, latency_us
from probes.bandwidth.tools.failures import Output
from probes.bandwidth.tools.gdrcopy import GdrcopyOutput
from probes.bandwidth.tools.nccl_tests import NcclTestsOutput
from probes.bandwidth.tools.nvbandwidth import NvbandwidthOutput
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.bandwidth.tools.tool import Parser
from probes.base.text import binary_size, plural
from probes.facts.pci.functions import link_gbps
from probes.messages.message import Proof, Weight
from probes.read.reading import Parsed, Section, Statement

PERFTEST_SIGN = (
    r"\* Waiting for client to connect|initializing CUDA\s*$|creating CUDA Ctx"
    r"|Using ROCm Device with ID|allocated (?:\d+ bytes of )?GPU buffer"
    r"|\s*(?:(?:Send|RDMA_Write)(?:_imm)?|RDMA_Read|Atomic) .{0,80}Test\s*$|\s*#bytes\s+#iterations"
)
NCCL_TESTS_SIGN = (
    r"[\s#]*(?:nThread \d+ nGpus|nccl-tests version|Collective test \w+:|Using devices\s*$"
    r"|size\s+count\s+type\s|Out of bounds values|Avg bus bandwidth|Reducing maxBytes)"
)
NVBANDWIDTH_SIGN = (
    r"nvbandwidth Version|Running (?:host|device|all|one|multinode)_\w+\.\s*$"
    r"|memcpy .{0,80}\(column\) .{0,40}\(GB/s\)"
)
GDRCOPY_SIGN = r"GPU id:\d+[; ]|BAR writing test|testing size: \d+$"
_MOST_TESTS = 50  # of one section
_MOST_ROWS = 100_000
_PORT_GBPS = (10, 25, 40, 50, 56, 100, 200, 400, 800)
_OVER_PORT = 1.05  # still of that port
_PCIE = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # generation -> GT/s
_PAYLOAD_BYTES = 256  # MaxPayload of most servers
_SLOW_GPU = 0.6  # of the median of all GPUs
_TCP_GBPS = 32.0  # busbw between nodes that RDMA hardly ever stays below with large messages
_LARGE_BYTES = 64 << 20
# Markdown takes the # of a line for a heading.
_NO_HASH = re.compile(
    r"\s*(?:nThread \d|Using devices|Rank\s+\d+ |size\s+count\s+type|Out of bounds values|Avg bus bandwidth"
    r"|Collective test |nccl-tests version)"
)
_WORD = re.compile(r"\w")
# A row of all_reduce or reduce_scatter, which old versions do not name: it has an operation and no root.
_REDUCES = re.compile(r"\b(?:sum|prod|max|min|avg)\s+(?:-1\b|\d+\.\d)")
_ASKS_FOR_GPU = re.compile(r"--use_(?:cuda|rocm)")
_PROGRAM = re.compile(r"\b(\w{1,40})_perf\b")
_SUM = re.compile(r"SUM (\w{1,120}) ")
_NO_NIC = "No NIC takes part, so it says nothing about GPUDirect RDMA."


@dataclass
class _Test:
    """One table, with what the program said before it."""

    facts: dict[About, str] = field(default_factory=dict)
    ranks: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    line: int = 0  # the first row, in the section

    @property
    def figure(self) -> Sample | None:
        """The row that stands for the test."""
        return steady(self.samples) if self.is_endless else best_row(self.samples)

    @property
    def is_endless(self) -> bool:
        """Whether it printed a row of the same size every few seconds."""
        return len(self.samples) > 1 and len({sample.size_bytes for sample in self.samples}) == 1


class _Reader:
    """Gathers what a parser reads in a section, test by test."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.tests = [_Test()]
        self.last = -1  # line that was understood
        self._rows = 0

    def feed(self, number: int, line: str) -> None:
        for output in self._parser.feed(line):
            self.last = number
            self._take(number, output)

    def _take(self, number: int, output: Output) -> None:
        test = self.tests[-1]
        if isinstance(output, Sample) and self._rows < _MOST_ROWS:
            self._rows += 1
            test.line = test.line if test.samples else number
            test.samples.append(output)
        elif isinstance(output, Fact):
            # Old versions of nccl-tests print no title.
            begins = test.samples and output.about in (About.TEST, About.RANK)
            if begins or (output.about is About.TEST and About.TEST in test.facts):
                test = _Test()
                if len(self.tests) < _MOST_TESTS:
                    self.tests.append(test)
            if output.about is About.RANK:
                test.ranks.append(output.value)
            test.facts[output.about] = output.value


def _read(section: Section, parser: Parser) -> _Reader:
    reader = _Reader(parser)
    for number, line in enumerate(section.lines):
        reader.feed(number, line)
    return reader


def _parsed(section: Section, reader: _Reader, statements: Iterator[Statement]) -> Parsed:
    lines = sum(bool(_WORD.search(line)) for line in section.lines[: reader.last + 1])
    return Parsed(lines, tuple(statements))


def _statement(section: Section, test: _Test, name: str, title: str, **texts: object) -> Statement:
    # Channels of NCCL are left out of a section, so lines behind them have other numbers.
    number = 0 if any("NCCL " in line for line in section.lines[: test.line]) else test.line
    place = replace(section.place, line=section.place.line + number)
    text = section.lines[number].strip()
    return Statement(f"{name}-result", name, title=title, text=text, place=place, **texts)  # type: ignore[arg-type]


# perftest


def read_perftest(section: Section) -> Parsed:
    """Read the tables of perftest."""
    reader = _read(section, PerftestOutput())
    return _parsed(section, reader, _of_perftest(section, [test for test in reader.tests if test.samples]))


def _of_perftest(section: Section, tests: Sequence[_Test]) -> Iterator[Statement]:
    for test in tests:
        figure = test.figure
        us = latency_us(figure) or 0.0
        if figure is None or (figure.gbps is None and not us):
            continue
        memory, device = test.facts.get(About.MEMORY, ""), test.facts.get(About.DEVICE, "")
        what = f"{figure.what or 'RDMA'} over {device}" if device else figure.what or "RDMA"
        reached = f"takes {us:.2f} µs"
        weight, cause, fix = Weight.NOTE, "", ""
        if figure.gbps is not None:
            reached = f"reaches {gbps_text(figure.gbps)} ({figure.gbps / 8:.1f} GB/s)"
            weight, cause, fix = _judged(test, figure, tests)
        by = f" ({test.facts[About.REGISTERED]})" if About.REGISTERED in test.facts else ""
        parts = [f"{memory}{by}"] if memory == GPU_MEMORY else []
        parts += [f"{binary_size(figure.size_bytes)} messages"] if figure.size_bytes is not None else []
        yield _statement(
            section,
            test,
            "perftest",
            f"{what} {reached} with {' and '.join(parts)}" if parts else f"{what} {reached}",
            weight=weight,
            cause=f"{_MEMORY_WORDS.get(memory) or _without_gpu_line(section.command)} {cause}".strip(),
            fix=fix,
            proves=Proof.GDR if memory == GPU_MEMORY and figure.gbps != 0.0 else Proof.NOTHING,
        )


_MEMORY_WORDS = {
    GPU_MEMORY: "The NIC reached GPU memory itself: GPUDirect RDMA works between this GPU and this NIC.",
    INTEGRATED_MEMORY: "This GPU has no memory of its own, so host memory is what it uses.",
}


def _without_gpu_line(command: str) -> str:
    """Return which memory a test used whose output names no GPU buffer."""
    if _ASKS_FOR_GPU.search(command):
        return (
            "The command asks for GPU memory, but no line names a GPU buffer: the beginning of the output was"
            " left out, or this perftest is too old to know the option and used host memory."
        )
    if "ib_" in command:
        return "The command asks for host memory, so it says nothing about the GPU."
    return (
        "No line names a GPU buffer. Unless the beginning of the output was left out, it is host memory, and"
        " says nothing about the GPU."
    )


def _judged(test: _Test, figure: Sample, tests: Sequence[_Test]) -> tuple[Weight, str, str]:
    """Return what a bandwidth means, compared with a port, with host memory, and second by second."""
    gbps = figure.gbps or 0.0
    if not gbps and not figure.messages_per_second:
        why = "No message completed: the path is broken."
        return Weight.CRITICAL, why, "Read the output of the other end."
    cause = _of_port(gbps / (2 if figure.is_bidirectional else 1))
    if figure.is_bidirectional:
        cause = f"Both directions are added up. {cause}"
    if uneven := stalls(test.samples, test.is_endless):
        fix = "Look for pauses (PFC), retransmissions and a flapping link on both ports."
        return Weight.WARNING, f"{cause} {uneven[0].upper()}{uneven[1:]}.", fix
    if test.facts.get(About.MEMORY) != GPU_MEMORY:
        return Weight.NOTE, cause, ""
    host = _same_with_host_memory(test, figure, tests)
    if host is None or gbps >= LIKE_HOST * host:
        return Weight.NOTE, cause, "Compare it with host memory on the same NIC (without --use_cuda)."
    return (
        Weight.WARNING,
        f"{cause} Host memory reaches {gbps_text(host)} on the same NIC: the path between GPU and NIC limits."
        " They may be far apart (different sockets or switches), ACS may redirect their traffic, or a link is"
        " slow.",
        "Run gdrtop check and gdrtop topo on the node, and test a GPU and a NIC that are near each other.",
    )


def _same_with_host_memory(test: _Test, figure: Sample, tests: Sequence[_Test]) -> float | None:
    """Return Gb/s of the same test with host memory in the same text."""
    for other in tests:
        host = other.figure
        is_same = other.facts.get(About.DEVICE) == test.facts.get(About.DEVICE)
        of_gpu = other.facts.get(About.MEMORY) in (GPU_MEMORY, None)
        if host is None or of_gpu or not is_same or not host.gbps:
            continue
        if (host.what, host.is_bidirectional) == (figure.what, figure.is_bidirectional):
            return host.gbps
    return None


def _of_port(gbps: float) -> str:
    """Return how much that is of the slowest usual port that can carry it."""
    rate = next((rate for rate in _PORT_GBPS if gbps <= _OVER_PORT * rate), None)
    if rate is None:
        return ""
    if gbps > rate:
        return f"That is a little more than a {rate} Gb/s port carries, as in loopback or over two ports."
    return f"That is {100 * gbps / rate:.0f} % of a {rate} Gb/s port; ibstat shows the rate of this one."


# nccl-tests


def read_nccl_tests(section: Section) -> Parsed:
    """Read the tables of nccl-tests."""
    reader = _Reader(NcclTestsOutput())
    for number, line in enumerate(section.lines):
        reader.feed(number, f"#  {line.strip()}" if _NO_HASH.match(line) else line)
    return _parsed(section, reader, _of_nccl_tests(section, reader.tests))


def _of_nccl_tests(section: Section, tests: Sequence[_Test]) -> Iterator[Statement]:
    lonely = sum(len(test.ranks) == 1 for test in tests)
    best: dict[object, Statement] = {}
    most: dict[object, float] = {}
    for test in tests:
        rows = [sample for sample in test.samples if sample.variant != "average"]
        figure = best_row(rows)
        if figure is None:
            continue
        program = _PROGRAM.search(section.command)
        figure = figure if figure.what or program is None else replace(figure, what=program[1])
        what = figure.what or "nccl-tests"
        wrong = max((sample.wrong or 0 for sample in rows), default=0)
        if wrong:
            title = f"{plural(wrong, 'element')} of {what} came out wrong: data was corrupted"
            yield _statement(section, test, "nccl-tests", title, weight=Weight.CRITICAL, fix=_CORRUPTED)
        hosts = {host.split()[1] for host in test.ranks if len(host.split()) > 1}
        if len(test.ranks) > 1 and all(rank.startswith("0:") for rank in test.ranks):
            yield _without_mpi(section, test)
            continue
        if len(test.ranks) == 1 or (not figure.bus_gbps and figure.gbps):
            yield _one_rank(section, test, what, lonely)
            continue
        size = "" if figure.size_bytes is None else f" with {binary_size(figure.size_bytes)}"
        where = f" on {plural(len(test.ranks), 'GPU')} of {plural(len(hosts), 'node')}" if test.ranks else ""
        title = f"{what} reaches a bus bandwidth of {(figure.bus_gbps or 0) / 8:.3g} GB/s{size}{where}"
        cause, fix = _of_bus(figure, len(test.ranks), len(hosts))
        # Of runs of one size each, the fastest stands for all.
        kind, bus = (what, len(test.ranks), *sorted(hosts)), figure.bus_gbps or 0.0
        if bus >= most.get(kind, 0.0):
            most[kind] = bus
            best[kind] = _statement(
                section, test, "nccl-tests", title, weight=Weight.NOTE, cause=cause, fix=fix
            )
    yield from best.values()


_CORRUPTED = "Find the bad GPU, NIC or node by running it on half of them, and take it out of use."


def _one_rank(section: Section, test: _Test, what: str, lonely: int) -> Statement:
    several = lonely > 1
    return _statement(
        section,
        test,
        "nccl-tests",
        f"{what} ran with one rank, whose bus bandwidth is 0 by definition",
        weight=Weight.WARNING if several else Weight.HARMLESS,
        cause="If one mpirun started these processes, nccl-tests is built without MPI (make MPI=1)."
        if several
        else "One GPU has no other to exchange data with. Nothing is wrong.",
        fix="Test two GPUs or more: -g 2, or several processes of a build with MPI=1.",
    )


def _without_mpi(section: Section, test: _Test) -> Statement:
    return _statement(
        section,
        test,
        "nccl-tests",
        f"{plural(len(test.ranks), 'process', 'processes')} ran, each as rank 0 of its own test",
        weight=Weight.CRITICAL,
        cause="nccl-tests is most likely built without MPI, so the processes do not know of each other.",
        fix="Build it with make MPI=1 MPI_HOME=…, and start that build with mpirun or srun --mpi=pmix.",
    )


_ONE_NODE = (
    "All ranks are on one node, where NVLink, PCIe or host memory carries the data unless P2P and SHM are"
    " disabled. So it says nothing about GPUDirect RDMA."
)
_RINGS = ("all_reduce", "all_gather", "reduce_scatter")


def _of_bus(figure: Sample, ranks: int, hosts: int) -> tuple[str, str]:
    """Return what a bus bandwidth means for the NICs.

    On k nodes with n ranks, (k - 1) / (n - 1) of it leave each GPU for another node in a ring.
    """
    bus = figure.bus_gbps or 0.0
    if hosts == 1:
        return _ONE_NODE, ""
    if hosts < 2 or ranks <= hosts - 1:
        return "", ""
    fix = "NCCL_DEBUG=INFO shows the path: /GDRDMA behind NET means GPUDirect RDMA (gdrtop nccl-log)."
    is_ring = figure.what in _RINGS if figure.what else bool(_REDUCES.search(figure.raw))
    if not is_ring:
        return "", fix
    wire = bus * (hosts - 1) / (ranks - 1)
    cause = (
        f"In a ring, that is {short_gbps(wire)} Gb/s between nodes for each GPU. More than the GPU's NIC has"
        " means that NVLink joins the nodes, or that switches reduce (SHARP)."
    )
    if wire < _TCP_GBPS and (figure.size_bytes or 0) >= _LARGE_BYTES:
        cause += " So little is often TCP ('Using network Socket') or one slow NIC."
    return cause, fix


# nvbandwidth


def read_nvbandwidth(section: Section) -> Parsed:
    """Read the matrices of nvbandwidth."""
    reader = _read(section, NvbandwidthOutput())
    return _parsed(section, reader, _of_nvbandwidth(section, reader.tests))


def _of_nvbandwidth(section: Section, tests: Sequence[_Test]) -> Iterator[Statement]:
    for number, test in enumerate(tests):
        cells = {cell.variant: cell.gbps for cell in test.samples if cell.gbps and cell.variant != "sum"}
        if not cells:
            continue
        most, least = max(cells.values()), min(cells.values())
        ends = tests[number + 1].line if number + 1 < len(tests) else len(section.lines)
        sums = [match[1] for line in section.lines[test.line : ends or None] if (match := _SUM.match(line))]
        name = test.facts.get(About.TEST) or next(iter(sums), "the copies")
        span = f"{least / 8:.3g} to {most / 8:.3g}" if least < 0.99 * most else f"{most / 8:.3g}"
        slow = [pair for pair, gbps in cells.items() if gbps < _SLOW_GPU * median(cells.values())]
        is_host = any("CPU" in pair for pair in cells)
        cause, fix, weight = f"{_like_link(most)} {_NO_NIC}".strip(), "", Weight.HARMLESS
        if slow:
            weight = Weight.WARNING if is_host else Weight.NOTE
            cause = f"Much slower than the others: {', '.join(slow[:4])}. {cause}"
            fix = (
                "Compare the PCIe links in gdrtop check: one may run with fewer lanes or at a lower speed."
                if is_host
                else "These pairs may be on different sockets, or without peer access. gdrtop topo shows it."
            )
        title = f"{name} reaches {span} GB/s"
        yield _statement(section, test, "nvbandwidth", title, weight=weight, cause=cause, fix=fix)


def _like_link(gbps: float) -> str:
    """Return which link carries as much as that."""
    for generation, speed in _PCIE.items():
        most = link_gbps(speed, 16) * payload_share(_PAYLOAD_BYTES)
        if NEAR_PCIE * most <= gbps <= most:
            return f"That is as fast as PCIe {generation}.0 x16 is, which is normal where no NVLink is used."
    return ""


# gdrcopy


def read_gdrcopy(section: Section) -> Parsed:
    """Read copybw of gdrcopy."""
    reader = _read(section, GdrcopyOutput())
    return _parsed(section, reader, _of_gdrcopy(section, reader.tests))


def _of_gdrcopy(section: Section, tests: Sequence[_Test]) -> Iterator[Statement]:
    for test in tests:
        rates = [f"{row.what} at {row.gbps / 8:.2g} GB/s" for row in test.samples[:4] if row.gbps]
        if rates:
            yield _statement(
                section,
                test,
                "gdrcopy",
                "; ".join(rates),
                weight=Weight.HARMLESS,
                cause=f"Reads by the CPU through BAR1 are slow by nature. {_NO_NIC}",
            )
