"""The GID that NCCL_IB_GID_INDEX sets for a job on RoCE."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.plan import Plan
from probes.base.unknown import Maybe, Unknown
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA, selected_ports, used_devices
from probes.facts.rdma.devices import Gid, RdmaDevice, RdmaPort
from probes.nccl.settings import parse_hca_list, parse_number
from probes.queries.evidence_list import RDMA_DEVICES
from probes.queries.finding import Area, Evidence, Outcome, Severity, need
from probes.queries.jobs import (
    NCCL_VARIABLES,
    JobSettings,
    conclude,
    job_plan,
    jobs_of,
    without_variable,
)
from probes.snapshot.examination import Examination

AREA = Area("nccl")
INDEX = "NCCL_IB_GID_INDEX"
NEARER = "None while the job uses nearer NICs. Connections over these ports may fail."
_ROCE_V1 = "IB/RoCE v1"
_FIRST_SEARCH, _FIRST_TOLERANT = (2, 21), (2, 26, 2)  # NCCL looks for a GID; and ignores EINVAL


def use_another_gid() -> Plan:
    """Return the plan to let NCCL choose the GID."""
    return without_variable(INDEX, "so that NCCL 2.21 or later chooses a RoCE v2 GID (show_gids lists them)")


def is_empty(gid: Gid | None) -> bool:
    """Say whether the port has no GID with this index."""
    return gid is None


def is_v1(gid: Gid | None) -> bool:
    """Say whether this is a GID of RoCE v1."""
    return gid is not None and gid.type == _ROCE_V1


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


@AREA.check(
    "nccl-gid-index-missing",
    Severity.CRITICAL,
    "NCCL_IB_GID_INDEX selects an empty GID",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
    ok="NCCL_IB_GID_INDEX is unset or selects a GID on every port",
    impact="Connections over these ports fail (completion error 12, or ibv_modify_qp fails).",
)
def nccl_gid_index_missing(examination: Examination) -> Outcome:
    """Look for the index on every Ethernet port that the job may use."""
    cause = "The GID tables of these ports have no entry with this index."
    return _conclude(examination, is_empty, Severity.CRITICAL, cause)


@AREA.check(
    "nccl-gid-index-not-v2",
    Severity.WARNING,
    "NCCL_IB_GID_INDEX selects a RoCE v1 GID",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
    ok="NCCL_IB_GID_INDEX is unset or selects RoCE v2 GIDs",
    impact="Connections work inside one Ethernet segment only, and only to peers that use RoCE v1 too.",
)
def nccl_gid_index_not_v2(examination: Examination) -> Outcome:
    """Read the type of the GID on every Ethernet port that the job may use."""
    cause = "These are RoCE v1 GIDs, which routers do not forward."
    return _conclude(examination, is_v1, Severity.WARNING, cause)


@AREA.check(
    "nccl-sparse-gid-table",
    Severity.WARNING,
    "A job's NCCL stops at an empty entry of a RoCE GID table",
    "https://github.com/NVIDIA/nccl/issues/1573",
    ok="Every job's NCCL can read the RoCE GID tables",
    impact="NCCL fails at startup: “read failed in ncclIbRoceGetVersionNum: Invalid argument”.",
    part_of=("job-log-errors",),
)
def nccl_sparse_gid_table(examination: Examination) -> Outcome:
    """Find NCCL 2.21 to 2.26.1 without an index where entry 0 is empty, as it is in many pods.

    Only the table that gdrtop sees is read: that of a pod can differ.
    """
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    for settings in jobs.settings:
        process = settings.process
        if process is None or (parse_number(settings.get(INDEX) or "") or -1) >= 0:
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
