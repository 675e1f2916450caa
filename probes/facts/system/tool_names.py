"""The names of the tools that measure: light, for the command line knows them before any node is opened."""

from __future__ import annotations

PERFTEST = ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat")
SANITY = "gdrcopy_sanity"
GDRCOPY = ("gdrcopy_copybw", SANITY)
NVBANDWIDTH = "nvbandwidth"
NCCL_TESTS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf", "sendrecv_perf")
TEST_TOOLS = (*PERFTEST, *GDRCOPY, NVBANDWIDTH, *NCCL_TESTS)
