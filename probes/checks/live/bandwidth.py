"""What bandwidth tests measured on this node."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import Plan, Step, instruction
from probes.checks.live.watched import report_conditions
from probes.queries.finding import Area, Outcome, Severity
from probes.queries.ports import PORT_DOWN
from probes.snapshot.condition import BELOW_LIMIT, CONGESTED, ERRORS_RISING, FLAPPING, PAUSED, THROTTLED
from probes.snapshot.examination import Examination

AREA = Area("path", is_moving=True)
_REASONS = (
    "acs-redirect-enabled",
    "acs-direct-translated-without-ats",
    "acs-direct-nic",
    "iommu-translated",
    "vm-without-p2p-ats",
    "pcie-link-degraded-width",
    "pcie-link-degraded-speed",
    "pcie-link-degraded-gpu-speed",
    "pcie-link-below-port-rate",
    "pcie-devctl-relaxed-ordering",
    "pcie-devctl-payload-differs",
    "single-rail-or-half-rate",
    "single-rail-or-half-rate-one-lane",
    *PORT_DOWN,
    "link-flaps",
    FLAPPING,
    "symbol-errors-rising",
    "out-of-sequence-rising",
    "local-ack-timeout",
    ERRORS_RISING,
    "mtu-mismatch",
    "mtu-mismatch-small",
    "port-discards-rising",
    CONGESTED,
    PAUSED,
    THROTTLED,
)


@AREA.check(
    BELOW_LIMIT,
    Severity.WARNING,
    "A bandwidth test was slow",
    "NVIDIA GPUDirect RDMA documentation; linux-rdma perftest, https://github.com/linux-rdma/perftest",
    ok="No bandwidth test since boot was slow",
    impact="Jobs that use this GPU and NIC get no more bandwidth than the test.",
    data_path=True,
    part_of=_REASONS,
)
def bandwidth_below_limit(examination: Examination) -> Outcome:
    """Find tests of GPU memory whose newest result since boot is far below the limit of its path."""
    steps = (
        Step("Measure again while no job runs", ("gdrtop", "bench", "--sweep"), needs_root=False),
        Step(
            "Compare with host memory over the same NIC",
            ("gdrtop", "bench", "--memory", "compare"),
            needs_root=False,
        ),
        instruction("If host memory is as slow, check the NIC, cable, network and peer", False),
    )
    none = Evidence("saved results", "no result of this boot is slow, or nothing was measured")
    fix = Plan("Find out what slows the path", steps, disturbs="jobs that use these GPUs and NICs")
    return report_conditions(examination, BELOW_LIMIT, fix, is_about_jobs=False, none=none)
