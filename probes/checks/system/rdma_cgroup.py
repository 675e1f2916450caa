"""RDMA limits of the control groups of jobs."""

from __future__ import annotations

from probes.base.plan import instruction, make_plan
from probes.base.unknown import Reason, Unknown, known
from probes.facts.jobs.processes import Process, ProcessFacts, names_of
from probes.facts.system.rdma_cgroup import CGROUPS, RdmaLimit
from probes.queries.evidence_list import first_distinct, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.snapshot.examination import Examination

AREA = Area("environment")

_TIGHT = 0.9
_WORDS = {"hca_handle": "open handles", "hca_object": "objects"}


@AREA.check(
    "rdma-cgroup-limit",
    Severity.WARNING,
    "A control group limits a job's RDMA resources",
    "Linux Documentation/admin-guide/cgroup-v2.rst, RDMA Interface Files; kernel/cgroup/rdma.c",
    ok="No control group limits a job's RDMA resources",
    impact="At the limit, new queue pairs and memory regions fail with EAGAIN (Resource temporarily "
    "unavailable). NCCL then aborts while it connects, or cannot register GPU memory.",
)
def rdma_cgroup_limit(examination: Examination) -> Outcome:
    """Find limits in rdma.max that are reached, nearly reached, or zero, of jobs and of gdrtop's group."""
    absent = Evidence(CGROUPS, "not found: no control groups are mounted")
    facts = need(examination.rdma_cgroup, CGROUPS, absent=absent)
    processes = examination.processes.processes if isinstance(examination.processes, ProcessFacts) else ()
    named = {process.pid: process for process in processes}
    bad: dict[RdmaLimit, list[Process]] = {}
    limits: dict[RdmaLimit, None] = {}
    unread: Unknown | None = None
    for pid, own in ((None, facts.own), *facts.processes.items()):
        if isinstance(own, Unknown):
            if pid is None or own.reason is not Reason.NOT_THERE:  # else the process has ended
                unread = own
            continue
        limits |= dict.fromkeys(own)
        for limit in own:
            # An unused limit of gdrtop's own group is only bad if it forbids everything.
            is_tight = known(limit.used, 0) >= _TIGHT * limit.most
            if limit.most == 0 or (pid is not None and is_tight):
                affected = bad.setdefault(limit, [])
                affected.extend([named[pid]] if pid in named else [])
    if not bad:
        if unread is not None and not limits:
            need(unread, f"the control groups ({unread.source})")
        return passed(*_seen(list(limits)))
    forbidden = [limit for limit in bad if limit.most == 0]
    jobs = names_of({process.pid: process for users in bad.values() for process in users}.values())
    group = next(iter(bad)).group
    devices = tuple(dict.fromkeys(limit.device for limit in bad))
    subject = jobs or "this session"
    full = any(known(limit.used, 0) >= limit.most for limit in bad)
    words = join_limited(_WORDS[limit.resource] for limit in bad)
    share = "all" if full else "nearly all"
    return found(
        f"The control group of {subject} forbids {words} on {join_limited(devices)}."
        if forbidden
        else f"{subject} uses {share} {words} on {join_limited(devices)} that the control group allows.",
        *_seen(list(bad)),
        fix=make_plan(
            "Raise the limit",
            "Raise the limit where the job's cgroup is created: Slurm, systemd, or the runtime",
            f"For now: echo '{devices[0]} hca_handle=max hca_object=max' > {group}/rdma.max",
            instruction("Restart the job if NCCL has already failed", False),
        ),
        severity=Severity.CRITICAL if forbidden and jobs else None,
        devices=devices,
    )


def _seen(limits: list[RdmaLimit]) -> tuple[Evidence, ...]:
    if not limits:
        return (Evidence(f"{CGROUPS}/**/rdma.max", "no limit"),)
    return first_distinct(
        Evidence(
            f"{limit.group}/rdma.max",
            f"{limit.device}: {known(limit.used, '?')} of {limit.most} {_WORDS[limit.resource]} in use",
        )
        for limit in limits
    )
