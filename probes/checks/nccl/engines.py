"""Engines that move KV caches (Mooncake, NIXL), jobs with NVSHMEM, and UCX: how they reach GPU memory."""

from __future__ import annotations

import posixpath

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import SETTLED_SECONDS, versions_of
from probes.facts.gpu.gpus import DRIVER_PARAMETERS
from probes.facts.gpudirect import MEMORY_PEERS
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.facts.jobs.processes import Process
from probes.facts.kernel.modules import ModuleState
from probes.facts.rdma.roce import MLX5
from probes.plans.boot import driver_option_plan
from probes.plans.common import modprobe_step
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, need, needs, passed, unknown
from probes.queries.jobs import (
    GDR_PATHS,
    PEERMEM_VARIABLE,
    conclude,
    excludes_cuda,
    gin_type,
    gpus_of,
    ibgda_users,
    job_plan,
    jobs_of,
    lacks_ucx_module,
    maps,
    mooncake_uses_peermem,
    no_fault,
    usable_paths,
    world_size,
)
from probes.queries.modules import MODULES, impossible_by_design, module_of
from probes.queries.queue_pair_makers import EFA_GDA, GIN_TYPE, IBGDA, NVSHMEM
from probes.snapshot.examination import Examination

AREA = Area("nccl", __package__)
NVSHMEM_CHECKS = Area("nccl", __package__)

_ENGINE, _HYBRID_EP, _PEERMEM = "mooncake/engine", "hybrid_ep_cpp", PEERMEM_VARIABLE
_NEWEST_READ = (0, 3, 12, 1)
_PLUGIN, _UCP, _CUDA_MODULE = "libplugin_UCX", "libucp", "libuct_cuda"
_MODULES = "UCX_MODULE_DIR"
_LOAD_PEERMEM = modprobe_step(
    "Load the module; this fails if it was built without peer-memory symbols", "nvidia-peermem"
)


@AREA.warning(
    "mooncake-needs-peermem", data_path=True, part_of=("no-gdr-path",), requires=(impossible_by_design,)
)
def mooncake_needs_peermem(examination: Examination) -> Outcome:
    """Find Mooncake with RDMA devices open where nvidia_peermem is not usable, unless it uses DMA-BUF.

    WITH_NVIDIA_PEERMEM is read since 0.3.11; its default is true, but for 0.3.11.
    """
    jobs = jobs_of(examination)
    users = [
        (process, settings)
        for process, settings in jobs.of_processes
        if maps(process, _ENGINE)
        and known(process.uverbs_files, ())
        and not maps(process, "libfabric")  # its transport for EFA registers by libfabric
    ]
    if not users:
        return conclude(jobs, (), "")
    dmabuf, peermem = usable_paths(examination)
    if need(peermem, GDR_PATHS):
        return passed(Evidence("gdrtop check --only no-gdr-path", "nvidia_peermem is usable"))
    evidence: list[Evidence] = []
    sure = True
    for process, settings in users:
        version = next((numbers for _, numbers in versions_of(process, _ENGINE)), None)
        value = settings.get(_PEERMEM)
        if not mooncake_uses_peermem(version, value):
            continue
        is_read = version is not None and not isinstance(process.environment, Unknown)
        sure &= is_read and (value is not None or (version or ()) <= _NEWEST_READ)
        library = next(library for library in known(process.libraries, ()) if library.name == _ENGINE)
        shown = "" if isinstance(library.version, Unknown) else f", version {library.version}"
        evidence.append(Evidence(f"/proc/{process.pid}/maps", f"{library.path}{shown}"))
        evidence += [] if value is None else [settings.evidence(_PEERMEM)]
        evidence.append(Evidence("gdrtop check --only no-gdr-path", "nvidia_peermem is not usable"))
    steps: tuple[Step, ...] = (_LOAD_PEERMEM,)
    if dmabuf is True:
        text = f"Use DMA-BUF, which works on this node: set {_PEERMEM}=0 (Mooncake 0.3.11 or newer)"
        otherwise = instruction("If that is not possible, load the module: `modprobe nvidia-peermem`")
        steps = (instruction(text, needs_root=False), otherwise)
    return conclude(
        jobs,
        evidence,
        f"{'It' if sure else 'It likely'} registers GPU memory by ibv_reg_mr, which needs nvidia_peermem.",
        fix=job_plan("Let Mooncake register GPU memory", *steps),
        devices=("nvidia_peermem",),
    )


