"""Versions that are known not to work together, each with its symptom, its cure and where that is written.

A row is found by `known-bad-combination`, or by the check that it names. A row without either is only in
`gdrtop help versions`: no file of the node shows its versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import instruction, make_plan
from probes.base.site import COMPONENTS, components, site
from probes.base.unknown import Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA, all_ports, selected_ports
from probes.checks.nccl.other_settings import uses_expandable_segments
from probes.checks.system.site_combinations import devices_on_site, seen_on_site
from probes.facts.gpu.generations import is_model
from probes.facts.gpudirect import parse_driver_version
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process
from probes.facts.pci.nic_families import EFA
from probes.nccl.settings import parse_hca_list, parse_number
from probes.queries.finding import Area, Outcome, found, need, passed, unknown_without
from probes.queries.jobs import GDAKI, GIN_TYPE, JobSettings, gin_type, jobs_of, world_size
from probes.queries.modules import nics_of
from probes.queries.pcie_paths import functions_of
from probes.queries.ports import ports_of
from probes.snapshot.examination import Examination

# What gdrtop has read of versions that do not work together; each function yields it for one combination.

_READ_R595 = "595.91.07"
_WITHOUT_OVERRIDE, _NEWEST_BRANCH = 595, 620  # branches whose guides name EFA on Grace
_GDAKI_MTU = 4096
_GB10, _DIRECT_NIC = (12, 1), "UCX_IB_DIRECT_NIC"
_RANKS_OF_OVERRUN = 44  # NVIDIA/nccl issue 2186
_PARAMS, _OVERRIDE = "/proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride"


def _mapped(
    examination: Examination, library: str, name: str
) -> Iterator[tuple[JobSettings, Process, MappedLibrary, tuple[int, ...], Evidence]]:
    """Yield the jobs that map a library, its version, and the evidence that shows it by `name`."""
    for process, settings in jobs_of(examination).of_processes:
        for mapped, version in versions_of(process, library):
            shown = Evidence(f"/proc/{process.pid}/maps", f"{name} {mapped.version}")
            yield settings, process, mapped, version, shown


def _nccl_between(
    examination: Examination, first: tuple[int, ...], fixed: tuple[int, ...]
) -> Iterator[tuple[JobSettings, Process, Evidence]]:
    """Yield the jobs whose NCCL is in a range; `fixed`: the first version that is not."""
    for settings, process, _, version, shown in _mapped(examination, "libnccl", "NCCL"):
        if first <= version < fixed:
            yield settings, process, shown


def efa_without_override(examination: Examination) -> Iterator[Evidence | Unknown]:
    """Yield the EFA devices outside of any IOMMU group of a coherent machine whose driver has no override."""
    gpus = examination.node.gpus
    efas = known(nics_of(examination, EFA), ())
    if isinstance(gpus, Unknown) or not efas or not any(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        return
    parameters, version = gpus.driver.parameters, gpus.driver.version
    if isinstance(version, Unknown) or _OVERRIDE in known(parameters, {}):
        return
    functions = functions_of(examination)
    groups = {bdf: functions[bdf].iommu_group for bdf in efas if bdf in functions}
    outside = [bdf for bdf, group in groups.items() if is_there(group) is False]
    branch = (parse_driver_version(version) or (0,))[0]
    if not outside or branch < _WITHOUT_OVERRIDE:
        return
    if branch > _NEWEST_BRANCH:
        yield Unknown(Reason.NOT_YET, _PARAMS, f"the newest branch that gdrtop knows is R{_NEWEST_BRANCH}")
    # Other releases may have the option: without their parameters, only the one that was read counts.
    elif isinstance(parameters, Unknown) and version != _READ_R595:
        yield parameters
    else:
        yield Evidence(_PARAMS, f"driver {version}, without {_OVERRIDE}")
        yield Evidence(f"/sys/bus/pci/devices/{outside[0]}/iommu_group", "not found")


def hang_on_infiniband(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs on several nodes with NCCL 2.29.7 to 2.30.6 on InfiniBand, unless they disable PXN."""
    layers = {port.link_layer for _, port in all_ports(examination) if port.is_active}
    if "InfiniBand" not in layers:
        return
    gpus = examination.node.gpus
    own = 0 if isinstance(gpus, Unknown) else len(gpus.gpus)
    for settings, process, evidence in _nccl_between(examination, (2, 29, 7), (2, 30, 7)):
        if (
            known(process.uverbs_files, ())
            and world_size(settings) > own
            and parse_number(settings.get("NCCL_PXN_DISABLE") or "") != 1
        ):
            yield evidence


