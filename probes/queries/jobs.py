"""The jobs of a node: processes with a GPU, the settings they run with, and findings about those."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, instruction, user_plan
from probes.base.unknown import ABSENT, Maybe, Reason, Unknown, first_unread, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.jobs.process_files import WORLD_SIZES
from probes.facts.jobs.processes import MAX_PROCESSES, Process, ProcessFacts, names_of
from probes.facts.node import Node
from probes.facts.system.numa import parse_list
from probes.facts.system.platform import Environment
from probes.host.nvml import NvmlLive
from probes.nccl.settings import parse_number
from probes.nccl.variables.catalogue import NEWEST, parse_version, variables
from probes.queries.finding import Outcome, end_with, found, needs, passed, unknown
from probes.queries.kernel_log import is_dmabuf_refused
from probes.queries.queue_pair_makers import (
    BY_IBGDA,
    GIN_TYPE,
    IBGDA,
    IBGDA_LIBRARY,
    OwnQueues,
    own_queues,
    uncounted,
)
from probes.snapshot.condition import Watched
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER, Nccl
from probes.topology.paths import Topology

NEW_JOBS = "jobs that start on this node"
NO_JOB = "no process is using a GPU and RDMA now"
OTHERS = "the environment of other users' processes"
GDR_PATHS = "the GPUDirect RDMA paths of this node"
OVER_TCP = "Traffic to other nodes uses TCP, at a fraction of the port rate and with high CPU load."
# Findings about the settings of jobs that make NCCL stage in host memory, or use TCP.
STAGING_SETTINGS = (
    *("nccl-gdr-level-off", "nccl-gdr-level-too-low", "nccl-gdr-read-off", "nccl-gdr-c2c-off"),
    *("nccl-dmabuf-disabled", "nccl-too-old-for-dmabuf"),
)
TCP_SETTINGS = (
    *("nccl-ib-disabled", "nccl-net-socket", "nccl-ib-hca-mismatch"),
    *("nccl-net-plugin-not-found", "nccl-net-plugin-absent"),
)
_GPU = re.compile(r"/dev/nvidia[0-9]{1,4}")
_OF_PROCESS = re.compile(r"/proc/([0-9]{1,10})/")
# Programs that open GPUs or RDMA devices to monitor or serve them. They are not jobs. ibacm and
# srp_daemon open verbs devices when they start and send a few management datagrams (rdma-core,
# ibacm/src/acm.c and srp_daemon/srp_handle_traps.c).
_WATCHERS = frozenset(
    name[:15]
    for name in (
        *("nvidia-persistenced", "nv-hostengine", "nv-fabricmanager", "nvlsm", "nvidia-smi"),
        *("dcgm-exporter", "nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-device-plugin"),
        *("nvtop", "Xorg", "ibacm", "srp_daemon"),
    )
)
_RESTART = instruction("Restart the job", needs_root=False)
RESTARTS = "the job, which must be restarted"


@frozen
class JobSettings:
    """The variables of one process, or those that /etc/nccl.conf sets for jobs that start next."""

    process: Process | None
    values: dict[str, tuple[str, str]]  # name -> value, and the file that sets it

    @property
    def is_read(self) -> bool:
        """Whether the environment is known; if not, a variable that is not here may be set all the same."""
        return self.process is None or not isinstance(self.process.environment, Unknown)

    def get(self, name: str) -> str | None:
        """Return the value, or None if the variable is not set, or not known (see `is_read`)."""
        return self.values[name][0] if name in self.values else None

    def evidence(self, name: str, remark: str = "") -> Evidence:
        """Return the file that sets the variable, its value, and a remark."""
        value, source = self.values[name]
        return Evidence(source, f"{name}={value}{f' ({remark})' if remark else ''}")


@frozen
class Jobs:
    """Processes that may be jobs, their settings, and what gdrtop cannot see of them."""

    processes: tuple[Process, ...]  # with a GPU open
    settings: tuple[JobSettings, ...]
    unseen: str  # what gdrtop needs to see all jobs; "": it sees all
    unread: str  # what gdrtop needs to read their environments and libraries; "": it has read all

    @property
    def of_processes(self) -> tuple[tuple[Process, JobSettings], ...]:
        """The processes with their settings, without those of /etc/nccl.conf alone."""
        return tuple((each.process, each) for each in self.settings if each.process is not None)

    @property
    def not_known(self) -> str:
        """What gdrtop needs to see and read everything; "": nothing."""
        return self.unseen or self.unread


_latest: list[tuple[Examination, Jobs]] = []  # a cache: all checks use the same examination


def jobs_of(examination: Examination) -> Jobs:
    """Return the node's jobs."""
    for known_examination, jobs in tuple(_latest):
        if known_examination is examination:
            return jobs
    jobs = _jobs_of(examination)
    _latest[:] = [(examination, jobs)]
    return jobs


