"""Pasted outputs of benchmarks: what their figures mean for GPUDirect RDMA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from probes.bandwidth.model.expected import NEAR_PCIE
from probes.bandwidth.model.limits import Limit, limit_of_host_memory, limit_of_pair, payload_share
from probes.bandwidth.model.rating import (
    LIKE_HOST,
    Assessment,
    Rating,
    best_row,
    rate,
    short_gbps,
    stalls,
    steady,
)
from probes.bandwidth.model.samples import GPU_MEMORY, INTEGRATED_MEMORY, About, Fact, Sample, parse_int
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
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement
from probes.snapshot.examination import Examination

# Tables: the tests in a section, each with its rows and what the program said before them.

_MOST_TESTS = 50  # of one section
_MOST_ROWS = 100_000
_WORD = re.compile(r"\w")


@dataclass
class Test:
    """One table, with what the program said before it."""

    facts: dict[About, str] = field(default_factory=dict)
    ranks: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of their lines in the section, from 0

    @property
    def line(self) -> int:
        """The line of the row that stands for the test, in the section."""
        figure = self.figure
        rows = zip(self.numbers, self.samples, strict=True)
        return next((number for number, row in rows if figure is not None and row.raw == figure.raw), 0)

    @property
    def figure(self) -> Sample | None:
        """The row that stands for the test."""
        return steady(self.samples) if self.is_endless else best_row(self.samples)

    @property
    def is_endless(self) -> bool:
        """Whether it printed a row of the same size every few seconds."""
        return len(self.samples) > 1 and len({sample.size_bytes for sample in self.samples}) == 1


class TableReader:
    """Gathers what a parser reads in a section, test by test."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.tests = [Test()]
        self.last = -1  # line that was understood
        self._rows = 0
        self._is_full = False

    def feed(self, number: int, line: str) -> None:
        """Read a line of the section, counted from 0."""
        for output in self._parser.feed(line):
            self.last = number
            if not self._is_full:
                self._take(number, output)

    def _take(self, number: int, output: Output) -> None:
        test = self.tests[-1]
        if isinstance(output, Sample) and self._rows < _MOST_ROWS:
            self._rows += 1
            test.samples.append(output)
            test.numbers.append(number)
        elif isinstance(output, Fact):
            # Old versions of nccl-tests print no title.
            begins = test.samples and output.about in (About.TEST, About.RANK)
            if begins or (output.about is About.TEST and About.TEST in test.facts):
                test = Test()
                self._is_full = len(self.tests) == _MOST_TESTS
                if self._is_full:
                    return
                self.tests.append(test)
            if output.about is About.RANK:
                test.ranks.append(output.value)
            test.facts[output.about] = output.value


def read_tables(
    section: Section,
    parser: Parser,
    explain: Callable[[Section, Sequence[Test]], Iterator[Statement]],
    lines: Iterable[str] = (),
) -> Parsed:
    """Return what the tests mean that a parser reads in a section, or in these lines of it."""
    reader = TableReader(parser)
    for number, line in enumerate(lines or section.lines):
        reader.feed(number, line)
    # Lines of NCCL count as such.
    own = [line for line in section.lines[: reader.last + 1] if _WORD.search(line) and "NCCL " not in line]
    return Parsed(len(own), tuple(explain(section, reader.tests)))


def result_statement(section: Section, line: int, name: str, **texts: Any) -> Statement:
    """Return `statement()` of a result, with its line in the section."""
    # Channels of NCCL are left out of a section, so lines behind them have other numbers.
    number = 0 if any("NCCL " in before for before in section.lines[:line]) else line
    return statement(name, section.at(number), text=section.lines[number].strip(), **texts)


# nccl-tests: what a bus bandwidth means for NICs, wrong values, builds without MPI.