@AREA.warning(
    "hybrid-ep-needs-peermem", data_path=True, part_of=("no-gdr-path",), requires=(impossible_by_design,)
)
def hybrid_ep_needs_peermem(examination: Examination) -> Outcome:
    """Find HybridEP with RDMA devices open where nvidia_peermem is not usable, unless it uses NIXL."""
    jobs, gpus = jobs_of(examination), len(examination.usability.gpus)
    users = [
        (process, library.path)
        for process, settings in jobs.of_processes
        if known(process.uverbs_files, ()) and not maps(process, "libnixl") and not maps(process, _PLUGIN)
        if not 0 < world_size(settings) <= gpus  # all ranks are on this node
        for library in known(process.libraries, ())
        if library.name == _HYBRID_EP
    ]
    if not users:
        return conclude(jobs, (), "")
    _, peermem = usable_paths(examination)
    if need(peermem, GDR_PATHS):
        return passed(Evidence("gdrtop check --only no-gdr-path", "nvidia_peermem is usable"))
    return conclude(
        jobs,
        [Evidence(f"/proc/{process.pid}/maps", path) for process, path in users],
        "Between nodes it likely registers GPU memory by ibv_reg_mr, which needs nvidia_peermem. DMA-BUF is "
        "proposed for it (pull request 750).",
        fix=job_plan(
            "Let HybridEP register GPU memory",
            _LOAD_PEERMEM,
            instruction("Or use a HybridEP that was built with USE_NIXL=1", needs_root=False),
        ),
        devices=("nvidia_peermem",),
    )


@AREA.warning("nixl-ucx-without-cuda", data_path=True)
def nixl_ucx_without_cuda(examination: Examination) -> Outcome:
    """Find NIXL's UCX plugin with libucp and without libuct_cuda, once UCX has loaded its modules.

    Where it has loaded none, a process that is not new has found none.
    """
    jobs = jobs_of(examination)
    if not jobs.processes and not jobs.unseen:
        return no_fault(jobs)
    facts = need(examination.processes, "the processes")
    evidence: list[Evidence] = []
    where = "the directory with libuct_cuda.so"
    for process, settings in jobs.of_processes:
        if not _lacks_cuda(process, facts.taken_at) or excludes_cuda(settings.get("UCX_TLS") or ""):
            continue
        path = next(library.path for library in known(process.libraries, ()) if library.name == _UCP)
        if not evidence:
            where = f"{posixpath.dirname(path)}/ucx"
        evidence.append(Evidence(f"/proc/{process.pid}/maps", f"{path}, without {_CUDA_MODULE}"))
        if settings.get(_MODULES) is not None:
            evidence.append(settings.evidence(_MODULES))
    return conclude(
        jobs,
        evidence,
        f"UCX loads its modules from the directory ucx beside its library, or from {_MODULES}. The process "
        "does not map libuct_cuda.",
        fix=job_plan(
            "Let UCX find its CUDA module",
            f"Set {_MODULES}={where}, if that directory has libuct_cuda.so",
            "Otherwise install a UCX that was built with CUDA",
        ),
    )


def _lacks_cuda(process: Process, now: float) -> bool:
    if not (maps(process, _PLUGIN) and maps(process, _UCP)) or maps(process, _CUDA_MODULE):
        return False
    if lacks_ucx_module(process, _CUDA_MODULE):
        return True
    started = process.usage if isinstance(process.usage, Unknown) else process.usage.started_at
    return not isinstance(started, Unknown) and now - started > SETTLED_SECONDS


# Jobs with NVSHMEM: the kernel module and the driver options that its transports need.

_NEWEST_NVSHMEM = (3, 4, 5)
_NVSHMEM_SEES_PEERMEM = (3, 3)  # DeepEP patched 3.2.5, and uses 3.3.9 as it is (its pull requests 151, 295)
_FIRST_EFA_DRIVER, _FIRST_GDRDRV = (3, 3, 0), (2, 5)


