"""One process as its user needs to know it: devices, distances, limits, paths, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.text import join_limited, plural, version_numbers
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.facts.gpudirect import GdrPath, hardware_of
from probes.facts.jobs.own_container import plugin_devices
from probes.facts.jobs.pods import GivenDevices
from probes.facts.jobs.process_files import MappedLibrary, has_initialized_nvshmem
from probes.facts.jobs.processes import Process, name_of
from probes.facts.system.limits import RdmaLimit
from probes.host.values import RDMA_CLASS
from probes.live.model.sample import GDR_WORDS, LiveProcess, PathJudgment, PathWord
from probes.live.model.transfer import Serving, TransferPath, TransferWord
from probes.live.processes.node_evidence import gpu_users
from probes.nccl.settings import parse_number
from probes.queries.finding import Finding, concerns, costs_bandwidth
from probes.queries.jobs import (
    AT_WORK,
    PEERMEM_VARIABLE,
    STAGING_SETTINGS,
    TCP_SETTINGS,
    excludes_cuda,
    excludes_rdma,
    far_from_gpu,
    forces_tcp,
    gpus_of,
    lacks_ucx_module,
    mooncake_uses_peermem,
    pid_in,
    sees_no_verbs_file,
    spread_of,
    usable_paths,
)
from probes.queries.modules import has_no_rdma_device
from probes.queries.ports import ports_of
from probes.queries.queue_pair_makers import NVSHMEM
from probes.snapshot.examination import Examination
from probes.topology.paths import Topology

# The path of a library follows from the process's environment as it was started, the libraries it maps, and
# what works here. What a program sets later, or chooses itself, does not show. Sources: NCCL src/init.cc
# dmaBufSupported, src/transport/net_ib/gdr.cc; openucx/ucx src/uct/ib/base/ib_md.c, docs/source/faq.md;
# NVIDIA/nvshmem src/modules/transport/common/env_defs.h; docs.nvidia.com/nixl (user guide, backends);
# kvcache-ai/Mooncake docs/source/getting_started/build.md, mooncake-transfer-engine/src/common/environ.cpp
# and transfer_engine_impl.cpp.
STAGED, TCP, NO_PATH, UNKNOWN = "copies through host memory", "TCP", "none", "unknown"
_NO_NIC = "no NIC"
_SEES_NONE = "no RDMA device is in its container"
_TCP_LOGS = ("job-log-tcp", "job-log-plugin-missing")
_DMABUF, _PEERMEM = GdrPath.DMABUF.value, GdrPath.PEERMEM.value
_FIRST_UCX_WITH_DMABUF = (1, 14)


@frozen
class LibraryPath:
    """A library in a process, and the path that it takes."""

    library: str  # "NCCL 2.27.7"
    path: str  # "DMA-BUF", "nvidia-peermem", STAGED, TCP, NO_PATH, UNKNOWN
    why: str


def library_paths(
    process: Process, findings: Iterable[Finding], examination: Examination
) -> Maybe[tuple[LibraryPath, ...]]:
    """Return the libraries that a process maps; `findings`: those about this process."""
    if isinstance(process.libraries, Unknown):
        return process.libraries
    ids = {finding.id: finding for finding in findings}
    paths = _Paths(process, ids, examination)
    found: dict[str, LibraryPath] = {}
    has_nvshmem = has_initialized_nvshmem(process.libraries)
    for library in process.libraries:
        if library.name in _LIBRARIES and (library.name != NVSHMEM or has_nvshmem):
            title, choose = _LIBRARIES[library.name]
            version = known(library.version, "")
            try:
                path, why = choose(paths)
            except _UnreadableError as error:
                path, why = UNKNOWN, f"its environment could not be read ({error})"
            found.setdefault(title, LibraryPath(f"{title} {version}".strip(), path, why))
    return tuple(found.values())


class _UnreadableError(Exception):
    """The environment of a process is unknown, and so is the path of a library that asks for it."""


class _Paths:
    def __init__(self, process: Process, findings: Mapping[str, Finding], examination: Examination) -> None:
        self._process, self._findings, self._examination = process, findings, examination
        self._dmabuf, self._peermem = usable_paths(examination)

    def nccl(self) -> tuple[str, str]:
        """NCCL: the checks of the doctor decide, then DMA-BUF before nvidia-peermem."""
        for ids, path in (((*TCP_SETTINGS, *_TCP_LOGS), TCP), (STAGING_SETTINGS, STAGED)):
            for name in ids:
                finding = self._findings.get(name)
                if finding is not None and (name != "nccl-dmabuf-disabled" or self._peermem is not True):
                    return path, finding.title
        if plugin := self._mapped("libnccl-net"):
            path, why = self._best()
            return path, f"the network plug-in {plugin.path.rpartition('/')[2]} chooses; {why}"
        is_enabled = parse_number(self._get("NCCL_DMABUF_ENABLE") or "1") != 0
        path, why = self._best(is_enabled, "NCCL_DMABUF_ENABLE=0")
        return path, f"{why}, and NCCL prefers it" if path == _DMABUF and self._peermem is True else why

    def ucx(self) -> tuple[str, str]:
        """UCX: its settings, then DMA-BUF before nvidia-peermem."""
        gdr, transports = self._get("UCX_IB_GPU_DIRECT_RDMA"), self._get("UCX_TLS")
        if without_cuda := self._findings.get("nixl-ucx-without-cuda"):
            return STAGED, without_cuda.title
        if gdr in ("no", "n"):
            return STAGED, f"UCX_IB_GPU_DIRECT_RDMA={gdr}"
        if transports and excludes_rdma(transports):
            return TCP, f"UCX_TLS={transports} has no RDMA transport"
        if lacks_ucx_module(self._process, "libuct_ib"):
            return TCP, "this UCX has no module for InfiniBand and RoCE (libuct_ib)"
        if transports and excludes_cuda(transports):
            return STAGED, f"UCX_TLS={transports} has no transport for GPU memory"
        version = self._version("libucp")
        if version is not None and version < _FIRST_UCX_WITH_DMABUF:
            return self._best(False, "this UCX is older than 1.14, the first with DMA-BUF")
        setting = self._get("UCX_CUDA_COPY_DMABUF")
        path, why = self._best(setting not in ("no", "n"), f"UCX_CUDA_COPY_DMABUF={setting}")
        needs = "; it needs UCX 1.14, and this version is unknown"
        return path, f"{why}{needs}" if path == _DMABUF and version is None else why

    def nvshmem(self) -> tuple[str, str]:
        """NVSHMEM: its transport, then DMA-BUF before nvidia-peermem."""
        transport = self._get("NVSHMEM_REMOTE_TRANSPORT")
        if transport == "none":
            return _NO_NIC, "NVSHMEM_REMOTE_TRANSPORT=none"
        if transport == "ucx":
            return self.ucx()
        disabled = self._get("NVSHMEM_IB_DISABLE_DMABUF")
        is_disabled = (disabled or "").lower() in ("1", "true", "yes", "y", "on")
        return self._best(not is_disabled, f"NVSHMEM_IB_DISABLE_DMABUF={disabled}")

    def libfabric(self) -> tuple[str, str]:
        """libfabric: the provider of the node's NICs decides."""
        provider = known(self._process.environment, {}).get("FI_PROVIDER")
        if provider in ("tcp", "sockets"):
            return TCP, f"FI_PROVIDER={provider}"
        return self._best()

    def nixl(self) -> tuple[str, str]:
        """NIXL: UCX, unless the program chooses another back end."""
        path, why = self.ucx()
        return path, f"by UCX, unless the program chooses another back end; {why}"

    def mooncake(self) -> tuple[str, str]:
        """Mooncake: nvidia-peermem or DMA-BUF, by its version and a variable; never the other one instead."""
        value = self._get(PEERMEM_VARIABLE)
        if self._mapped("libfabric"):
            return self.libfabric()
        if forces_tcp(self._process):
            return TCP, f"MC_FORCE_TCP={self._get('MC_FORCE_TCP')}"
        if self._sees_no_nic():
            return TCP, _SEES_NONE
        uses_peermem = mooncake_uses_peermem(self._version("mooncake/engine"), value)
        name, usable = (_PEERMEM, self._peermem) if uses_peermem else (_DMABUF, self._dmabuf)
        why = "its default" if value is None else f"{PEERMEM_VARIABLE}={value}"
        if isinstance(usable, Unknown):
            return UNKNOWN, f"{why}: {name}; whether that works here is unknown ({usable})"
        return (name, why) if usable else (NO_PATH, f"{why}: {name}, which does not work here")

    def _best(self, uses_dmabuf: bool = True, why_not: str = "") -> tuple[str, str]:
        """Return the path that works here, DMA-BUF first."""
        if has_no_rdma_device(self._examination):
            return _NO_NIC, "this node has no RDMA device"
        if self._sees_no_nic():
            return TCP, _SEES_NONE
        direct = self._examination.node.gpudirect
        if uses_dmabuf and self._dmabuf is True:
            return _DMABUF, "its requirements are met here"
        if uses_dmabuf and isinstance(self._dmabuf, Unknown):
            return UNKNOWN, f"whether DMA-BUF works here is unknown ({self._dmabuf})"
        without = "DMA-BUF does not work here" if uses_dmabuf else why_not
        if isinstance(self._peermem, Unknown) or isinstance(direct, Unknown):
            return UNKNOWN, f"{without}; whether nvidia-peermem works is unknown ({self._peermem})"
        name = direct.peermem.path.value
        if self._peermem:
            return name, f"{without}; {name} works"
        return STAGED, f"{without}, and {name} does not work here either"

    def _sees_no_nic(self) -> bool:
        """Return whether no device file of a NIC with verbs was passed into its container."""
        rdma = self._examination.node.rdma
        has_verbs = not isinstance(rdma, Unknown) and any(
            not isinstance(device.uverbs, Unknown) for device in hardware_of(rdma)
        )
        return has_verbs and sees_no_verbs_file(self._process)

    def _get(self, name: str) -> str | None:
        if isinstance(self._process.environment, Unknown):
            raise _UnreadableError(self._process.environment)
        return self._process.environment.get(name)

    def _version(self, start: str) -> tuple[int, ...] | None:
        library = self._mapped(start)
        return None if library is None else known(map_known(library.version, version_numbers), None)

    def _mapped(self, start: str) -> MappedLibrary | None:
        libraries = known(self._process.libraries, ())
        return next((library for library in libraries if library.name.startswith(start)), None)


