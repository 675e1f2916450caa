"""Ports and GPUs under load: what watching shows of links, pauses, errors, congestion and throttling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan, user_plan
from probes.base.text import capitalized, join_limited
from probes.base.unknown import Unknown
from probes.host.component_history import SOURCE
from probes.host.protocol import TREE_ONLY
from probes.live.reliability import day_text, past_by_device
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.queries.finding import Area, Outcome, found, need, passed, unknown, unknown_without
from probes.queries.jobs import need_all_processes
from probes.queries.ports import LINK_CAUSES
from probes.snapshot.condition import (
    BELOW_LIMIT,
    CONGESTED,
    ERRORS_RISING,
    FLAPPING,
    PAUSED,
    SPARK_DEGRADED,
    THROTTLED,
    WATCH_STAGES,
    Condition,
)
from probes.snapshot.examination import Examination

# How a check reports conditions that were seen by watching the node.

WATCH_SECONDS = round(WATCH_STAGES[-1])  # after which every condition that is there has been seen
NOT_LONG_ENOUGH = f"needs up to {WATCH_SECONDS} s of watching"
_MOST_EVIDENCE, _MOST_PAST = 12, 4
_SEVERITIES = tuple(Severity)
# The same objects in each second, for most of these checks never find anything.
_NO_JOB = passed(Evidence("processes", "no job uses the network"))
_WATCHED_BRIEFLY = unknown(NOT_LONG_ENOUGH)
_NOT_SEEN = passed(Evidence("live view", "not seen"))
_NOT_SEEN_WATCHING = passed(Evidence("live view", "not seen while watching"))


def report_conditions(
    examination: Examination,
    check: str,
    fix: Plan | Callable[[Examination], Plan],
    seconds: float = 0.0,
    is_about_jobs: bool = True,
    needs_paths: bool = False,
    none: Evidence | None = None,
) -> Outcome:
    """Return one finding for all conditions of a check.

    `seconds`: for how long the node has to be watched before the check is ok, one of WATCH_STAGES; with
    `is_about_jobs`, for how long each of its jobs, and a node without jobs needs no watching. With
    `needs_paths` the check is ok only if the path of each rank is known.
    `none`: why the check is ok without conditions; by default that nothing was seen.
    """
    assert seconds in WATCH_STAGES
    watched = need(examination.watched, "running jobs")
    conditions = conditions_of(examination, check)
    if conditions:
        plan = fix if isinstance(fix, Plan) else fix(examination)
        return _found(conditions, plan, _past(examination, conditions))
    jobs = watched.jobs
    if is_about_jobs or (isinstance(jobs, Unknown) and TREE_ONLY in str(jobs)):
        jobs = need(jobs, "job processes")
    if is_about_jobs:
        need_all_processes(watched)
    if is_about_jobs and not jobs:
        return _NO_JOB
    if needs_paths and watched.unknown_path:
        return unknown(f"needs the path of each rank ({watched.unknown_path})")
    if (watched.job_seconds if is_about_jobs else watched.seconds) < seconds:
        return _WATCHED_BRIEFLY
    if (unread := watched.unread.get(check)) is not None:
        return unknown_without(unread.figures, unread.why)
    if none is not None:
        return passed(none)
    return _NOT_SEEN_WATCHING if seconds else _NOT_SEEN


def conditions_of(examination: Examination, check: str) -> list[Condition]:
    """Return the conditions of a check that were seen."""
    watched = examination.watched
    seen = () if isinstance(watched, Unknown) else watched.conditions
    return [condition for condition in seen if condition.check == check]


def _past(examination: Examination, conditions: list[Condition]) -> list[Evidence]:
    """Return what the history says about the devices, where `gdrtop watch` keeps one."""
    history = examination.component_history
    if isinstance(history, Unknown):
        return []
    devices = dict.fromkeys(end for condition in conditions for end in condition.devices)
    past = past_by_device(history, examination.node)
    texts = [past[device] for device in devices if device in past]
    return [Evidence(f"{SOURCE}, since {day_text(history.since)}", text) for text in texts[:_MOST_PAST]]


def _also(other: Condition, first: Condition) -> Sequence[str]:
    """Return what else has the problem: another job, or else devices."""
    if other.job_name not in ("", first.job_name):
        return (other.job_name,)
    return other.devices[:2] or (other.subject,)


def _found(conditions: list[Condition], fix: Plan, past: list[Evidence]) -> Outcome:
    first, *others = conditions
    cause = capitalized(first.text)
    if others:
        names = dict.fromkeys(end for other in others for end in _also(other, first))
        cause += f". The same is true of {join_limited(names)}"
    return found(
        cause.rstrip(".") + ".",
        *[shown for condition in conditions for shown in condition.evidence][:_MOST_EVIDENCE],
        *past,
        fix=fix,
        severity=min((condition.severity for condition in conditions), key=_SEVERITIES.index),
        devices=tuple(dict.fromkeys(end for condition in conditions for end in condition.devices)),
        ranks=tuple(dict.fromkeys(rank for condition in conditions for rank in condition.ranks)),
        jobs=tuple(dict.fromkeys(condition.job_name for condition in conditions if condition.job_name)),
        since=min((condition.since for condition in conditions if condition.is_begun), default=None),
        subjects=tuple(subject for condition in conditions for subject in _subjects(condition)),
        title=_title(conditions),
    )


def _subjects(condition: Condition) -> Iterable[frozenset[str]]:
    alone = [frozenset((device,)) for device in condition.devices] or [frozenset((condition.job_name,))]
    return condition.subjects or alone


def _title(conditions: list[Condition]) -> str:
    """Return the effect on the first job, and since when if gdrtop saw it begin; "" for the check's title."""
    first = conditions[0]
    if not first.effect:
        return ""
    since = time.strftime(" since %H:%M:%S", time.localtime(first.since)) if first.is_begun else ""
    more = len({condition.job for condition in conditions}) - 1
    others = f", and {more} more job{'s' * (more > 1)}" if more else ""
    return f"{first.effect}{since}{others}"