@NVSHMEM_CHECKS.note("nvshmem-needs-peermem", requires=(impossible_by_design,))
def nvshmem_needs_peermem(examination: Examination) -> Outcome:
    """Find processes that have initialized NVSHMEM, if nvidia_peermem is not loaded."""
    jobs = jobs_of(examination)
    users = [process for process in jobs.processes if has_initialized_nvshmem(process.libraries)]
    if not users:
        return conclude(jobs, (), "")
    is_loaded = need(_is_live(examination, "nvidia_peermem"), MODULES)
    dmabuf, peermem = usable_paths(examination)
    return conclude(
        jobs,
        [] if is_loaded else [Evidence(f"/proc/{user.pid}/maps", NVSHMEM) for user in users],
        "Older versions print “neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.” Newer"
        " versions use DMA-BUF.",
        fix=_without_peermem(dmabuf is True) if peermem is not True else None,
        devices=("nvidia_peermem",),
    )


def _without_peermem(has_dmabuf: bool) -> Plan:
    """Update NVSHMEM where DMA-BUF is usable, because NVIDIA deprecates nvidia_peermem; else load it."""
    if not has_dmabuf:
        note = "A newer NVSHMEM does not need it. Restart the job in either case."
        return make_plan("Load nvidia_peermem", _LOAD_PEERMEM, note=note)
    update = "Update NVSHMEM in the job's image, so that it uses DMA-BUF, which works on this node"
    otherwise = instruction("If that is not possible, use the older path: `modprobe nvidia-peermem`")
    steps = (instruction(update, needs_root=False), otherwise)
    return Plan("Use DMA-BUF", steps, note="Restart the job in either case.")


@NVSHMEM_CHECKS.note("nvshmem-memory-peers-missing", requires=(impossible_by_design,))
def nvshmem_memory_peers_missing(examination: Examination) -> Outcome:
    """Find NVSHMEM before 3.3 where nvidia_peermem is loaded without memory_peers."""
    jobs = jobs_of(examination)
    old = [
        Evidence(f"/proc/{process.pid}/maps", library.path)
        for process in jobs.processes
        if has_initialized_nvshmem(process.libraries)
        for library, version in versions_of(process, NVSHMEM)
        if () < version < _NVSHMEM_SEES_PEERMEM
    ]
    if not old:
        return conclude(jobs, (), "")
    if not need(_is_live(examination, "nvidia_peermem"), MODULES):
        return passed(Evidence("/proc/modules", "nvidia_peermem is not loaded (see nvshmem-needs-peermem)"))
    peers = map_known(examination.node.modules, lambda modules: modules.memory_peers)
    if need(is_there(peers), MEMORY_PEERS):
        return passed(Evidence(MEMORY_PEERS, "found"))
    return conclude(
        jobs,
        [*old, Evidence(MEMORY_PEERS, "not found, as on all newer kernels")],
        "NVSHMEM before 3.3 looks for memory_peers only. It prints “neither nv_peer_mem, or nvidia_peermem "
        "detected. Skipping transport.”",
        fix=job_plan("Update NVSHMEM", "Put NVSHMEM 3.3 or newer into the job's image"),
        devices=("nvidia_peermem",),
    )


@NVSHMEM_CHECKS.warning("nvshmem-ibgda-driver-options", requires=(impossible_by_design,))
def nvshmem_ibgda_driver_options(examination: Examination) -> Outcome:
    """Find IBGDA jobs without PeerMappingOverride=1 and EnableStreamMemOPs=1; a note with gdrdrv.

    With the module gdrdrv NVSHMEM can ring the doorbell by the CPU, which NIC_HANDLER=cpu demands.
    """
    jobs = jobs_of(examination)
    users = ibgda_users(jobs)
    if not users:
        return conclude(jobs, (), "")
    drivers = need(_rdma_drivers(examination), RDMA_DEVICES)
    if drivers and MLX5 not in drivers:
        return passed(
            Evidence("/sys/class/infiniband", f"no mlx5 NIC, which IBGDA needs ({', '.join(drivers)})")
        )
    parameters = need(
        map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters), DRIVER_PARAMETERS
    )
    missing = _missing_options(parameters)
    if not missing:
        return passed(Evidence(DRIVER_PARAMETERS, "PeerMappingOverride=1, EnableStreamMemOPs: 1"))
    has_gdrcopy = _is_live(examination, "gdrdrv") is True
    return conclude(
        jobs,
        [*users.values(), *(Evidence(DRIVER_PARAMETERS, text) for text in missing)],
        "The GPU may map the NIC's doorbell only with PeerMappingOverride=1."
        + (" NVSHMEM falls back to the CPU, because gdrdrv is loaded." if has_gdrcopy else ""),
        fix=_set_options(examination, has_gdrcopy),
        severity=Severity.NOTE if has_gdrcopy else None,
        impact="The CPU rings the NIC's doorbell, at a small cost in latency." if has_gdrcopy else "",
        devices=("nvidia",),
    )


