"""The programs of the bandwidth tools: light, because the command line needs them before it opens a node.

To add a tool: add its programs here, and write probes/bandwidth/tools/TOOL.py with a `TOOL` object and
probes/simulation/bandwidth/TOOL.py with a function `start`.
"""

from __future__ import annotations

from typing import NamedTuple


class BenchProgram(NamedTuple):
    """One program that measures."""

    name: str
    tool: str  # the package it comes with: "nccl-tests"; its modules are named nccl_tests.py
    option: str  # `gdrtop bench --test OPTION`
    label: str  # on the setup screen
    use: str  # what it is for, one line


_PERFTEST = "measures RDMA bandwidth and latency, also for GPU memory if built with CUDA"
_COPIES = "measures CPU copies to GPU memory; not the NIC's path"
_CUDA = "measures copies between GPUs and host; no NIC involved"
_NCCL = "nccl-tests: measures the collectives of a training job"

PROGRAMS = (
    BenchProgram("ib_write_bw", "perftest", "write", "RDMA write, bandwidth", _PERFTEST),
    BenchProgram("ib_read_bw", "perftest", "read", "RDMA read, bandwidth", _PERFTEST),
    BenchProgram("ib_write_lat", "perftest", "write-lat", "RDMA write, latency", _PERFTEST),
    BenchProgram("gdrcopy_copybw", "gdrcopy", "gdrcopy", "CPU copies to and from GPU memory", _COPIES),
    BenchProgram("nvbandwidth", "nvbandwidth", "nvbandwidth", "CUDA copies between host and GPU", _CUDA),
    BenchProgram("all_reduce_perf", "nccl-tests", "all-reduce", "NCCL all-reduce", _NCCL),
    BenchProgram("alltoall_perf", "nccl-tests", "alltoall", "NCCL alltoall", _NCCL),
)
TOOL_OF = {program.name: program.tool for program in PROGRAMS}


def programs_of(tool: str) -> tuple[str, ...]:
    """Return the names of a tool's programs."""
    return tuple(program.name for program in PROGRAMS if program.tool == tool)


TEST_TOOLS = tuple(TOOL_OF)
PERFTEST = programs_of("perftest")
GDRCOPY = programs_of("gdrcopy")
NCCL_TESTS = programs_of("nccl-tests")
