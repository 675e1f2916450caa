"""NCCL variables that disable or limit GPUDirect RDMA for a job, and the RoCE GID that a job sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan
from probes.base.text import SHOWN
from probes.base.unknown import Maybe, Unknown
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA, selected_ports, used_devices
from probes.facts.jobs.processes import Process
from probes.facts.rdma.devices import Gid, RdmaDevice, RdmaPort
from probes.nccl.settings import parse_hca_list, parse_level, parse_number
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, need, passed, unknown
from probes.queries.jobs import (
    JobSettings,
    conclude,
    conclude_values,
    gpus_of,
    job_plan,
    jobs_of,
    nearest,
    values_of,
    without_variable,
)
from probes.queries.modules import impossible_by_design
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER, Nccl

AREA = Area("nccl", __package__, requires=(impossible_by_design,))
GIDS = Area("nccl", __package__)
LEVEL = "NCCL_NET_GDR_LEVEL"
C2C_LEVEL = "NCCL_NET_GDR_C2C"
_LOST_C2C = (
    " From 2.29 on, NCCL's default allows P2C, so the variable disables GPUDirect RDMA that works without it."
)
_FIRST_WITH_C2C, _C2C_BY_DEFAULT, _LEVEL_COMES_FIRST = (2, 26), (2, 27), (2, 29)


def _nccl_of(examination: Examination, process: Process | None) -> tuple[int, ...]:
    """Return the version of a process's NCCL, or of new jobs if it was stated; () if unknown."""
    if process is not None:
        return min((version for _, version in versions_of(process, "libnccl")), default=())
    facts = examination.processes
    return () if isinstance(facts, Unknown) else facts.new_jobs_nccl


def _ignores_level_over_c2c(settings: JobSettings, version: tuple[int, ...]) -> bool:
    """Return whether NCCL uses C2C paths at this level.

    From 2.26 to 2.28 NCCL_NET_GDR_C2C=1 makes it compare C2C instead of the distance; from 2.29 on a level
    that is set comes first (src/graph/paths.cc ncclTopoCheckGdr of v2.26.2-1, v2.28.9-1 and v2.29.2-1).
    """
    value = parse_number(settings.get(C2C_LEVEL) or "")
    is_on = version >= _C2C_BY_DEFAULT if value is None else value != 0
    return is_on and _FIRST_WITH_C2C <= version < _LEVEL_COMES_FIRST


@AREA.warning("nccl-gdr-level-ignored")
def nccl_gdr_level_ignored(examination: Examination) -> Outcome:
    """Find levels that NCCL does not have."""
    return conclude_values(
        examination,
        LEVEL,
        lambda value: None if parse_level(value) else "ignored",
        "NCCL accepts LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB and SYS in uppercase without spaces, or a"
        " number. It has no NODE; a GPU and a NIC on one NUMA node are PHB.",
        "or write PHB where nvidia-smi shows NODE, and measure",
    )


@AREA.critical("nccl-gdr-level-off", data_path=True)
def nccl_gdr_level_off(examination: Examination) -> Outcome:
    """Find levels below the distance of any NIC: LOC (0), NVL, NVB, C2C."""

    def wrong(value: str) -> str | None:
        level = parse_level(value)
        return f"{level.word} means never" if level and level.rank < ORDER[Nccl.PIX] else None

    return conclude_values(
        examination,
        LEVEL,
        wrong,
        "No NIC is nearer to a GPU than PIX, so NCCL never uses GPUDirect RDMA at a lower level. The value "
        "0 means LOC; it does not change ACS.",
    )


@AREA.warning("nccl-gdr-level-too-low", data_path=True)
def nccl_gdr_level_too_low(examination: Examination) -> Outcome:
    """Compare the level with the nearest NIC of each GPU of the process."""
    topology = examination.topology
    jobs = jobs_of(examination)
    distances = {gpu.id: nearest(topology, gpu.id) for gpu in topology.gpus}
    is_set = any(settings.get(LEVEL) is not None for settings in jobs.settings)
    if is_set and topology.nics and None in distances.values():
        return unknown("needs the PCIe paths between GPUs and NICs, which this machine does not show")

    def wrong(settings: JobSettings, value: str) -> str | None:
        level = parse_level(value)
        if level is None or level.rank < ORDER[Nccl.PIX]:
            return None
        own = gpus_of(examination, settings.process)
        ignores_level = _ignores_level_over_c2c(settings, _nccl_of(examination, settings.process))
        far = [
            f"{gpu.label} is {word.value} from its nearest NIC"
            for gpu in topology.gpus
            if gpu.id in own and (word := distances[gpu.id]) is not None and ORDER[word] > level.rank
            if ORDER[word] <= ORDER[Nccl.P2C]  # farther ones are beyond the default too
            if not (word is Nccl.P2C and ignores_level)
        ]
        return f"but {', '.join(far[:SHOWN])}" if far else None

    return conclude(
        jobs,
        values_of(examination, LEVEL, wrong),
        "The level is the largest distance at which NCCL uses GPUDirect RDMA. These GPUs are farther from"
        f" every NIC.{_LOST_C2C if Nccl.P2C in distances.values() else ''}",
        fix=without_variable(LEVEL, "or set it to the distance shown, and measure"),
    )


