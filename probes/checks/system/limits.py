"""Checks of limits: memory that processes may lock, RDMA resources, processes that are not visible here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import instruction, make_plan, user_plan
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.own_container import SHM
from probes.facts.jobs.processes import MAX_PROCESSES, Process, ProcessFacts, names_of
from probes.facts.system.limits import (
    CGROUPS,
    LIMITS,
    MemlockFacts,
    MemlockLimit,
    RdmaLimit,
    parse_unit_limit,
)
from probes.facts.system.numa import MEMINFO
from probes.facts.system.platform import in_container
from probes.plans.boot import command_line_steps
from probes.plans.common import reboot_plan
from probes.plans.services import lift_memlock
from probes.queries.finding import (
    Area,
    CheckEnded,
    Outcome,
    Scope,
    end_with,
    found,
    need,
    needs,
    passed,
    unknown,
)
from probes.queries.jobs import RESTARTS, affected, driver_loaded, jobs_of, named_by_nvml, no_fault
from probes.queries.usable_here import has_little_shm, lifts_lock_limit
from probes.snapshot.examination import Examination

AREA = Area("environment", __package__)
RDMA_CGROUP = Area("environment", __package__)
# Below this a job fails when it registers its buffers; above, it may do so later, as it grows.
_LITTLE_BYTES = 1 << 30
_SYSTEMD_DEFAULT = MemlockLimit(8 << 20, 8 << 20)  # systemd-system.conf(5), DefaultLimitMEMLOCK=
_SCHEDULERS = ("slurmd.service", "pbs_mom.service")
_RUNTIMES = ("containerd.service", "docker.service", "crio.service")
_LOGINS = ("ssh.service", "sshd.service")
_DOCKER_LOCK = "Docker: add --ulimit memlock=-1 or --cap-add=IPC_LOCK"
_POD_LOCK = "Pod: add the IPC_LOCK capability"
_JOB_LIMIT = "memlock-or-ipc-lock"


def _amount(limit_bytes: float) -> str:
    if math.isinf(limit_bytes):
        return "unlimited"
    mib = limit_bytes / (1 << 20)
    return f"{mib / 1024:g} GiB" if mib >= 1024 else f"{mib:g} MiB"


def _limited(processes: Sequence[Process]) -> list[tuple[Process, float]]:
    """Return the processes with RDMA devices open that have a memlock limit, and the limit in bytes."""
    limited = []
    for process in processes:
        limit = process.memlock
        if not known(process.uverbs_files, ()) or isinstance(limit, Unknown):
            continue
        if process.ipc_lock is False and not math.isinf(limit.soft_bytes):
            limited.append((process, limit.soft_bytes))
    return limited


@AREA.critical(_JOB_LIMIT)
def memlock_or_ipc_lock(examination: Examination) -> Outcome:
    """Compare RLIMIT_MEMLOCK and CAP_IPC_LOCK of processes that have a GPU and an RDMA device open."""
    jobs = jobs_of(examination)
    limited = _limited(jobs.processes)
    if limited:
        shown = "Max locked memory {}, without CAP_IPC_LOCK"
        evidence = [
            Evidence(f"/proc/{process.pid}/limits", shown.format(_amount(soft_bytes)))
            for process, soft_bytes in limited
        ]
        return found(
            f"{affected(jobs, evidence)}: every registered buffer of host memory counts against this limit"
            " (DMA-BUF regions do not). The process that starts the job sets the limit.",
            *first_distinct(evidence),
            fix=make_plan(
                "Raise the limit where the job starts",
                "Service: set LimitMEMLOCK=infinity in the unit that starts jobs",
                _DOCKER_LOCK,
                _POD_LOCK,
                instruction("Restart the job", needs_root=False),
                disturbs=RESTARTS,
            ),
            severity=None if _least(limited) < _LITTLE_BYTES else Severity.NOTE,
            impact="" if _least(limited) < _LITTLE_BYTES else "A job that registers more than this fails.",
        )
    for process in jobs.processes:
        if not known(process.uverbs_files, ()):
            continue
        for fact in (process.memlock, process.ipc_lock):
            need(fact, f"the limits of process {process.pid}")
    return unknown(jobs.unseen) if jobs.unseen else no_fault(jobs)


@AREA.critical("cma-blocks-registration", data_path=True, scope=Scope.NODE)
def cma_blocks_registration(examination: Examination) -> Outcome:
    """Compare CmaFree with CmaTotal: pages that count as CMA cannot be pinned."""
    memory = need(examination.memory, MEMINFO)
    absent = Evidence(MEMINFO, "no such line: the kernel is built without CMA")
    total = need(memory.cma_total, "CmaTotal", absent=absent)
    free = need(memory.cma_free, "CmaFree", absent=absent)
    sizes = (("CmaTotal", total), ("CmaFree", free))
    shown = tuple(Evidence(MEMINFO, f"{name}: {size // 1024} kB") for name, size in sizes)
    if free <= total:
        return passed(*shown)
    return found(
        "More CMA memory is free than exists. Kernel 7.0 reserves memory for kexec handover (KHO), and "
        "releases it as CMA.",
        *shown,
        fix=reboot_plan(
            "Boot without kexec handover",
            instruction("Check that no crash kernel is in use: /sys/kernel/kexec_crash_size is 0", False),
            *command_line_steps(examination, "kho", "kho=off"),
            note="On DGX Spark, kernel 6.17.0-1031-nvidia does not have the problem.",
        ),
    )


def _least(limited: Sequence[tuple[Process, float]]) -> float:
    return min((soft_bytes for _, soft_bytes in limited), default=math.inf)


def _of_service(facts: MemlockFacts, name: str) -> Maybe[tuple[MemlockLimit, Evidence]]:
    """Return the limit that a service sets for what it starts, and the evidence."""
    own = facts.services[name]
    for setting, key in ((own, "LimitMEMLOCK"), (facts.manager_default, "DefaultLimitMEMLOCK")):
        if not isinstance(setting, Unknown):
            limit = parse_unit_limit(setting.value)
            evidence = Evidence(setting.where, f"{key}={setting.value}")
            return limit if isinstance(limit, Unknown) else (limit, evidence)
        if setting.reason is not Reason.NOT_THERE:
            return setting
    shown = f"LimitMEMLOCK is not set; systemd's default is {_amount(_SYSTEMD_DEFAULT.soft_bytes)}"
    return _SYSTEMD_DEFAULT, Evidence(own.source if isinstance(own, Unknown) and own.source else name, shown)


def _services(
    examination: Examination, names: tuple[str, ...], cause: str, part_of: tuple[str, ...] = ()
) -> Outcome:
    facts = need(examination.memlock, "service limits")
    here = [name for name in names if name in facts.services]
    if not here:
        return passed(Evidence("/etc/systemd/system", f"none of {', '.join(names)} is installed"))
    small: list[tuple[str, Evidence]] = []
    unlimited: list[Evidence] = []
    missing: Outcome | None = None
    for name in here:
        answer = _of_service(facts, name)
        if isinstance(answer, Unknown):
            missing = unknown(needs(f"LimitMEMLOCK of {name}", answer))
            continue
        limit, evidence = answer
        if math.isinf(limit.soft_bytes):
            unlimited.append(evidence)
        else:
            small.append((name, evidence))
    if small:
        units = [name for name, _ in small]
        return found(cause, *(evidence for _, evidence in small), fix=lift_memlock(units), part_of=part_of)
    return missing or passed(*unlimited)


@AREA.warning("memlock-scheduler")
def memlock_scheduler(examination: Examination) -> Outcome:
    """Read LimitMEMLOCK of slurmd and pbs_mom, which jobs inherit."""
    processes = jobs_of(examination).processes
    limited = _limited([process for process in processes if process.job.startswith("Slurm")])
    return _services(
        examination,
        _SCHEDULERS,
        "Jobs inherit this limit. Slurm may replace it with the limit of the submitting shell"
        " (PropagateResourceLimits).",
        part_of=(_JOB_LIMIT,) if _least(limited) < _LITTLE_BYTES else (),
    )


@AREA.note("memlock-container-runtime")
def memlock_container_runtime(examination: Examination) -> Outcome:
    """Read LimitMEMLOCK of container runtimes if a job in a container has a limit."""
    jobs = jobs_of(examination)
    if not any(process.job.startswith(("pod", "container")) for process, _ in _limited(jobs.processes)):
        return unknown(jobs.unseen) if jobs.unseen else no_fault(jobs)
    cause = "A container inherits this limit unless it asks for more."
    return _services(examination, _RUNTIMES, cause, part_of=(_JOB_LIMIT,))


@AREA.warning("memlock-login")
def memlock_login(examination: Examination) -> Outcome:
    """Read the memlock lines of /etc/security, without any the limit of process 1 or of sshd."""
    facts = need(examination.memlock, "login limits")
    if facts.unread:
        return unknown(needs(facts.unread[0].source, facts.unread[0]))
    groups = [line for line in facts.lines if line.domain.startswith("@") and math.isinf(line.value_bytes)]
    for_all = [line for line in facts.lines if line.domain == "*" and line.kind in ("soft", "-")]
    line = for_all[-1] if for_all else None  # the last one counts for ordinary users
    if line is not None and math.isinf(line.value_bytes):
        return passed(Evidence(line.where, f"{line.domain} {line.kind} memlock unlimited"))
    if groups and line is None:
        return passed(
            *first_distinct(Evidence(group.where, f"{group.domain} memlock unlimited") for group in groups)
        )
    if line is None:
        evidence = _small_default(facts)
    else:  # as it is in the file, in KiB, with the amount
        shown = f"{line.domain} {line.kind} memlock {line.value_bytes / 1024:.0f}"
        evidence = Evidence(line.where, f"{shown} ({_amount(line.value_bytes)})")
    return found("Everything started over SSH inherits this limit.", evidence)


def _small_default(facts: MemlockFacts) -> Evidence:
    """Return the small limit of logins without a line in /etc/security; if it is not small, end the check."""
    default = facts.login_default
    if isinstance(default, Unknown) and default.reason is Reason.NOT_THERE:
        return _small_ssh_limit(facts)
    soft_bytes = need(default, "the limits of PID 1").soft_bytes
    evidence = Evidence("/proc/1/limits", f"Max locked memory {_amount(soft_bytes)}")
    if soft_bytes >= _LITTLE_BYTES:
        end_with(passed(evidence))
    return evidence


def _small_ssh_limit(facts: MemlockFacts) -> Evidence:
    ssh = next((name for name in _LOGINS if name in facts.services), None)
    if ssh is None:
        raise CheckEnded(passed(Evidence("/etc/systemd/system", "no sshd")))
    limit, evidence = need(_of_service(facts, ssh), f"LimitMEMLOCK of {ssh}")
    if math.isinf(limit.soft_bytes):
        end_with(passed(evidence))
    return Evidence(LIMITS, f"no memlock line; {evidence.value}")


@AREA.note("memlock-shell")
def memlock_shell(examination: Examination) -> Outcome:
    """Read RLIMIT_MEMLOCK of this program, which its tests inherit; root in a container may have it, too."""
    inside = in_container(examination.node.platform)
    if need(lifts_lock_limit(examination), "CAP_IPC_LOCK of this process"):
        shown = "CAP_IPC_LOCK" if inside else "0"
        return passed(Evidence("/proc/self/status" if inside else "id -u", f"{shown}, so no limit applies"))
    limit = need(map_known(examination.memlock, lambda memlock: memlock.own), "the limits of this shell")
    soft_bytes = limit.soft_bytes
    evidence = Evidence("/proc/self/limits", f"Max locked memory {_amount(soft_bytes)}")
    if math.isinf(soft_bytes):
        return passed(evidence)
    return found(
        "The tests register their buffers, which count against this limit.",
        evidence,
        fix=user_plan("Raise the limit of the container", _DOCKER_LOCK, _POD_LOCK)
        if inside
        else user_plan(
            "Raise the limit for this shell",
            "Run “ulimit -l unlimited”"
            if math.isinf(limit.hard_bytes)
            else f"Fix memlock-login and log in again: the hard limit is {_amount(limit.hard_bytes)}",
        ),
        part_of=() if inside else ("memlock-login",),
        impact="Programs in this container fail to register host memory (errno 12)." if inside else "",
        severity=Severity.WARNING if inside and soft_bytes < _LITTLE_BYTES else None,
    )


@AREA.warning("container-shm-small")
def container_shm_small(examination: Examination) -> Outcome:
    """Compare /dev/shm with the 64 MiB that container runtimes give; one GPU needs none for NCCL."""
    absent = Evidence(SHM, "not in a container, or no mount of its own")
    container = need(examination.own_container, "the container", absent=absent)
    size_bytes = need(container.shm_bytes, SHM, absent=absent)
    evidence = Evidence("/proc/mounts", f"{SHM}: {_amount(size_bytes)}")
    if not has_little_shm(examination, size_bytes):
        return passed(evidence)
    return found("The container runtime gives 64 MiB unless the container asks for more.", evidence)


@AREA.note("pid-namespace-hides-users")
def pid_namespace_hides_users(examination: Examination) -> Outcome:
    """Find processes that NVML lists and /proc does not."""
    facts = need(examination.processes, "the processes")
    if not driver_loaded(examination):
        return passed(Evidence("/proc/driver/nvidia/version", "no NVIDIA driver is loaded"))
    named = need(named_by_nvml(examination), "NVML's list of processes")
    if facts.left_out:
        return unknown(f"{facts.left_out} more processes use GPUs or RDMA; gdrtop reads only {MAX_PROCESSES}")
    hidden = sorted(named - {process.pid for process in facts.processes})
    if not hidden:
        shown = f"{len(named)} processes, all in /proc" if named else "no process"
        return passed(Evidence("nvidia-smi --query-compute-apps=pid --format=csv", shown))
    where = "Run gdrtop on the host, or in a container with --pid=host (pod: hostPID: true)"
    return found(
        "NVML shows the host's process IDs. gdrtop runs in another PID namespace, or /proc is mounted"
        " with hidepid.",
        *first_distinct(Evidence(f"/proc/{pid}", "listed by NVML, but missing") for pid in hidden),
        fix=make_plan("Run gdrtop on the host", where),
    )


# RDMA limits of the control groups of jobs.

_TIGHT = 0.9
_WORDS = {"hca_handle": "open handles", "hca_object": "objects"}


@RDMA_CGROUP.warning("rdma-cgroup-limit")
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
                bad.setdefault(limit, []).extend([named[pid]] if pid in named else [])
    if not bad:
        if unread is not None and not limits:
            need(unread, f"the control groups ({unread.source})")
        return passed(*_seen(list(limits)))
    forbidden = [limit for limit in bad if limit.most == 0]
    jobs = names_of({process.pid: process for users in bad.values() for process in users}.values())
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
            f"For now: echo '{devices[0]} hca_handle=max hca_object=max' > {next(iter(bad)).group}/rdma.max",
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