def without_jobs(examination: Examination) -> Examination:
    """Return the examination as if no process were a job; what /etc/nccl.conf sets for the next ones stays.

    Whether the node may get a job must not depend on the settings of another one. The processes themselves
    stay: they use the devices, and without them their references would look like a killed job's.
    """
    facts = examination.processes
    if not isinstance(facts, Unknown):
        conf = facts.nccl_conf
        plain = (replace(each, environment={}, libraries=(), nccl_conf=conf) for each in facts.processes)
        facts = replace(facts, processes=tuple(plain), has_jobs=False)
    watched = examination.watched
    if not isinstance(watched, Unknown):
        lasting = tuple(condition for condition in watched.conditions if not condition.job)
        watched = replace(watched, jobs=0, conditions=lasting)
    return replace(examination, processes=facts, job_logs=(), watched=watched)


def need_all_processes(watched: Watched) -> None:
    """End a check of what every process of a job has in common if some may not have been seen."""
    if watched.missing:
        end_with(unknown(f"needs all processes of jobs ({watched.missing})"))


def has_pods(examination: Examination) -> bool:
    """Say whether this is a Kubernetes node, or a pod."""
    facts, platform = examination.driver_container, examination.node.platform
    in_pod = not isinstance(platform, Unknown) and platform.environment is Environment.KUBERNETES_POD
    return in_pod or (not isinstance(facts, Unknown) and facts.kubelet)


def _jobs_of(examination: Examination) -> Jobs:
    facts = examination.processes
    if isinstance(facts, Unknown):
        return Jobs((), (), needs("the processes", facts), "")
    conf = {name: (value, NCCL_CONF) for name, value in _conf(facts.nccl_conf).items()}
    if not facts.has_jobs:
        return Jobs((), (JobSettings(None, conf),), "", "")
    jobs = [process for process in facts.processes if _uses_gpu(process)]
    settings = [JobSettings(None, conf), *(JobSettings(process, _values(process, facts)) for process in jobs)]
    return Jobs(tuple(jobs), tuple(settings), _unseen(examination, facts), _unread(jobs, facts))


def conclude(
    jobs: Jobs,
    evidence: Iterable[Evidence],
    cause: str,
    fix: Plan | None = None,
    severity: Severity | None = None,
    devices: tuple[str, ...] = (),
    impact: str = "",
    part_of: tuple[str, ...] = (),
    subjects: tuple[frozenset[str], ...] | None = None,
) -> Outcome:
    """Return found if there is evidence, passed if gdrtop has read all jobs, unknown otherwise."""
    seen = tuple(evidence)
    if not seen:
        return unknown(jobs.not_known) if jobs.not_known else no_fault(jobs)
    return found(
        about(affected(jobs, seen), cause),
        *first_distinct(seen),
        fix=fix,
        severity=severity,
        devices=devices,
        impact=impact,
        part_of=part_of,
        pids=frozenset(pid for pid in map(pid_in, seen) if pid is not None),
        subjects=subjects,
    )


def about(processes: str, cause: str) -> str:
    """Return "processes: cause", in lower case unless the cause begins with a name in capitals."""
    return f"{processes}: {cause if cause[1:2].isupper() else cause[:1].lower() + cause[1:]}"


def affected(jobs: Jobs, evidence: Iterable[Evidence]) -> str:
    """Return the names of the processes in the evidence; without any, it is about /etc/nccl.conf."""
    pids = {pid_in(line) for line in evidence}
    return names_of(process for process in jobs.processes if process.pid in pids) or NEW_JOBS


def pid_in(evidence: Evidence) -> int | None:
    """Return the process whose file the evidence is from; None: it is from none."""
    match = _OF_PROCESS.match(evidence.source)
    return None if match is None else int(match[1])


