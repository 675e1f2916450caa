"""Outputs of benchmark tools: every figure that gdrtop reads, against the figures in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from probes.bandwidth.model.samples import Sample
from probes.bandwidth.tools.gdrcopy import GdrcopyOutput
from probes.bandwidth.tools.nccl_tests import NcclTestsOutput
from probes.bandwidth.tools.nvbandwidth import NvbandwidthOutput
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.bandwidth.tools.tool import Parser
from tests.machines.compared import Compared, compare_lists

_MB = 8 * 2**20 / 1e9  # perftest's and gdrcopy's MB are MiB
_GB = 8.0


def perftest(path: Path) -> Compared:
    """Compare the average of each row, in Gb/s or µs, with the row."""
    samples = _samples(PerftestOutput(), path)
    ours = [
        _rounded(sample.gbps)
        if sample.gbps is not None
        else _rounded(next(each.microseconds for each in sample.latencies if each.statistic == "average"))
        for sample in samples
    ]
    return compare_lists("row", list(_rows_of_perftest(path)), ours)


def _rows_of_perftest(path: Path) -> Iterator[float]:
    column, factor = -1, 1.0
    for line in path.read_text(errors="replace").splitlines():
        if "#bytes" in line:
            titles = re.findall(r"#?\w+(?: \w+)?\[\S+\]|#\w+|\d\S*% percentile\[usec\]", line)
            words = [title.partition("[")[0] for title in titles]
            column = words.index("BW average") if "BW average" in words else words.index("t_avg")
            factor = _MB if "average[MB" in line else 1.0
        elif column >= 0 and re.match(r"\s*\d+\s+\d+\s+[\d.]", line):
            yield _rounded(float(line.split()[column]) * factor)


def nccl_tests(path: Path) -> Compared:
    """Compare algorithm and bus bandwidth of each row, out of place and in place, with the row."""
    samples = [
        sample
        for sample in _samples(NcclTestsOutput(), path)
        if sample.variant in ("out-of-place", "in-place")
    ]
    truth: list[float] = []
    for line in path.read_text(errors="replace").splitlines():
        if re.match(r"\s*\d+\s+\d+\s+[a-z]\w+\s", line):
            # Size, count, type and so on; then time, algbw, busbw and errors, once or twice.
            words = line.split()
            figures = words[-8:] if len(words) >= 11 else words[-4:]
            wanted = (place for place in range(len(figures)) if place % 4 in (1, 2))
            truth += [_rounded(float(figures[place]) * _GB) for place in wanted]
    ours = [_rounded(value) for sample in samples for value in (sample.gbps or 0.0, sample.bus_gbps or 0.0)]
    return compare_lists("figure", truth, ours)


def nvbandwidth(path: Path) -> Compared:
    """Compare each cell with the table; a GPU with itself has none."""
    samples = [sample for sample in _samples(NvbandwidthOutput(), path) if sample.variant != "sum"]
    truth: list[float] = []
    factor = _GB
    for line in path.read_text(errors="replace").splitlines():
        if "(row)" in line:
            factor = 0.001 if "(ns)" in line else _GB
        elif re.match(r"\s*\d+\s+(?:\d+\.\d+|N/A)", line):
            cells = line.split()[1:]
            truth += [_rounded(float(cell) * factor) for cell in cells if cell not in ("N/A", "0.00")]
    ours = [sample.latencies[0].microseconds if sample.gbps is None else sample.gbps for sample in samples]
    return compare_lists("cell", truth, map(_rounded, ours))


def gdrcopy(path: Path) -> Compared:
    """Compare the bandwidths of copies with the lines."""
    samples = [sample for sample in _samples(GdrcopyOutput(), path) if sample.gbps is not None]
    text = path.read_text(errors="replace")
    truth = [_rounded(float(number) * _MB) for number in re.findall(r"BW: ([\d.]+)MB/s", text)]
    return compare_lists("copy", truth, [_rounded(sample.gbps or 0.0) for sample in samples])


def _samples(parser: Parser, path: Path) -> list[Sample]:
    lines = path.read_text(errors="replace").splitlines()
    return [output for line in lines for output in parser.feed(line) if isinstance(output, Sample)]


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
