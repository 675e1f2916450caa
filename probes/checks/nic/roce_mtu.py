"""Checks of the MTU and congestion control of RoCE ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.bandwidth.model.gains import gains_of_ports
from probes.base.plan import Plan, Step, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.nic.roce_gids import NO_ROCE, roce_ports
from probes.facts.rdma.port_health import roce_mtu
from probes.plans.ports import look_at_congestion_control
from probes.queries.evidence_list import SHOWN, first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown_without
from probes.queries.ports import Port, by_board, devices_of, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic")
# Preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, gap 12: RoCE v2 on the wire.
_HEADER_BYTES = 82
_FULL_MTU = 4096
_NETDEV_MTU = 9000
_GOOGLE_MTU = 8896  # the maximum of a VPC network, https://cloud.google.com/vpc/docs/mtu
_MTU_REFERENCE = "Linux, include/rdma/ib_addr.h, iboe_get_mtu"


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


@AREA.check(
    "mtu-mismatch",
    Severity.WARNING,
    "RoCE ports of the same NIC model have different MTUs",
    _MTU_REFERENCE,
    ok="RoCE ports of the same NIC model have the same MTU",
    impact="To a peer with another MTU, small messages get through, but large ones fail or slow down.",
    data_path=True,
)
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


@AREA.check(
    "mtu-mismatch-small",
    Severity.WARNING,
    "A RoCE port sends less than 4096 bytes per packet",
    _MTU_REFERENCE,
    ok="RoCE ports send 4096 bytes per packet",
    impact="The same data needs more packets, so headers take a larger share of the rate and the NIC has "
    "more work.",
    data_path=True,
    part_of=("mtu-mismatch",),
)
def mtu_mismatch_small(examination: Examination) -> Outcome:
    """Judge the RDMA MTU of active RoCE ports, which follows from the netdev's."""
    ports = roce_ports(examination)
    mtus, missing = _mtus(ports)
    small = [port for port in ports if mtus.get(port.name, _FULL_MTU) < _FULL_MTU]
    if small:
        least = min(mtus[port.name] for port in small)
        return found(
            f"{port_names(small)}: RDMA uses the next power of two below the netdev's MTU, here {least} "
            "bytes.",
            *first_n(_mtu_evidence(port) for port in small),
            fix=_raise_mtu(examination, small, ports),
            devices=devices_of(small),
            impact=f"RDMA sends {least} instead of 4096 bytes per packet: {_share_lost(least)} % of the "
            "rate goes to headers instead of 2 %.",
            gains=gains_of_ports(examination, map(_with_full_mtu, small)),
        )
    return missing or passed(*first_n(_mtu_evidence(port) for port in ports) or (NO_ROCE,))


def _share_lost(payload_bytes: int) -> int:
    """Return the percentage of the wire rate that RoCE v2 headers and framing use."""
    return round(100 * _HEADER_BYTES / (payload_bytes + _HEADER_BYTES))


@AREA.check(
    "roce-lossless-off",
    Severity.WARNING,
    "Congestion control (ECN) is disabled on a RoCE port",
    "NVIDIA MLNX_OFED manual, Explicit Congestion Notification, "
    "https://docs.nvidia.com/networking/display/mlnxofedv24100700/explicit+congestion+notification+(ecn)",
    ok="No driver setting disables congestion control (ECN) on a RoCE port",
    impact="The port does not slow down when the fabric is congested. With many hosts, packets are lost and "
    "throughput collapses.",
)
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
        return found(
            f"{port_names(off)}: ECN is disabled for every priority.",
            *first_n(_ecn(port, "0 for every priority") for port in off),
            fix=make_plan(
                "Enable ECN for the RDMA priority",
                "Write 1 to ecn/roce_rp/enable/N and ecn/roce_np/enable/N, where N is the site's "
                "RoCE priority. Set PFC and trust with mlnx_qos as on the switches.",
                *look_at_congestion_control(examination, (known(port.device.bdf, "") for port in off)),
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