AREA = Area("nic", __package__, is_moving=True)
BANDWIDTH = Area("path", __package__, is_moving=True)
_FLAPPING_FIX = make_plan(
    "Repair the link",
    "Read the link's quality: mlxlink -d BDF -m -c -e",
    "Clean, reseat or replace cable and optic; try another switch port",
    disturbs="jobs on this port",
)


@AREA.warning(FLAPPING, data_path=True)
def port_flapping(examination: Examination) -> Outcome:
    """Find ports that went down three times in ten minutes, until they are quiet for a minute."""
    return report_conditions(examination, FLAPPING, _FLAPPING_FIX, 30.0, False)


_ERRORS_RISING_FIX = make_plan(
    "Find out where packets are lost",
    "Signal errors: run mlxlink -d BDF -m -c -e, then clean or replace the cable",
    "Losses: compare ECN, PFC and traffic class of hosts and switches, and switch drops",
    "Timeouts: check the job's peers first",
)


@AREA.warning(
    ERRORS_RISING,
    data_path=True,
    part_of=(
        *(*LINK_CAUSES, "link-flaps", "symbol-errors-rising", "out-of-sequence-rising", "local-ack-timeout"),
        *("symbols-lost", "module-hot-events", "module-faulty"),
    ),
)
def port_errors_rising(examination: Examination) -> Outcome:
    """Find counters above their limits, until they are quiet for a minute."""
    return report_conditions(examination, ERRORS_RISING, _ERRORS_RISING_FIX, 10.0, False)


_PAUSED_FIX = make_plan(
    "Find the congested receiver",
    "Find the switch port that sends pause frames, and the receiver behind it",
    "Check that ECN (DCQCN) is configured on switches and hosts, so that pauses are rare",
)


