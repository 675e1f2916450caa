"""Checks of the MTU, the congestion control and the traffic class of RoCE ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from probes.bandwidth.model.gains import gains_of_ports
from probes.base.evidence import Evidence, first_distinct, first_n
from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, instruction, make_plan, user_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import used_devices
from probes.checks.nic.roce_gids import NO_ROCE, roce_ports
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.jobs.processes import Process
from probes.facts.rdma.port_health import roce_mtu
from probes.facts.rdma.roce import CM_CLASSES, NetdevQos, netdevs_of
from probes.nccl.settings import parse_number
from probes.plans.ports import CONGESTION_CONTROL, firmware_steps
from probes.queries.finding import Area, Outcome, found, need, needs, passed, unknown, unknown_without
from probes.queries.jobs import RESTARTS, JobSettings, about, affected, gin_type, ibgda_users, jobs_of
from probes.queries.ports import Port, by_board, devices_of, need_ports, port_names
from probes.queries.queue_pair_makers import GDAKI, GIN_CLASS, GIN_TYPE, NVSHMEM_CLASS
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
# Preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, gap 12: RoCE v2 on the wire.
_HEADER_BYTES = 82
_FULL_MTU = 4096
_NETDEV_MTU = 9000
_GOOGLE_MTU = 8896  # the maximum of a VPC network, https://cloud.google.com/vpc/docs/mtu


def _mtu_evidence(port: Port) -> Evidence:
    mtu = _netdev_mtu(port)
    shown = "unknown" if isinstance(mtu, Unknown) else str(mtu)
    return Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/mtu", shown)


def _mtus(ports: tuple[Port, ...]) -> tuple[dict[str, int], Outcome | None]:
    """Return RDMA MTUs by port name, and the outcome if one is unknown."""
    mtus: dict[str, int] = {}
    missing: Outcome | None = None
    for port in ports:
        mtu = map_known(port.health, lambda health: health.roce_mtu_bytes)
        if isinstance(mtu, Unknown):
            missing = unknown_without("the netdevs' MTUs", mtu)
        else:
            mtus[port.name] = mtu
    return mtus, missing


def _netdev_mtu(port: Port) -> Maybe[int]:
    return map_known(port.health, lambda health: health.netdev_mtu_bytes)


def _with_full_mtu(port: Port) -> Port:
    full = map_known(port.health, lambda health: replace(health, roce_mtu_bytes=_FULL_MTU))
    return replace(port, health=full)


def _wanted_mtu(examination: Examination, port: Port, ports: Sequence[Port]) -> int:
    """Return the largest MTU of the ports of its board, or the network's usual MTU if that is too small."""
    board = by_board(ports).get(known(port.device.board_id, ""), [])
    peers = max((known(_netdev_mtu(peer), 0) for peer in board), default=0)
    if (roce_mtu(peers) or 0) >= _FULL_MTU:
        return peers
    platform = examination.node.platform
    hypervisor = "" if isinstance(platform, Unknown) else known(platform.hypervisor, "")
    return _GOOGLE_MTU if hypervisor == "Google" else _NETDEV_MTU


def _raise_mtu(examination: Examination, low: Sequence[Port], ports: Sequence[Port]) -> Plan:
    steps = []
    for port in low[:SHOWN]:
        mtu = _netdev_mtu(port)
        if isinstance(port.facts.netdev, Unknown) or isinstance(mtu, Unknown):
            continue
        why = f"Raise the MTU to fit 4096 bytes plus headers on {port.facts.netdev}"
        command = ("ip", "link", "set", "dev", port.facts.netdev, "mtu")
        wanted = _wanted_mtu(examination, port, ports)
        steps.append(Step(why, (*command, str(wanted)), undo=(*command, str(mtu))))
    return Plan(
        "Raise the MTU",
        tuple(steps),
        disturbs="the link of each port drops briefly",
        note="Set the switches and the peers to this MTU first; any MTU of 4200 bytes or more works. Set it "
        "in netplan or NetworkManager too.",
    )


