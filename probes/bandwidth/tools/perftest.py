"""perftest: RDMA bandwidth and latency of host and GPU memory over a NIC, between two ends.

Its commands are in perftest_command.py, its errors in probes/messages/perftest.toml.
"""

from __future__ import annotations

import re

from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    CONNECTED,
    GPU_MEMORY,
    HOST_MEMORY,
    INTEGRATED_MEMORY,
    MEASURING,
    WAITING,
    About,
    Latency,
    Sample,
    clean_line,
    fact,
    in_gbps,
    parse_int,
    parse_number,
)
from probes.bandwidth.tools.failures import Output, failures_in
from probes.bandwidth.tools.perftest_command import measured_speed
from probes.bandwidth.tools.tool import BandwidthTool, Parser
from probes.facts.system.tools import PERFTEST_BUILD
from probes.plans.packages import perftest_steps
from probes.snapshot.examination import Examination

# perftest src/perftest_parameters.{c,h}: RESULT_FMT*, REPORT_FMT*, ctx_print_test_info; src/cuda_memory.c:
# the lines before the table with GPU memory. The table's header names columns and unit, so only it says how
# to read a row: a row without a header before it is not a sample. The older "MB/sec" is MiB/s, because the
# divisor is 0x100000 as with the later "MiB/sec".

_TITLE = re.compile(
    r"^\s{1,80}(?P<verb>(?:Send|RDMA_Write)(?:_imm)?|RDMA_Read|Atomic)(?P<rest>(?: \w{1,20}){1,5}) Test\s*$"
)
_COLUMN = re.compile(
    r"#bytes|#sl|#iterations|MsgRate(?: Port\d)?\[Mpps\]"
    r"|BW (?P<bw>peak|average|Port\d)\[(?P<unit>\w{2,3}/sec)\]"
    r"|t_(?P<t>min|max|typical|avg|stdev)\[usec\]|tps average|CPU_Util\[%\]"
    r"|(?P<percentile>\d{1,2}(?:\.\d{1,3})?)% percentile\[usec\]"
)
_LATENCIES = {"min": "min", "max": "max", "typical": "typical", "avg": "average", "stdev": "deviation"}
_SETTINGS = {
    "Device": About.DEVICE,
    "Number of qps": About.QUEUE_PAIRS,
    "Transport type": About.TRANSPORT,
    "Connection type": About.CONNECTION,
    "PCIe relax order": About.RELAXED_ORDERING,
    "Mtu": About.MTU_BYTES,
    "Link type": About.LINK_TYPE,
    "GID index": About.GID_INDEX,
    "Gid index": About.GID_INDEX,
    "rdma_cm QPs": About.RDMA_CM,
}
_SETTING = re.compile(rf"(?P<name>{'|'.join(_SETTINGS)})\s{{0,20}}:\s{{0,20}}(?P<value>[^\s:]{{1,64}})")
_GPU_NAME = re.compile(r"^\[pid = \d{1,10}, dev = \d{1,6}\] device name = \[(?P<name>.{1,128})\]\s*$")
_ENDS_OF_CUDA = re.compile(r"^(?:initializing CUDA|destroying current CUDA Ctx)")
_DMABUF = re.compile(r"^Calling ibv_reg_(?:dmabuf_mr\(|mr_ex with dmabuf)")
_EXPORTS_DMABUF = re.compile(r"^using DMA-BUF for GPU buffer")
# Managed memory stays on the host, where the NIC reaches it (linux-rdma/perftest#283).
_ALLOCATED = re.compile(r"^allocated GPU buffer(?!.{0,200} for type CUDA_MEM_(?:MANAGED|MALLOC))")
_ROCM = re.compile(r"^allocated \d{1,20} bytes of GPU buffer at")  # of AMD: src/rocm_memory.c
_INTEGRATED = re.compile(r"^CUDA device integrated: 1\b")