NCCL_TESTS_SIGN = (
    r"[\s#]*(?:nThread \d+ nGpus|nccl-tests version|Collective test \w+:|Using devices\s*$"
    r"|size\s+count\s+type\s|Out of bounds values|Avg bus bandwidth|Reducing maxBytes)"
)
_TCP_GBPS = 32.0  # busbw between nodes that RDMA hardly ever stays below with large messages
_LARGE_BYTES = 64 << 20
# Markdown takes the # of a line for a heading.
_NO_HASH = re.compile(
    r"\s*(?:nThread \d|Using devices|Rank\s+\d+ |size\s+count\s+type|Out of bounds values|Avg bus bandwidth"
    r"|Collective test |nccl-tests version)"
)
# A row of all_reduce or reduce_scatter, which old versions do not name: it has an operation and no root.
_REDUCES = re.compile(r"\b(?:sum|prod|max|min|avg)\s+(?:-1\b|\d+\.\d)")
_CUT = re.compile(r"\s*\d{1,18}\s+\d{1,18}\s+\w{1,20}\s.{0,60}NCCL INFO ")
_PROGRAM = re.compile(r"\b(\w{1,40})_perf\b")


def read_nccl_tests(section: Section) -> Parsed:
    """Read the tables of nccl-tests."""
    lines = (f"#  {line.strip()}" if _NO_HASH.match(line) else line for line in section.lines)
    return read_tables(section, NcclTestsOutput(), _of_nccl_tests, lines)


