"""Pasted outputs of nccl-tests: what a bus bandwidth means for NICs, wrong values, builds without MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from probes.bandwidth.model.rating import best_row, short_gbps
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.tools.nccl_tests import NcclTestsOutput
from probes.base.text import binary_size, plural
from probes.read.benchmark_tables import TableReader, Test, parsed, result_statement
from probes.read.reading import Parsed, Section, Statement

SIGN = (
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
    reader = TableReader(NcclTestsOutput())
    for number, line in enumerate(section.lines):
        reader.feed(number, f"#  {line.strip()}" if _NO_HASH.match(line) else line)
    return parsed(section, reader, _of_nccl_tests(section, reader.tests))


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