@AREA.warning(PAUSED, data_path=True, part_of=(CONGESTED,))
def port_paused(examination: Examination) -> Outcome:
    """Find ports with PFC pauses for more than 5 % of the time."""
    return report_conditions(examination, PAUSED, _PAUSED_FIX, 5.0, False)


_CONGESTED_FIX = make_plan(
    "Find the network's bottleneck",
    instruction("Look for several senders to one receiver: another job, storage or a checkpoint", False),
    "Compare ECN and PFC on switches and hosts, and enable adaptive routing",
    Step("Watch which ports report congestion", ("gdrtop", "live"), needs_root=False),
)


@AREA.warning(CONGESTED, data_path=True)
def network_congested(examination: Examination) -> Outcome:
    """Find jobs that carry less than 80 % of before since their ports report congestion."""
    return report_conditions(examination, CONGESTED, _CONGESTED_FIX, 90.0)


_THROTTLED_FIX = make_plan(
    "Check cooling and power",
    Step("Show why", ("nvidia-smi", "-q", "-d", "PERFORMANCE,TEMPERATURE,POWER"), needs_root=False),
    "Check the node's cooling and power",
)


@AREA.warning(THROTTLED)
def gpu_throttled(examination: Examination) -> Outcome:
    """Find GPUs that lower their clocks for heat or power brakes, not for their normal power limit."""
    return report_conditions(examination, THROTTLED, _THROTTLED_FIX, 5.0, False)


_REASONS = (
    *("acs-redirect-enabled", "acs-direct-translated-without-ats", "acs-direct-nic"),
    *("iommu-translated", "vm-without-p2p-ats"),
    *("pcie-link-degraded-width", "pcie-link-degraded-speed", "pcie-link-degraded-gpu-speed"),
    *("pcie-link-below-port-rate", "pcie-devctl-relaxed-ordering", "pcie-devctl-payload-differs"),
    *("single-rail-or-half-rate", "single-rail-or-half-rate-one-lane", *LINK_CAUSES, "link-flaps"),
    *("symbol-errors-rising", "symbols-lost", "out-of-sequence-rising", "local-ack-timeout", ERRORS_RISING),
    *("mtu-mismatch", "mtu-mismatch-small", "port-discards-rising", CONGESTED, PAUSED, THROTTLED),
)
_BELOW_LIMIT_FIX = user_plan(
    "Find out what slows the path",
    Step("Measure again while no job is running", ("gdrtop", "bench", "--sweep"), needs_root=False),
    Step("Compare with host memory over the same NIC", ("gdrtop", "bench", "--memory", "compare"), False),
    "If host memory is as slow, check the NIC, cable, network and peer",
    disturbs="jobs that use these GPUs and NICs",
)


@BANDWIDTH.warning(BELOW_LIMIT, data_path=True, part_of=_REASONS)
def bandwidth_below_limit(examination: Examination) -> Outcome:
    """Find tests of GPU memory whose newest result since boot is far below the limit of its path."""
    none = Evidence("saved results", "no result since boot is slow, or nothing was measured")
    return report_conditions(examination, BELOW_LIMIT, _BELOW_LIMIT_FIX, is_about_jobs=False, none=none)


@AREA.warning(SPARK_DEGRADED, data_path=True, part_of=("spark-pcie-lanes", *_REASONS))
def spark_degraded_initialization(examination: Examination) -> Outcome:
    """Find a result of a DGX Spark that is so slow, while its links and counters have no finding."""
    fix = make_plan(
        "Turn the node off, and unplug it",
        "Shut the node down, pull its power plug for a minute, and start it again: a reboot is not enough",
        Step("Measure again", ("gdrtop", "bench", "--sweep", "--ssh", "root@NODE2"), needs_root=False),
        disturbs=REBOOT_ENDS_JOBS,
    )
    none = Evidence("saved results", "no such result since boot")
    return report_conditions(examination, SPARK_DEGRADED, fix, is_about_jobs=False, none=none)
