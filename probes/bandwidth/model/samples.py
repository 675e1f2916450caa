"""What a tool measured and what it reported about the run, in one form and one unit for all tools.

Bandwidth is in 10^9 bits a second everywhere. The tools differ: perftest without --report_gbits and gdrcopy
print MiB/s (2^20 bytes) under the name MB/s, nvbandwidth and nccl-tests print GB/s of 10^9 bytes.
"""

from __future__ import annotations

import math
import re
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable

LINE_LIMIT = 1000
"""Characters of a line that are parsed; the longest line of the known tools has about 200."""
_RAW_LIMIT = 240
_GIGA = 1_000_000_000
_GBPS_OF = {
    "Gb/sec": 1.0,
    "MB/sec": 8 * 2**20 / _GIGA,  # really MiB: perftest's divisor is 0x100000 (perftest_parameters.c)
    "MiB/sec": 8 * 2**20 / _GIGA,
    "MB/s": 8 * 2**20 / _GIGA,  # gdrcopy: /1024/1024 (tests/copybw.cpp)
    "GB/s": 8.0,  # nvbandwidth: * 1e-9 (memcpy.cpp); nccl-tests: / 1.0E9 (src/common.cu)
}
# As many decimals as the shortest text of a double can have before it takes an exponent.
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{0,24})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


@frozen
class Latency:
    """One figure of how long a message or a copy took.

    perftest gives half of the round trip, but for reads and atomics the whole (print_report_lat).
    """

    statistic: str  # "min", "max", "typical", "average", "deviation", "median", "99 %", "99.9 %"
    microseconds: float


@frozen
class Sample:
    """One measurement; None for what the tool did not measure or print."""

    what: str  # "RDMA_Write", "gdr_copy_to_mapping", "host_to_device_memcpy_ce", "all_reduce"
    raw: str  # the line it was read from, cleaned
    gbps: float | None = None  # the average; of both directions together where is_bidirectional
    peak_gbps: float | None = None
    bus_gbps: float | None = None  # nccl-tests' busbw: what each GPU's link carries, for any number of GPUs
    messages_per_second: float | None = None
    time_us: float | None = None  # of one operation
    size_bytes: int | None = None
    iterations: int | None = None
    wrong: int | None = None  # elements that came out wrong
    variant: str = ""  # "out-of-place", "CPU 0 → GPU 1", "average", "sum"
    latencies: tuple[Latency, ...] = ()
    is_bidirectional: bool = False


class About(Enum):
    """What a fact is about; the value is the word shown on screen."""

    TEST = "test"  # "RDMA_Write BW Test": a new table begins
    PHASE = "phase"  # "waiting for the client", "connected", "measuring", "done"
    DEVICE = "device"
    LINK_TYPE = "link type"  # "IB", "Ethernet"
    MTU_BYTES = "MTU"
    GID_INDEX = "GID index"
    QUEUE_PAIRS = "queue pairs"
    TRANSPORT = "transport"  # "IB", "IW"
    CONNECTION = "connection"  # "RC", "UC", "UD"
    RDMA_CM = "rdma_cm"  # "ON", "OFF"
    RELAXED_ORDERING = "relaxed ordering"
    GPU = "GPU"
    MEMORY = "memory"  # one of HOST_MEMORY, GPU_MEMORY, INTEGRATED_MEMORY
    REGISTERED = "registered by"  # one of BY_DMABUF, BY_PEERMEM
    VERSION = "version"
    RANK = "rank"  # "0: node7 0000:1b:00 NVIDIA H100"
    ROUTE = "route"  # NCCL's, with NCCL_DEBUG=INFO: "NET/IB/0/GDRDMA"
    WAIVED = "waived"  # a test of nvbandwidth


HOST_MEMORY = "host memory"
GPU_MEMORY = "GPU memory"
STAGED = "staged"  # GPU memory, copied through host memory
INTEGRATED_MEMORY = "host memory: the GPU is integrated and has none of its own"
BY_DMABUF = "DMA-BUF"
BY_PEERMEM = "nvidia-peermem"
GPU_PATHS = (BY_DMABUF, BY_PEERMEM)
WAITING, CONNECTED, MEASURING, DONE = "waiting for the client", "connected", "measuring", "done"


@frozen
class Fact:
    """What a tool reported about the run."""

    about: About
    value: str
    raw: str


def in_gbps(number: float, unit: str) -> float:
    """Return Gb/s of a number in one of the tools' units; KeyError for an unknown unit."""
    return number * _GBPS_OF[unit]


def parse_number(text: str) -> float | None:
    """Parse a finite, non-negative number such as "1e+05"; return None for "N/A", "nan" and other text."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def parse_int(text: str) -> int | None:
    """Parse a whole number; return None for other text."""
    return int(text) if _WHOLE.fullmatch(text) else None


def fact(about: About, value: str, line: str) -> tuple[Fact, ...]:
    """Return what a line reports about the run, as a parser returns what it reads."""
    return (Fact(about, clean_line(value), clean_line(line)),)


def clean_line(line: str) -> str:
    """Return a line as evidence: printable and bounded."""
    return printable(line.strip(), _RAW_LIMIT)