@AREA.warning("mtu-mismatch", data_path=True)
def mtu_mismatch(examination: Examination) -> Outcome:
    """Compare the RDMA MTUs of active RoCE ports of one board."""
    ports = roce_ports(examination)
    mtus, missing = _mtus(ports)
    smaller, compared = _smaller(ports, mtus)
    if smaller:
        return found(
            f"{port_names(smaller)}: smaller MTU than on other ports of the same NIC model.",
            *first_n(_mtu_evidence(port) for port in compared),
            fix=_raise_mtu(examination, smaller, ports),
            devices=devices_of(smaller),
            gains=gains_of_ports(examination, map(_with_full_mtu, smaller)),
        )
    return missing or passed(*first_n(_mtu_evidence(port) for port in ports) or (NO_ROCE,))


def _smaller(ports: Sequence[Port], mtus: Mapping[str, int]) -> tuple[list[Port], list[Port]]:
    """Return the ports with a smaller MTU than others of their board, and all ports of these boards."""
    smaller: list[Port] = []
    compared: list[Port] = []
    for board in by_board(ports).values():
        sizes = [mtus[port.name] for port in board if port.name in mtus]
        if len(set(sizes)) > 1:
            compared += board
            smaller += [port for port in board if mtus.get(port.name, max(sizes)) < max(sizes)]
    return smaller, compared


@AREA.warning("mtu-mismatch-small", data_path=True, part_of=("mtu-mismatch",))
def mtu_mismatch_small(examination: Examination) -> Outcome:
    """Judge the RDMA MTU of active RoCE ports, which follows from the netdev's."""
    ports = roce_ports(examination)
    mtus, missing = _mtus(ports)
    small = [port for port in ports if mtus.get(port.name, _FULL_MTU) < _FULL_MTU]
    if small:
        least = min(mtus[port.name] for port in small)
        lost = round(100 * _HEADER_BYTES / (least + _HEADER_BYTES))  # of the wire rate
        return found(
            f"{port_names(small)}: RDMA uses the next power of two below the netdev's MTU, here {least} "
            "bytes.",
            *first_n(_mtu_evidence(port) for port in small),
            fix=_raise_mtu(examination, small, ports),
            devices=devices_of(small),
            impact=f"RDMA sends {least} instead of 4096 bytes per packet: {lost} % of the "
            "rate goes to headers instead of 2 %.",
            gains=gains_of_ports(examination, map(_with_full_mtu, small)),
        )
    return missing or passed(*first_n(_mtu_evidence(port) for port in ports) or (NO_ROCE,))


@AREA.warning("roce-lossless-off")
def roce_lossless_off(examination: Examination) -> Outcome:
    """Judge which priorities of active RoCE ports react to congestion (OFED's ecn/roce_rp).

    The kernel's own driver cannot disable ECN: the firmware's ROCE_CC_PRIO_MASK_P1 decides, by default for
    all priorities (MLNX_OFED manual, as above). A port that handles notifications proves it.
    """
    ports = roce_ports(examination)
    if not ports:
        return passed(NO_ROCE)
    off: list[Port] = []
    missing: Outcome | None = None
    for port in ports:
        ecn = map_known(port.health, lambda health: health.ecn_priorities)
        if isinstance(ecn, Unknown):
            if ecn.reason is not Reason.NOT_THERE:
                missing = unknown_without("the ECN settings of the RoCE ports", ecn)
        elif not ecn:
            off.append(port)
    if off:
        bdfs = (known(port.device.bdf, "") for port in off)
        return found(
            f"{port_names(off)}: ECN is disabled for every priority.",
            *first_n(_ecn(port, "0 for every priority") for port in off),
            fix=make_plan(
                "Enable ECN for the RDMA priority",
                "Write 1 to ecn/roce_rp/enable/N and ecn/roce_np/enable/N, where N is the site's "
                "RoCE priority. Set PFC and trust with mlnx_qos as on the switches.",
                *firmware_steps(examination, bdfs, CONGESTION_CONTROL),
                disturbs="the whole fabric if the settings differ from the switches' (use a maintenance "
                "window)",
            ),
            devices=devices_of(off),
        )
    return missing or passed(*first_n(map(_enabled, ports)))


