"""Other settings of jobs: NCCL inside the node and its files, UCX, and expandable segments of PyTorch."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import instruction, make_plan
from probes.base.text import SHOWN
from probes.base.unknown import Reason, Unknown, first_unread, is_there, known
from probes.checks.nccl.library import versions_of
from probes.facts.gpu.generations import HOPPER, is_before
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.facts.system.platform import CPUINFO, Environment
from probes.nccl.settings import LOC, parse_level, parse_number
from probes.nccl.topology_file import VARIABLE, VIRTUAL, TopologyFile
from probes.queries.finding import (
    PCI_FUNCTIONS,
    RDMA_DEVICES,
    Area,
    Outcome,
    found,
    need,
    needs,
    passed,
    unknown,
)
from probes.queries.jobs import (
    ALLOCATOR_VARIABLES,
    EXPANDABLE_SEGMENTS,
    GDR_PATHS,
    JobSettings,
    affected,
    conclude,
    conclude_values,
    excludes_cuda,
    job_plan,
    jobs_of,
    maps,
    usable_paths,
    values_of,
    without_variable,
)
from probes.queries.modules import impossible_by_design
from probes.snapshot.examination import Examination

AREA = Area("nccl", __package__)
SEGMENTS = Area("nccl", __package__)
UCX = Area("ucx", __package__)
_UCX_ORDERING = "UCX_IB_PCI_RELAXED_ORDERING"
_EMERALD_RAPIDS = ("GenuineIntel", 6, 0xCF)  # openucx/ucx, src/ucs/arch/x86_64/cpu.c
_FIRST_ON_EMERALD_RAPIDS = (1, 21)
_FIRST_WITH_TRY = (1, 15)  # src/uct/ib/base/ib_md.c: before, "try" means auto


@AREA.note("nccl-p2p-off")
def nccl_p2p_off(examination: Examination) -> Outcome:
    """Find NCCL_P2P_DISABLE and NCCL_P2P_LEVEL=LOC."""

    def never(_: JobSettings, value: str) -> str | None:
        level = parse_level(value)
        return "never" if level is not None and level.rank == LOC else None

    off = values_of(examination, "NCCL_P2P_DISABLE", lambda _, v: "disables P2P" if parse_number(v) else None)
    return conclude(
        jobs_of(examination),
        [*off, *values_of(examination, "NCCL_P2P_LEVEL", never)],
        "NCCL does not use NVLink or PCIe peer-to-peer between these GPUs.",
        fix=without_variable("NCCL_P2P_DISABLE and NCCL_P2P_LEVEL"),
    )


@AREA.note("nccl-shm-off")
def nccl_shm_off(examination: Examination) -> Outcome:
    """Find NCCL_SHM_DISABLE=1."""
    return conclude_values(
        examination,
        "NCCL_SHM_DISABLE",
        lambda value: "disables shared memory" if parse_number(value) else None,
        "Shared memory is NCCL's path between GPUs of one node that have no P2P.",
    )


@AREA.note("nccl-relaxed-ordering-off", data_path=True)
def nccl_relaxed_ordering_off(examination: Examination) -> Outcome:
    """Find NCCL_IB_PCI_RELAXED_ORDERING=0; a warning on virtual machines, which lose most bandwidth."""
    platform = examination.node.platform
    is_guest = not isinstance(platform, Unknown) and platform.environment is Environment.VIRTUAL_MACHINE
    return conclude_values(
        examination,
        "NCCL_IB_PCI_RELAXED_ORDERING",
        lambda value: "disabled" if parse_number(value) == 0 else None,
        "By default (2) NCCL lets PCIe reorder writes. Virtual machines need that for full bandwidth.",
        severity=Severity.WARNING if is_guest else None,
    )


@UCX.warning("ucx-tls-without-cuda", data_path=True)
def ucx_tls_without_cuda(examination: Examination) -> Outcome:
    """Find values of UCX_TLS without a transport for GPU memory."""
    return conclude_values(
        examination,
        "UCX_TLS",
        lambda value: "without cuda" if excludes_cuda(value) else None,
        "Without “cuda” (cuda_copy, cuda_ipc, gdr_copy) UCX does not handle GPU memory.",
        "or add cuda to it: UCX_TLS=rc,cuda,sm,self",
    )


@UCX.note("ucx-without-relaxed-ordering")
def ucx_without_relaxed_ordering(examination: Examination) -> Outcome:
    """Find UCX before 1.21 with RDMA devices open on Emerald Rapids; a NIC's own setting may still order so.

    NIXL sets the variable itself (ai-dynamo/nixl pull request 1012).
    """
    jobs = jobs_of(examination)
    cpu = examination.cpu_model
    if isinstance(cpu, Unknown):
        if cpu.reason is Reason.NOT_THERE:
            return conclude(jobs, (), "")
        return unknown(needs("the CPU's model", cpu))
    if (cpu.vendor, cpu.family, cpu.model) != _EMERALD_RAPIDS:
        return passed(Evidence(CPUINFO, f"{cpu.vendor}, family {cpu.family}, model {cpu.model}"))
    old = [
        (process, library, version)
        for process, settings in jobs.of_processes
        if process.uverbs_files and settings.get(_UCX_ORDERING) is None
        if not maps(process, "libplugin_UCX")
        for library, version in versions_of(process, "libucp")
        if version < _FIRST_ON_EMERALD_RAPIDS
    ]
    evidence = [
        Evidence(f"/proc/{process.pid}/maps", f"{library.path}, UCX {library.version}")
        for process, library, _ in old
    ]
    value = "yes" if any(version < _FIRST_WITH_TRY for _, _, version in old) else "try"
    return conclude(
        jobs,
        evidence,
        "Before 1.21, UCX leaves relaxed ordering off on Intel Emerald Rapids, so traffic likely takes a "
        "slower PCIe path.",
        fix=job_plan(
            "Use relaxed ordering",
            f"Set {_UCX_ORDERING}={value} in the job script or the image, or use UCX 1.21 or newer",
        ),
    )


@UCX.warning("ucx-net-devices-mismatch", data_path=True)
def ucx_net_devices_mismatch(examination: Examination) -> Outcome:
    """Compare entries NAME:PORT with the RDMA devices; names without a port are network interfaces."""
    name = "UCX_NET_DEVICES"
    ports: set[str] = set()
    if any(settings.get(name) for settings in jobs_of(examination).settings):
        devices = need(examination.node.rdma, RDMA_DEVICES).devices
        ports = {f"{device.name}:{port.number}" for device in devices for port in device.ports}

    def wrong(value: str) -> str | None:
        if value.startswith("^") or any(sign in value for sign in "*?["):
            return None
        entries = [entry.strip() for entry in value.split(",") if ":" in entry]
        missing = [entry for entry in entries if entry not in ports]
        return f"no such port: {', '.join(missing[:SHOWN])}" if missing else None

    near = [f"{nic}:1" for nic in examination.topology.nics_near_gpus][:2]
    return conclude_values(
        examination,
        name,
        wrong,
        "UCX warns about a missing port and ignores it.",
        f"or list ports on this node, such as {', '.join(near or ['NAME:PORT'])}",
    )


@AREA.warning("nccl-nvls-forced")
def nccl_nvls_forced(examination: Examination) -> Outcome:
    """Find NCCL_NVLS_ENABLE=1 on GPUs before Hopper; with the default (2) NCCL asks the GPU first."""
    name = "NCCL_NVLS_ENABLE"
    jobs = jobs_of(examination)
    evidence = list(values_of(examination, name, lambda _, v: "forced" if parse_number(v) == 1 else None))
    if not evidence:
        return conclude(jobs, (), "")
    gpus = need(examination.node.gpus, "the GPUs").gpus
    old = [
        gpu for gpu in gpus if is_before(need(gpu.compute_capability, "the GPUs' compute capability"), HOPPER)
    ]
    if not old:
        return passed(*evidence[:1], Evidence("NVML, compute capability", "Hopper or newer"))
    return conclude(
        jobs,
        [*evidence, Evidence("NVML, compute capability", f"{old[0].name}: before Hopper (9.0)")],
        "NVLink SHARP needs the NVSwitch of Hopper or newer. With the value 1 NCCL does not check for it.",
        fix=without_variable(name),
    )


@AREA.note("nccl-collnet-without-plugin")
def nccl_collnet_without_plugin(examination: Examination) -> Outcome:
    """Find NCCL_COLLNET_ENABLE=1 in processes that have NCCL and RDMA open, and map no libnccl-net."""
    name = "NCCL_COLLNET_ENABLE"

    def wrong(settings: JobSettings, value: str) -> str | None:
        process = settings.process
        if process is None or not parse_number(value) or isinstance(process.libraries, Unknown):
            return None
        names = {library.name for library in process.libraries}
        has_plugin = any(library.startswith("libnccl-net") for library in names)
        has_rdma = bool(known(process.uverbs_files, ()))
        return "no libnccl-net is mapped" if has_rdma and "libnccl" in names and not has_plugin else None

    return conclude(
        jobs_of(examination),
        values_of(examination, name, wrong),
        "NCCL's own network code cannot run collectives in the switches. HPC-X's plugin can.",
        fix=without_variable(name, "or add HPC-X's nccl-rdma-sharp-plugin to LD_LIBRARY_PATH"),
    )


# GPU memory of a job that nvidia_peermem cannot register.

_TENSORS_ONLY = "None for NCCL, which registers its own buffers. Registering tensors fails."
# Libraries that register the tensors of the program itself.
_REGISTER_TENSORS = ("libucp", "libfabric", "mooncake/engine")


@SEGMENTS.warning("vmm-memory-with-peermem", requires=(impossible_by_design,))
def vmm_memory_with_peermem(examination: Examination) -> Outcome:
    """Find expandable_segments:True in jobs where nvidia_peermem is the only path to GPU memory.

    A note for jobs without a library that registers tensors: NCCL registers its own buffers.
    """
    jobs = jobs_of(examination)

    def wrong(_: JobSettings, value: str) -> str | None:
        return "memory in segments that grow" if EXPANDABLE_SEGMENTS.search(value) else None

    evidence = [line for name in ALLOCATOR_VARIABLES for line in values_of(examination, name, wrong)]
    if not evidence:
        return conclude(jobs, (), "")
    dmabuf, peermem = usable_paths(examination)
    if need(dmabuf, GDR_PATHS):
        return passed(*evidence[:1], Evidence("gdrtop check --only no-gdr-path", "DMA-BUF is usable"))
    if not need(peermem, GDR_PATHS):
        return passed(*evidence[:1], Evidence("gdrtop check --only no-gdr-path", "no path to GPU memory"))
    registers = any(
        isinstance(process.libraries, Unknown)
        or has_initialized_nvshmem(process.libraries)
        or any(maps(process, library) for library in _REGISTER_TENSORS)
        for process in jobs.processes
    )
    return conclude(
        jobs,
        evidence,
        "CUDA's virtual memory management provides such memory, and nvidia_peermem is the only path to GPU"
        " memory on this node.",
        fix=job_plan(
            "Let NICs register the job's memory",
            instruction("Use DMA-BUF instead, which registers such memory: install the open kernel modules"),
            "Or remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF in the job script or the image",
        ),
        severity=None if registers else Severity.NOTE,
        impact="" if registers else _TENSORS_ONLY,
    )


# Files that change what NCCL does: topology, graph and configuration.

FILES = Area("nccl", __package__)


@FILES.warning("nccl-topo-file-missing")
def nccl_topo_file_missing(examination: Examination) -> Outcome:
    """Look for the file from the point of view of the process, and for the one that nccl.conf names."""
    missing = [
        Evidence(file.path, "not found" if file.pid is not None else "not found, but nccl.conf refers to it")
        for file in need(examination.topology_files, "the topology files").files
        if (file.pid is not None or file.path != VIRTUAL) and is_there(file.endpoints) is False
    ]
    return conclude(
        jobs_of(examination),
        missing,
        "NCCL does not report the missing file. In a container the path must exist inside the container.",
        fix=without_variable(VARIABLE, "or mount the file into the container"),
    )


@FILES.warning("nccl-topo-file-stale", data_path=True)
def nccl_topo_file_stale(examination: Examination) -> Outcome:
    """Compare the bus ids of GPUs and NICs in the file with the PCI bus."""
    facts = need(examination.topology_files, "the topology files")
    pci = need(examination.node.pci, PCI_FUNCTIONS)
    here = {bdf.rpartition(".")[0] for bdf in pci.functions}
    evidence: list[Evidence] = []
    unread: TopologyFile | None = None
    read = 0
    for file in facts.files:
        if isinstance(file.endpoints, Unknown):
            unread = unread if file.endpoints.reason is Reason.NOT_THERE else file
            continue
        read += 1
        missing = [bus for bus in file.endpoints if bus.partition(".")[0] not in here]
        if missing:
            shown = f"{', '.join(missing[:4])}: {len(missing)} of {len(file.endpoints)} are not on this node"
            evidence.append(Evidence(file.path, shown))
    if evidence:
        default = [line for line in evidence if line.source == VIRTUAL]
        step = instruction("Generate the file again for this machine, or remove it (bare metal needs none)")
        return found(
            f"{affected(jobs_of(examination), default + evidence)}: NCCL takes the paths between GPUs and"
            " NICs from this file instead of sysfs.",
            *first_distinct(default + evidence),
            fix=make_plan("Replace the topology file", step, note="Jobs read the file when they start."),
        )
    if unread is not None:
        need(unread.endpoints, unread.path)
    jobs = jobs_of(examination)
    if jobs.not_known:
        return unknown(jobs.not_known)
    return passed(Evidence(VIRTUAL, f"{read} read, all on this node" if read else "not found"))


@FILES.note("nccl-graph-file-left")
def nccl_graph_file_left(examination: Examination) -> Outcome:
    """Find NCCL_GRAPH_FILE."""
    return conclude_values(
        examination,
        "NCCL_GRAPH_FILE",
        lambda value: "" if value else None,
        "NCCL reads its rings and trees from a file. The variable is usually left over from an experiment.",
    )


@FILES.warning("nccl-conf-ignored-lines")
def nccl_conf_ignored_lines(examination: Examination) -> Outcome:
    """Find lines with a leading blank, "export", or blanks around the “=”."""
    facts = need(examination.processes, "the processes")
    confs = [(NCCL_CONF, facts.nccl_conf)]
    for process in facts.processes:
        if process.nccl_conf != facts.nccl_conf:
            confs.append((f"/proc/{process.pid}/root{NCCL_CONF}", process.nccl_conf))
    read = [(path, conf) for path, conf in confs if isinstance(conf, NcclConf)]
    evidence = [Evidence(path, line) for path, conf in read for line in conf.ignored]
    if evidence:
        return found(
            "NCCL treats spaces and the word “export” as part of the variable's name, so these lines set"
            " nothing.",
            *first_distinct(evidence),
        )
    jobs = jobs_of(examination)
    need(first_unread((facts.nccl_conf,)), NCCL_CONF)
    if jobs.unseen:
        return unknown(jobs.unseen)
    there = not isinstance(facts.nccl_conf, Unknown)
    return passed(Evidence(NCCL_CONF, "every line sets a variable" if there else "not found"))
