"""Versions that are known not to work together, each with its symptom, its cure and where that is written.

A row is found by `known-bad-combination`, or by the check that it names. A row without either is only in
`gdrtop help versions`: no file of the node shows its versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import instruction, make_plan
from probes.base.site import COMPONENTS, SiteCombination, VersionRange, components, parse_range, site
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA, all_ports, selected_ports
from probes.facts.gpu.generations import is_model
from probes.facts.gpudirect import parse_driver_version
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process
from probes.facts.pci.nic_families import EFA
from probes.facts.rdma.devices import RdmaDevice
from probes.nccl.settings import parse_hca_list, parse_number
from probes.queries.finding import Area, Outcome, found, need, passed, unknown_without
from probes.queries.jobs import JobSettings, expandable_variable, gin_type, ibgda_users, jobs_of, world_size
from probes.queries.modules import module_of, nics_of
from probes.queries.pcie_paths import functions_of, gpus_here, is_gb10
from probes.queries.ports import ports_of
from probes.queries.queue_pair_makers import GDAKI, GIN_TYPE
from probes.snapshot.examination import Examination

# What gdrtop has read of versions that do not work together; each function yields it for one combination.

_READ_R595 = "595.91.07"
_WITHOUT_OVERRIDE, _NEWEST_BRANCH = 595, 620  # branches whose guides name EFA on Grace
_GDAKI_MTU = 4096
_DIRECT_NIC = "UCX_IB_DIRECT_NIC"
_FREEZES_SPARK = ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
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
    own = len(gpus_here(examination))
    for settings, process, evidence in _nccl_between(examination, (2, 29, 7), (2, 30, 7)):
        if (
            known(process.uverbs_files, ())
            and world_size(settings) > own
            and parse_number(settings.get("NCCL_PXN_DISABLE") or "") != 1
        ):
            yield evidence


def hang_on_spark(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs on several DGX Sparks with NCCL 2.30.4, unless they disable NVLS."""
    if not is_gb10(examination):
        return
    for settings, process, evidence in _nccl_between(examination, (2, 30, 4), (2, 30, 5)):
        if (
            known(process.uverbs_files, ())
            and world_size(settings) > len(gpus_here(examination))
            and parse_number(settings.get("NCCL_NVLS_ENABLE") or "") != 0
        ):
            yield evidence