@NVSHMEM_CHECKS.warning("nvshmem-ibgda-without-mlx5", data_path=True)
def nvshmem_ibgda_without_mlx5(examination: Examination) -> Outcome:
    """Find IBGDA jobs where no RDMA device is of mlx5; "likely" for an NVSHMEM newer than the one read."""
    jobs = jobs_of(examination)
    users = ibgda_users(jobs, with_cpu=True)
    if not users:
        return conclude(jobs, (), "")
    drivers = need(_rdma_drivers(examination), RDMA_DEVICES)
    if not drivers or MLX5 in drivers:
        return passed(Evidence("/sys/class/infiniband", ", ".join(drivers) or "no RDMA device"))
    own = (process for process in jobs.processes if process.pid in users)
    versions = [version for process in own for _, version in versions_of(process, NVSHMEM)]
    is_read = bool(versions) and max(versions) <= _NEWEST_NVSHMEM
    return conclude(
        jobs,
        [*users.values(), Evidence("/sys/class/infiniband", f"drivers: {', '.join(drivers)}")],
        f"IBGDA {'works' if is_read else 'likely works'} with mlx5 NICs only.",
        fix=job_plan(
            "Use another transport",
            "Use DeepEP's normal mode or another library for expert parallelism, which does not need IBGDA",
            f"Unset {IBGDA}",
        ),
    )


@NVSHMEM_CHECKS.warning("gin-efa-requirements")
def gin_efa_requirements(examination: Examination) -> Outcome:
    """Find jobs with NCCL_GIN_TYPE=5 where efa is too old, or PeerMappingOverride or gdrdrv is missing.

    The job's image brings rdma-core, libfabric and the plugin, whose versions no file shows.
    """
    jobs = jobs_of(examination)
    users = [
        settings.evidence(GIN_TYPE) for _, settings in jobs.of_processes if gin_type(settings) == EFA_GDA
    ]
    if not users:
        return conclude(jobs, (), "")
    drivers = need(_rdma_drivers(examination), RDMA_DEVICES)
    if "efa" not in drivers:
        return passed(Evidence("/sys/class/infiniband", ", ".join(drivers) or "no RDMA device"))
    parameters = need(
        map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters), DRIVER_PARAMETERS
    )
    missing: list[Evidence] = []
    steps: list[Step | str] = []
    unread = ""
    for name, first, step in (
        ("efa", _FIRST_EFA_DRIVER, "Install the EFA installer 1.50.0 or newer, on the node and in the image"),
        ("gdrdrv", _FIRST_GDRDRV, "Install GDRCopy 2.5 or newer, load gdrdrv, and use it in the image, too"),
    ):
        module = need(module_of(examination, name), MODULES)
        is_live = need(module.state, MODULES) is ModuleState.LIVE
        if is_live and isinstance(module.version, Unknown):
            unread = needs(f"the version of {name}", module.version)
        elif not is_live or version_numbers(known(module.version, "")) < first:
            shown = known(module.version, "") if is_live else "not loaded"
            needed = ".".join(map(str, first))
            missing.append(Evidence(f"/sys/module/{name}/version", f"{shown}; {needed} needed"))
            steps.append(step)
    missing += [Evidence(DRIVER_PARAMETERS, text) for text in _without_peer_mapping(parameters)]
    if unread and not missing:
        return unknown(unread, *users[:1])
    plan = job_plan("Meet the requirements of EFA-GDA", *steps, "Or set NCCL_GIN_TYPE=2, which uses the CPU")
    if len(missing) > len(steps):
        line = 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"'
        change = f"Add this line to a file in /etc/modprobe.d, such as nvidia-gin.conf: `{line}`"
        plan = driver_option_plan(examination, plan.title, *steps, change)
    return conclude(
        jobs,
        [*users, *missing] if missing else (),
        "GPUs post to EFA only with efa 3.3.0 (completion counters), GDRCopy 2.5 and PeerMappingOverride=1; "
        "the image needs an rdma-core and a libfabric with completion counters, too.",
        fix=plan,
        devices=("efa", "nvidia"),
    )


