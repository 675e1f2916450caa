"""UCX on a GPU whose NUMA node has no NIC: it assumes the bandwidth between NUMA nodes."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.unknown import Reason, Unknown, known
from probes.queries.finding import Area, Outcome, needs, passed, unknown
from probes.queries.jobs import conclude, gpus_of, job_plan, jobs_of, maps
from probes.snapshot.examination import Examination

AREA = Area("ucx")
_DISTANCE = "UCX_DISTANCE_BW"
_VENDORS = ("GenuineIntel", "AuthenticAMD")  # config/ucx.conf has other values for Grace
_NUMA = "/sys/bus/pci/devices/*/numa_node"


@AREA.check(
    "ucx-far-nic",
    Severity.NOTE,
    "A job's UCX assumes a low bandwidth between its GPU and the nearest NIC",
    "https://github.com/openucx/ucx/issues/11121; openucx/ucx src/ucs/sys/topo/base/topo.c, config/ucx.conf",
    ok="Every job with UCX has a NIC on the NUMA node of its GPU, or sets UCX_DISTANCE_BW",
    impact="UCX likely copies through host memory instead of using GPUDirect RDMA. NCCL is not affected.",
)
def ucx_far_nic(examination: Examination) -> Outcome:
    """Find jobs whose UCX has RDMA devices open, on GPUs whose NUMA node has no NIC.

    topo.c: 220 MB/s between NUMA nodes; ucx.conf: 5.1 GB/s on AMD. A job that also maps NCCL moves GPU memory
    with NCCL, unless it uses NIXL.
    """
    jobs, cpu, topology = jobs_of(examination), examination.cpu_model, examination.topology
    users = [
        (settings.process, library.path)
        for settings in jobs.settings
        if settings.process is not None
        and known(settings.process.uverbs_files, ())
        and settings.get(_DISTANCE) is None
        and (maps(settings.process, "libplugin_UCX") or not maps(settings.process, "libnccl"))
        for library in known(settings.process.libraries, ())
        if library.name == "libucp"
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
