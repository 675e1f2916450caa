"""What watching a node shows: problems that last, from when until they end.

Each condition is reported by the check of its name, so the live view, NCCL's RAS service and bandwidth tests
have no judgment of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import field

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown

# The checks that report them.
STAGED, OVER_TCP = "job-staged", "job-over-tcp"
CONTRADICTED = "path-contradicts-node"
STOPPED, RANK_ENDED, ODD_RANK = "rank-stopped", "rank-ended", "rank-differs"
SLOW_NIC, TRAFFIC_FELL, SILENT = "nic-slow-in-job", "job-traffic-fell", "job-silent"
UNEVEN, PLANE_UNUSED = "nic-traffic-uneven", "nic-plane-unused"
CONGESTED = "network-congested"
FLAPPING, PAUSED, ERRORS_RISING = "port-flapping", "port-paused", "port-errors-rising"
KV_OVER_TCP, KV_STAGED = "kv-transfer-over-tcp", "kv-transfer-staged"
THROTTLED, RAS_PROBLEM, BELOW_LIMIT = "gpu-throttled", "ras-problem", "bandwidth-below-limit"
SPARK_DEGRADED = "spark-degraded-initialization"


@frozen
class Condition:
    """A problem that lasts, and whom it affects."""

    check: str  # the id of the check that reports it
    subject: str  # what tells it from others of its kind: a port, a job's id
    text: str  # one sentence without a period: "mlx5_5 carries 148 Gb/s, …"
    since: float  # seconds since 1970, by the host's clock
    severity: Severity = Severity.WARNING
    evidence: tuple[Evidence, ...] = ()
    devices: tuple[str, ...] = ()  # GPUs (BDF) and RDMA devices
    ranks: tuple[str, ...] = ()  # "rank 5", "pid 4716"
    job: str = ""  # the job's id
    job_name: str = ""
    # What it is about if not each of its devices alone, as in Outcome.
    subjects: tuple[frozenset[str], ...] = ()
    effect: str = ""  # in an admin's words, "train.py copies GPU memory through host memory"
    is_begun: bool = False  # it began then, and not before gdrtop looked
    causes: tuple[str, ...] = ()  # of KV caches over TCP: ids of steps in fall_backs.toml; COLLISION


@frozen
class Unread:
    """What a check looks at, if all of it is unknown."""

    figures: str  # "the rates of the ports"
    why: Unknown


WATCH_STAGES = (0.0, 5.0, 10.0, 13.0, 30.0, 90.0)
"""Seconds after which checks may be ok. Between them a Watched stays equal, and no check has to run again."""


def stage_of(seconds: float) -> float:
    """Return the newest of these moments; the first one for a negative time."""
    return WATCH_STAGES[max(0, bisect_right(WATCH_STAGES, seconds) - 1)]


@frozen
class Watched:
    """What was seen so far."""

    seconds: float  # for how long, as a stage; 0: one moment only
    jobs: Maybe[int]  # that use the network now
    conditions: tuple[Condition, ...] = ()
    missing: str = ""  # why some processes may not have been seen
    unknown_path: str = ""  # why the path of a NCCL rank is unknown; "": all are known
    unread: Mapping[str, Unread] = field(default_factory=dict)  # by check: what it looks at is unknown
    job_seconds: float = 0.0  # for how long the newest job that uses the network was watched, as a stage