_LIBRARIES: dict[str, tuple[str, Callable[[_Paths], tuple[str, str]]]] = {
    "libnccl": ("NCCL", _Paths.nccl),
    "libucp": ("UCX", _Paths.ucx),
    NVSHMEM: ("NVSHMEM", _Paths.nvshmem),
    "libfabric": ("libfabric", _Paths.libfabric),
    "libnixl": ("NIXL", _Paths.nixl),
    "libplugin_UCX": ("NIXL", _Paths.nixl),
    "mooncake/engine": ("Mooncake", _Paths.mooncake),
}


_MOST_NICS = 4
_NO_PODS = Unknown(Reason.NOT_THERE, "/proc/PID/cgroup", "not in a pod")
_GDR = {PathWord.DMABUF: "DMA-BUF", PathWord.PEERMEM: "nvidia-peermem", PathWord.TCP: "TCP"}
_WORDS = {name: word for word, name in _GDR.items()}
_NCCL = "NCCL"


@frozen
class NearNic:
    """A NIC, and how far it is from a GPU."""

    name: str
    word: str  # nvidia-smi's: "PIX"; NCCL's where nvidia-smi sees no path; "?": unknown
    id: str  # in the topology: of one in another network namespace, its BDF


@frozen
class ProcessGpu:
    """A GPU of the process, and its nearest NICs."""

    label: str  # "GPU0"
    bdf: str
    nics: tuple[NearNic, ...]


