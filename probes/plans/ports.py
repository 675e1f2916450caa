"""Setting RDMA ports up that somebody has set down, and their error counters to zero."""

from __future__ import annotations

from collections.abc import Sequence

from probes.checks.pcie_paths import functions_of
from probes.checks.port_condition import Condition, condition_of
from probes.checks.port_use import Port, ports_of
from probes.checks.wording import several
from probes.examination import Examination
from probes.pci import PciKind
from probes.plan import Plan, Step, instruction
from probes.unknown import Unknown, known

_ERRORS = "0xfff"  # the twelve of PortCounters that count errors, perfquery(8)
KEEP = "name the netdevs in netplan or NetworkManager to keep them so"


def raise_ports(examination: Examination) -> Plan | str:
    """Sets up every port of a NIC that is down by somebody's word, but for shares of this node's own NICs."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return f"which RDMA ports there are is unknown: {ports}"
    ports = tuple(port for port in ports if not _is_share(examination, port))
    if not ports:
        return "no RDMA port of a NIC here"
    conditions = [(port, condition_of(port)) for port in ports]
    disabled = [port for port, condition in conditions if condition is Condition.DISABLED]
    down = [port for port, condition in conditions if condition is Condition.NETDEV_DOWN]
    steps = (*enable_steps(disabled), *netdev_steps(down))
    unknown = [(port, condition) for port, condition in conditions if isinstance(condition, Unknown)]
    told = "; ".join(f"the state of {port.name} is unknown: {condition}" for port, condition in unknown[:4])
    if not steps:
        return told or f"none of {len(ports)} ports is switched off"
    return Plan(
        "Set ports up that are switched off",
        steps,
        note="; ".join(filter(None, (KEEP if down else "", told))),
    )


def _is_share(examination: Examination, port: Port) -> bool:
    """Whether it is a virtual function of a NIC on this node: those wait for guests that set them up."""
    functions = functions_of(examination)
    function = functions.get(known(port.device.bdf, ""))
    owner = functions.get((function.physical_function if function else None) or "")
    return owner is not None and owner.kind is PciKind.NIC


def enable_steps(ports: Sequence[Port]) -> tuple[Step, ...]:
    """Enables InfiniBand ports (ibportstate(8): the port of this NIC, by the empty directed route)."""
    steps = []
    for port in ports:
        number = str(port.facts.number)
        command = ("ibportstate", "-C", port.device.name, "-P", number, "-D", "0", number)
        steps.append(
            Step(
                f"enables {port.name}, which trains its link then",
                (*command, "enable"),
                undo=(*command, "disable"),
            )
        )
    return tuple(steps)


def netdev_steps(ports: Sequence[Port]) -> tuple[Step, ...]:
    """Sets up the netdevs that RoCE ports follow (ip-link(8))."""
    return tuple(
        Step(
            f"sets {netdev} up, and {port.name} with it",
            ("ip", "link", "set", "dev", netdev, "up"),
            undo=("ip", "link", "set", "dev", netdev, "down"),
        )
        for port in ports
        if not isinstance(netdev := port.facts.netdev, Unknown)
    )


def zero_counters(ports: Sequence[Port]) -> Plan:
    """Sets the error counters to zero, which on RoCE ports nothing can.

    Perfquery asks by management datagrams and wants QP0 for it, which an Ethernet port has not
    (drivers/infiniband/core/mad.c); of sysfs and of the NIC's own counters there is only reading.
    """
    roce = [port for port in ports if port.is_ethernet]
    steps = [_zero_step(port) for port in ports if not port.is_ethernet]
    if roce:
        netdevs = several(known(port.facts.netdev, f"the netdev of {port.name}") for port in roce)
        steps.append(
            instruction(
                f"{several(port.name for port in roce)}: nothing sets these counters of a RoCE port to zero; "
                f"read the wider ones of ethtool -S instead ({netdevs}), as rx_symbol_err_phy",
                needs_root=False,
            )
        )
    return Plan(
        "Set the counters to zero" if len(roce) < len(ports) else "Read wider counters",
        tuple(steps),
        reversible=len(roce) == len(ports),
        note="whoever watches these counters sees them jump back" if len(roce) < len(ports) else "",
    )


def _zero_step(port: Port) -> Step:
    """With the port's own LID, for without an address there is no place for the mask."""
    number, lid = str(port.facts.number), known(port.facts.lid, 0)
    command = ("perfquery", "-C", port.device.name, "-P", number, "-R")
    if lid:
        return Step(
            f"sets the error counters of {port.name} to zero, and no others",
            (*command, str(lid), number, _ERRORS),
        )
    return Step(f"sets the counters of {port.name} to zero, those of its traffic too", command)