def no_fault(jobs: Jobs) -> Outcome:
    """Pass with the number of processes that were read."""
    if not jobs.processes:
        return passed(Evidence("/proc/*/fd", NO_JOB))
    count = len(jobs.processes)
    return passed(Evidence("/proc/*/environ", f"{count} process{'es' * (count > 1)} with a GPU, all read"))


def values_of(
    examination: Examination, name: str, wrong: Callable[[JobSettings, str], str | None]
) -> Iterator[Evidence]:
    """Yield evidence of every value for which `wrong` returns a remark."""
    for settings in jobs_of(examination).settings:
        value = settings.get(name)
        remark = None if value is None else wrong(settings, value)
        if remark is not None:
            yield settings.evidence(name, remark)


def conclude_values(
    examination: Examination,
    variable: str,
    wrong: Callable[[str], str | None],
    cause: str,
    instead: str = "",
    severity: Severity | None = None,
) -> Outcome:
    """Report jobs with a wrong value of a variable. The fix removes the variable, or does `instead`.

    `wrong` returns a remark on a wrong value, None otherwise.
    """
    evidence = values_of(examination, variable, lambda _, value: wrong(value))
    fix = without_variable(variable, instead)
    return conclude(jobs_of(examination), evidence, cause, fix=fix, severity=severity)


_MORE_PATHS = (
    "Set NCCL_IB_QPS_PER_CONNECTION=4 and NCCL_IB_SPLIT_DATA_ON_QPS=1: each message then takes several paths",
    "With adaptive routing of RoCE on the switches, set NCCL_IB_ADAPTIVE_ROUTING=1",
    "Measure the job with and without these settings: one node alone does not show what they bring",
)
"""How NCCL spreads its traffic over equal paths: NCCL env.rst; NVIDIA/NVCRE pull request 287 (+70 %)."""
ONE_PATH = "nccl-one-path"
QUEUE_PAIRS, ADAPTIVE_ROUTING = "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_ADAPTIVE_ROUTING"
AT_WORK = "packets arrive out of order, and no losses are counted: adaptive routing is likely at work"
_SPLIT, _LEVEL = "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_SL"


def settings_of(process: Process) -> JobSettings:
    """Return the settings of one process."""
    return JobSettings(process, _values(process, None))


def queue_pairs_per_connection(settings: JobSettings) -> int:
    """Return how many queue pairs NCCL makes for each connection."""
    return parse_number(settings.get(QUEUE_PAIRS) or variables()[QUEUE_PAIRS].default()) or 1


def adaptive_routing(settings: JobSettings, layer: str) -> bool:
    """Return whether NCCL's transfers allow adaptive routing, by default on InfiniBand alone (net_ib.cc)."""
    value = parse_number(settings.get(ADAPTIVE_ROUTING) or "")
    return layer == "InfiniBand" if value in (None, -2) else value != 0


def spread_of(process: Process, layers: Collection[str] = ()) -> tuple[str, ...]:
    """Return how NCCL in a process spreads its traffic, a phrase each; `layers`: of its NICs, if known."""
    library = next((each for each in known(process.libraries, ()) if each.name == "libnccl"), None)
    if library is None:
        return ()
    if isinstance(process.environment, Unknown):
        return (f"queue pairs per connection unknown ({process.environment})",)
    settings, version = settings_of(process), known(library.version, "")

    def by(name: str) -> str:
        value = settings.get(name)
        return f"the default of NCCL {version}".rstrip() if value is None else f"{name}={value}"

    count = queue_pairs_per_connection(settings)
    split = settings.get(_SPLIT) or variables()[_SPLIT].default(parse_version(version) or NEWEST)
    use = ", which share each message" if parse_number(split) else ", which take turns"
    texts = [f"queue pairs per connection: {count}{use * (count > 1)} ({by(QUEUE_PAIRS)})"]
    for layer in sorted(layers):
        word = "on" if adaptive_routing(settings, layer) else "off"
        level = layer == "InfiniBand" and settings.get(_LEVEL) is not None
        texts.append(
            f"adaptive routing on {layer}: {word} ({by(ADAPTIVE_ROUTING)}{f', {by(_LEVEL)}' * level})"
        )
    return tuple(texts)


SET_IN = f"the job script, the image or {NCCL_CONF}"
"""Where a running job's variable may come from."""


def job_plan(title: str, *steps: Step | str, note: str = "") -> Plan:
    """Return a plan of steps in a job's files, after which the job is restarted; no text needs root."""
    return user_plan(title, *steps, _RESTART, disturbs=RESTARTS, note=note)


