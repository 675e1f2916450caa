"""Versions that are known not to work together, each with its symptom, its cure and where that is written.

A row is found by `known-bad-combination`, or by the check that it names. A row without either is only in
`gdrtop help versions`: no file of the node shows its versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.frozen import frozen
from probes.base.plan import instruction, make_plan
from probes.base.unknown import Reason, Unknown, known
from probes.checks.nccl.expandable_segments import uses_expandable_segments
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import all_ports
from probes.facts.jobs.process_files import WORLD_SIZES
from probes.facts.jobs.processes import Process
from probes.nccl.settings import parse_number
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed
from probes.queries.jobs import JobSettings, jobs_of
from probes.queries.modules import efa_functions
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination

AREA = Area("environment")

_READ_R595 = "595.91.07"
_PARAMS, _OVERRIDE = "/proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride"

Seen = Callable[[Examination], Iterator[Evidence]]


@frozen
class Combination:
    """One row: what does not work together, what a user notices, and what to do."""

    name: str
    components: str
    symptom: str
    cure: str
    source: str
    check: str = ""  # the check that finds it
    seen: Seen | None = None  # yields the versions that gdrtop has read; nothing: not this combination
    severity: Severity = Severity.WARNING


def _mapped(process: Process, name: str, version: str) -> Evidence:
    return Evidence(f"/proc/{process.pid}/maps", f"{name} {version}")


def _jobs(examination: Examination) -> Iterator[tuple[JobSettings, Process]]:
    for settings in jobs_of(examination).settings:
        if settings.process is not None:
            yield settings, settings.process


def _nccl_between(
    examination: Examination, first: tuple[int, ...], fixed: tuple[int, ...]
) -> Iterator[tuple[JobSettings, Process, Evidence]]:
    """Yield the jobs whose NCCL is in a range; `fixed`: the first version that is not."""
    for settings, process in _jobs(examination):
        for library, version in versions_of(process, "libnccl"):
            if first <= version < fixed:
                yield settings, process, _mapped(process, "NCCL", str(library.version))


def _efa_without_override(examination: Examination) -> Iterator[Evidence]:
    """Yield the EFA devices outside of any IOMMU group of a coherent machine whose driver has no override."""
    gpus = examination.node.gpus
    efas = known(efa_functions(examination), ())
    if isinstance(gpus, Unknown) or not efas or not any(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        return
    parameters, version = gpus.driver.parameters, gpus.driver.version
    if isinstance(version, Unknown) or _OVERRIDE in known(parameters, {}):
        return
    functions = functions_of(examination)
    groups = {bdf: functions[bdf].iommu_group for bdf in efas if bdf in functions}
    outside = [
        bdf
        for bdf, group in groups.items()
        if isinstance(group, Unknown) and group.reason is Reason.NOT_THERE
    ]
    # Other releases of R595 may have the option: without their parameters, only the one that was read counts.
    is_without = version == _READ_R595 if isinstance(parameters, Unknown) else version.startswith("595.")
    if outside and is_without:
        yield Evidence(_PARAMS, f"driver {version}, without {_OVERRIDE}")
        yield Evidence(f"/sys/bus/pci/devices/{outside[0]}/iommu_group", "not found")


def _hang_on_infiniband(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs on several nodes with NCCL 2.29.7 to 2.30.6 on InfiniBand, unless they disable PXN."""
    layers = {port.link_layer for _, port in all_ports(examination) if port.state == "ACTIVE"}
    if "InfiniBand" not in layers:
        return
    gpus = examination.node.gpus
    own = 0 if isinstance(gpus, Unknown) else len(gpus.gpus)
    for settings, process, evidence in _nccl_between(examination, (2, 29, 7), (2, 30, 7)):
        sizes = [parse_number(settings.get(name) or "") or 0 for name in WORLD_SIZES]
        if (
            process.uverbs_files
            and max(sizes) > own
            and parse_number(settings.get("NCCL_PXN_DISABLE") or "") != 1
        ):
            yield evidence


def _spectrum_x(examination: Examination) -> Iterator[Evidence]:
    for _, process, evidence in _nccl_between(examination, (2, 30, 5), (2, 30, 6)):
        plugins = [
            library.path for library in known(process.libraries, ()) if library.name.startswith("libnccl-net")
        ]
        spcx = [path for path in plugins if "spcx" in path or "spectrum-x" in path]
        if spcx:
            yield evidence
            yield Evidence(f"/proc/{process.pid}/maps", spcx[0])