def _rdma_drivers(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the drivers of the RDMA devices, each once; a device whose driver is unknown counts as mlx5."""
    return map_known(
        examination.node.rdma,
        lambda rdma: tuple(dict.fromkeys(known(device.driver, MLX5) for device in rdma.devices)),
    )


def _missing_options(parameters: dict[str, str]) -> list[str]:
    """Return the options that IBGDA needs and that the running driver does not have, as the file shows them.

    An option that this driver does not list does not count.
    """
    missing = _without_peer_mapping(parameters)
    if parameters.get("EnableStreamMemOPs", "1") == "0":
        missing.append("EnableStreamMemOPs: 0")
    return missing


def _without_peer_mapping(parameters: dict[str, str]) -> list[str]:
    dwords = parameters.get("RegistryDwords", '""')
    pairs = {pair.strip().replace(" ", "") for pair in dwords.strip('"').split(";")}
    return [] if "PeerMappingOverride=1" in pairs else [f"RegistryDwords: {dwords}"]


def _set_options(examination: Examination, has_gdrcopy: bool) -> Plan:
    options = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"'
    change = f"Add this line to a file in /etc/modprobe.d, such as nvidia-ibgda.conf: `{options}`"
    otherwise = "To avoid the reboot, install GDRCopy and load gdrdrv: the CPU then rings the doorbell"
    changes = (change,) if has_gdrcopy else (otherwise, change)
    return driver_option_plan(examination, "Set the driver options for IBGDA", *changes)


def _is_live(examination: Examination, name: str) -> Maybe[bool]:
    return map_known(module_of(examination, name), lambda module: module.state is ModuleState.LIVE)


# UCX on a GPU whose NUMA node has no NIC: it assumes the bandwidth between NUMA nodes.

UCX = Area("ucx", __package__)
_DISTANCE = "UCX_DISTANCE_BW"
_VENDORS = ("GenuineIntel", "AuthenticAMD")  # config/ucx.conf has other values for Grace
_NUMA = "/sys/bus/pci/devices/*/numa_node"


@UCX.note("ucx-far-nic")
def ucx_far_nic(examination: Examination) -> Outcome:
    """Find jobs whose UCX has RDMA devices open, on GPUs whose NUMA node has no NIC.

    topo.c: 220 MB/s between NUMA nodes; ucx.conf: 5.1 GB/s on AMD. A job that also maps NCCL moves GPU memory
    with NCCL, unless it uses NIXL.
    """
    jobs, cpu, topology = jobs_of(examination), examination.cpu_model, examination.topology
    users = [
        (process, library.path)
        for process, settings in jobs.of_processes
        if known(process.uverbs_files, ()) and settings.get(_DISTANCE) is None
        if maps(process, _PLUGIN) or not maps(process, "libnccl")
        for library in known(process.libraries, ())
        if library.name == _UCP
    ]
    if not users or not topology.nics:
        return conclude(jobs, (), "")
    if isinstance(cpu, Unknown):
        not_x86 = cpu.reason is Reason.NOT_THERE
        return conclude(jobs, (), "") if not_x86 else unknown(needs("the CPU's model", cpu))
    if cpu.vendor not in _VENDORS:
        return passed(Evidence("/proc/cpuinfo", cpu.vendor))
    # One NIC with an unknown place may be the near one.
    for nic in topology.nics:
        if known(nic.numa_node, -1) < 0:
            return unknown(f"needs the NUMA node of {nic.label}", Evidence(_NUMA, str(nic.numa_node)))
    near = {nic.numa_node for nic in topology.nics}
    placed = [gpu for gpu in topology.gpus if known(gpu.numa_node, -1) >= 0]
    far = {gpu.id: gpu for gpu in placed if gpu.numa_node not in near}
    evidence: list[Evidence] = []
    for process, path in users:
        for label in sorted(far[bdf].label for bdf in gpus_of(examination, process) if bdf in far)[:1]:
            evidence.append(Evidence(f"/proc/{process.pid}/maps", path))
            evidence.append(Evidence(_NUMA, f"no NIC on the NUMA node of {label}"))
    return conclude(
        jobs,
        evidence,
        "UCX assumes 220 MB/s between a GPU and a NIC on another NUMA node (5.1 GB/s on AMD), and rates its "
        "paths by that.",
        fix=job_plan(
            "Set the bandwidth that UCX assumes",
            "Measure this GPU and NIC with gdrtop bench",
            f"If they are faster, set {_DISTANCE}=auto,sys:BANDWIDTH in the job script (UCX 1.18 or newer)",
        ),
    )
