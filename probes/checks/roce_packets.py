"""Checks of RoCE ports' MTU, and of what keeps the fabric from losing packets."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import Port, alike, devices_of, names
from probes.checks.roce import NO_ROCE, roce_ports
from probes.checks.wording import SHOWN, at_most
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.unknown import Unknown, known

AREA = Area("nic")
_FULL_MTU = 4096
_NETDEV_MTU = 9000
_MTU_REFERENCE = "Linux, include/rdma/ib_addr.h, iboe_get_mtu"


def _mtu_evidence(port: Port) -> Evidence:
    mtu = port.health if isinstance(port.health, Unknown) else port.health.netdev_mtu_bytes
    shown = "unknown" if isinstance(mtu, Unknown) else str(mtu)
    return Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/mtu", shown)


def _mtus(ports: tuple[Port, ...]) -> tuple[dict[str, int], Outcome | None]:
    """RDMA MTU by the port's name, and what to say where one is not known."""
    mtus: dict[str, int] = {}
    missing: Outcome | None = None
    for port in ports:
        mtu = port.health if isinstance(port.health, Unknown) else port.health.roce_mtu_bytes
        if isinstance(mtu, Unknown):
            missing = unsure(f"needs the MTU of {port.name}'s netdev: {mtu}")
        else:
            mtus[port.name] = mtu
    return mtus, missing


def _raise_mtu(ports: list[Port]) -> Plan:
    steps = []
    for port in ports[:SHOWN]:
        mtu = port.health if isinstance(port.health, Unknown) else port.health.netdev_mtu_bytes
        if isinstance(port.facts.netdev, Unknown) or isinstance(mtu, Unknown):
            continue
        command = ("ip", "link", "set", "dev", port.facts.netdev, "mtu")
        steps.append(
            Step(
                f"gives {port.facts.netdev} room for 4096 bytes and headers",
                (*command, str(_NETDEV_MTU)),
                undo=(*command, str(mtu)),
            )
        )
    return Plan(
        "Raise the MTU",
        tuple(steps),
        disturbs="a short loss of the link on each of these ports",
        note="the switches and all other hosts must allow it first; set it in netplan or NetworkManager too",
    )


@AREA.check("mtu-mismatch", Severity.WARNING, "equal RoCE ports have different MTUs", _MTU_REFERENCE)
def mtu_differs(examination: Examination) -> Outcome:
    """RDMA MTUs of active RoCE ports of one board."""
    ports = roce_ports(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    mtus, missing = _mtus(ports)
    smaller: list[Port] = []
    shown: list[Port] = []
    for board in alike(ports).values():
        sizes = [mtus[port.name] for port in board if port.name in mtus]
        if len(set(sizes)) > 1:
            shown += board
            smaller += [port for port in board if mtus.get(port.name, max(sizes)) < max(sizes)]
    if smaller:
        return found(
            f"{names(smaller)}: a smaller MTU than others of the same board. Where two ends differ, small "
            "messages pass and large ones fail or slow down",
            *at_most(_mtu_evidence(port) for port in shown),
            fix=_raise_mtu(smaller),
            devices=devices_of(smaller),
        )
    return missing or passed(*at_most(_mtu_evidence(port) for port in ports) or (NO_ROCE,))


@AREA.check(
    "mtu-mismatch-small",
    Severity.WARNING,
    "a RoCE port carries less than 4096 bytes a packet",
    _MTU_REFERENCE,
)
def mtu_small(examination: Examination) -> Outcome:
    """RDMA MTUs of active RoCE ports, which follow from the netdev's."""
    ports = roce_ports(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    mtus, missing = _mtus(ports)
    small = [port for port in ports if mtus.get(port.name, _FULL_MTU) < _FULL_MTU]
    if small:
        return found(
            f"{names(small)}: RDMA takes the next power of two below the netdev's MTU, here "
            f"{min(mtus[port.name] for port in small)} bytes instead of 4096",
            *at_most(_mtu_evidence(port) for port in small),
            fix=_raise_mtu(small),
            devices=devices_of(small),
        )
    return missing or passed(*at_most(_mtu_evidence(port) for port in ports) or (NO_ROCE,))


@AREA.check(
    "roce-lossless-off",
    Severity.WARNING,
    "a RoCE port does not slow down when the fabric is congested",
    "NVIDIA MLNX_OFED manual, Explicit Congestion Notification, "
    "https://docs.nvidia.com/networking/display/mlnxofedv24100700/explicit+congestion+notification+(ecn)",
)
def ecn_off(examination: Examination) -> Outcome:
    """Priorities of active RoCE ports that react to congestion (OFED's ecn/roce_rp)."""
    ports = roce_ports(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    if not ports:
        return passed(NO_ROCE)
    off: list[Port] = []
    missing: Outcome | None = None
    for port in ports:
        ecn = port.health if isinstance(port.health, Unknown) else port.health.ecn_priorities
        if isinstance(ecn, Unknown):
            # The kernel's own driver keeps them in debugfs (cc_params), which is root's.
            missing = unsure("needs OFED's driver: the kernel's own shows ECN to root alone, in debugfs")
        elif not ecn:
            off.append(port)
    if off:
        return found(
            f"{names(off)}: ECN is off for every priority. With many hosts packets get lost, and RoCE slows "
            "to a crawl",
            *at_most(_ecn(port, "0 for every priority") for port in off),
            fix=Plan(
                "Turn ECN on for the priority of RDMA",
                (
                    instruction(
                        "write 1 to ecn/roce_rp/enable and ecn/roce_np/enable of the site's RoCE priority, "
                        "and set PFC and trust by mlnx_qos as the switches have them"
                    ),
                ),
                disturbs="the whole fabric where the settings differ from the switches': do it in a window",
            ),
            devices=devices_of(off),
        )
    return missing or passed(*at_most(_ecn(port, "1 for some priority") for port in ports))


def _ecn(port: Port, value: str) -> Evidence:
    return Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/ecn/roce_rp/enable", value)
