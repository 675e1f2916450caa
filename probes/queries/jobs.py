"""The jobs of a node, as checks ask about them: processes with a GPU, and the settings they run with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from probes.base.plan import Plan, instruction
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.jobs.processes import MAX_PROCESSES, Process, ProcessFacts, names_of
from probes.facts.system.platform import Environment
from probes.queries.evidence_list import first_distinct
from probes.queries.finding import Evidence, Outcome, Severity, found, needs, passed, unknown
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import ORDER, Nccl
from probes.topology.paths import Topology

NO_JOB = "no process uses a GPU and RDMA now"
OTHERS = "the environment of other users' processes"
# Half: NVIDIA/nccl#638, for a GPU and a NIC below one PCIe switch.
STAGED = "The job copies through host memory, at about half the bandwidth where GPU and NIC share a switch."
OVER_TCP = "Traffic to other nodes uses TCP, at a fraction of the port rate and with a high CPU load."
FEWER_RAILS = "The job uses fewer NICs than intended, and its bandwidth drops with each missing one."
FAR_NIC = "The named GPUs use a farther NIC, or copy through host memory."
_GPU = re.compile(r"/dev/nvidia[0-9]{1,4}")
_OF_PROCESS = re.compile(r"/proc/([0-9]{1,10})/")
# Programs that keep GPUs or RDMA devices open to monitor or serve them; they are no jobs. ibacm and
# srp_daemon open verbs devices when they start and send a few management datagrams (rdma-core,
# ibacm/src/acm.c and srp_daemon/srp_handle_traps.c).
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


RESTART = instruction("Restart the job", needs_root=False)
RESTARTS = "the job, which has to be restarted"


@dataclass(frozen=True)
class Settings:
    """The variables of one process, or those that /etc/nccl.conf sets for jobs that start next."""

    process: Process | None
    values: dict[str, tuple[str, str]]  # name -> value, and the file that it stands in

    def get(self, name: str) -> str | None:
        """The value, None where it is not set."""
        return self.values[name][0] if name in self.values else None

    def evidence(self, name: str, remark: str = "") -> Evidence:
        """The file that sets the variable, its value, and a remark on it."""
        value, source = self.values[name]
        return Evidence(source, f"{name}={value}{f' ({remark})' if remark else ''}")


@dataclass(frozen=True)
class Jobs:
    """Processes that may be jobs, their settings, and what could not be seen of them."""

    processes: tuple[Process, ...]  # with a GPU open
    settings: tuple[Settings, ...]
    unseen: str  # what gdrtop needs to see all of them; "": all were seen
    unread: str  # the same for their environments and libraries


_latest: list[tuple[Examination, Jobs]] = []  # all checks ask about the same examination


def jobs_of(examination: Examination) -> Jobs:
    """The node's jobs."""
    for known_examination, jobs in tuple(_latest):
        if known_examination is examination:
            return jobs
    jobs = _jobs_of(examination)
    _latest[:] = [(examination, jobs)]
    return jobs


def has_pods(examination: Examination) -> bool:
    """Say whether this is a node of Kubernetes, or one of its pods."""
    facts, platform = examination.driver_container, examination.node.platform
    in_pod = not isinstance(platform, Unknown) and platform.environment is Environment.KUBERNETES_POD
    return in_pod or (not isinstance(facts, Unknown) and facts.kubelet)


def _jobs_of(examination: Examination) -> Jobs:
    facts = examination.processes
    if isinstance(facts, Unknown):
        return Jobs((), (), needs("the processes", facts), "")
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
    impact: str = "",
    data_path: bool | None = None,
    part_of: tuple[str, ...] = (),
) -> Outcome:
    """Found where there is evidence, and by whom; passed where everything was read; else what is missing."""
    seen = tuple(evidence)
    if seen:
        return found(
            about(affected(jobs, seen), cause),
            *first_distinct(seen),
            fix=fix,
            severity=severity,
            devices=devices,
            impact=impact,
            data_path=data_path,
            part_of=part_of,
        )
    if jobs.unseen or jobs.unread:
        return unknown(jobs.unseen or jobs.unread)
    return no_fault(jobs)