def _enabled(port: Port) -> Evidence:
    """Return what shows that the driver leaves ECN on."""
    ecn = map_known(port.health, lambda health: health.ecn_priorities)
    if not isinstance(ecn, Unknown):
        return _ecn(port, "1 for at least one priority")
    handled = map_known(port.health, lambda health: health.hw_errors)
    count = known(known(handled, {}).get("rp_cnp_handled", 0), 0)
    if count:
        return Evidence(f"{port.path}/hw_counters/rp_cnp_handled", f"{count}: ECN works")
    return _ecn(port, "not found: this driver cannot disable ECN (mlxconfig shows ROCE_CC_PRIO_MASK_P1)")


def _ecn(port: Port, value: str) -> Evidence:
    netdev = known(port.facts.netdev, "?") if port.facts.bond is None else port.facts.bond.members[0].netdev
    return Evidence(f"/sys/class/net/{netdev}/ecn/roce_rp/enable", value)


# Checks of the traffic class of RoCE: what jobs ask for, compared with the port's lossless priorities.

CLASS, LEVEL, _NET = "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_NET"
_NVSHMEM_LEVEL = "NVSHMEM_IB_SL"
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
    variable: str = CLASS  # that sets it
    is_of_program: bool = False  # the program may have set another one

    @property
    def dscp(self) -> int:
        """The DSCP in the packets."""
        return self.traffic_class >> 2


def _requests(examination: Examination) -> Iterator[Request]:
    """Yield what each job that uses NCCL's own network, and RDMA CM, ask of each active RoCE port.

    OFED's traffic_class replaces the class of every queue pair of verbs (mlnx-ofa_kernel, hw/mlx5,
    tclass_get_tclass), and does not reach those that GPUs post to.
    """
    ports = _active(examination)
    qos = examination.qos
    for process, settings in jobs_of(examination).of_processes:
        if not settings.is_read or settings.get(_NET) not in (None, "IB"):
            continue
        used = used_devices(examination, settings)
        for port in ports:
            if port.device.name in used:
                yield _of_job(process, settings, port)
    for user in _posted_by_gpus(examination) if ports else ():
        used = used_devices(examination, user.settings)
        for port in ports:
            if port.device.name in used:
                yield user.request(port)
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


def _of_job(process: Process, settings: JobSettings, port: Port) -> Request:
    level = max(0, parse_number(settings.get(LEVEL) or "") or 0)
    by_driver = _driver_class(port)
    if by_driver is not None:
        path = f"{port.device.sysfs_path}/tc/{port.facts.number}/traffic_class"
        return Request(port, by_driver, level, Evidence(path, str(by_driver)), True)
    asked = parse_number(settings.get(CLASS) or "")
    if asked is not None and 0 <= asked < 256:
        return Request(port, asked, level, settings.evidence(CLASS, f"DSCP {asked >> 2}"), True)
    not_set = Evidence(f"/proc/{process.pid}/environ", f"{CLASS} is not set: DSCP 0")
    return Request(port, 0, level, not_set, False)


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


@AREA.warning("roce-class-not-lossless")
def roce_class_not_lossless(examination: Examination) -> Outcome:
    """Compare the class of each job's packets with the priorities that have PFC on its ports."""
    requests = list(_requests(examination))
    not_known = jobs_of(examination).not_known if _active(examination) else ""
    if not requests:
        return unknown(not_known) if not_known else passed(_NO_ROCE_JOB)
    facts = need(examination.qos, "the QoS settings of the RoCE netdevs")
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
                evidence.append(_wrong(request, netdev, qos, priority))
                wrong.append(request)
    if wrong:
        return _found(examination, wrong, evidence, facts.netdevs)
    if unread is not None:
        return unknown(needs("dcb (iproute2) or mlnx_qos", unread), requests[0].evidence)
    if not_known:
        return unknown(not_known)
    return passed(*first_distinct(fits) or (_NOBODY,))


