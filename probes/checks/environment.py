"""How much memory processes may lock, and what hides them from view."""

from __future__ import annotations

import math

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.jobs import driver_loaded, jobs_of, named_by_nvml, no_fault
from probes.checks.wording import few
from probes.examination import Examination
from probes.memlock import LIMITS, LimitsLine, MemlockFacts, MemlockLimit, parse_unit_limit
from probes.plan import Plan, instruction
from probes.plans.services import lift_memlock
from probes.systemd_units import Setting
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("environment")
_GIB = 1 << 30
# Below this a job fails when it registers its buffers; above, it may do so later, as it grows.
_LITTLE_BYTES = _GIB
_SYSTEMD_DEFAULT = MemlockLimit(8 << 20, 8 << 20)  # systemd-system.conf(5), DefaultLimitMEMLOCK=
_SCHEDULERS = ("slurmd.service", "pbs_mom.service")
_RUNTIMES = ("containerd.service", "docker.service", "crio.service")
_LOGINS = ("ssh.service", "sshd.service")
_VERBS = "rdma-core Documentation/libibverbs.md, https://github.com/linux-rdma/rdma-core"
_UNIT = "systemd.exec(5), LimitMEMLOCK="


def _amount(limit_bytes: float) -> str:
    if math.isinf(limit_bytes):
        return "unlimited"
    mib = limit_bytes / (1 << 20)
    return f"{mib / 1024:g} GiB" if mib >= 1024 else f"{mib:g} MiB"


@AREA.check(
    "memlock-or-ipc-lock",
    Severity.CRITICAL,
    "a job may lock little memory: registering buffers fails with “Cannot allocate memory”",
    _VERBS,
)
def memlock_or_ipc_lock(examination: Examination) -> Outcome:
    """RLIMIT_MEMLOCK and CAP_IPC_LOCK of processes that have a GPU and an RDMA device open."""
    jobs = jobs_of(examination)
    evidence = []
    least = math.inf
    missing = ""
    for process in jobs.processes:
        if isinstance(process.uverbs_files, Unknown) or not process.uverbs_files:
            continue
        limit, free = process.memlock, process.ipc_lock
        if isinstance(limit, Unknown) or isinstance(free, Unknown):
            missing = f"limits and capabilities of process {process.pid}"
        elif not free and not math.isinf(limit.soft_bytes):
            least = min(least, limit.soft_bytes)
            told = f"Max locked memory {_amount(limit.soft_bytes)}, without CAP_IPC_LOCK"
            evidence.append(Evidence(f"/proc/{process.pid}/limits", told))
    if evidence:
        return found(
            "every buffer of host memory that a NIC may reach counts against this limit (regions of DMA-BUF"
            " do not); the limit comes from what started the job",
            *few(evidence),
            fix=Plan(
                "Lift the limit where the job starts",
                (
                    instruction("service: LimitMEMLOCK=infinity in the unit that starts jobs"),
                    instruction("container: --ulimit memlock=-1 or --cap-add=IPC_LOCK; pod: IPC_LOCK"),
                    instruction("restart the job", needs_root=False),
                ),
                disturbs="the job has to be restarted",
            ),
            severity=None if least < _LITTLE_BYTES else Severity.NOTE,
        )
    if missing or jobs.unseen:
        return unsure(missing or jobs.unseen)
    return no_fault(jobs)


def _of_service(facts: MemlockFacts, name: str) -> Maybe[tuple[MemlockLimit, Evidence]]:
    """The limit that a service gives to what it starts, and where that is said."""
    setting = facts.services[name]
    if not isinstance(setting, Unknown):
        return _parsed(setting, "LimitMEMLOCK")
    if setting.reason is not Reason.NOT_THERE:
        return setting
    default = facts.manager_default
    if not isinstance(default, Unknown):
        return _parsed(default, "DefaultLimitMEMLOCK")
    if default.reason is not Reason.NOT_THERE:
        return default
    told = f"LimitMEMLOCK is not set: systemd's own {_amount(_SYSTEMD_DEFAULT.soft_bytes)}"
    return _SYSTEMD_DEFAULT, Evidence(setting.source or name, told)


def _parsed(setting: Setting, key: str) -> Maybe[tuple[MemlockLimit, Evidence]]:
    limit = parse_unit_limit(setting.value)
    if isinstance(limit, Unknown):
        return limit
    return limit, Evidence(setting.where, f"{key}={setting.value}")


def _services(examination: Examination, names: tuple[str, ...], cause: str) -> Outcome:
    facts = examination.memlock
    if isinstance(facts, Unknown):
        return unsure(f"the limits of services: {facts}")
    here = [name for name in names if name in facts.services]
    if not here:
        return passed(Evidence("/etc/systemd/system", f"none of {', '.join(names)} is installed"))
    small: list[tuple[str, Evidence]] = []
    fine: list[Evidence] = []
    missing: Unknown | None = None
    for name in here:
        told = _of_service(facts, name)
        if isinstance(told, Unknown):
            missing = told
            continue
        limit, evidence = told
        if math.isinf(limit.soft_bytes):
            fine.append(evidence)
        else:
            small.append((name, evidence))
    if small:
        units = [name for name, _ in small]
        return found(cause, *(evidence for _, evidence in small), fix=lift_memlock(units))
    return passed(*fine) if missing is None else unsure(f"LimitMEMLOCK of {', '.join(here)}: {missing}")


@AREA.check(
    "memlock-scheduler", Severity.WARNING, "the batch system gives its jobs little memory to lock", _UNIT
)
def memlock_scheduler(examination: Examination) -> Outcome:
    """LimitMEMLOCK of slurmd and pbs_mom, which jobs inherit."""
    return _services(
        examination,
        _SCHEDULERS,
        "jobs inherit this limit, and fail to register memory (Slurm may pass on the limits of the shell that"
        " submits: PropagateResourceLimits)",
    )


