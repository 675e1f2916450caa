"""The GID that a job's NCCL is told to use on RoCE."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, unsure
from probes.checks.jobs import jobs_of, no_fault, without_variable
from probes.checks.nccl_network import HCA, taken_ports
from probes.checks.references import NCCL_VARIABLES
from probes.checks.wording import few
from probes.examination import Examination
from probes.nccl_settings import parse_hca_list, parse_number
from probes.unknown import Unknown

AREA = Area("nccl")
_GID = "NCCL_IB_GID_INDEX"
_ROCE_V2 = "RoCE v2"


@AREA.check(
    "nccl-gid-index-missing",
    Severity.CRITICAL,
    "NCCL_IB_GID_INDEX names an empty GID",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
)
def nccl_gid_index_missing(examination: Examination) -> Outcome:
    """The index, on every Ethernet port that the job takes."""
    return _gids(
        examination,
        missing=True,
        cause="NCCL connects from this GID and cannot: completion error 12, or ibv_modify_qp fails",
    )


@AREA.check(
    "nccl-gid-index-not-v2",
    Severity.WARNING,
    "NCCL_IB_GID_INDEX names a GID that is not RoCE v2",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
)
def nccl_gid_index_not_v2(examination: Examination) -> Outcome:
    """The type of the GID, on every Ethernet port that the job takes."""
    return _gids(
        examination,
        missing=False,
        cause="RoCE v1 does not pass a router and needs the same version on the other side",
    )


def _gids(examination: Examination, missing: bool, cause: str) -> Outcome:
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    for settings in jobs.settings:
        index = parse_number(settings.get(_GID) or "")
        if index is None or index < 0:  # -1: NCCL chooses
            continue
        if isinstance(examination.node.rdma, Unknown):
            return unsure(f"the RDMA devices: {examination.node.rdma}")
        hcas = parse_hca_list(settings.get(HCA) or "")
        for device, port in taken_ports(examination, hcas):
            if port.link_layer != "Ethernet" or port.state != "ACTIVE":
                continue
            place = f"{device.sysfs_path}/ports/{port.number}"
            if isinstance(port.gids, Unknown):
                return unsure(f"{port.gids.reason.value}: {place}/gids")
            gid = next((one for one in port.gids if one.index == index), None)
            if gid is None and missing:
                evidence.append(Evidence(f"{place}/gids/{index}", "empty"))
            elif gid is not None and not missing and isinstance(gid.type, str) and gid.type != _ROCE_V2:
                evidence.append(Evidence(f"{place}/gid_attrs/types/{index}", gid.type))
            else:
                continue
            evidence.append(settings.evidence(_GID))
    if evidence:
        fix = without_variable(_GID, "NCCL 2.21 and later choose a RoCE v2 GID by themselves")
        return found(cause, *few(evidence), fix=fix)
    if jobs.unseen or jobs.unread:
        return unsure(jobs.unseen or jobs.unread)
    return no_fault(jobs)