@frozen
class ProcessExplanation:
    """What a user needs to know about a process."""

    pid: int
    name: str  # "train.py (alice, Slurm job 4711, pid 41000)"
    path: PathJudgment  # as Live sees it now
    gpus: Maybe[tuple[ProcessGpu, ...]]
    nics: Maybe[tuple[str, ...]]  # with connected queue pairs
    visible_nics: Maybe[tuple[str, ...]]  # whose device files the process sees
    all_nics: Maybe[int]  # of the node, with verbs, also in other network namespaces
    given: Maybe[tuple[str, ...]]  # by the kubelet, a phrase each; NOT_THERE: it is in no pod
    limits: tuple[str, ...]  # a phrase each
    libraries: Maybe[tuple[LibraryPath, ...]]
    serving: Serving | None  # the parts of an inference engine in it
    transfer: TransferPath | None  # what moves its KV caches
    queues: tuple[str, ...]  # a sentence for those that it makes outside of verbs, which `nics` lacks
    spread: tuple[str, ...]  # how NCCL spreads its traffic over paths, a phrase each
    unexpected: str  # how the path of now differs from what NCCL takes; "": it does not, or is unknown

    @property
    def path_text(self) -> str:
        """The path as Live shows it; of an inference engine, that of its KV caches."""
        return self.path.text if self.transfer is None else self.transfer.text

    @property
    def is_gdr(self) -> bool:
        """Whether it uses GPUDirect RDMA now, maybe another kind than NCCL takes."""
        return self.path.word in GDR_WORDS

    @property
    def is_clear(self) -> bool:
        """Whether enough is known of the process to say that nothing has to change."""
        is_odd = bool(self.unexpected) and not self.is_gdr
        is_unknown = self.path.word is PathWord.UNKNOWN
        if self.transfer is not None:
            is_unknown = self.transfer.lasting is TransferWord.UNKNOWN
        return not (is_unknown or isinstance(self.gpus, Unknown) or is_odd)