@AREA.check(
    "memlock-container-runtime",
    Severity.NOTE,
    "containers get little memory to lock unless they ask for more",
    _UNIT,
)
def memlock_container_runtime(examination: Examination) -> Outcome:
    """LimitMEMLOCK of container runtimes, which containers inherit."""
    return _services(
        examination,
        _RUNTIMES,
        "a container without --ulimit memlock=-1 and without IPC_LOCK inherits this limit",
    )


@AREA.check(
    "memlock-login",
    Severity.WARNING,
    "logins get little memory to lock: jobs started over ssh fail to register memory",
    "limits.conf(5), pam_limits(8)",
)
def memlock_login(examination: Examination) -> Outcome:
    """The memlock lines of /etc/security for ordinary users, else the limit of sshd."""
    facts = examination.memlock
    if isinstance(facts, Unknown):
        return unsure(f"the limits of logins: {facts}")
    if facts.unread:
        return unsure(f"needs root: {facts.unread[0]}")
    some = [line for line in facts.lines if line.domain.startswith("@") and math.isinf(line.value_bytes)]
    line = _last_for_everybody(facts.lines)
    if line is not None and math.isinf(line.value_bytes):
        return passed(Evidence(line.where, f"{line.domain} {line.kind} memlock unlimited"))
    if some and line is None:
        return passed(*few(Evidence(one.where, f"{one.domain} memlock unlimited") for one in some))
    if line is not None:
        evidence = Evidence(line.where, _told(line))
    else:
        ssh = next((name for name in _LOGINS if name in facts.services), None)
        if ssh is None:
            return passed(Evidence("/etc/systemd/system", "no sshd here"))
        told = _of_service(facts, ssh)
        if isinstance(told, Unknown):
            return unsure(f"LimitMEMLOCK of {ssh}: {told}")
        limit, evidence = told
        if math.isinf(limit.soft_bytes):
            return passed(evidence)
        evidence = Evidence(LIMITS, f"no memlock line; {evidence.value}")
    where = "/etc/security/limits.d/rdma.conf"
    return found(
        "what is started over ssh, as mpirun does, inherits this limit",
        evidence,
        fix=Plan(
            "Lift the limit of logins",
            (
                instruction(
                    f"write the lines “* soft memlock unlimited”, “* hard memlock unlimited” to {where}"
                ),
                instruction("log in again", needs_root=False),
            ),
        ),
    )


def _told(line: LimitsLine) -> str:
    """The line as it stands in the file, in KiB, and what that is."""
    kib = line.value_bytes / 1024
    return f"{line.domain} {line.kind} memlock {kib:.0f}: {_amount(line.value_bytes)}"


def _last_for_everybody(lines: tuple[LimitsLine, ...]) -> LimitsLine | None:
    """The line that counts for the soft limit of ordinary users: the last one for “*”."""
    fitting = [line for line in lines if line.domain == "*" and line.kind in ("soft", "-")]
    return fitting[-1] if fitting else None


@AREA.check(
    "memlock-shell",
    Severity.NOTE,
    "this shell may lock little memory: tests started from here fail with error 12",
    _VERBS,
)
def memlock_shell(examination: Examination) -> Outcome:
    """RLIMIT_MEMLOCK of this program, which its tests inherit."""
    facts = examination.memlock
    own = facts if isinstance(facts, Unknown) else facts.own
    if examination.is_root:
        return passed(Evidence("id -u", "0: root may lock any amount"))
    if isinstance(own, Unknown):
        return unsure(f"the limit of this shell: {own}")
    evidence = Evidence("/proc/self/limits", f"Max locked memory {_amount(own.soft_bytes)}")
    if math.isinf(own.soft_bytes):
        return passed(evidence)
    return found(
        "perftest and NCCL register their buffers, which counts against this limit",
        evidence,
        fix=Plan(
            "Lift the limit of this shell",
            (
                instruction(
                    "type “ulimit -l unlimited”; refused: log in again after memlock-login is cured", False
                ),
            ),
        ),
    )


@AREA.check(
    "pid-namespace-hides-users",
    Severity.NOTE,
    "who uses GPUs and RDMA cannot be seen from here",
    "pid_namespaces(7)",
)
def pid_namespace_hides_users(examination: Examination) -> Outcome:
    """Processes that NVML names and /proc does not show."""
    facts, named = examination.processes, named_by_nvml(examination)
    if isinstance(facts, Unknown):
        return unsure(f"the processes: {facts}")
    if not driver_loaded(examination):
        return passed(Evidence("/proc/driver/nvidia/version", "no NVIDIA driver is loaded"))
    if isinstance(named, Unknown):
        return unsure(f"the processes that NVML names: {named}")
    if facts.left_out:
        return unsure(f"{facts.left_out} more processes have a GPU than are looked at")
    gone = sorted(named - {one.pid for one in facts.processes})
    if not gone:
        told = f"{len(named)} processes, all in /proc" if named else "no process"
        return passed(Evidence("nvidia-smi --query-compute-apps=pid --format=csv", told))
    return found(
        "NVML counts in the host's process ids: this is another pid namespace, or /proc is mounted with"
        " hidepid; limits and settings of those jobs cannot be judged",
        *few(Evidence(f"/proc/{pid}", "named by NVML, not there") for pid in gone),
        fix=Plan(
            "Look from the host",
            (instruction("run gdrtop on the host, or in a container with --pid=host (hostPID: true)"),),
        ),
    )