@AREA.note("nccl-gdr-level-number", part_of=("nccl-gdr-level-off", "nccl-gdr-level-too-low"))
def nccl_gdr_level_number(examination: Examination) -> Outcome:
    """Find levels that are numbers."""

    def wrong(value: str) -> str | None:
        level = parse_level(value)
        return f"means {level.word}" if level and value[:1].isdigit() else None

    return conclude_values(
        examination,
        LEVEL,
        wrong,
        "0 is LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS. The distances in NCCL's log use other numbers, "
        "which change between versions.",
        "or use the level's name",
    )


@AREA.warning("nccl-gdr-read-off", data_path=True)
def nccl_gdr_read_off(examination: Examination) -> Outcome:
    """Find NCCL_NET_GDR_READ=0."""
    return conclude_values(
        examination,
        "NCCL_NET_GDR_READ",
        lambda value: "sends from host memory" if parse_number(value) == 0 else None,
        "With NCCL_NET_GDR_READ=0 only the receiving side uses GPUDirect RDMA.",
    )


@AREA.warning("nccl-gdr-c2c-off", data_path=True)
def nccl_gdr_c2c_off(examination: Examination) -> Outcome:
    """Find NCCL_NET_GDR_C2C=0 on a node whose GPUs have C2C links."""
    off = values_of(
        examination, C2C_LEVEL, lambda _, value: "disables C2C" if parse_number(value) == 0 else None
    )
    evidence = tuple(off)
    if evidence:
        gpus = need(examination.node.gpus, "the GPUs", *evidence).gpus
        links = [need(gpu.c2c_links, f"NVML for GPU{gpu.index}", *evidence) for gpu in gpus]
        if not any(links):
            return passed(Evidence("NVML", "no GPU has C2C links, so the variable has no effect"))
    return conclude(
        jobs_of(examination),
        evidence,
        "These GPUs reach the NICs over C2C and the CPU (P2C). The variable forbids that path.",
        fix=without_variable(C2C_LEVEL),
    )


# The GID that NCCL_IB_GID_INDEX sets for a job on RoCE.

INDEX = "NCCL_IB_GID_INDEX"
NEARER = "None while the job uses nearer NICs. Connections over these ports may fail."
_FIRST_SEARCH, _FIRST_TOLERANT = (2, 21), (2, 26, 2)  # NCCL looks for a GID; and ignores EINVAL


def use_another_gid() -> Plan:
    """Return the plan to let NCCL choose the GID."""
    return without_variable(INDEX, "so that NCCL 2.21 or later chooses a RoCE v2 GID (show_gids lists them)")


def is_empty(gid: Gid | None) -> bool:
    """Say whether the port has no GID with this index."""
    return gid is None


def is_v1(gid: Gid | None) -> bool:
    """Say whether this is a GID of RoCE v1."""
    return gid is not None and gid.type == "IB/RoCE v1"


def _chosen_gids(
    examination: Examination,
) -> Iterator[tuple[JobSettings, RdmaDevice, RdmaPort, int, Maybe[Gid | None]]]:
    """Yield each active RoCE port that a job with NCCL_IB_GID_INDEX may use, the index, and its GID."""
    for settings in jobs_of(examination).settings:
        index = parse_number(settings.get(INDEX) or "")
        if index is None or index < 0:  # -1: NCCL chooses
            continue
        for device, port in selected_ports(examination, parse_hca_list(settings.get(HCA) or "")):
            if port.link_layer == "Ethernet" and port.is_active:
                gids = port.gids
                if isinstance(gids, Unknown):
                    yield settings, device, port, index, gids
                else:
                    gid = next((gid for gid in gids if gid.index == index), None)
                    yield settings, device, port, index, gid