def more_paths(note: str = "") -> Plan:
    """Return the plan to spread a job over more of the equal paths of a network."""
    return job_plan("Let the job use more paths through the network", *_MORE_PATHS, note=note)


def without_variable(name: str, instead: str = "") -> Plan:
    """Return the plan to remove a variable from a job, or to do `instead`."""
    where = SET_IN if name.startswith("NCCL_") else "the job script or the image"
    return job_plan(f"Remove {name}", f"Remove {name} from {where}{f', {instead}' if instead else ''}")


def gpus_of(examination: Examination, process: Process | None) -> frozenset[str]:
    """Return the BDFs of the GPUs that a process has open; of all GPUs, if that is unknown."""
    gpus = examination.node.gpus
    if process is None or isinstance(process.gpu_files, Unknown) or isinstance(gpus, Unknown):
        return frozenset(gpu.id for gpu in examination.topology.gpus)
    files = process.gpu_files
    return frozenset(
        gpu.bdf for gpu in gpus.gpus if isinstance(gpu.minor, Unknown) or f"/dev/nvidia{gpu.minor}" in files
    )


def nearest(topology: Topology, gpu: str) -> Nccl | None:
    """Return NCCL's word for the path from a GPU to its nearest NIC, or None if no path is known."""
    words = [topology.paths[gpu, nic].nccl for nic in topology.best_nics.get(gpu, ())]
    return min((word for word in words if not isinstance(word, Unknown)), key=ORDER.__getitem__, default=None)


def maps(process: Process, name: str) -> bool:
    """Say whether a process is known to map a library."""
    return any(library.name == name for library in known(process.libraries, ()))


_UCX_MODULES = ("libuct_ib", "libuct_cuda", "libuct_cma", "libuct_rdmacm", "libuct_xpmem")


def lacks_ucx_module(process: Process, name: str) -> bool:
    """Say whether UCX has loaded modules in a process, and not this one."""
    return any(maps(process, each) for each in _UCX_MODULES) and not maps(process, name)


def forces_tcp(process: Process) -> bool:
    """Say whether Mooncake uses TCP: it asks only whether the variable is set (transfer_engine_impl.cpp)."""
    return "MC_FORCE_TCP" in known(process.environment, {}) and maps(process, "mooncake/engine")


def sees_no_verbs_file(process: Process) -> bool:
    """Say whether no device file of a NIC with verbs was passed into the container of a process."""
    nodes = process.rdma_nodes
    if isinstance(nodes, Unknown):
        return nodes.reason is Reason.NOT_THERE
    return not any(name.startswith("uverbs") for name in nodes)


def is_watcher(process: Process) -> bool:
    """Say whether a process is known to open devices only to monitor or serve them."""
    return not isinstance(process.comm, Unknown) and process.comm[:15] in _WATCHERS


def _uses_gpu(process: Process) -> bool:
    if is_watcher(process):
        return False
    # gdrtop lists a process with unreadable files only if NVML names it.
    return isinstance(process.gpu_files, Unknown) or any(_GPU.fullmatch(file) for file in process.gpu_files)


def _conf(conf: object) -> dict[str, str]:
    return dict(getattr(conf, "values", {}))


def _values(process: Process, facts: ProcessFacts | None) -> dict[str, tuple[str, str]]:
    own = "" if facts is None or process.nccl_conf == facts.nccl_conf else f"/proc/{process.pid}/root"
    values = {name: (value, f"{own}{NCCL_CONF}") for name, value in _conf(process.nccl_conf).items()}
    values.update({name: (value, process.user_conf_path) for name, value in _conf(process.user_conf).items()})
    if not isinstance(process.environment, Unknown):
        path = f"/proc/{process.pid}/environ"
        if process.environment_pid not in (0, process.pid):
            path += f" (overwritten by a title; of its ancestor {process.environment_pid})"
        values.update({name: (value, path) for name, value in process.environment.items()})
    return values


def named_by_nvml(examination: Examination) -> Maybe[frozenset[int]]:
    """Return the pids that NVML lists, if it answers for every GPU."""
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
    """Say whether the NVIDIA driver may be loaded; without it no process has a GPU."""
    gpus = examination.node.gpus
    version = None if isinstance(gpus, Unknown) else gpus.driver.version
    return not isinstance(version, Unknown) or version.reason is not Reason.NOT_THERE