def explain_process(
    live: LiveProcess,
    findings: Sequence[Finding],
    examination: Examination,
    given: Maybe[Mapping[str, tuple[GivenDevices, ...]]] = _NO_PODS,
) -> ProcessExplanation:
    """Explain a process; `findings`: those of the node's judgment; `given`: to pods, by job."""
    process = live.process
    own = tuple(finding for finding in findings if is_about(finding, process))
    libraries = library_paths(process, own, examination)
    return ProcessExplanation(
        pid=live.pid,
        name=name_of(process),
        path=live.path,
        gpus=_gpus(live, examination),
        nics=live.used_nics,
        visible_nics=_visible_nics(process, examination),
        all_nics=map_known(
            examination.node.rdma, lambda rdma: len(hardware_of(rdma)) + len(rdma.devices_elsewhere)
        ),
        given=_given(process, given),
        limits=tuple(_limits(process, examination)),
        libraries=libraries,
        serving=live.serving,
        transfer=live.transfer,
        queues=tuple(queues.sentence for queues in live.own_queues),
        spread=_spread(live, examination),
        unexpected=_unexpected(live.path, libraries),
    )


def is_about(finding: Finding, process: Process) -> bool:
    """Return whether a finding names the process or its job."""
    if not finding.is_present:
        return False
    if any(pid_in(evidence) == process.pid for evidence in finding.evidence):
        return True
    return bool(process.job) and any(process.job in job for job in finding.jobs)