def _active(examination: Examination) -> list[Port]:
    return [port for port in need_ports(examination) if port.is_ethernet and port.is_active]


def _found(
    examination: Examination, wrong: list[Request], evidence: list[Evidence], netdevs: Mapping[str, NetdevQos]
) -> Outcome:
    asked = list(dict.fromkeys(request.evidence for request in wrong))
    ports = list({request.port.name: request.port for request in wrong}.values())
    names = [name for port in ports for name in netdevs_of(port.facts) if name in netdevs]
    by_pcp = [name for name in names if netdevs[name].trusts_dscp is False]
    lossless = sorted({priority for name in names for priority in known(netdevs[name].pfc, ())})
    priorities = known(netdevs[names[0]].priorities, {})
    good = sorted(dscp for dscp, priority in priorities.items() if priority in lossless)
    shown = netdevs[names[0]].sources[-1]
    steps = [Step("Show how the port chooses priorities", tuple(shown.split()), needs_root=False)]
    classes = ", ".join(f"{dscp << 2} (DSCP {dscp})" for dscp in good[:8])
    which = f"one of {classes}" if classes else f"the class of priority {join_limited(map(str, lossless))}"
    if by_pcp:
        text = f"Trust DSCP on every RoCE netdev, as the switches do: mlnx_qos -i {by_pcp[0]} --trust dscp"
    else:
        variables = join_limited(request.variable for request in wrong)
        where = f"the job or {NCCL_CONF}" if variables.startswith("NCCL_") else "the job"
        text = f"Set {variables} in {where} to the class that the switches treat as lossless, "
        text += f"here {which}"
    steps.append(instruction(text, needs_root=bool(by_pcp)))
    if any(request.variable != CLASS for request in wrong):
        # nccl issue 2383: the only sign of GPU-posted packets there; hw_counters do not count their losses.
        text = f"Compare two outputs of ethtool -S {names[0]}: does tx_prio0_bytes rise?"
        steps.append(instruction(text, needs_root=False))
    own = ", unless the program sets another class" if all(request.is_of_program for request in wrong) else ""
    return found(
        about(
            affected(jobs_of(examination), asked),
            f"packets over {join_limited(port.name for port in ports)} are not in a priority with PFC{own}.",
        ),
        *asked[:_FEW],
        *first_distinct(evidence),
        fix=Plan(
            "Give the traffic the class that the network's QoS expects",
            tuple(steps),
            disturbs=RESTARTS,
            note="Change trust mode or PFC only across the whole fabric, in a maintenance window.",
        ),
        devices=devices_of(ports),
    )


@AREA.note("roce-class-overridden")
def roce_class_overridden(examination: Examination) -> Outcome:
    """Find ports with a class set in tc/PORT/traffic_class, and jobs with another NCCL_IB_TC."""
    evidence: list[Evidence] = []
    ports: list[Port] = []
    active = _active(examination)
    jobs = jobs_of(examination)
    for _, settings in jobs.of_processes:
        asked = parse_number(settings.get(CLASS) or "")
        if asked is None:
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
    rest = "" if not any(_posted_by_gpus(examination)) else ", but for those that GPUs post to"
    return found(
        about(
            affected(jobs, evidence), f"its queue pairs get the class that is set for the whole port{rest}."
        ),
        *first_distinct(evidence),
        fix=user_plan(
            "Set the class in one place",
            f"Set {CLASS} to the port's class, or remove it. To let jobs choose, clear the port's class.",
            disturbs=RESTARTS,
        ),
        devices=devices_of(ports),
    )


_FIRST_GIN_CLASS, _FIRST_OF_PROGRAM = (2, 30, 7), (2, 30, 3)