def _engine_hangs(examination: Examination) -> Iterator[Evidence]:
    for _, process in _jobs(examination):
        for library, version in versions_of(process, "libplugin_UCX"):
            if version == (0, 10, 1) and "nixl_cu13" in library.path:
                yield _mapped(process, "NIXL", str(library.version))


def _engine_on_b200(examination: Examination) -> Iterator[Evidence]:
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    if not any("B200" in name and "GB200" not in name for name in names):
        return
    for _, process in _jobs(examination):
        for library, version in versions_of(process, "libplugin_UCX"):
            if version == (0, 10, 0):
                yield _mapped(process, "NIXL", str(library.version))


def _segments(examination: Examination) -> Iterator[Evidence]:
    for settings, process in _jobs(examination):
        for library, version in versions_of(process, "mooncake/engine"):
            if (0, 3, 11, 1) <= version <= (0, 3, 12, 1) and (variable := uses_expandable_segments(settings)):
                yield _mapped(process, "Mooncake", str(library.version))
                yield settings.evidence(variable)


COMBINATIONS = (
    Combination(
        "r595-efa-grace",
        "NVIDIA driver 595.91.07, EFA on GB200 or GB300 (P6e)",
        "Jobs abort, or use TCP: the driver refuses GPU memory to EFA devices outside of an IOMMU group.",
        "Use a driver of branch R580 with NVreg_GrdmaPciTopoCheckOverride=1",
        "https://github.com/NVIDIA/aicr/issues/2459",
        seen=_efa_without_override,
    ),
    Combination(
        "nccl-memory-peers",
        "NCCL before 2.23.4, nvidia_peermem on a kernel without memory_peers",
        "NCCL prints “GPU Direct RDMA Disabled” and copies through host memory.",
        "Use NCCL 2.23.4 or newer",
        "https://github.com/NVIDIA/nccl/issues/1676",
        "memory-peers-missing-old-nccl",
    ),
    Combination(
        "nccl-pxn-hang",
        "NCCL 2.29.7 to 2.30.6, several nodes on InfiniBand",
        "Some jobs hang.",
        "Use NCCL 2.30.7 or newer, or set NCCL_PXN_DISABLE=1",
        "https://docs.nvidia.com/cuda/cuest/troubleshooting/index.html",
        seen=_hang_on_infiniband,
        severity=Severity.NOTE,
    ),
    Combination(
        "nccl-spectrum-x",
        "NCCL 2.30.5 with the Spectrum-X plugin, all-to-all of groups of different size",
        "Data is lost or corrupted without an error.",
        "Set NCCL_NET_PLUGIN=none and NCCL_NET=IB",
        "https://docs.nvidia.com/nemo/megatron-bridge/0.6.2/releases/known-issues.html",
        seen=_spectrum_x,
    ),
    Combination(
        "open-driver-iommu",
        "Open NVIDIA driver 595.84, Linux 7.0, a translating IOMMU",
        "Writes to GPU memory are discarded without an error.",
        "Boot with iommu=pt",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1324",
        "iommu-translated",
    ),
    Combination(
        "efa-without-peermem",
        "aws-ofi-nccl 1.14 to 1.19.1 on EFA 1 to 3, without efa_nv_peermem",
        "The plugin does not offer DMA-BUF, and jobs copy through host memory.",
        "Load efa_nv_peermem, or use aws-ofi-nccl 1.19.2 or newer",
        "https://github.com/aws/aws-ofi-nccl/pull/1245",
        "efa-peermem-unusable",
    ),
    Combination(
        "libfabric-grace",
        "libfabric 2.4.0amzn1.0 on GB200",
        "Registering GPU memory fails with “Bad address”.",
        "Use libfabric 2.5.1 or newer",
        "https://github.com/ofiwg/libfabric/issues/12019",
    ),
    Combination(
        "gpu-operator-restart",
        "GPU Operator 26.3, a driver pod that restarts under a loaded driver",
        "nvidia-peermem-ctr restarts over and over.",
        "Use a newer driver image, or drain the node and reboot it",
        "https://github.com/NVIDIA/gpu-operator/issues/2619",
        "k8s-peermem-ctr-crashloop",
    ),
    Combination(
        "network-operator-upgrade",
        "Network Operator, upgraded under a running GPU driver pod",
        "nvidia_peermem cannot be loaded: “Invalid argument”.",
        "Drain the node and delete its GPU driver pod",
        "https://github.com/NVIDIA/gpu-operator/issues/2868",
        "peermem-symbol-version-mismatch",
    ),
    Combination(
        "nixl-agents-hang",
        "NIXL 0.10.1 (nixl-cu13) with its UCX 1.20.0, two agents on a node",
        "Both hang when they create their UCX backend, and their memory grows.",
        "Use a newer NIXL",
        "https://github.com/ai-dynamo/nixl/issues/1668",
        seen=_engine_hangs,
    ),
    Combination(
        "nixl-b200",
        "NIXL 0.10.0 on B200",
        "KV transfers of NixlConnector between GPUs fail.",
        "Use another version of NIXL",
        "https://github.com/vllm-project/vllm/issues/35799",
        seen=_engine_on_b200,
    ),
    Combination(
        "mooncake-segments",
        "Mooncake 0.3.11.post1 to 0.3.12.post1, expandable segments of PyTorch",
        "Registering GPU memory fails with “Invalid argument” (errno 22).",
        "Remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF",
        "https://github.com/kvcache-ai/Mooncake/issues/2511",
        seen=_segments,
    ),
    Combination(
        "ucx-emerald-rapids",
        "UCX before 1.21 on Intel Emerald Rapids",
        "Transfers reach about 16 instead of more than 40 GB/s.",
        "Set UCX_IB_PCI_RELAXED_ORDERING=try, or use UCX 1.21 or newer",
        "https://github.com/openucx/ucx/pull/10955",
        "ucx-without-relaxed-ordering",
    ),
    Combination(
        "nccl-sparse-gids",
        "NCCL 2.21 to 2.26.1, a RoCE GID table with empty entries",
        "NCCL fails at startup.",
        "Use NCCL 2.26.2 or newer, or set NCCL_IB_GID_INDEX",
        "https://github.com/NVIDIA/nccl/issues/1573",
        "nccl-sparse-gid-table",
    ),
    Combination(
        "nccl-host-memory",
        "NCCL 2.26.3 or newer, a NUMA node with memory but without CPUs",
        "Ranks of a node fail: “attaching to shared memory segment … (size 0)”.",
        "Set NCCL_CUMEM_HOST_ENABLE=0 for all ranks",
        "https://github.com/NVIDIA/nccl/issues/2190",
        "job-log-errors",
    ),
    Combination(
        "efa-on-ofed",
        "The EFA driver, built against MLNX_OFED",
        "Loading efa fails with a kernel warning or crash.",
        "Build efa against the kernel's own ib_core",
        "https://github.com/amzn/amzn-drivers/issues/308",
    ),
    Combination(
        "ofed-memory-peers",
        "MLNX_OFED 24.10-3.2.5, Linux 6.8 of Ubuntu 24.04",
        "NCCL prints “GPU Direct RDMA Disabled”, although nvidia_peermem is loaded.",
        "Use DMA-BUF (the open kernel modules). The reporter went back to Ubuntu 22.04",
        "https://github.com/NVIDIA/nccl/issues/1939",
        "job-log-gdr-disabled",
    ),
)