def concerning(
    findings: Collection[Finding],
    explained: Sequence[ProcessExplanation],
    processes: Sequence[LiveProcess],
    topology: Topology,
) -> tuple[Finding, ...]:
    """Return the findings that these processes feel: their own, and the node's on their data path."""
    gpus = [gpu for each in explained for gpu in known(each.gpus, ())]
    devices = {gpu.bdf for gpu in gpus}
    devices |= {nic for each in explained if isinstance(each.nics, tuple) for nic in each.nics}
    devices |= {nic.id for gpu in gpus for nic in gpu.nics[:1]}
    every = {end.id for end in (*topology.gpus, *topology.nics)}
    own = {finding.id for finding in findings if any(is_about(finding, each.process) for each in processes)}
    # What a finding about them is part of is the reason for it.
    ranks, pids = {each.rank_name for each in processes}, {each.pid for each in processes}
    of_these = [finding for finding in findings if ranks & {*finding.ranks} or pids & finding.pids]
    own |= {finding.part_of for finding in of_these if finding.id in own and finding.is_present}

    def is_felt(finding: Finding) -> bool:
        is_others = bool(finding.jobs) or any(pid_in(each) is not None for each in finding.evidence)
        is_here = concerns(finding, topology, devices or every)
        return costs_bandwidth(finding) and is_here and not is_others

    present = [finding for finding in findings if finding.is_present and not finding.part_of]
    return tuple(finding for finding in present if finding.id in own or is_felt(finding))


def _gpus(live: LiveProcess, examination: Examination) -> Maybe[tuple[ProcessGpu, ...]]:
    bdfs = _bdfs(live, examination)
    if isinstance(bdfs, Unknown):
        return bdfs
    topology = examination.topology
    labels = {gpu.bdf: f"GPU{gpu.index}" for gpu in examination.node.known_gpus}
    rdma = examination.node.rdma
    names: Mapping[str, str] = {} if isinstance(rdma, Unknown) else rdma.names_elsewhere
    found = []
    for bdf in bdfs:
        nics = topology.best_nics.get(bdf, ())[:_MOST_NICS]
        paths = ((nic, topology.paths[bdf, nic]) for nic in nics)
        words = ((nic, known(path.smi, None) or known(path.nccl, None)) for nic, path in paths)
        shown = ((nic, str(word.value) if word else "?") for nic, word in words)
        near = tuple(NearNic(names.get(nic, nic), word, nic) for nic, word in shown)
        found.append(ProcessGpu(labels.get(bdf, bdf), bdf, near))
    return tuple(found)


def _bdfs(live: LiveProcess, examination: Examination) -> Maybe[Sequence[str]]:
    """Return the GPUs on which NVML lists the process, else those that it has open."""
    files, node = live.process.gpu_files, examination.node
    if live.gpus:
        return live.gpus
    if isinstance(files, Unknown):
        return () if gpu_users(node, examination.reading).is_complete else files
    if files and isinstance(node.gpus, Unknown):
        return node.gpus
    return sorted(gpus_of(examination, live.process)) if files else ()