@frozen
class _GpuPosted:
    """A process whose GPU posts to queue pairs, and the class that it sets for them."""

    settings: JobSettings
    evidence: Evidence  # of the process
    variable: str  # that would set the class
    shown: Evidence  # of the class
    traffic_class: int
    level: int  # service level
    is_set: bool
    is_of_program: bool = False  # the program may have set another one

    def request(self, port: Port) -> Request:
        """Return what it asks of a port."""
        return Request(
            port, self.traffic_class, self.level, self.shown, self.is_set, self.variable, self.is_of_program
        )


def _posted_by_gpus(examination: Examination) -> Iterator[_GpuPosted]:
    """Yield the processes with GDAKI or IBGDA, whose queue pairs DEVX makes, without OFED's class.

    NVIDIA/nccl src/transport/net_ib/gin.cc of 2.28.7 to 2.31.2; NVIDIA/nvshmem ibgda.cpp of 3.4.5.
    """
    jobs = jobs_of(examination)
    of_nvshmem = ibgda_users(jobs, with_cpu=True)
    for process, settings in jobs.of_processes:
        if not settings.is_read:
            continue
        names: tuple[str, ...] = (NVSHMEM_CLASS,)
        version: tuple[int, ...] = ()
        level = parse_number(settings.get(_NVSHMEM_LEVEL) or "") or 0
        if gin_type(settings) == GDAKI:
            version = next((numbers for _, numbers in versions_of(process, "libnccl")), _FIRST_GIN_CLASS)
            names = (GIN_CLASS, CLASS) if version >= _FIRST_GIN_CLASS else (CLASS,)
            by = settings.evidence(GIN_TYPE)
        elif process.pid in of_nvshmem:
            by = of_nvshmem[process.pid]
        else:
            continue
        numbers = [(name, parse_number(settings.get(name) or "")) for name in names]
        is_set = [(name, number) for name, number in numbers if number is not None and number >= 0]
        name, value = is_set[0] if is_set else (names[0], 0)
        shown = settings.evidence(name) if is_set else Evidence(by.source, f"{name} is not set")
        is_of_program = not is_set and version >= _FIRST_OF_PROGRAM
        if version:  # gin_host_gdaki.cc: NCCL_IB_SL, else the class
            level = max(0, value if (own := parse_number(settings.get(LEVEL) or "")) is None else own)
        yield _GpuPosted(settings, by, names[0], shown, value, level, bool(is_set), is_of_program)


@AREA.note("roce-class-of-gpu")
def roce_class_of_gpu(examination: Examination) -> Outcome:
    """Find ports with a class set in tc/PORT/traffic_class, and jobs with GIN or IBGDA of another class."""
    evidence: list[Evidence] = []
    ports: list[Port] = []
    variables: dict[str, int] = {}
    has_own = False
    jobs, active = jobs_of(examination), _active(examination)
    for user in _posted_by_gpus(examination) if active else ():
        used = used_devices(examination, user.settings)
        for port in active:
            by_driver = _driver_class(port) if port.device.name in used else None
            if by_driver is None or by_driver >> 2 == user.traffic_class >> 2:
                continue
            path = f"{port.device.sysfs_path}/tc/{port.facts.number}/traffic_class"
            evidence += (user.evidence, user.shown, Evidence(path, str(by_driver)))
            ports.append(port)
            variables[user.variable] = by_driver
            has_own |= user.is_of_program
    if not evidence:
        return unknown(jobs.not_known) if jobs.not_known and active else passed(_NOBODY)
    own = ", unless the program sets another one" if has_own else ""
    return found(
        about(
            affected(jobs, evidence),
            "the driver gives the port's class to queue pairs of verbs only. Those that GPUs post to have "
            f"the class of their variable, by default 0{own}.",
        ),
        *first_distinct(evidence),
        fix=user_plan(
            "Give them the port's class",
            f"Set {join_limited(f'{name}={value}' for name, value in variables.items())} in the job",
            disturbs=RESTARTS,
        ),
        devices=devices_of(ports),
    )
