"""nvbandwidth: CUDA's copies between the host and GPUs. It uses no NIC.

NVIDIA/nvbandwidth README.md: copies by copy engines or kernels. It prints matrices: output.cpp,
inline_common.h. "GB/s" are 10^9 bytes (memcpy.cpp, returnAppropriateMetric() * 1e-9). Rows and columns are
CPUs and GPUs as the line above the matrix says. A pair that was not measured is "N/A", and in old versions
0.00 on the diagonal. The tests named host_to_device_bidirectional and the reverse print one direction's
bandwidth while the other direction is busy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.bandwidth.model.command import Command, Refused, command, gpu_numbers, visible_gpus
from probes.bandwidth.model.limits import Limit, limit_of_gpu_copies
from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.samples import (
    MEASURING,
    About,
    Latency,
    Sample,
    clean_line,
    fact,
    in_gbps,
    parse_number,
)
from probes.bandwidth.tools.failures import SYMPTOM, Failure, Output, failures_in
from probes.bandwidth.tools.tool import LocalSettings, LocalTool, Parser
from probes.base.frozen import frozen
from probes.base.unknown import Maybe
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination


@frozen
class NvbandwidthSettings(LocalSettings):
    """Some of its tests on some GPUs."""

    # Each direction is a test of its own.
    required_tests: tuple[str, ...] = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
    gpus: tuple[int, ...] = ()  # in PCI order; () all

    tool = "nvbandwidth"
    seconds = 15.0
    title = "nvbandwidth"

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return self.gpus

    def purpose(self, is_loopback: bool = False) -> Purpose:
        return Purpose(
            "how fast CUDA copies between host and GPUs (the GPU's own PCIe link or NVLink)",
            "GPUDirect RDMA (no NIC is involved)",
        )

    def command(self, tools: Maybe[ToolFacts]) -> Command | Refused:
        if reason := gpu_numbers(self.gpus):
            return Refused(reason)
        return command(tools, (self.tool, "-t", *self.required_tests), None, visible_gpus(self.gpus))

    def limit(self, examination: Examination) -> Limit:
        cards = examination.node.known_gpus
        bdf = next((card.bdf for card in cards if self.gpus == (card.index,)), None)
        return Limit(()) if bdf is None else limit_of_gpu_copies(examination, bdf)


_RUNNING = re.compile(r"^Running (?P<name>\w{1,120})\.\s*$")
_DESCRIPTION = re.compile(
    r"(?:(?P<row>\w{1,20})\(row\) (?P<direction><->|->|<-)|\blocal) (?P<column>\w{1,20})\(column\)"
    r".{0,60}\((?P<unit>GB/s|ns|us)\)\s*$"
)
_SUM = re.compile(r"^SUM (?P<name>\w{1,120}) (?P<number>\S{1,30})\s*$")
_STATUS = re.compile(r"^(?P<status>Waived|Error|Not Found|ERROR): ?(?P<why>.{0,300})$")
_VERSIONS = re.compile(
    r"^(?P<what>nvbandwidth Version|Driver Version|CUDA Runtime Version): (?P<version>\S{1,60})"
)
_DEVICE = re.compile(r"^Device (?P<number>\d{1,6}): (?P<name>.{1,200})$")
_ARROWS = {"->": "→", "<-": "←", "<->": "↔"}
_MICROSECONDS = {"ns": 0.001, "us": 1.0}
_COLUMNS = 1024


class NvbandwidthOutput(Parser):
    """Reads the matrices of one run."""

    def __init__(self) -> None:
        self._name = ""
        self._description: re.Match[str] | None = None
        self._columns: tuple[str, ...] = ()

    def read(self, line: str) -> tuple[Output, ...]:
        fields = line.split()
        if fields and fields[0].isdigit():
            return self._of_matrix(line, fields)
        if running := _RUNNING.match(line):
            self._name, self._description, self._columns = running["name"], None, ()
            return (*fact(About.TEST, self._name, line), *fact(About.PHASE, MEASURING, line))
        if description := _DESCRIPTION.search(line):
            self._description, self._columns = description, ()
            return ()
        return self._sum(line) or self._of_run(line)

    def _sum(self, line: str) -> tuple[Output, ...]:
        found = _SUM.match(line)
        number = parse_number(found["number"]) if found else None
        if found is None or number is None or self._description is None or found["name"] != self._name:
            return ()
        return (_sample(self._name, "sum", number, self._description, line),)

    def _of_run(self, line: str) -> tuple[Output, ...]:
        if device := _DEVICE.match(line):
            return fact(About.GPU, f"{device['number']}: {device['name']}", line)
        if version := _VERSIONS.match(line):
            text = clean_line(f"{version['what']} {version['version']}")
            return fact(About.VERSION, text, line)
        status = _STATUS.match(line)
        if status and status["status"] == "Waived":
            return fact(About.WAIVED, status["why"] or "a test", line)
        found = failures_in(line, TOOL.messages)
        if status and not found:
            text = clean_line(f"nvbandwidth: {status['why'] or status['status']}")
            return (Failure(text, clean_line(line), SYMPTOM),)
        return found

    def _of_matrix(self, line: str, fields: list[str]) -> tuple[Output, ...]:
        """The row of column numbers, which alone holds whole numbers only, or a row of the matrix."""
        if (description := self._description) is None:
            return ()
        if all(field.isdecimal() and field.isascii() and len(field) < 6 for field in fields):
            self._columns = tuple(fields[:_COLUMNS])
            return ()
        row, *cells = fields
        if len(cells) != len(self._columns):
            return ()
        samples: list[Output] = []
        for column, cell in zip(self._columns, cells, strict=True):
            number = parse_number(cell)
            itself = description["row"] == description["column"] and row == column
            if number is None or (itself and not number):
                continue
            pair = f"{description['column']} {column}"
            if description["direction"]:  # device_local_copy has one row, of no meaning
                pair = f"{description['row']} {row} {_ARROWS[description['direction']]} {pair}"
            samples.append(_sample(self._name, clean_line(pair), number, description, line))
        return tuple(samples)


def _sample(name: str, variant: str, number: float, description: re.Match[str], line: str) -> Sample:
    unit = description["unit"]
    if unit in _MICROSECONDS:
        latency = Latency("sum" if variant == "sum" else "average", number * _MICROSECONDS[unit])
        return Sample(what=name, raw=clean_line(line), variant=variant, latencies=(latency,))
    return Sample(what=name, raw=clean_line(line), variant=variant, gbps=in_gbps(number, unit))


class Nvbandwidth(LocalTool):
    """nvbandwidth."""

    source = "from source: github.com/NVIDIA/nvbandwidth"

    def parser(self, program: str) -> NvbandwidthOutput:
        return NvbandwidthOutput()

    def settings(self, request: Request, gpus: Sequence[Gpu], numa_node: int | None) -> NvbandwidthSettings:
        return NvbandwidthSettings(gpus=tuple(gpu.index for gpu in gpus))


TOOL = Nvbandwidth()