def _visible_nics(process: Process, examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the NICs whose device files a process sees; () if none was passed into its container."""
    nodes, rdma = process.rdma_nodes, examination.node.rdma
    if isinstance(nodes, Unknown):
        return () if nodes.reason is Reason.NOT_THERE else nodes
    if isinstance(rdma, Unknown):
        return rdma
    hidden = len(rdma.devices_elsewhere) - len(rdma.in_pods)
    if hidden:
        nics = plural(hidden, "NIC")
        return Unknown(Reason.NEEDS_ROOT, RDMA_CLASS, f"{nics} in another network namespace")
    devices = (*hardware_of(rdma), *rdma.in_pods)
    if (unread := first_unread(device.uverbs for device in devices)) is not None:
        return unread
    return tuple(
        device.name
        for device in devices
        if not isinstance(device.uverbs, Unknown) and device.uverbs.rpartition("/")[2] in nodes
    )


def _given(process: Process, given: Maybe[Mapping[str, tuple[GivenDevices, ...]]]) -> Maybe[tuple[str, ...]]:
    """Return what the kubelet gave to the pod, and what a device plugin wrote into its environment."""
    job = process.job.partition(" (")[0]
    if not job.startswith("pod "):
        return _NO_PODS
    plugins = plugin_devices(known(process.environment, {}))
    named = tuple(f"{name}={','.join(bdfs)}" for name, bdfs in plugins.items())
    by_kubelet = map_known(given, lambda found: tuple(each.text for each in found.get(job, ())))
    if named and isinstance(by_kubelet, Unknown):
        return named
    return map_known(by_kubelet, lambda own: own + named)


def _limits(process: Process, examination: Examination) -> Iterable[str]:
    limit = process.memlock
    if process.ipc_lock is True:
        yield "locked memory: no limit (CAP_IPC_LOCK)"
    elif isinstance(limit, Unknown):
        yield f"locked memory: unknown ({limit})"
    elif limit.soft_bytes == float("inf"):
        yield "locked memory: no limit"
    else:
        yield f"locked memory: {limit.soft_bytes / (1 << 20):.0f} MiB, which also limits peer memory"
    groups = examination.rdma_cgroup
    of_process = groups if isinstance(groups, Unknown) else groups.processes.get(process.pid, ())
    if isinstance(of_process, Unknown):
        yield f"RDMA control group: unknown ({of_process})"
    elif not of_process:
        yield "RDMA control group: no limit"
    yield from () if isinstance(of_process, Unknown) else _fullest(of_process)
    facts, gpus = examination.processes, examination.reading.gpus
    if isinstance(facts, Unknown) or isinstance(gpus, Unknown):
        return
    if process.pid in far_from_gpu(examination.node, facts, gpus):
        yield "CPUs: only those of another NUMA node than its GPU"


def _fullest(limits: Sequence[RdmaLimit]) -> Iterable[str]:
    """Yield the limit of each resource of which the most is used."""
    for resource in dict.fromkeys(limit.resource for limit in limits):
        alike = [limit for limit in limits if limit.resource == resource]
        limit = max(alike, key=lambda each: known(each.used, 0) / max(1, each.most))
        used = "?" if isinstance(limit.used, Unknown) else limit.used
        of_several = f", the fullest of {len(alike)} devices" if len(alike) > 1 else ""
        yield f"RDMA control group: {used} of {limit.most} {resource} on {limit.device} in use{of_several}"


def _spread(live: LiveProcess, examination: Examination) -> tuple[str, ...]:
    """Return NCCL's settings, and whether the ports of the process show adaptive routing at work."""
    ports = [port for port in known(ports_of(examination), ()) if port.device.name in live.ready_nics]
    texts = spread_of(live.process, {known(port.facts.link_layer, "") for port in ports} - {""})
    seen = [port.name for port in ports if port.is_reordered]
    where = "" if len(seen) == len(ports) else f" on {join_limited(seen)}"
    return (*texts, AT_WORK + where) if texts and seen else texts


def _unexpected(path: PathJudgment, libraries: Maybe[tuple[LibraryPath, ...]]) -> str:
    seen = _GDR.get(path.word)
    named = () if isinstance(libraries, Unknown) else libraries
    nccl = next((each.path for each in named if each.library.split(" ")[0] == _NCCL), "")
    if seen is None or nccl not in _GDR.values() or nccl == seen:
        return ""
    if PathWord.TCP in (path.word, _WORDS.get(nccl)):
        return f"with these settings NCCL takes {nccl}, but Live sees {path.text}; the program may set others"
    return (
        f"NCCL takes {nccl} for a process that starts now with these settings. This one may have started "
        f"before {nccl} worked here, or set NCCL_DMABUF_ENABLE itself. Both paths are GPUDirect RDMA."
    )