def about(processes: str, cause: str) -> str:
    """The cause behind the processes that it is about; a name as its first word keeps its capitals."""
    is_name = cause[1:2].isupper()
    return f"{processes}: {cause if is_name else cause[:1].lower() + cause[1:]}"


def affected(jobs: Jobs, evidence: Iterable[Evidence]) -> str:
    """The processes that the evidence is about, or the jobs that /etc/nccl.conf is read by."""
    pids = {int(match[1]) for one in evidence if (match := _OF_PROCESS.match(one.source))}
    return names_of(one for one in jobs.processes if one.pid in pids) or "jobs that start on this node"


def no_fault(jobs: Jobs) -> Outcome:
    """Passed: how many were read."""
    if not jobs.processes:
        return passed(Evidence("/proc/*/fd", NO_JOB))
    count = len(jobs.processes)
    return passed(Evidence("/proc/*/environ", f"{count} process{'es' * (count > 1)} with a GPU, all read"))


def values_of(
    examination: Examination, name: str, wrong: Callable[[Settings, str], str | None]
) -> Iterator[Evidence]:
    """Evidence of every value that is wrong, with the remark that `wrong` gives."""
    for settings in jobs_of(examination).settings:
        value = settings.get(name)
        remark = None if value is None else wrong(settings, value)
        if remark is not None:
            yield settings.evidence(name, remark)


def without_variable(name: str, instead: str = "") -> Plan:
    """Remove a variable from a job, or do `instead`."""
    where = f"Remove {name} from the job script, the image or {NCCL_CONF}{f', {instead}' if instead else ''}"
    return Plan(f"Remove {name}", (instruction(where, needs_root=False), RESTART), disturbs=RESTARTS)


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
    """NCCL's word for the path from a GPU to its nearest NIC; None where no path is known."""
    words = [topology.paths[gpu, nic].nccl for nic in topology.best_nics.get(gpu, ())]
    return min((one for one in words if not isinstance(one, Unknown)), key=ORDER.__getitem__, default=None)


def maps(process: Process, name: str) -> bool:
    """Whether a process is known to map a library."""
    return not isinstance(process.libraries, Unknown) and any(one.name == name for one in process.libraries)


def is_watcher(process: Process) -> bool:
    """Whether it is known to keep devices open only to monitor or serve them."""
    return not isinstance(process.comm, Unknown) and process.comm[:15] in _WATCHERS


def _uses_gpu(process: Process) -> bool:
    if is_watcher(process):
        return False
    # A process whose files cannot be read is listed because NVML names it.
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
    for process in facts.processes:
        if isinstance(process.gpu_files, Unknown):
            return needs(OTHERS, process.gpu_files)
    if facts.left_out:
        return f"{facts.left_out} more processes use GPUs or RDMA; gdrtop reads {MAX_PROCESSES}"
    if not driver_loaded(examination):
        return ""
    if isinstance(named, Unknown):
        # Without NVML's list any process that cannot be read can be a job.
        if isinstance(facts.hidden, Unknown):
            return needs(OTHERS, facts.hidden)
        return f"needs root: {OTHERS}" if facts.hidden else ""
    gone = named - {one.pid for one in facts.processes}
    return "needs the host: NVML lists processes that are not visible here" if gone else ""


def _unread(processes: Iterable[Process], facts: ProcessFacts) -> str:
    for process in processes:
        for fact in (process.environment, process.libraries):
            if isinstance(fact, Unknown):
                return needs_environment(process, fact)
        if isinstance(process.nccl_conf, Unknown) and process.nccl_conf.reason is not Reason.NOT_THERE:
            return needs_environment(process, process.nccl_conf)
    if isinstance(facts.nccl_conf, Unknown) and facts.nccl_conf.reason is not Reason.NOT_THERE:
        return needs(NCCL_CONF, facts.nccl_conf)
    return ""


def needs_environment(process: Process, why: Unknown) -> str:
    """Why the environment, libraries or files of a process are unknown."""
    if why.reason is Reason.NOT_THERE:
        return f"the environment of process {process.pid} is not readable (the process has ended)"
    what = OTHERS if why.reason is Reason.NEEDS_ROOT else f"the environment of process {process.pid}"
    return needs(what, why)