@AREA.check(
    "known-bad-combination",
    Severity.WARNING,
    "Versions on this node are known not to work together",
    "gdrtop help versions; the evidence names the source of each",
    ok="No versions on this node are known not to work together",
    impact="Jobs with these versions fail, hang or compute with wrong data.",
)
def known_bad_combination(examination: Examination) -> Outcome:
    """Compare the versions that gdrtop has read with the table."""
    matches = [(row, tuple(row.seen(examination))) for row in COMBINATIONS if row.seen is not None]
    matches = [(row, evidence) for row, evidence in matches if evidence]
    if not matches:
        count = sum(row.seen is not None for row in COMBINATIONS)
        return passed(Evidence("gdrtop help versions", f"none of {count} combinations is here"))
    rows = [row for row, _ in matches]
    return found(
        " ".join(f"{row.components}: {row.symptom[:1].lower()}{row.symptom[1:]}" for row in rows),
        *dict.fromkeys(
            line for row, lines in matches for line in (*lines[:2], Evidence(row.source, row.components))
        ),
        fix=make_plan(
            "Change one of the versions",
            *(instruction(row.cure, needs_root=False) for row in rows),
            disturbs="jobs, which must be restarted",
        ),
        severity=min((row.severity for row in rows), key=list(Severity).index),
    )
