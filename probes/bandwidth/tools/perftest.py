"""perftest: RDMA bandwidth and latency of host and GPU memory over a NIC, between two ends.

Its commands are in perftest_command.py, its output in perftest_output.py, its errors in perftest_failures.py.
"""

from __future__ import annotations

from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.tools.perftest_command import measured_speed
from probes.bandwidth.tools.perftest_failures import PATTERNS
from probes.bandwidth.tools.perftest_output import PerftestOutput
from probes.bandwidth.tools.tool import BandwidthTool
from probes.facts.system.tools import PERFTEST_BUILD
from probes.plans.packages import perftest_steps
from probes.snapshot.examination import Examination

GPU_BUILD_HINT = (
    f"DOCA-OFED has one with CUDA; from source (github.com/linux-rdma/perftest): {PERFTEST_BUILD}"
)


class Perftest(BandwidthTool):
    """ib_write_bw and its siblings."""

    failure_patterns = PATTERNS

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