def _of_nccl_tests(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    cut = next((number for number, line in enumerate(section.lines) if _CUT.match(line)), None)
    if cut is not None:
        yield result_statement(section, cut, "nccl-tests-cut")
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
            elements = plural(wrong, "element")
            yield result_statement(section, test.line, "nccl-tests-wrong", elements=elements, what=what)
        hosts = {host.split()[1] for host in test.ranks if len(host.split()) > 1}
        if len(test.ranks) > 1 and all(rank.startswith("0:") for rank in test.ranks):
            processes = plural(len(test.ranks), "process", "processes")
            yield result_statement(section, test.line, "nccl-tests-without-mpi", processes=processes)
            continue
        if len(test.ranks) == 1 or (not figure.bus_gbps and figure.gbps):
            name = "nccl-tests-one-rank-each" if lonely > 1 else "nccl-tests-one-rank"
            yield result_statement(section, test.line, name, what=what)
            continue
        where = "" if figure.size_bytes is None else f" with {binary_size(figure.size_bytes)}"
        where += f" on {plural(len(test.ranks), 'GPU')} of {plural(len(hosts), 'node')}" if test.ranks else ""
        cause, fix = _of_bus(figure, len(test.ranks), len(hosts))
        # Of runs of one size each, the fastest stands for all.
        kind, bus = (what, len(test.ranks), *sorted(hosts)), figure.bus_gbps or 0.0
        if bus >= most.get(kind, 0.0):
            texts = {"what": what, "rate": f"{bus / 8:.3g}", "where": where, "cause": cause, "fix": fix}
            most[kind] = bus
            best[kind] = result_statement(section, test.line, "nccl-tests-result", **texts)
    yield from best.values()


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


# perftest: which memory the NIC reached, and how much of what the path can carry.

PERFTEST_SIGN = (
    r"\* Waiting for client to connect|initializing CUDA\s*$|creating CUDA Ctx"
    r"|Using ROCm Device with ID|allocated (?:\d+ bytes of )?GPU buffer"
    r"|\s*(?:(?:Send|RDMA_Write)(?:_imm)?|RDMA_Read|Atomic) .{0,80}Test\s*$|\s*#bytes\s+#iterations"
)
_PORT_GBPS = (10, 25, 40, 50, 56, 100, 200, 400, 800)
_OVER_PORT = 1.05  # still of that port
_ASKS_FOR_GPU = re.compile(r"--use_(?:cuda|rocm)")
_LOCAL = re.compile(r"\b(?:localhost|127\.0\.0\.1)\b")
_ADDRESS = re.compile(r"CUDA device (\d{1,4}): PCIe address is ([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})")
_PICKED = re.compile(r"Picking (?:device No\.|GPU number) (\d{1,4})")


def read_perftest(section: Section) -> Parsed:
    """Read the tables of perftest."""
    return read_tables(section, PerftestOutput(), of_perftest)


def of_perftest(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    """Say what each test of perftest means."""
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
            weight, cause, fix = _judged(section, test, figure, tests)
        by = f" ({test.facts[About.REGISTERED]})" if About.REGISTERED in test.facts else ""
        parts = [f"{memory}{by}"] if memory == GPU_MEMORY else []
        parts += [f"{binary_size(figure.size_bytes)} messages"] if figure.size_bytes is not None else []
        cause = f"{_MEMORY_WORDS.get(memory) or _without_gpu_line(section.command)} {cause}".strip()
        result = f"{what} {reached} with {' and '.join(parts)}" if parts else f"{what} {reached}"
        proves = Proof.GDR if memory == GPU_MEMORY and figure.gbps != 0.0 else Proof.NOTHING
        texts = {"weight": weight, "proves": proves, "result": result, "cause": cause, "fix": fix}
        yield result_statement(section, test.line, "perftest-result", **texts)


A_GPU, NO_GPU = "a GPU's memory, by the JSON", "host memory, by the JSON"
"""The memory of a test of which only the JSON is there."""
_MEMORY_WORDS = {
    A_GPU: (
        "It used a GPU. The JSON does not say whether the NIC reached the GPU's own memory: integrated GPUs"
        " (GB10) and managed memory use the host's."
    ),
    NO_GPU: "The JSON names no GPU. Host memory says nothing about the GPU.",
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


def _judged(section: Section, test: Test, figure: Sample, tests: Sequence[Test]) -> tuple[Weight, str, str]:
    """Return what a bandwidth means: beside the path's limit or a port, host memory, and second by second."""
    gbps = figure.gbps or 0.0
    if not gbps and not figure.messages_per_second:
        why = "No message completed: the path is broken."
        return Weight.CRITICAL, why, "Read the output of the other end."
    of_gpu = test.facts.get(About.MEMORY) == GPU_MEMORY
    host = _same_with_host_memory(test, figure, tests) if of_gpu else None
    judgment = Assessment() if (limit := _limit(section, test)) is None else rate(figure, limit, host)
    cause = _of_port(gbps / (2 if figure.is_bidirectional else 1))
    if judgment.verdict is not Rating.UNKNOWN:
        cause = f"That is {judgment.words} on this node: {judgment.why}."
    if figure.is_bidirectional:
        cause = f"Both directions are added up. {cause}"
    if uneven := stalls(test.samples, test.is_endless):
        fix = "Look for pauses (PFC), retransmissions and a flapping link on both ports."
        return Weight.WARNING, f"{cause} {uneven[0].upper()}{uneven[1:]}.", fix
    if judgment.is_slow:
        return Weight.WARNING, cause, "Run gdrtop check on both nodes."
    if not of_gpu or judgment.verdict is Rating.NEAR:
        return Weight.NOTE, cause, ""
    if host is None or gbps >= LIKE_HOST * (host.gbps or 0.0):
        return Weight.NOTE, cause, "Compare it with host memory on the same NIC (without --use_cuda)."
    return (
        Weight.WARNING,
        f"{cause} Host memory reaches {gbps_text(host.gbps or 0.0)} on the same NIC: the path between GPU and"
        " NIC limits. They may be far apart (different sockets or switches), ACS may redirect their traffic,"
        " or a link is slow.",
        "Run gdrtop check and gdrtop topo on the node, and test a GPU and a NIC that are near each other.",
    )


def _same_with_host_memory(test: Test, figure: Sample, tests: Sequence[Test]) -> Sample | None:
    """Return the figure of the same test with host memory in the same text."""
    for other in tests:
        host = other.figure
        is_same = other.facts.get(About.DEVICE) == test.facts.get(About.DEVICE)
        of_gpu = other.facts.get(About.MEMORY) in (GPU_MEMORY, None)
        if host is None or of_gpu or not is_same or not host.gbps:
            continue
        if (host.what, host.is_bidirectional) == (figure.what, figure.is_bidirectional):
            return host
    return None


def _limit(section: Section, test: Test) -> Limit | None:
    """Return what the path can carry on the node of the text; None if node, NIC or GPU are not known."""
    node, nic = section.node, test.facts.get(About.DEVICE, "")
    if node is None or nic not in node.topology.devices or _LOCAL.search(section.command):
        return None
    queue_pairs = parse_int(test.facts.get(About.QUEUE_PAIRS, "")) or 1
    if test.facts.get(About.MEMORY) == A_GPU:
        return None
    if test.facts.get(About.MEMORY) != GPU_MEMORY:
        return limit_of_host_memory(node, nic, queue_pairs=queue_pairs)
    gpu = _gpu_of(section.lines[: test.line], node)
    return limit_of_pair(node, gpu, nic, queue_pairs=queue_pairs, data_direct=False) if gpu else None


def _gpu_of(lines: Sequence[str], node: Examination) -> str:
    """Return the BDF of the GPU that perftest picked; "" if the node has none there."""
    picked, addresses = "", {}
    for line in lines:
        if address := _ADDRESS.match(line):
            addresses[address[1]] = address[2].lower()
        elif gpu := _PICKED.match(line):
            picked = gpu[1]
    found = [card.bdf for card in node.node.known_gpus if card.bdf[-7:-2] == addresses.get(picked, "")]
    return found[0] if len(found) == 1 else ""


def _of_port(gbps: float) -> str:
    """Return how much that is of the slowest usual port that can carry it."""
    rate = next((rate for rate in _PORT_GBPS if gbps <= _OVER_PORT * rate), None)
    if rate is None:
        return ""
    if gbps > rate:
        return f"That is a little more than a {rate} Gb/s port carries, as in loopback or over two ports."
    return f"That is {100 * gbps / rate:.0f} % of a {rate} Gb/s port; ibstat shows the rate of this one."


# nvbandwidth and gdrcopy: copies in which no NIC takes part.

NVBANDWIDTH_SIGN = (
    r"nvbandwidth Version|Running (?:host|device|all|one|multinode)_\w+\.\s*$"
    r"|memcpy .{0,80}\(column\) .{0,40}\(GB/s\)"
)
GDRCOPY_SIGN = r"GPU id:\d+[; ]|BAR writing test|testing size: \d+$"
_PCIE = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # generation -> GT/s
_NO_NIC = "No NIC takes part, so it says nothing about GPUDirect RDMA."
_PAYLOAD_BYTES = 256  # MaxPayload of most servers
_SLOW_GPU = 0.6  # of the median of all GPUs
_SUM = re.compile(r"SUM (\w{1,120}) ")


def read_nvbandwidth(section: Section) -> Parsed:
    """Read the matrices of nvbandwidth."""
    return read_tables(section, NvbandwidthOutput(), _of_nvbandwidth)


def _of_nvbandwidth(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    for number, test in enumerate(tests):
        cells = {cell.variant: cell.gbps for cell in test.samples if cell.gbps and cell.variant != "sum"}
        if not cells:
            continue
        most, least = max(cells.values()), min(cells.values())
        ends = tests[number + 1].line if number + 1 < len(tests) else len(section.lines)
        sums = [match[1] for line in section.lines[test.line : ends or None] if (match := _SUM.match(line))]
        name = test.facts.get(About.TEST) or next(iter(sums), "the copies")
        span = f"{least / 8:.3g} to {most / 8:.3g}" if least < 0.99 * most else f"{most / 8:.3g}"
        slow_gbps = _SLOW_GPU * median(cells.values())
        slow = [pair for pair, gbps in cells.items() if gbps < slow_gbps]
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
        texts = {"test": name, "rates": span, "weight": weight, "cause": cause, "fix": fix}
        yield result_statement(section, test.line, "nvbandwidth-result", **texts)


def _like_link(gbps: float) -> str:
    """Return which link carries as much as that."""
    for generation, speed in _PCIE.items():
        most = link_gbps(speed, 16) * payload_share(_PAYLOAD_BYTES)
        if NEAR_PCIE * most <= gbps <= most:
            return f"That is as fast as PCIe {generation}.0 x16 is, which is normal where no NVLink is used."
    return ""


def read_gdrcopy(section: Section) -> Parsed:
    """Read copybw of gdrcopy."""
    return read_tables(section, GdrcopyOutput(), _of_gdrcopy)


def _of_gdrcopy(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    for test in tests:
        rates = [f"{row.what} at {row.gbps / 8:.2g} GB/s" for row in test.samples[:4] if row.gbps]
        if rates:
            yield result_statement(section, test.line, "gdrcopy-result", rates="; ".join(rates))
