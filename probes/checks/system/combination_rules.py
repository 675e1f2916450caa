"""What gdrtop has read of versions that do not work together; each function yields it for one combination."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probes.base.unknown import Reason, Unknown, known, map_known
from probes.checks.nccl.expandable_segments import uses_expandable_segments
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA, all_ports, selected_ports
from probes.facts.jobs.process_files import WORLD_SIZES
from probes.facts.jobs.processes import Process
from probes.facts.pci.nic_families import EFA
from probes.nccl.settings import parse_hca_list, parse_number
from probes.queries.finding import Evidence
from probes.queries.jobs import JobSettings, jobs_of
from probes.queries.modules import nics_of
from probes.queries.pcie_paths import functions_of
from probes.queries.ports import ports_of
from probes.snapshot.examination import Examination

_READ_R595 = "595.91.07"
_GIN_TYPE, _GDAKI, _GDAKI_MTU = "NCCL_GIN_TYPE", 3, 4096
_RANKS_OF_OVERRUN = 44  # NVIDIA/nccl issue 2186
_PARAMS, _OVERRIDE = "/proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride"


def _mapped(process: Process, name: str, version: str) -> Evidence:
    return Evidence(f"/proc/{process.pid}/maps", f"{name} {version}")


def _jobs(examination: Examination) -> Iterator[tuple[JobSettings, Process]]:
    for settings in jobs_of(examination).settings:
        if settings.process is not None:
            yield settings, settings.process


def _ranks(settings: JobSettings) -> int:
    """Return how many ranks the job's variables name, 0 if none does."""
    return max(parse_number(settings.get(name) or "") or 0 for name in WORLD_SIZES)


def _nccl_between(
    examination: Examination, first: tuple[int, ...], fixed: tuple[int, ...]
) -> Iterator[tuple[JobSettings, Process, Evidence]]:
    """Yield the jobs whose NCCL is in a range; `fixed`: the first version that is not."""
    for settings, process in _jobs(examination):
        for library, version in versions_of(process, "libnccl"):
            if first <= version < fixed:
                yield settings, process, _mapped(process, "NCCL", str(library.version))


def efa_without_override(examination: Examination) -> Iterator[Evidence]:
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


def hang_on_infiniband(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs on several nodes with NCCL 2.29.7 to 2.30.6 on InfiniBand, unless they disable PXN."""
    layers = {port.link_layer for _, port in all_ports(examination) if port.is_active}
    if "InfiniBand" not in layers:
        return
    gpus = examination.node.gpus
    own = 0 if isinstance(gpus, Unknown) else len(gpus.gpus)
    for settings, process, evidence in _nccl_between(examination, (2, 29, 7), (2, 30, 7)):
        if (
            process.uverbs_files
            and _ranks(settings) > own
            and parse_number(settings.get("NCCL_PXN_DISABLE") or "") != 1
        ):
            yield evidence


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
    for _, process in _jobs(examination):
        for library, version in versions_of(process, "libplugin_UCX"):
            if version == (0, 10, 1) and "nixl_cu13" in library.path:
                yield _mapped(process, "NIXL", str(library.version))


def nixl_on_b200(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with NIXL 0.10.0 on B200."""
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    if not any("B200" in name and "GB200" not in name for name in names):
        return
    for _, process in _jobs(examination):
        for library, version in versions_of(process, "libplugin_UCX"):
            if version == (0, 10, 0):
                yield _mapped(process, "NIXL", str(library.version))


def mooncake_segments(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with Mooncake 0.3.11.post1 to 0.3.12.post1 and expandable segments."""
    for settings, process in _jobs(examination):
        for library, version in versions_of(process, "mooncake/engine"):
            if (0, 3, 11, 1) <= version <= (0, 3, 12, 1) and (variable := uses_expandable_segments(settings)):
                yield _mapped(process, "Mooncake", str(library.version))
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
        if parse_number(settings.get(_GIN_TYPE) or "") != _GDAKI or not known(process.uverbs_files, ()):
            continue
        hcas = parse_hca_list(settings.get(HCA) or "")
        places = [(device.name, port.number) for device, port in selected_ports(examination, hcas)]
        used = [active[place] for place in places if place in active]
        mtus = [(port, map_known(port.health, lambda health: health.roce_mtu_bytes)) for port in used]
        small = [(port, mtu) for port, mtu in mtus if not isinstance(mtu, Unknown) and mtu < _GDAKI_MTU]
        for port, mtu in small[:1]:
            yield evidence
            netdev = f"/sys/class/net/{known(port.facts.netdev, port.name)}/mtu"
            yield Evidence(netdev, f"RDMA MTU {mtu}, {settings.values[_GIN_TYPE][1]}")
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
            and _ranks(settings) >= _RANKS_OF_OVERRUN
            and parse_number(settings.get("NCCL_MNNVL_ENABLE") or "") != 0
        ):
            yield evidence
            yield Evidence(f"/proc/{process.pid}/limits", "Max stack size unlimited")
