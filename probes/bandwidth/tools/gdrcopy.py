"""gdrcopy's copybw: the CPU's own copies to and from GPU memory. They use no NIC.

NVIDIA/gdrcopy README.md: "a CPU driven copy". tests/copybw.cpp: "MB/s" is MiB/s (/1024/1024), and the whole
buffer is copied unless -c is given. The parser reads old names and forms as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.bandwidth.model.command import PCI_ORDER, Command, Refused, command, gpu_numbers, out_of_range
from probes.bandwidth.model.planned_series import Load, Purpose
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.samples import (
    DONE,
    MEASURING,
    About,
    Sample,
    clean_line,
    fact,
    in_gbps,
    parse_int,
    parse_number,
)
from probes.bandwidth.tools.failures import Output, failures_in
from probes.bandwidth.tools.tool import LocalSettings, LocalTool, Parser
from probes.base.frozen import frozen
from probes.base.unknown import Maybe
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.tool_names import GDRCOPY
from probes.facts.system.tools import ToolFacts

_NOT_PROVEN = "GPUDirect RDMA (no NIC is involved, and RDMA does not need gdrdrv)"


@frozen
class GdrcopySettings(LocalSettings):
    """A test of one GPU."""

    gpu_index: int  # in PCI order
    tool: str = "gdrcopy_copybw"  # of GDRCOPY
    size_bytes: int | None = None
    numa_node: int | None = None  # None: not bound

    seconds = 10.0

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return (self.gpu_index,)

    @property
    def load(self) -> Load:
        return Load(self.size_bytes)

    @property
    def title(self) -> str:
        return self.tool

    def purpose(self, is_loopback: bool = False) -> Purpose:
        proves = "how fast the CPU writes and reads GPU memory through BAR1 (reads are slow by nature)"
        return Purpose(proves, _NOT_PROVEN)

    def command(self, tools: Maybe[ToolFacts]) -> Command | Refused:
        if self.tool not in GDRCOPY:
            return Refused(f"{self.tool[:80]!r} is not a gdrcopy test that gdrtop knows")
        reason = gpu_numbers(self.gpu_indices) or out_of_range("the size", self.size_bytes, 4, 1 << 30)
        if reason:
            return Refused(reason)
        argv = [self.tool, "-d", str(self.gpu_index)]
        if self.size_bytes is not None:
            argv += ["-s", str(self.size_bytes)]
        return command(tools, tuple(argv), self.numa_node, (PCI_ORDER,))


_GPU = re.compile(r"^GPU id:(?P<number>\d{1,6})[; ] ?name: ?(?P<rest>.{1,200})$")
_SELECTS = re.compile(r"^selecting device (?P<number>\d{1,6})\s*$")
_BUFFER = re.compile(r"^testing size: (?P<size>\d{1,18})\s*$")
_TEST = re.compile(
    r"^(?:BAR )?(?P<what>writing|reading) test"
    r"(?:, size=(?P<size>\d{1,18}) offset=\d{1,18} num_iters=(?P<count>\d{1,18}))?"
)
_BANDWIDTH = re.compile(r"^(?:BAR1 )?(?P<what>write|read) BW: (?P<number>\S{1,30}?)(?P<unit>MB/s)\s*$")


class GdrcopyOutput(Parser):
    """Reads the output of copybw."""

    def __init__(self) -> None:
        self._buffer: int | None = None
        self._sizes: dict[str, int | None] = {}
        self._counts: dict[str, int | None] = {}
        self._gpus: dict[str, str] = {}

    def read(self, line: str) -> tuple[Output, ...]:
        found = self._of_copies(line) or self._of_gpu(line)
        return found or failures_in(line, TOOL.messages)

    def _of_gpu(self, line: str) -> tuple[Output, ...]:
        gpu = _GPU.match(line)
        if gpu and len(self._gpus) < 64:
            self._gpus[gpu["number"]] = gpu["rest"]
            return ()
        if selected := _SELECTS.match(line):
            name = self._gpus.get(selected["number"], "")
            return fact(About.GPU, f"{selected['number']} {name}", line)
        if buffer := _BUFFER.match(line):
            self._buffer = parse_int(buffer["size"])
        if line == "closing gdrdrv":
            return fact(About.PHASE, DONE, line)
        return ()

    def _of_copies(self, line: str) -> tuple[Output, ...]:
        if test := _TEST.match(line):
            what = "write" if test["what"] == "writing" else "read"
            self._sizes[what] = parse_int(test["size"]) if test["size"] else self._buffer
            self._counts[what] = parse_int(test["count"] or "")
            return fact(About.PHASE, MEASURING, line)
        if bandwidth := _BANDWIDTH.match(line):
            number, what = parse_number(bandwidth["number"]), bandwidth["what"]
            if number is None:
                return ()
            size, iterations = self._sizes.get(what), self._counts.get(what)
            gbps, text = in_gbps(number, bandwidth["unit"]), f"CPU {what}s GPU memory"
            return (Sample(text, clean_line(line), gbps, size_bytes=size, iterations=iterations),)
        return ()


class Gdrcopy(LocalTool):
    """gdrcopy_copybw."""

    binds_to_gpu = True
    source = "from NVIDIA's CUDA repository (gdrcopy-tests), or from source: github.com/NVIDIA/gdrcopy"

    def parser(self, program: str) -> GdrcopyOutput:
        return GdrcopyOutput()

    def settings(self, request: Request, gpus: Sequence[Gpu], numa_node: int | None) -> GdrcopySettings:
        return GdrcopySettings(gpus[0].index if gpus else 0, request.tool, request.size_bytes, numa_node)


TOOL = Gdrcopy()