class PerftestOutput(Parser):
    """Reads a test's output, in which stdout and stderr may be mixed; several runs may follow each other."""

    def __init__(self) -> None:
        self._verb = ""
        self._is_bidirectional = False
        self._columns: tuple[re.Match[str], ...] = ()
        self._memory_reported = self._connection_reported = False
        self._no_peak = self._has_rows = False
        self._forget_gpu()

    def _forget_gpu(self) -> None:
        self._gpu = self._dmabuf = self._registered = self._integrated = self._is_amd = False

    def read(self, line: str) -> tuple[Output, ...]:
        stripped = line.strip()
        if not stripped.strip("-"):
            return ()
        if stripped[0].isdigit():
            return self._row(line)
        if title := _TITLE.match(line):
            self._verb = title["verb"]
            self._is_bidirectional = "Bidirectional" in title["rest"]
            self._columns = ()
            self._memory_reported = self._connection_reported = False
            if self._has_rows:  # what is known of the GPU is of the run before
                self._forget_gpu()
            return fact(About.TEST, line, line)
        if stripped.startswith("#bytes"):
            self._columns = tuple(_COLUMN.finditer(line))
            return (*self._memory(line), *fact(About.PHASE, MEASURING, line))
        if "Waiting for client to connect" in line:
            return fact(About.PHASE, WAITING, line)
        if stripped.startswith("remote address:"):
            if self._connection_reported:  # each queue pair has such a line
                return ()
            self._connection_reported = True
            return (*self._memory(line), *fact(About.PHASE, CONNECTED, line))
        if "BW peak won't be measured" in line:
            self._no_peak = True
            return ()
        settings = tuple(
            each
            for setting in _SETTING.finditer(line)
            for each in fact(_SETTINGS[setting["name"]], setting["value"].removesuffix("[B]"), line)
        )
        return settings or self._of_gpu(line) or self._failure(line)

    def _memory(self, line: str) -> tuple[Output, ...]:
        """Report the memory. It is registered before the ends exchange addresses: no lines can follow."""
        if self._memory_reported:
            return ()
        self._memory_reported = True
        if self._integrated:
            return fact(About.MEMORY, INTEGRATED_MEMORY, line)
        if not self._gpu:
            return fact(About.MEMORY, HOST_MEMORY, line)
        memory = fact(About.MEMORY, GPU_MEMORY, line)
        if self._registered or self._dmabuf:
            return (*memory, *fact(About.REGISTERED, BY_DMABUF, line))
        return memory if self._is_amd else (*memory, *fact(About.REGISTERED, BY_PEERMEM, line))

    def _of_gpu(self, line: str) -> tuple[Output, ...]:
        if _ENDS_OF_CUDA.match(line):
            self._forget_gpu()
            self._has_rows = False
        if name := _GPU_NAME.match(line):
            return fact(About.GPU, name["name"], line)
        if _INTEGRATED.match(line):
            self._integrated = True
        elif _ALLOCATED.match(line):
            self._gpu = True
        elif _ROCM.match(line):
            self._gpu = self._is_amd = True
        elif _EXPORTS_DMABUF.match(line):
            self._gpu = self._dmabuf = True
        elif _DMABUF.match(line):
            self._gpu = self._registered = True
        return ()

    def _failure(self, line: str) -> tuple[Output, ...]:
        memory = BY_DMABUF if self._dmabuf else BY_PEERMEM if self._gpu else ""
        return failures_in(line, TOOL.messages, memory)

    def _row(self, line: str) -> tuple[Output, ...]:
        fields = line.split()
        if not self._columns or len(fields) != len(self._columns):
            return self._failure(line)
        numbers = [number for number in map(parse_number, fields) if number is not None]
        if len(numbers) < len(fields):
            return ()
        named = {column.group(): field for column, field in zip(self._columns, fields, strict=True)}
        columns = list(zip(self._columns, numbers, strict=True))
        size, iterations = parse_int(named.get("#bytes", "")), parse_int(named.get("#iterations", ""))
        rates = {"MsgRate[Mpps]": 1e6, "tps average": 1.0}
        rate = next((number * rates[each.group()] for each, number in columns if each.group() in rates), None)
        bandwidths = {each["bw"]: _gbps(number, each["unit"]) for each, number in columns if each["bw"]}
        average, peak = bandwidths.get("average"), bandwidths.get("peak")
        latencies = [
            Latency(_LATENCIES[each["t"]] if each["t"] else f"{each['percentile']} %", number)
            for each, number in columns
            if each["t"] or each["percentile"]
        ]
        if size is None or iterations is None:
            return ()
        if iterations and rate == 0 and average == 0:
            return ()  # in the first second of an endless test messages flow, but no clock is set yet
        self._has_rows = True
        # With -D and --run_infinitely perftest does not measure the peak, and prints 0.00 in its place.
        has_peak = not self._no_peak and (bool(peak) or not average)
        return (
            Sample(
                what=self._verb,
                raw=clean_line(line),
                size_bytes=size,
                gbps=average,
                peak_gbps=peak if has_peak else None,
                messages_per_second=rate,
                iterations=iterations,
                latencies=tuple(latencies),
                is_bidirectional=self._is_bidirectional,
            ),
        )


def _gbps(number: float, unit: str) -> float | None:
    try:
        return in_gbps(number, unit)
    except KeyError:
        return None


GPU_BUILD_HINT = (
    f"DOCA-OFED has one with CUDA; from source (github.com/linux-rdma/perftest): {PERFTEST_BUILD}"
)


class Perftest(BandwidthTool):
    """ib_write_bw and its siblings."""

    messages = ("perftest", "rdma-core", "system")

    def parser(self, program: str) -> PerftestOutput:
        return PerftestOutput()

    def purpose(self, program: str, with_gpu: bool = True) -> Purpose:
        memory = "GPU memory (DMA-BUF or nvidia-peermem) or host memory" if with_gpu else "host memory"
        not_proven = "whether NCCL uses this path and this NIC" if with_gpu else "GPU memory"
        return Purpose(measured_speed(program, f"{memory} over a NIC"), not_proven)

    def install_hint(self, examination: Examination) -> str:
        install = next((step.command for step in perftest_steps(examination)), "the distribution's perftest")
        return f"{install} (host memory only); {GPU_BUILD_HINT}"


TOOL = Perftest()
