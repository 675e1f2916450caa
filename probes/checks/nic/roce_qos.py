"""Checks of the traffic class of RoCE: what jobs ask for, compared with the port's lossless priorities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.checks.nccl.network import used_devices
from probes.facts.rdma.qos import CM_CLASSES, NetdevQos, netdevs_of
from probes.nccl.settings import parse_number
from probes.queries.evidence_list import first_distinct, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, needs, passed, unknown
from probes.queries.jobs import NCCL_VARIABLES, RESTARTS, JobSettings, about, affected, jobs_of
from probes.queries.ports import Port, devices_of, need_ports
from probes.snapshot.examination import Examination

AREA = Area("nic")
CLASS, LEVEL, _NET = "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_NET"
_MANUAL = (
    "NVIDIA, Quality of Service (QoS), "
    "https://docs.nvidia.com/networking/display/mlnxofedv24100700/Quality+of+Service+(QoS); "
    f"{NCCL_VARIABLES}#nccl-ib-tc"
)
_NOBODY = Evidence("NCCL_IB_TC, tc/*/traffic_class, default_roce_tos", "no RoCE traffic has a class")
_NO_ROCE_JOB = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no job uses an active RoCE port")
_FEW = 2
_NO_PFC = "no priority has PFC: this network is lossy by choice, or its switches are not configured"


@frozen
class Request:
    """The traffic class that packets over a port have, and where it comes from."""

    port: Port
    traffic_class: int  # the upper six bits are the DSCP
    level: int  # service level
    evidence: Evidence
    is_asked: bool  # set somewhere; False: the default, 0

    @property
    def dscp(self) -> int:
        """The DSCP in the packets."""
        return self.traffic_class >> 2


def _requests(examination: Examination) -> Iterator[Request]:
    """Yield what each job that uses NCCL's own network, and RDMA CM, ask of each active RoCE port.

    OFED's traffic_class replaces the class of every queue pair (mlnx-ofa_kernel, hw/mlx5, tclass_get_tclass).
    """
    ports = _active(examination)
    qos = examination.qos
    for settings in jobs_of(examination).settings:
        if settings.process is None or not settings.is_read or settings.get(_NET) not in (None, "IB"):
            continue
        used = used_devices(examination, settings)
        for port in ports:
            if port.device.name in used:
                yield _of_job(settings, port)
    classes = {} if isinstance(qos, Unknown) else qos.cm_classes
    for port in ports:
        value = classes.get((port.device.name, port.facts.number))
        if value:
            source = f"{CM_CLASSES}/{port.device.name}/ports/{port.facts.number}/default_roce_tos"
            yield Request(port, value, 0, Evidence(source, str(value)), True)


def _driver_class(port: Port) -> int | None:
    """Return the class that the driver sets; None: it sets none."""
    value = map_known(port.health, lambda health: health.traffic_class)
    if isinstance(value, Unknown) and value.reason is Reason.NOT_THERE:
        return None
    return need(value, "the traffic class of the RoCE ports")


def _of_job(settings: JobSettings, port: Port) -> Request:
    level = max(0, parse_number(settings.get(LEVEL) or "") or 0)
    by_driver = _driver_class(port)
    if by_driver is not None:
        path = f"{port.device.sysfs_path}/tc/{port.facts.number}/traffic_class"
        return Request(port, by_driver, level, Evidence(path, str(by_driver)), True)
    asked = parse_number(settings.get(CLASS) or "")
    if asked is not None and 0 <= asked < 256:
        return Request(port, asked, level, settings.evidence(CLASS, f"DSCP {asked >> 2}"), True)
    pid = settings.process.pid if settings.process else 0
    return Request(port, 0, level, Evidence(f"/proc/{pid}/environ", f"{CLASS} is not set: DSCP 0"), False)


def _priority(request: Request, qos: NetdevQos) -> int | None:
    """Return the priority of the packets; None: unknown."""
    if isinstance(qos.trusts_dscp, Unknown) or isinstance(qos.priorities, Unknown):
        return None
    return qos.priorities.get(request.dscp, 0) if qos.trusts_dscp else request.level & 7


def _wrong(request: Request, netdev: str, qos: NetdevQos, priority: int) -> Evidence:
    lossless = ", ".join(map(str, known(qos.pfc, ())))
    if qos.trusts_dscp:
        text = f"DSCP {request.dscp} maps to priority {priority} (PFC is on for {lossless})"
    else:
        text = f"trusts PCP and ignores DSCP, priority {priority} (PFC is on for {lossless})"
    return Evidence(qos.sources[-1], f"{netdev}: {text}")


@AREA.check(
    "roce-class-not-lossless",
    Severity.WARNING,
    "RoCE traffic is in a priority without flow control",
    _MANUAL,
    ok="RoCE traffic is in a lossless priority, or none is configured",
    impact="Under congestion the switches drop these packets. RoCE resends them, and throughput collapses.",
)
def roce_class_not_lossless(examination: Examination) -> Outcome:
    """Compare the class of each job's packets with the priorities that have PFC on its ports."""
    requests = list(_requests(examination))
    not_known = jobs_of(examination).not_known if _active(examination) else ""
    if not requests:
        return unknown(not_known) if not_known else passed(_NO_ROCE_JOB)
    facts = need(examination.qos, "the QoS settings of the RoCE netdevs")
    asked: list[Evidence] = []
    evidence: list[Evidence] = []
    wrong: list[Request] = []
    unread: Unknown | None = None
    fits: list[Evidence] = []
    for request in requests:
        for netdev in netdevs_of(request.port.facts):
            qos = facts.netdevs.get(netdev)
            if qos is None:
                continue
            if isinstance(qos.pfc, Unknown):
                unread = qos.pfc if request.is_asked else unread
            elif not qos.pfc:
                fits.append(Evidence(qos.sources[0], f"{netdev}: {_NO_PFC}"))
            elif (priority := _priority(request, qos)) is None:
                unread = qos.trusts_dscp if isinstance(qos.trusts_dscp, Unknown) else unread
            elif priority in qos.pfc:
                text = f"{netdev}: DSCP {request.dscp}, priority {priority}, PFC on"
                fits.append(Evidence(qos.sources[-1], text))
            else:
                asked.append(request.evidence)
                evidence.append(_wrong(request, netdev, qos, priority))
                wrong.append(request)
    if wrong:
        return _found(examination, wrong, asked, evidence, facts.netdevs)
    if unread is not None:
        return unknown(needs("dcb (iproute2) or mlnx_qos", unread), requests[0].evidence)
    if not_known:
        return unknown(not_known)
    return passed(*first_distinct(fits) or (_NOBODY,))


