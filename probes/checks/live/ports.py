"""Ports and GPUs under load: what watching shows of links, pauses, errors, congestion and throttling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan
from probes.base.text import capitalized, join_limited
from probes.base.unknown import Unknown
from probes.host.component_history import SOURCE
from probes.host.protocol import TREE_ONLY
from probes.live.reliability import day_text, past_by_device
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
    check: str,
    seconds: float = 0.0,
    is_about_jobs: bool = True,
    needs_paths: bool = False,
    fix: Plan | Callable[[Examination], Plan] | None = None,
    none: Evidence | None = None,
) -> Callable[[Examination], Outcome]:
    """Return a check whose finding is all conditions of its name.

    `seconds`: for how long the node has to be watched before the check is ok, one of WATCH_STAGES; with
    `is_about_jobs`, for how long each of its jobs, and a node without jobs needs no watching. With
    `needs_paths` the check is ok only if the path of each rank is known.
    `fix`: by default that of the check's texts. `none`: why the check is ok without conditions; by default
    that nothing was seen.
    """
    assert seconds in WATCH_STAGES

    def judge(examination: Examination) -> Outcome:
        watched = need(examination.watched, "running jobs")
        conditions = conditions_of(examination, check)
        if conditions:
            plan = fix(examination) if callable(fix) else fix
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

    return judge


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


def _found(conditions: list[Condition], fix: Plan | None, past: list[Evidence]) -> Outcome:
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

# Ports that went down three times in ten minutes, until they are quiet for a minute.
AREA.warning(FLAPPING, data_path=True)(report_conditions(FLAPPING, 30.0, False))
# Counters above their limits, until they are quiet for a minute.
_LOSING = (
    *("link-flaps", "symbol-errors-rising", "out-of-sequence-rising", "local-ack-timeout"),
    *("symbols-lost", "module-hot-events", "module-faulty"),
)
AREA.warning(ERRORS_RISING, data_path=True, part_of=(*LINK_CAUSES, *_LOSING))(
    report_conditions(ERRORS_RISING, 10.0, False)
)
# Ports with PFC pauses for more than 5 % of the time.
AREA.warning(PAUSED, data_path=True, part_of=(CONGESTED,))(report_conditions(PAUSED, 5.0, False))
# Jobs that carry less than 80 % of before since their ports report congestion.
AREA.warning(CONGESTED, data_path=True)(report_conditions(CONGESTED, 90.0))
# GPUs that lower their clocks for heat or power brakes, not for their normal power limit.
AREA.warning(THROTTLED)(report_conditions(THROTTLED, 5.0, False))

_REASONS = (
    *("acs-redirect-enabled", "acs-direct-translated-without-ats", "acs-direct-nic"),
    *("iommu-translated", "vm-without-p2p-ats"),
    *("pcie-link-degraded-width", "pcie-link-degraded-speed", "pcie-link-degraded-gpu-speed"),
    *("pcie-link-below-port-rate", "pcie-devctl-relaxed-ordering", "pcie-devctl-payload-differs"),
    *("single-rail-or-half-rate", "single-rail-or-half-rate-one-lane", *LINK_CAUSES, "link-flaps"),
    *("symbol-errors-rising", "symbols-lost", "out-of-sequence-rising", "local-ack-timeout", ERRORS_RISING),
    *("mtu-mismatch", "mtu-mismatch-small", "port-discards-rising", CONGESTED, PAUSED, THROTTLED),
)
_NONE_SLOW = Evidence("saved results", "no result since boot is slow, or nothing was measured")
_NONE_SUCH = Evidence("saved results", "no such result since boot")
# Tests of GPU memory whose newest result since boot is far below the limit of its path.
BANDWIDTH.warning(BELOW_LIMIT, data_path=True, part_of=_REASONS)(
    report_conditions(BELOW_LIMIT, is_about_jobs=False, none=_NONE_SLOW)
)
# A result of a DGX Spark that is so slow, while its links and counters have no finding.
AREA.warning(SPARK_DEGRADED, data_path=True, part_of=("spark-pcie-lanes", *_REASONS))(
    report_conditions(SPARK_DEGRADED, is_about_jobs=False, none=_NONE_SUCH)
)