def _unseen(examination: Examination, facts: ProcessFacts) -> str:
    named = named_by_nvml(examination)
    for process in facts.processes:
        if isinstance(process.gpu_files, Unknown):
            return needs(OTHERS, process.gpu_files)
    if facts.unread is not None and facts.unread.reason is Reason.NOT_RECORDED:
        return needs("the processes", facts.unread)
    if facts.left_out:
        return f"{facts.left_out} more processes use GPUs or RDMA; gdrtop reads only {MAX_PROCESSES}"
    if not driver_loaded(examination):
        return ""
    if isinstance(named, Unknown):
        # Without NVML's list any unreadable process may be a job.
        if facts.unread is not None:
            return needs("the processes", facts.unread)
        if isinstance(facts.hidden, Unknown):
            return needs(OTHERS, facts.hidden)
        return f"needs root: {OTHERS}" if facts.hidden else ""
    hidden = named - {process.pid for process in facts.processes}
    return "needs to run on the host (NVML lists processes that are not visible here)" if hidden else ""


def _unread(processes: Iterable[Process], facts: ProcessFacts) -> str:
    for process in processes:
        for fact in (process.environment, process.libraries, first_unread((process.nccl_conf,))):
            if isinstance(fact, Unknown):
                return needs_environment(process, fact)
        user = process.user_conf
        if isinstance(user, Unknown) and user.reason not in ABSENT:
            return needs(process.user_conf_path or "~/.nccl.conf", user)
    if isinstance(facts.nccl_conf, Unknown) and facts.nccl_conf.reason is not Reason.NOT_THERE:
        return needs(NCCL_CONF, facts.nccl_conf)
    return ""


def usable_paths(examination: Examination) -> tuple[Maybe[bool], Maybe[bool]]:
    """Return whether the requirements of DMA-BUF and nvidia-peermem are met on this node.

    DMA-BUF is not usable either where the GPU driver refuses it to every NIC.
    """
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return direct, direct
    dmabuf = False if is_dmabuf_refused(examination) else direct.dmabuf.usable
    return dmabuf, direct.peermem.usable


def needs_environment(process: Process, why: Unknown) -> str:
    """Return what a check needs to read the environment, libraries or files of a process."""
    if why.reason is Reason.NOT_THERE:
        return f"the environment of process {process.pid} is not readable (the process has exited)"
    what = OTHERS if why.reason is Reason.NEEDS_ROOT else f"the environment of process {process.pid}"
    return needs(what, why)


def far_from_gpu(node: Node, facts: ProcessFacts, gpus: Mapping[str, NvmlLive]) -> tuple[int, ...]:
    """Return the pids with a CPU affinity that excludes all CPUs near their GPUs (`gpus`: by BDF).

    A process for which that is unknown is left out, and so is one that uses GPUs of several NUMA nodes.
    """
    cpus = _cpus_of_gpus(node)
    used: dict[int, list[frozenset[int]]] = {}
    for bdf, gpu in gpus.items():
        for pid in () if isinstance(gpu.processes, Unknown) else gpu.processes:
            used.setdefault(pid, []).append(cpus.get(bdf, frozenset()))
    return tuple(
        process.pid
        for process in facts.processes
        if len(set(near := used.get(process.pid, []))) == 1 and near[0] and _is_far(process, near[0])
    )


def _is_far(process: Process, near: frozenset[int]) -> bool:
    if isinstance(process.usage, Unknown) or isinstance(process.usage.cpus, Unknown):
        return False
    allowed = parse_list(process.usage.cpus)
    return bool(allowed) and near.isdisjoint(allowed or ())


def _cpus_of_gpus(node: Node) -> dict[str, frozenset[int]]:
    """Return the CPUs of each GPU's NUMA node by BDF, where both are known."""
    if isinstance(node.numa, Unknown) or not isinstance(node.gpus, GpuFacts):
        return {}
    cpus = {
        numa.number: frozenset(parse_list(numa.cpulist) or ())
        for numa in node.numa.nodes
        if not isinstance(numa.cpulist, Unknown)
    }
    return {
        gpu.bdf: cpus.get(gpu.numa_node, frozenset())
        for gpu in node.gpus.gpus
        if not isinstance(gpu.numa_node, Unknown)
    }


def world_size(settings: JobSettings) -> int:
    """Return how many ranks the job's variables name, 0 if none does."""
    return max(parse_number(settings.get(name) or "") or 0 for name in WORLD_SIZES)


