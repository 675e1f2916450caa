"""Pasted outputs of nvbandwidth and gdrcopy: copies in which no NIC takes part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median

from probes.bandwidth.model.expected import NEAR_PCIE
from probes.bandwidth.model.limits import payload_share
from probes.bandwidth.model.samples import About
from probes.bandwidth.tools.gdrcopy import GdrcopyOutput
from probes.bandwidth.tools.nvbandwidth import NvbandwidthOutput
from probes.facts.pci.functions import link_gbps
from probes.messages.message import Weight
from probes.read.benchmark_tables import Test, parsed, read_tables, result_statement
from probes.read.reading import Parsed, Section, Statement

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
    reader = read_tables(section, NvbandwidthOutput())
    return parsed(section, reader, _of_nvbandwidth(section, reader.tests))


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
    reader = read_tables(section, GdrcopyOutput())
    return parsed(section, reader, _of_gdrcopy(section, reader.tests))


def _of_gdrcopy(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    for test in tests:
        rates = [f"{row.what} at {row.gbps / 8:.2g} GB/s" for row in test.samples[:4] if row.gbps]
        if rates:
            yield result_statement(section, test.line, "gdrcopy-result", rates="; ".join(rates))
