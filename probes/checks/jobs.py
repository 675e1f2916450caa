"""The jobs of a node, as checks ask about them: processes with a GPU, and the settings they run with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from probes.checks.finding import Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.wording import few
from probes.examination import Examination
from probes.nccl_conf import NCCL_CONF
from probes.nccl_paths import ORDER, Nccl
from probes.plan import Plan, instruction
from probes.processes import Process, ProcessFacts
from probes.topology import Topology
from probes.unknown import Maybe, Reason, Unknown

NO_JOB = "no process uses a GPU and RDMA now"
_GPU = re.compile(r"/dev/nvidia[0-9]{1,4}")
# Programs that hold GPUs or RDMA devices open to watch or to serve them; no job. ibacm and srp_daemon keep
# verbs devices open from their start on and send a few management datagrams (rdma-core, ibacm/src/acm.c and
# srp_daemon/srp_handle_traps.c).
_WATCHERS = frozenset(
    name[:15]
    for name in (
        "nvidia-persistenced",
        "nv-hostengine",
        "nv-fabricmanager",
        "nvidia-smi",
        "dcgm-exporter",
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps-control",
        "nvidia-device-plugin",
        "nvtop",
        "Xorg",
        "ibacm",
        "srp_daemon",
    )
)


@dataclass(frozen=True)
class Settings:
    """The variables that one process runs with, or that /etc/nccl.conf gives to those that start next."""

    process: Process | None
    values: dict[str, tuple[str, str]]  # name -> value, and the file that it stands in

    def get(self, name: str) -> str | None:
        """The value, None where it is not set."""
        return self.values[name][0] if name in self.values else None

    def evidence(self, name: str, told: str = "") -> Evidence:
        """Where the variable stands, its value, and what there is to say about it."""
        value, source = self.values[name]
        return Evidence(source, f"{name}={value}{f': {told}' if told else ''}")


@dataclass(frozen=True)
class Jobs:
    """Processes that may be jobs, their settings, and what could not be seen of them."""

    processes: tuple[Process, ...]  # with a GPU open
    settings: tuple[Settings, ...]
    unseen: str  # what it takes to see all of them; "": all were seen
    unread: str  # the same for their environments and libraries


_latest: list[tuple[Examination, Jobs]] = []  # every check asks for the same


def jobs_of(examination: Examination) -> Jobs:
    """The node's jobs."""
    for known_examination, jobs in tuple(_latest):
        if known_examination is examination:
            return jobs
    jobs = _jobs_of(examination)
    _latest[:] = [(examination, jobs)]
    return jobs


def _jobs_of(examination: Examination) -> Jobs:
    facts = examination.processes
    if isinstance(facts, Unknown):
        return Jobs((), (), f"the processes could not be read: {facts}", "")
    ours = [one for one in facts.processes if _uses_gpu(one)]
    settings = [Settings(None, {name: (v, NCCL_CONF) for name, v in _conf(facts.nccl_conf).items()})]
    settings.extend(Settings(one, _values(one, facts)) for one in ours)
    return Jobs(tuple(ours), tuple(settings), _unseen(examination, facts), _unread(ours, facts))


def settle(
    jobs: Jobs,
    evidence: Iterable[Evidence],
    cause: str,
    fix: Plan | None = None,
    severity: Severity | None = None,
    devices: tuple[str, ...] = (),
) -> Outcome:
    """Found where there is evidence; passed where everything was looked at; else what is missing."""
    seen = few(evidence)
    if seen:
        return found(cause, *seen, fix=fix, severity=severity, devices=devices)
    if jobs.unseen or jobs.unread:
        return unsure(jobs.unseen or jobs.unread)
    return no_fault(jobs)


def no_fault(jobs: Jobs) -> Outcome:
    """Passed: how many were looked at."""
    if not jobs.processes:
        return passed(Evidence("/proc/*/fd", NO_JOB))
    count = len(jobs.processes)
    return passed(Evidence("/proc/*/environ", f"{count} process{'es' * (count > 1)} with a GPU looked at"))


def values_of(
    examination: Examination, name: str, wrong: Callable[[Settings, str], str | None]
) -> Iterator[Evidence]:
    """Evidence of every value that is wrong, with the words that `wrong` has for it."""
    for settings in jobs_of(examination).settings:
        value = settings.get(name)
        told = None if value is None else wrong(settings, value)
        if told is not None:
            yield settings.evidence(name, told)


def name_of(process: Process) -> str:
    """The process's name for the admin."""
    return "process" if isinstance(process.comm, Unknown) else process.comm


def without_variable(name: str, instead: str = "") -> Plan:
    """Taking a variable out of a job."""
    told = f"; {instead}" if instead else ""
    where = f"take {name} out of the job's script, its image or {NCCL_CONF}{told}"
    return Plan(
        f"Remove {name}",
        (instruction(where, needs_root=False), instruction("restart the job", needs_root=False)),
        disturbs="the job has to be restarted",
    )