def hang_on_spark(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs on several DGX Sparks with NCCL 2.30.4, unless they disable NVLS."""
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown) or not any(gpu.compute_capability == _GB10 for gpu in gpus.gpus):
        return
    for settings, process, evidence in _nccl_between(examination, (2, 30, 4), (2, 30, 5)):
        if (
            known(process.uverbs_files, ())
            and world_size(settings) > len(gpus.gpus)
            and parse_number(settings.get("NCCL_NVLS_ENABLE") or "") != 0
        ):
            yield evidence


def ucx_with_idle_data_direct(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs with UCX 1.20 or 1.21 where a NIC with Data Direct has no active port.

    cuda_copy_md.c exports for PCIe each GPU with such a NIC, and only that NIC can register it then; 1.22.0
    leaves out a NIC without an active port (ib_mlx5dv_md.c, uct_ib_mlx5dv_check_direct_nic).
    """
    facts = examination.node.data_direct
    functions = {} if isinstance(facts, Unknown) else facts.of_devices
    direct = {name for name, function in functions.items() if known(function, None)}
    devices = [device for device in examination.topology.devices.values() if device.name in direct]
    idle = [device for device in devices if device.ports and all(port.is_down for port in device.ports)]
    if not idle:
        return
    port = idle[0].ports[0]
    state = Evidence(f"{idle[0].sysfs_path}/ports/{port.number}/state", f"{port.state}, with Data Direct")
    for settings, process, _, version, shown in _mapped(examination, "libucp", "UCX"):
        is_off = (settings.get(_DIRECT_NIC) or "").strip().lower() in ("n", "no", "off", "0")
        if (1, 20) <= version < (1, 22) and known(process.uverbs_files, ()) and not is_off:
            yield shown
            yield state


def spectrum_x(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs with NCCL 2.30.5 and the Spectrum-X plugin."""
    for _, process, evidence in _nccl_between(examination, (2, 30, 5), (2, 30, 6)):
        plugins = [
            library.path for library in known(process.libraries, ()) if library.name.startswith("libnccl-net")
        ]
        spcx = [path for path in plugins if "spcx" in path or "spectrum-x" in path]
        if spcx:
            yield evidence
            yield Evidence(f"/proc/{process.pid}/maps", spcx[0])


def agents_hang(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with NIXL 0.10.1 of the package nixl-cu13."""
    for _, _, library, version, shown in _mapped(examination, "libplugin_UCX", "NIXL"):
        if version == (0, 10, 1) and "nixl_cu13" in library.path:
            yield shown


def nixl_on_b200(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with NIXL 0.10.0 on B200."""
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    if not any(is_model(name, "B200") for name in names):
        return
    for _, _, _, version, shown in _mapped(examination, "libplugin_UCX", "NIXL"):
        if version == (0, 10, 0):
            yield shown


def mooncake_segments(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with Mooncake 0.3.11.post1 to 0.3.12.post1 and expandable segments."""
    for settings, _, _, version, shown in _mapped(examination, "mooncake/engine", "Mooncake"):
        if (0, 3, 11, 1) <= version <= (0, 3, 12, 1) and (variable := uses_expandable_segments(settings)):
            yield shown
            yield settings.evidence(variable)


def small_mtu_of_gin(examination: Examination) -> Iterator[Evidence | Unknown]:
    """Yield jobs whose NCCL 2.28.7 to 2.30.7 lets GPUs post to RoCE ports with packets below 4096 bytes.

    Their gin_host_gdaki.cc sets the path MTU to 4096 bytes; 2.31 takes the port's.
    """
    ports = known(ports_of(examination), ())
    active = {
        (port.device.name, port.facts.number): port for port in ports if port.is_ethernet and port.is_active
    }
    for settings, process, evidence in _nccl_between(examination, (2, 28, 7), (2, 31)):
        if gin_type(settings) != GDAKI or not known(process.uverbs_files, ()):
            continue
        hcas = parse_hca_list(settings.get(HCA) or "")
        places = [(device.name, port.number) for device, port in selected_ports(examination, hcas)]
        used = [active[place] for place in places if place in active]
        mtus = [(port, map_known(port.health, lambda health: health.roce_mtu_bytes)) for port in used]
        small = [(port, mtu) for port, mtu in mtus if not isinstance(mtu, Unknown) and mtu < _GDAKI_MTU]
        for port, mtu in small[:1]:
            yield evidence
            netdev = f"/sys/class/net/{known(port.facts.netdev, port.name)}/mtu"
            yield Evidence(netdev, f"RDMA MTU {mtu}, {settings.values[GIN_TYPE][1]}")
        if not small:
            yield from (mtu for _, mtu in mtus if isinstance(mtu, Unknown))


def unlimited_stack(examination: Examination) -> Iterator[Evidence]:
    """Yield large jobs of a rack's NVLink domain with NCCL before 2.28.3 and an unlimited stack.

    From 2.28.3 on, NCCL prints “Stack size limit (unlimited) is unsafe” and uses 8 MiB.
    """
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown) or not any(known(gpu.fabric.cluster, "") for gpu in gpus.gpus):
        return
    for settings, process, evidence in _nccl_between(examination, (), (2, 28, 3)):
        if (
            process.stack == math.inf
            and world_size(settings) >= _RANKS_OF_OVERRUN
            and parse_number(settings.get("NCCL_MNNVL_ENABLE") or "") != 0
        ):
            yield evidence
            yield Evidence(f"/proc/{process.pid}/limits", "Max stack size unlimited")


AREA = Area("environment")

Seen = Callable[[Examination], Iterator[Evidence | Unknown]]


@frozen
class Combination:
    """One row: what does not work together, what a user notices, and what to do."""

    name: str
    components: str
    symptom: str
    cure: str
    source: str
    check: str = ""  # the check that finds it
    # Yields the versions that gdrtop has read, or why it cannot say; nothing: not this combination.
    seen: Seen | None = None
    title: str = ""  # of the finding, if it is the only one; empty: the check's
    severity: Severity = Severity.WARNING
    most_lines: int = 2  # of what `seen` yields
    devices: Callable[[Examination], tuple[str, ...]] | None = None  # that the finding marks


COMBINATIONS = (
    Combination(
        "r595-efa-grace",
        "NVIDIA driver R595 to R620 without GrdmaPciTopoCheckOverride, EFA on GB200 or GB300 (P6e)",
        "Jobs abort, or use TCP: the driver refuses GPU memory to EFA devices outside of an IOMMU group.",
        "Use a driver of branch R580 with NVreg_GrdmaPciTopoCheckOverride=1",
        "https://github.com/NVIDIA/aicr/issues/2459",
        seen=efa_without_override,
        title="This NVIDIA driver refuses GPU memory to EFA on Grace",
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
        seen=hang_on_infiniband,
        title="This NCCL version has a known hang with several nodes",
        severity=Severity.NOTE,
    ),
    Combination(
        "nccl-spark-hang",
        "NCCL 2.30.4 on several DGX Spark (GB10)",
        "Loading a model with many experts hangs without an error.",
        "Set NCCL_NVLS_ENABLE=0, or use another version of NCCL",
        "https://github.com/NVIDIA/nccl/issues/2167",
        seen=hang_on_spark,
        title="This NCCL version has a known hang with DGX Spark",
        severity=Severity.NOTE,
    ),
    Combination(
        "nccl-mlopart",
        "NCCL 2.30.7 to 2.31, partitions of a GPU (MPS with MLOPart)",
        "NCCL copies through host memory for them. Its log has “[MLOPart 0]”, which gdrtop read explains.",
        "Set NCCL_NET_GDR_MLOPART=1, and measure",
        "https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/graph/paths.cc",
    ),
    Combination(
        "nccl-ras-crash",
        "NCCL 2.27.7, and likely others before and after it, with RAS, which is on by default",
        "Some jobs crash. The backtrace has rasMsgHandlePeersUpdate, which gdrtop read explains.",
        "Set NCCL_RAS_ENABLE=0",
        "https://github.com/NVIDIA/nccl/issues/1996",
    ),
    Combination(
        "ucx-idle-data-direct",
        "UCX 1.20 or 1.21, a NIC with Data Direct whose port is down (GB200, GB300)",
        "Registering GPU memory with other NICs fails: errno 524, and FORCE_PCIE in the kernel log.",
        "Use UCX 1.22 or newer, or set UCX_IB_DIRECT_NIC=n",
        "https://github.com/openucx/ucx/pull/11611",
        seen=ucx_with_idle_data_direct,
        title="This UCX version fails while a NIC with Data Direct is down",
    ),
    Combination(
        "nvshmem-memory-peers",
        "NVSHMEM 3.2 or older, nvidia_peermem on a kernel without memory_peers",
        "NVSHMEM prints “neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.”, and does not "
        "start.",
        "Use NVSHMEM 3.3 or newer",
        "https://github.com/deepseek-ai/DeepEP/pull/151",
        "nvshmem-memory-peers-missing",
    ),
    Combination(
        "nccl-spectrum-x",
        "NCCL 2.30.5 with the Spectrum-X plugin, all-to-all of groups of different size",
        "Data is lost or corrupted without an error.",
        "Set NCCL_NET_PLUGIN=none and NCCL_NET=IB",
        "https://docs.nvidia.com/nemo/megatron-bridge/0.6.2/releases/known-issues.html",
        seen=spectrum_x,
        title="This NCCL version loses data with the Spectrum-X plugin",
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
        "libfabric before 2.5.0 on EFA without efa_nv_peermem",
        "Registering GPU memory by its address, as NIXL does, fails with “Bad address”.",
        "Use libfabric 2.5.0 or newer, or load efa_nv_peermem",
        "https://github.com/ofiwg/libfabric/issues/12019",
    ),
    Combination(
        "gpu-operator-restart",
        "GPU Operator 26.3, a driver pod that restarts under a loaded driver",
        "nvidia-peermem-ctr restarts over and over.",
        "Drain the node and reboot it",
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
        seen=agents_hang,
        title="This NIXL version hangs with two agents on a node",
    ),
    Combination(
        "nixl-b200",
        "NIXL 0.10.0 on B200",
        "KV transfers of NixlConnector between GPUs fail.",
        "Use another version of NIXL",
        "https://github.com/vllm-project/vllm/issues/35799",
        seen=nixl_on_b200,
        title="This NIXL version fails on B200",
    ),
    Combination(
        "mooncake-segments",
        "Mooncake 0.3.11.post1 to 0.3.12.post1, expandable segments of PyTorch",
        "Registering GPU memory fails with “Invalid argument” (errno 22).",
        "Remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF",
        "https://github.com/kvcache-ai/Mooncake/issues/2511",
        seen=mooncake_segments,
        title="This Mooncake version cannot register expandable segments",
    ),
    Combination(
        "ucx-emerald-rapids",
        "UCX before 1.21 on Intel Emerald Rapids",
        "Transfers reach about 16 instead of more than 40 GB/s.",
        "Set UCX_IB_PCI_RELAXED_ORDERING=try (before UCX 1.15: yes), or use UCX 1.21 or newer",
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
    Combination(
        "nccl-gin-mtu",
        "NCCL 2.28.7 to 2.30.7, NCCL_GIN_TYPE=3 on RoCE with an RDMA MTU below 4096",
        "Transfers that GPUs post (GIN) never complete, and the job hangs without an error.",
        "Use NCCL 2.31 or newer, raise the MTU to at least 4200, or set NCCL_GIN_TYPE=2",
        "https://github.com/NVIDIA/nccl/issues/1957",
        seen=small_mtu_of_gin,
        title="This NCCL version hangs with GIN and a small RDMA MTU",
    ),
    Combination(
        "nccl-stack",
        "NCCL before 2.28.3, an unlimited stack, 44 or more ranks in racks with NVLink (GB200)",
        "ncclCommInitRank crashes (SIGSEGV): the search for a topology overruns the stack of a thread.",
        "Start the job with `ulimit -s 8192`, or use NCCL 2.28.3 or newer",
        "https://github.com/NVIDIA/nccl/issues/2186",
        seen=unlimited_stack,
        title="This NCCL version crashes with an unlimited stack",
    ),
)


@AREA.warning(
    "known-bad-combination",
    "Versions on this node are known not to work together",
    "gdrtop help versions; the evidence names the source of each",
    ok="No versions on this node are known not to work together",
    impact="It depends on the versions: gdrtop help versions lists what each of them does.",
)
def known_bad_combination(examination: Examination) -> Outcome:
    """Compare the versions that gdrtop has read with the table."""
    table = [row for row in (*COMBINATIONS, *_rows_of_site()) if row.seen is not None]
    matches: list[tuple[Combination, list[Evidence]]] = []
    unread: list[tuple[Combination, Unknown]] = []
    for row in table:
        seen = () if row.seen is None else tuple(row.seen(examination))
        if lines := [line for line in seen if isinstance(line, Evidence)]:
            matches.append((row, lines))
        else:
            unread += [(row, line) for line in seen if isinstance(line, Unknown)]
    if not matches:
        for row, why in unread[:1]:
            return unknown_without(f"all versions and settings of “{row.components}”", why)
        need(examination.processes, "the processes")
        return passed(Evidence("gdrtop help versions", f"none of {len(table)} combinations is here"))
    rows = [row for row, _ in matches]
    sources = [(*lines[: row.most_lines], Evidence(row.source, row.components)) for row, lines in matches]
    evidence = [line for lines in sources for line in lines]
    devices = [name for row in rows if row.devices is not None for name in row.devices(examination)]
    return found(
        f"Known not to work together: {'; '.join(row.components for row in rows)}.",
        *dict.fromkeys(evidence),
        fix=make_plan(
            "Change one of the versions",
            *(instruction(row.cure, needs_root=False) for row in rows),
            disturbs="jobs, which must be restarted",
        ),
        severity=min((row.severity for row in rows), key=list(Severity).index),
        devices=tuple(dict.fromkeys(devices)),
        impact=" ".join(row.symptom for row in rows),
        title=rows[0].title if len(rows) == 1 else "",
    )


def _rows_of_site() -> Iterator[Combination]:
    """Yield the rows of the configuration."""
    for row in site().combinations:
        yield Combination(
            row.origin,
            components(row),
            row.symptom,
            row.cure,
            row.source or row.origin,
            seen=partial(seen_on_site, row),
            most_lines=2 * len(COMPONENTS),  # two for each
            devices=partial(devices_on_site, row),
        )
