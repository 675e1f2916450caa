"""Ports and GPUs under load: links that flap, pauses, rising errors, congestion, throttled GPUs."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import Plan, Step, instruction
from probes.checks.live.watched import report_conditions
from probes.queries.finding import Area, Outcome, Severity
from probes.queries.ports import LINK_CAUSES
from probes.snapshot.condition import BELOW_LIMIT, CONGESTED, ERRORS_RISING, FLAPPING, PAUSED, THROTTLED
from probes.snapshot.examination import Examination

AREA = Area("nic", is_moving=True)
BANDWIDTH = Area("path", is_moving=True)
_COUNTERS = "NVIDIA, Understanding mlx5 Linux counters, https://enterprise-support.nvidia.com/s/article/"


_FLAPPING_FIX = Plan(
    "Repair the link",
    (
        instruction("Read the link's quality: mlxlink -d BDF -m -c -e"),
        instruction("Clean, reseat or replace cable and optic; try another switch port"),
    ),
    disturbs="jobs on this port",
)


@AREA.check(
    FLAPPING,
    Severity.WARNING,
    "A port's link is flapping",
    "NVIDIA NVSentinel, NIC health monitor",
    ok="No port's link is flapping",
    impact="Jobs on the port stall, and fail when NCCL's retries are used up.",
    data_path=True,
)
def port_flapping(examination: Examination) -> Outcome:
    """Find ports that went down three times in ten minutes, until they are quiet for a minute."""
    return report_conditions(examination, FLAPPING, _FLAPPING_FIX, 30.0, False)


_ERRORS_RISING_FIX = Plan(
    "Find out where packets are lost",
    (
        instruction("Signal errors: run mlxlink -d BDF -m -c -e, then clean or replace the cable"),
        instruction("Losses: compare ECN, PFC and traffic class of hosts and switches, and switch drops"),
        instruction("Timeouts: check the job's peers first"),
    ),
)


@AREA.check(
    ERRORS_RISING,
    Severity.WARNING,
    "A port's error counters are rising now",
    _COUNTERS,
    ok="No port error counter is rising faster than normal",
    impact="Packets are lost or damaged and sent again, which costs bandwidth.",
    data_path=True,
    part_of=(
        *LINK_CAUSES,
        "link-flaps",
        "symbol-errors-rising",
        "out-of-sequence-rising",
        "local-ack-timeout",
    ),
)
def port_errors_rising(examination: Examination) -> Outcome:
    """Find counters above their limits, until they are quiet for a minute."""
    return report_conditions(examination, ERRORS_RISING, _ERRORS_RISING_FIX, 10.0, False)


_PAUSED_FIX = Plan(
    "Find the congested receiver",
    (
        instruction("Find the switch port that sends pause frames, and the receiver behind it"),
        instruction("Check that ECN (DCQCN) is configured on switches and hosts, so that pauses are rare"),
    ),
)


@AREA.check(
    PAUSED,
    Severity.WARNING,
    "A port is paused by PFC",
    _COUNTERS,
    ok="No port is paused by PFC for more than 5 % of the time",
    impact="The port cannot send, or stops its sender, for the share of time shown in the evidence.",
    data_path=True,
    part_of=(CONGESTED,),
)
def port_paused(examination: Examination) -> Outcome:
    """Find ports with PFC pauses for more than 5 % of the time."""
    return report_conditions(examination, PAUSED, _PAUSED_FIX, 5.0, False)


_CONGESTED_FIX = Plan(
    "Find the network's bottleneck",
    (
        instruction("Look for several senders to one receiver: another job, storage or a checkpoint", False),
        instruction("Compare ECN and PFC on switches and hosts, and enable adaptive routing"),
        Step("Watch which ports report congestion", ("gdrtop", "live"), needs_root=False),
    ),
)


@AREA.check(
    CONGESTED,
    Severity.WARNING,
    "Congestion in the network costs a job bandwidth",
    _COUNTERS,
    ok="No running job loses bandwidth to congestion",
    impact="The job is slower than before. See the cause for how much.",
    data_path=True,
)
def network_congested(examination: Examination) -> Outcome:
    """Find jobs that carry less than 80 % of before since their ports report congestion."""
    return report_conditions(examination, CONGESTED, _CONGESTED_FIX, 90.0)


_THROTTLED_FIX = Plan(
    "Check cooling and power",
    (
        Step("Show why", ("nvidia-smi", "-q", "-d", "PERFORMANCE,TEMPERATURE,POWER"), needs_root=False),
        instruction("Check the node's cooling and power"),
    ),
)


@AREA.check(
    THROTTLED,
    Severity.WARNING,
    "A GPU is throttled",
    "nvidia-smi(1), Clocks Event Reasons",
    ok="No GPU is throttled",
    impact="The GPU lowers its clocks, and the whole job waits for the slowest GPU.",
)
def gpu_throttled(examination: Examination) -> Outcome:
    """Find GPUs that lower their clocks for heat or power brakes, not for their normal power limit."""
    return report_conditions(examination, THROTTLED, _THROTTLED_FIX, 5.0, False)


_REASONS = (
    *("acs-redirect-enabled", "acs-direct-translated-without-ats", "acs-direct-nic"),
    *("iommu-translated", "vm-without-p2p-ats"),
    *("pcie-link-degraded-width", "pcie-link-degraded-speed", "pcie-link-degraded-gpu-speed"),
    *("pcie-link-below-port-rate", "pcie-devctl-relaxed-ordering", "pcie-devctl-payload-differs"),
    *("single-rail-or-half-rate", "single-rail-or-half-rate-one-lane", *LINK_CAUSES, "link-flaps"),
    *("symbol-errors-rising", "out-of-sequence-rising", "local-ack-timeout", ERRORS_RISING),
    *("mtu-mismatch", "mtu-mismatch-small", "port-discards-rising", CONGESTED, PAUSED, THROTTLED),
)


_BELOW_LIMIT_FIX = Plan(
    "Find out what slows the path",
    (
        Step("Measure again while no job is running", ("gdrtop", "bench", "--sweep"), needs_root=False),
        Step("Compare with host memory over the same NIC", ("gdrtop", "bench", "--memory", "compare"), False),
        instruction("If host memory is as slow, check the NIC, cable, network and peer", False),
    ),
    disturbs="jobs that use these GPUs and NICs",
)


@BANDWIDTH.check(
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
    none = Evidence("saved results", "no result since boot is slow, or nothing was measured")
    return report_conditions(examination, BELOW_LIMIT, _BELOW_LIMIT_FIX, is_about_jobs=False, none=none)