def gpus_of(examination: Examination, process: Process | None) -> frozenset[str]:
    """The BDFs of the GPUs that a process has open; of all, where that is not known."""
    gpus = examination.node.gpus
    everything = frozenset(end.id for end in examination.topology.gpus)
    if process is None or isinstance(process.gpu_files, Unknown) or isinstance(gpus, Unknown):
        return everything
    files = process.gpu_files
    return frozenset(
        gpu.bdf for gpu in gpus.gpus if isinstance(gpu.minor, Unknown) or f"/dev/nvidia{gpu.minor}" in files
    )


def nearest(topology: Topology, gpu: str) -> Nccl | None:
    """NCCL's word for the way from a GPU to its nearest NIC; None where no way is known."""
    words = [topology.paths[gpu, nic].nccl for nic in topology.best_nics.get(gpu, ())]
    return min((one for one in words if not isinstance(one, Unknown)), key=ORDER.__getitem__, default=None)


def maps(process: Process, name: str) -> bool:
    """Whether a process is known to map a library."""
    return not isinstance(process.libraries, Unknown) and any(one.name == name for one in process.libraries)


def is_watcher(process: Process) -> bool:
    """Whether it is known to hold devices only to watch or to serve them."""
    return not isinstance(process.comm, Unknown) and process.comm[:15] in _WATCHERS


def _uses_gpu(process: Process) -> bool:
    if is_watcher(process):
        return False
    # Files that may not be seen: NVML names this process.
    return isinstance(process.gpu_files, Unknown) or any(_GPU.fullmatch(file) for file in process.gpu_files)


def _conf(conf: object) -> dict[str, str]:
    return dict(getattr(conf, "values", {}))


def _values(process: Process, facts: ProcessFacts) -> dict[str, tuple[str, str]]:
    own = "" if process.nccl_conf == facts.nccl_conf else f"/proc/{process.pid}/root"
    values = {name: (value, f"{own}{NCCL_CONF}") for name, value in _conf(process.nccl_conf).items()}
    if not isinstance(process.environment, Unknown):
        path = f"/proc/{process.pid}/environ"
        values.update({name: (value, path) for name, value in process.environment.items()})
    return values


def named_by_nvml(examination: Examination) -> Maybe[frozenset[int]]:
    """The pids that NVML names, if it answers for every GPU."""
    gpus = examination.reading.gpus
    if isinstance(gpus, Unknown):
        return gpus
    pids: set[int] = set()
    for gpu in gpus.values():
        if isinstance(gpu.processes, Unknown):
            return gpu.processes
        pids.update(gpu.processes)
    return frozenset(pids)


def driver_loaded(examination: Examination) -> bool:
    """Whether the NVIDIA driver may be loaded; without it no process has a GPU."""
    gpus = examination.node.gpus
    version = None if isinstance(gpus, Unknown) else gpus.driver.version
    return not isinstance(version, Unknown) or version.reason is not Reason.NOT_THERE


def _unseen(examination: Examination, facts: ProcessFacts) -> str:
    named = named_by_nvml(examination)
    closed = sum(isinstance(one.gpu_files, Unknown) for one in facts.processes)
    if closed:
        reason = next(one.gpu_files.reason for one in facts.processes if isinstance(one.gpu_files, Unknown))
        return f"{reason.value}: the processes of others with a GPU ({closed} of them)"
    if facts.left_out:
        return f"{facts.left_out} more processes have a GPU or an RDMA device than are looked at"
    if not driver_loaded(examination):
        return ""
    if isinstance(named, Unknown):
        # Without NVML's word any process that may not be looked into can be a job.
        if isinstance(facts.hidden, Unknown):
            return f"the processes of others: {facts.hidden}"
        return f"needs root: what {facts.hidden} processes of others have open" if facts.hidden else ""
    gone = named - {one.pid for one in facts.processes}
    return f"NVML names {len(gone)} processes that are not seen from here: run it on the host" if gone else ""


def _unread(processes: Iterable[Process], facts: ProcessFacts) -> str:
    for process in processes:
        for fact in (process.environment, process.libraries):
            if isinstance(fact, Unknown):
                return f"{fact.reason.value}: environment and libraries of process {process.pid}"
        if isinstance(process.nccl_conf, Unknown) and process.nccl_conf.reason is not Reason.NOT_THERE:
            return f"{process.nccl_conf.reason.value}: /proc/{process.pid}/root{NCCL_CONF}"
    if isinstance(facts.nccl_conf, Unknown) and facts.nccl_conf.reason is not Reason.NOT_THERE:
        return f"{facts.nccl_conf.reason.value}: {NCCL_CONF}"
    return ""
