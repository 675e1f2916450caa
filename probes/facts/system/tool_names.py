"""The names of the benchmark tools, separate so that the command line can import them quickly."""

from __future__ import annotations

PERFTEST = ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat")
SANITY = "gdrcopy_sanity"
GDRCOPY = ("gdrcopy_copybw", SANITY)
NVBANDWIDTH = "nvbandwidth"
NCCL_TESTS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf", "sendrecv_perf")
TEST_TOOLS = (*PERFTEST, *GDRCOPY, NVBANDWIDTH, *NCCL_TESTS)