# Queue pairs that jobs make outside of verbs; the table is probes/queries/queue_pair_makers.py.

_NIC_HANDLER = "NVSHMEM_IBGDA_NIC_HANDLER"


def gin_type(settings: JobSettings) -> int | None:
    """Return the kind of GIN that a job demands; None: NCCL chooses one, if the program uses GIN."""
    return parse_number(settings.get(GIN_TYPE) or "")


def ibgda_users(jobs: Jobs, with_cpu: bool = False) -> dict[int, Evidence]:
    """Return evidence of each process that uses IBGDA, by pid.

    `with_cpu`: also with the CPU as its NIC handler, which needs no driver option.
    """
    users: dict[int, Evidence] = {}
    for process, settings in jobs.of_processes:
        if (settings.get(_NIC_HANDLER) or "").strip().lower() == "cpu" and not with_cpu:
            continue
        # A variable alone may be left over in an image that runs something else.
        if any(each.maker is BY_IBGDA and each.is_sure for each in queues_of(process, settings)):
            library = Evidence(f"/proc/{process.pid}/maps", IBGDA_LIBRARY)
            users[process.pid] = library if maps(process, IBGDA_LIBRARY) else settings.evidence(IBGDA)
    return users


def queues_of(process: Process, settings: JobSettings) -> tuple[OwnQueues, ...]:
    """Return the queue pairs that a job makes outside of verbs, as far as its settings and libraries show."""
    return own_queues(process, variables={name: value for name, (value, _) in settings.values.items()})


def not_counted(jobs: Jobs) -> tuple[str, ...]:
    """Return what the hw_counters of the NICs surely do not count, with the process."""
    texts = (
        (uncounted(each for each in queues_of(process, settings) if each.is_sure), process)
        for process, settings in jobs.of_processes
        if process.uverbs_files != ()
    )
    return tuple(f"{text[:-1]}, pid {process.pid})" for text, process in texts if text)


# How UCX and the engines that move KV caches choose between the paths to GPU memory.
#
# Sources: openucx/ucx docs/source/faq.md; kvcache-ai/Mooncake mooncake-common/src/environ.cpp and
# docs/source/getting_started/build.md.

PEERMEM_VARIABLE = "WITH_NVIDIA_PEERMEM"
_RDMA_TRANSPORTS = ("rc", "ud", "dc", "ib", "srd", "all")
_TRUE = ("1", "true", "on", "yes")
_FIRST_AT_RUN_TIME = (0, 3, 11)  # earlier, it was an option of the build
_DMABUF_BY_DEFAULT = (0, 3, 11)  # only this one


def excludes_cuda(value: str) -> bool:
    """Say whether a value of UCX_TLS leaves out the transports for GPU memory."""
    names = [name.strip() for name in value.removeprefix("^").split(",")]
    if value.startswith("^"):
        return any(name in ("cuda", "cuda_copy") for name in names)
    has_cuda = any(name == "all" or name.lstrip("\\").startswith(("cuda", "gdr")) for name in names)
    return bool(value) and not has_cuda


def excludes_rdma(value: str) -> bool:
    """Say whether a value of UCX_TLS names transports, and none for RDMA."""
    words = value.split(",")
    is_list = bool(value) and not value.startswith("^")
    return is_list and not any(word.startswith(_RDMA_TRANSPORTS) for word in words)


# PYTORCH_ALLOC_CONF is the name since PyTorch 2.9; the older one still works.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
EXPANDABLE_SEGMENTS = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*true\b", re.IGNORECASE)


def expandable_variable(value_of: Callable[[str], str | None]) -> str:
    """Return the variable that asks for expandable segments; "": none does."""
    return next(
        (name for name in ALLOCATOR_VARIABLES if EXPANDABLE_SEGMENTS.search(value_of(name) or "")), ""
    )


def mooncake_uses_peermem(version: tuple[int, ...] | None, value: str | None) -> bool:
    """Say whether Mooncake needs nvidia_peermem; without a version, as nearly all releases do.

    `value`: of WITH_NVIDIA_PEERMEM, which is read since 0.3.11; its default is true, but for 0.3.11.
    """
    if version is not None and version < _FIRST_AT_RUN_TIME:
        return True
    if value is not None:
        return value.strip().lower() in _TRUE
    return version != _DMABUF_BY_DEFAULT