def _active(examination: Examination) -> list[Port]:
    return [port for port in need_ports(examination) if port.is_ethernet and port.is_active]


def _found(
    examination: Examination,
    wrong: list[Request],
    asked: list[Evidence],
    evidence: list[Evidence],
    netdevs: Mapping[str, NetdevQos],
) -> Outcome:
    ports = list({request.port.name: request.port for request in wrong}.values())
    names = [name for port in ports for name in netdevs_of(port.facts) if name in netdevs]
    by_pcp = [name for name in names if netdevs[name].trusts_dscp is False]
    lossless = sorted({priority for name in names for priority in known(netdevs[name].pfc, ())})
    good = sorted(
        dscp
        for name in names[:1]
        for dscp, priority in known(netdevs[name].priorities, {}).items()
        if priority in lossless
    )
    shown = netdevs[names[0]].sources[-1]
    steps = [Step("Show how the port chooses priorities", tuple(shown.split()), needs_root=False)]
    classes = ", ".join(f"{dscp << 2} (DSCP {dscp})" for dscp in good[:8])
    which = f"one of {classes}" if classes else f"the class of priority {join_limited(map(str, lossless))}"
    if by_pcp:
        text = f"Trust DSCP on every RoCE netdev, as the switches do: mlnx_qos -i {by_pcp[0]} --trust dscp"
    else:
        text = f"Set {CLASS} in the job or /etc/nccl.conf to the class that the switches treat as lossless, "
        text += f"here {which}"
    steps.append(instruction(text, needs_root=bool(by_pcp)))
    return found(
        about(
            affected(jobs_of(examination), asked),
            f"packets over {join_limited(port.name for port in ports)} are not in a priority with PFC.",
        ),
        *(*list(dict.fromkeys(asked))[:_FEW], *first_distinct(evidence)),
        fix=Plan(
            "Give the traffic the class that the network's QoS expects",
            tuple(steps),
            disturbs=RESTARTS,
            note="Change trust mode or PFC only across the whole fabric, in a maintenance window.",
        ),
        devices=devices_of(ports),
    )


@AREA.check(
    "roce-class-overridden",
    Severity.NOTE,
    "The driver overrides the traffic class that a job requests",
    f"mlnx-ofa_kernel, drivers/infiniband/hw/mlx5, tclass_get_tclass; {NCCL_VARIABLES}#nccl-ib-tc",
    ok="No driver setting overrides a job's traffic class",
    impact="The job's packets have the driver's class. Check that it is the lossless one.",
)
def roce_class_overridden(examination: Examination) -> Outcome:
    """Find ports with a class set in tc/PORT/traffic_class, and jobs with another NCCL_IB_TC."""
    evidence: list[Evidence] = []
    ports: list[Port] = []
    active = _active(examination)
    jobs = jobs_of(examination)
    for settings in jobs.settings:
        asked = parse_number(settings.get(CLASS) or "")
        if settings.process is None or asked is None:
            continue
        used = used_devices(examination, settings)
        for port in active:
            by_driver = _driver_class(port) if port.device.name in used else None
            if by_driver is not None and by_driver != asked:
                path = f"{port.device.sysfs_path}/tc/{port.facts.number}/traffic_class"
                evidence += (settings.evidence(CLASS), Evidence(path, str(by_driver)))
                ports.append(port)
    if not evidence:
        return unknown(jobs.not_known) if jobs.not_known and active else passed(_NOBODY)
    return found(
        about(affected(jobs, evidence), "its queue pairs get the class that is set for the whole port."),
        *first_distinct(evidence),
        fix=make_plan(
            "Set the class in one place",
            f"Set {CLASS} to the port's class, or remove it. To let jobs choose, clear the port's class.",
            needs_root=False,
            disturbs=RESTARTS,
        ),
        devices=devices_of(ports),
    )