def _severity(examination: Examination, settings: JobSettings, devices: set[str]) -> Severity:
    """Return the severity of a wrong GID on these devices: critical if the job uses no other NIC."""
    used = used_devices(examination, settings)
    if not used & devices:
        return Severity.NOTE
    return Severity.CRITICAL if used <= devices else Severity.WARNING


def wrong_gids(
    examination: Examination, is_wrong: Callable[[Gid | None], bool], most: Severity
) -> tuple[list[Evidence], Severity]:
    """Return the wrong GIDs of jobs and their severity, at most `most`, or end the check as unknown."""
    if any(settings.get(INDEX) for settings in jobs_of(examination).settings):
        need(examination.node.rdma, RDMA_DEVICES)
    evidence: list[Evidence] = []
    wrong: list[tuple[JobSettings, set[str]]] = []
    for settings, device, port, index, maybe_gid in _chosen_gids(examination):
        place = f"{device.sysfs_path}/ports/{port.number}"
        gid = need(maybe_gid, f"the GIDs of {device.name}")
        if not is_wrong(gid):
            continue
        if gid is None:
            evidence.append(Evidence(f"{place}/gids/{index}", "empty"))
        else:
            kind = need(gid.type, f"the GIDs of {device.name}")
            evidence.append(Evidence(f"{place}/gid_attrs/types/{index}", f"{kind}, {gid.gid}"))
        evidence.append(settings.evidence(INDEX))
        if not wrong or wrong[-1][0] is not settings:
            wrong.append((settings, set()))
        wrong[-1][1].add(device.name)
    order = list(Severity).index
    severities = [_severity(examination, settings, devices) for settings, devices in wrong]
    return evidence, max(min(severities, key=order, default=most), most, key=order)


@GIDS.critical("nccl-gid-index-missing")
def nccl_gid_index_missing(examination: Examination) -> Outcome:
    """Look for the index on every Ethernet port that the job may use."""
    cause = "The GID tables of these ports have no entry with this index."
    return _conclude(examination, is_empty, Severity.CRITICAL, cause)


@GIDS.warning("nccl-gid-index-not-v2")
def nccl_gid_index_not_v2(examination: Examination) -> Outcome:
    """Read the type of the GID on every Ethernet port that the job may use."""
    cause = "These are RoCE v1 GIDs, which routers do not forward."
    return _conclude(examination, is_v1, Severity.WARNING, cause)


@GIDS.warning("nccl-sparse-gid-table", part_of=("job-log-errors",))
def nccl_sparse_gid_table(examination: Examination) -> Outcome:
    """Find NCCL 2.21 to 2.26.1 without an index where entry 0 is empty, as it is in many pods.

    Only the table that gdrtop sees is read: that of a pod can differ.
    """
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    for process, settings in jobs.of_processes:
        if (parse_number(settings.get(INDEX) or "") or -1) >= 0:
            continue
        affected = [
            (library, version)
            for library, version in versions_of(process, "libnccl")
            if _FIRST_SEARCH <= version < _FIRST_TOLERANT
        ]
        hcas = parse_hca_list(settings.get(HCA) or "")
        for device, port in selected_ports(examination, hcas) if affected else ():
            gids = () if isinstance(port.gids, Unknown) else port.gids
            is_roce = port.link_layer == "Ethernet" and port.is_active
            if is_roce and gids and gids[0].index > 0:
                place = f"{device.sysfs_path}/ports/{port.number}/gids"
                evidence.append(Evidence(f"/proc/{process.pid}/maps", f"NCCL {affected[0][0].version}"))
                evidence.append(Evidence(place, f"empty up to index {gids[0].index - 1}"))
    return conclude(
        jobs,
        evidence,
        "Before 2.26.2, NCCL likely stops at an empty entry while it looks for a GID.",
        fix=job_plan(
            "Let NCCL find the GID",
            "Use NCCL 2.26.2 or newer in the job's image",
            f"Or set {INDEX} to the index of a RoCE v2 GID of this pod (show_gids lists them); it differs "
            "between pods",
        ),
    )


def _conclude(
    examination: Examination, is_wrong: Callable[[Gid | None], bool], most: Severity, cause: str
) -> Outcome:
    evidence, severity = wrong_gids(examination, is_wrong, most)
    return conclude(
        jobs_of(examination),
        evidence,
        cause,
        fix=use_another_gid(),
        severity=severity,
        impact=NEARER if severity is Severity.NOTE else "",
    )