def inline_on_spark(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs, or the nccl.conf of new ones, with inline sends and preposted receives on DGX Spark."""
    if not is_gb10(examination):
        return
    for settings in jobs_of(examination).settings:
        if all(parse_number(settings.get(name) or "") == 1 for name in _FREEZES_SPARK):
            yield from (settings.evidence(name) for name in _FREEZES_SPARK)


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
    if not any(is_model(gpu.name, "B200") for gpu in gpus_here(examination)):
        return
    for _, _, _, version, shown in _mapped(examination, "libplugin_UCX", "NIXL"):
        if version == (0, 10, 0):
            yield shown


def mooncake_segments(examination: Examination) -> Iterator[Evidence]:
    """Yield processes with Mooncake 0.3.11.post1 to 0.3.12.post1 and expandable segments."""
    for settings, _, _, version, shown in _mapped(examination, "mooncake/engine", "Mooncake"):
        if (0, 3, 11, 1) <= version <= (0, 3, 12, 1) and (variable := expandable_variable(settings.get)):
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
    if not any(known(gpu.fabric.cluster, "") for gpu in gpus_here(examination)):
        return
    for settings, process, evidence in _nccl_between(examination, (), (2, 28, 3)):
        if (
            process.stack == math.inf
            and world_size(settings) >= _RANKS_OF_OVERRUN
            and parse_number(settings.get("NCCL_MNNVL_ENABLE") or "") != 0
        ):
            yield evidence
            yield Evidence(f"/proc/{process.pid}/limits", "Max stack size unlimited")


def old_for_ibgda(driver: str, old: str, examination: Examination) -> Iterator[Evidence | Unknown]:
    """Yield jobs whose GPUs post to NICs of a driver with firmware of a range that cannot."""
    users = ibgda_users(jobs_of(examination), with_cpu=True)
    rdma = examination.node.rdma
    for device in () if isinstance(rdma, Unknown) or not users else rdma.devices:
        if device.driver != driver:
            continue
        is_old = map_known(device.firmware, parse_range(old).contains)
        if isinstance(is_old, Unknown):
            yield is_old
        elif is_old:
            yield Evidence(f"{device.sysfs_path}/fw_ver", known(device.firmware, ""))
            yield from users.values()


AREA = Area("environment", __package__)

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


_SEEN: dict[str, Seen] = {
    "r595-efa-grace": efa_without_override,
    "nccl-pxn-hang": hang_on_infiniband,
    "nccl-spark-hang": hang_on_spark,
    "nccl-spark-inline": inline_on_spark,
    "ucx-idle-data-direct": ucx_with_idle_data_direct,
    "nccl-spectrum-x": spectrum_x,
    "nixl-agents-hang": agents_hang,
    "nixl-b200": nixl_on_b200,
    "mooncake-segments": mooncake_segments,
    "nccl-gin-mtu": small_mtu_of_gin,
    "nccl-stack": unlimited_stack,
    "thor2-ibgda": partial(old_for_ibgda, "bnxt_en", "231"),
    "pollara-ibgda": partial(old_for_ibgda, "ionic", "1.117.1"),
}


def _rows() -> Iterator[Combination]:
    """Yield the rows of combinations.toml; one with versions is found as a row of a site is."""
    for name, facts in read_toml(__package__, "combinations.toml").items():
        severity = Severity(facts.pop("severity", Severity.WARNING.value))
        versions = {key: parse_range(facts.pop(key)) for key in COMPONENTS if key in facts}
        row = SiteCombination(facts["symptom"], facts["cure"], versions)
        seen = partial(seen_on_site, row) if versions else _SEEN.get(name)
        yield Combination(name, **facts, severity=severity, seen=seen)


@AREA.warning("known-bad-combination")
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


# The rows of a site's configuration, compared with the versions that gdrtop has read.

_LINES = 2  # of evidence for each version that a row names


def seen_on_site(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    """Yield the versions that gdrtop has read if all that the row names is here.

    Nothing if one of them is not; why one is unknown if all others are here.
    """
    found: list[Evidence] = []
    unread: list[Unknown] = []
    for name, read in _READERS.items():
        if name not in row.versions and not (name == "firmware" and row.board):
            continue
        lines = list(read(row, examination))
        evidence = [line for line in lines if isinstance(line, Evidence)]
        if not lines:
            return
        found += evidence[:_LINES]
        unread += [] if evidence else [line for line in lines if isinstance(line, Unknown)]
    yield from unread or found


def devices_on_site(row: SiteCombination, examination: Examination) -> tuple[str, ...]:
    """Return the names of the NICs whose board and firmware a row names; none if it names neither."""
    if "firmware" not in row.versions and not row.board:
        return ()
    return tuple(device.name for device, is_here in _devices(row, examination) if is_here is True)


def _devices(row: SiteCombination, examination: Examination) -> Iterator[tuple[RdmaDevice, Maybe[bool]]]:
    """Yield each NIC, and whether the row names its board and firmware."""
    rdma, versions = examination.node.rdma, row.versions.get("firmware")
    for device in () if isinstance(rdma, Unknown) else rdma.devices:
        if isinstance(device.bdf, Unknown) and device.bdf.reason is Reason.NOT_THERE:
            continue  # a software device has no firmware
        board, firmware = device.board_id, device.firmware
        if row.board and isinstance(board, Unknown):
            # Only some drivers show a board id.
            yield device, False if board.reason is Reason.NOT_THERE else board
        elif row.board and board != row.board:
            yield device, False
        else:
            yield device, True if versions is None else map_known(firmware, versions.contains)


def _firmware(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        yield rdma
    board = f", board {row.board}" if row.board else ""
    for device, is_here in _devices(row, examination):
        if isinstance(is_here, Unknown):
            yield is_here
        elif is_here:
            yield Evidence(f"{device.sysfs_path}/fw_ver", f"{known(device.firmware, 'unknown')}{board}")


def _driver(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    if not isinstance(version, Unknown) or version.reason is not Reason.NOT_THERE:  # not loaded
        yield from _named("/proc/driver/nvidia/version", version, row.versions["driver"])


def _kernel(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    yield from _named("/proc/sys/kernel/osrelease", examination.node.kernel_release, row.versions["kernel"])


def _named(source: str, version: Maybe[str], versions: VersionRange) -> Iterator[Evidence | Unknown]:
    if isinstance(version, Unknown):
        yield version
    elif versions.contains(version):
        yield Evidence(source, version)


def _nccl(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    for process in jobs_of(examination).processes:
        if isinstance(process.libraries, Unknown):
            yield process.libraries
        for library, _version in versions_of(process, "libnccl"):
            if row.versions["nccl"].contains(str(library.version)):
                yield Evidence(f"/proc/{process.pid}/maps", f"NCCL {library.version}")


def _efa(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    module = map_known(module_of(examination, "efa"), lambda module: module.version)
    if is_there(module) is not False:  # not loaded, or the kernel's own, which has no version
        yield from _named("/sys/module/efa/version", module, row.versions["efa"])


_Reader = Callable[[SiteCombination, Examination], Iterator["Evidence | Unknown"]]
_READERS: dict[str, _Reader] = {
    **{"firmware": _firmware, "driver": _driver, "kernel": _kernel, "nccl": _nccl},
    "efa": _efa,
}

COMBINATIONS = tuple(_rows())
