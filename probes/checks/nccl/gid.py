"""The GID that a job's NCCL uses on RoCE, where NCCL_IB_GID_INDEX sets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.plan import Plan
from probes.base.unknown import Unknown
from probes.checks.nccl.network import HCA, taken_ports, used_devices
from probes.facts.rdma.devices import Gid, RdmaDevice, RdmaPort
from probes.nccl.settings import parse_hca_list, parse_number
from probes.queries.evidence_list import RDMA_DEVICES
from probes.queries.finding import Area, Evidence, Outcome, Severity, needs, unknown
from probes.queries.jobs import Settings, jobs_of, settle, without_variable
from probes.queries.references import NCCL_VARIABLES
from probes.snapshot.examination import Examination

AREA = Area("nccl")
INDEX = "NCCL_IB_GID_INDEX"
NEARER = "None while the job uses nearer NICs. Connections over these ports may fail."
_ROCE_V1 = "IB/RoCE v1"


def use_another_gid() -> Plan:
    """Let NCCL choose the GID, or set a routable one."""
    return without_variable(INDEX, "so that NCCL 2.21 or later chooses a RoCE v2 GID (show_gids lists them)")


def asked_gids(
    examination: Examination,
) -> Iterator[tuple[Settings, RdmaDevice, RdmaPort, int, Gid | Unknown | None]]:
    """Each active RoCE port that a job with NCCL_IB_GID_INDEX may use, the index and its GID; None: empty."""
    for settings in jobs_of(examination).settings:
        index = parse_number(settings.get(INDEX) or "")
        if index is None or index < 0:  # -1: NCCL chooses
            continue
        for device, port in taken_ports(examination, parse_hca_list(settings.get(HCA) or "")):
            if port.link_layer == "Ethernet" and port.state == "ACTIVE":
                gids = port.gids
                entry: Gid | Unknown | None
                if isinstance(gids, Unknown):
                    entry = gids
                else:
                    entry = next((one for one in gids if one.index == index), None)
                yield settings, device, port, index, entry


def cost_of_gids(examination: Examination, settings: Settings, devices: set[str]) -> Severity:
    """What it costs that a job's GID does not work on these devices: critical where it uses no other NIC."""
    used = used_devices(examination, settings)
    if not used & devices:
        return Severity.NOTE
    return Severity.CRITICAL if used <= devices else Severity.WARNING


def is_empty(gid: Gid | None) -> bool:
    """The port has no GID of this index."""
    return gid is None


def is_v1(gid: Gid | None) -> bool:
    """The GID is of RoCE v1."""
    return gid is not None and gid.type == _ROCE_V1


def wrong_gids(
    examination: Examination, is_wrong: Callable[[Gid | None], bool], most: Severity
) -> tuple[list[Evidence], Severity] | Outcome:
    """The GIDs of jobs that are wrong, with what that costs, at most `most`; else what the check says."""
    if isinstance(examination.node.rdma, Unknown) and any(
        one.get(INDEX) for one in jobs_of(examination).settings
    ):
        return unknown(needs(RDMA_DEVICES, examination.node.rdma))
    evidence: list[Evidence] = []
    wrong: list[tuple[Settings, set[str]]] = []
    for settings, device, port, index, gid in asked_gids(examination):
        place = f"{device.sysfs_path}/ports/{port.number}"
        if isinstance(gid, Unknown):
            return unknown(needs(f"the GIDs of {device.name}", gid))
        if not is_wrong(gid):
            continue
        if gid is None:
            evidence.append(Evidence(f"{place}/gids/{index}", "empty"))
        elif isinstance(gid.type, Unknown):
            return unknown(needs(f"the GIDs of {device.name}", gid.type))
        else:
            evidence.append(Evidence(f"{place}/gid_attrs/types/{index}", f"{gid.type}, {gid.gid}"))
        evidence.append(settings.evidence(INDEX))
        if not wrong or wrong[-1][0] is not settings:
            wrong.append((settings, set()))
        wrong[-1][1].add(device.name)
    order = list(Severity)
    costs = [cost_of_gids(examination, settings, devices) for settings, devices in wrong]
    return evidence, max(min(costs, key=order.index, default=most), most, key=order.index)


@AREA.check(
    "nccl-gid-index-missing",
    Severity.CRITICAL,
    "NCCL_IB_GID_INDEX names an empty GID",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
    ok="NCCL_IB_GID_INDEX is unset or names a GID on every port",
    impact="Connections over these ports fail (completion error 12, or ibv_modify_qp fails).",
)
def nccl_gid_index_missing(examination: Examination) -> Outcome:
    """Look for the index on every Ethernet port that the job may use."""
    return _settled(
        examination,
        wrong_gids(examination, is_empty, Severity.CRITICAL),
        "The GID tables of these ports have no entry with this index.",
    )


@AREA.check(
    "nccl-gid-index-not-v2",
    Severity.WARNING,
    "NCCL_IB_GID_INDEX names a RoCE v1 GID",
    NCCL_VARIABLES + "#nccl-ib-gid-index",
    ok="NCCL_IB_GID_INDEX is unset or names RoCE v2 GIDs",
    impact="Connections work inside one Ethernet segment only, and only to peers that use RoCE v1 too.",
)
def nccl_gid_index_not_v2(examination: Examination) -> Outcome:
    """Read the type of the GID on every Ethernet port that the job may use."""
    return _settled(
        examination,
        wrong_gids(examination, is_v1, Severity.WARNING),
        "These GIDs are of RoCE v1, which routers do not forward.",
    )


def _settled(
    examination: Examination, answer: tuple[list[Evidence], Severity] | Outcome, cause: str
) -> Outcome:
    if isinstance(answer, Outcome):
        return answer
    evidence, severity = answer
    return settle(
        jobs_of(examination),
        evidence,
        cause,
        fix=use_another_gid(),
        severity=severity,
        impact=NEARER if severity is Severity.NOTE else "",
    )
