"""Enable RDMA ports, set their link type, reset their error counters, and look at NIC firmware settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.base.plan import NothingToDo, Plan, Step, instruction, make_plan, sentences
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.facts.pci.functions import PciKind
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.rdma.devices import RdmaDevice
from probes.plans.common import card_of
from probes.queries.pcie_paths import functions_of, is_gb10, is_guest
from probes.queries.ports import Port, PortProblem, ports_of, problem_of
from probes.snapshot.examination import Examination

_ERRORS = "0xfff"  # the twelve error counters of PortCounters, perfquery(8)
KEEP = "to keep the netdevs up, configure them in netplan or NetworkManager"


def raise_ports(examination: Examination) -> Plan | str:
    """Enable every disabled port of a NIC, except virtual functions of this node's own NICs."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return f"the RDMA ports could not be read: {ports}"
    ports = tuple(port for port in ports if not _is_virtual_function(examination, port))
    if not ports:
        return "no NIC has an RDMA port"
    problems = [(port, problem_of(port)) for port in ports]
    disabled = [port for port, problem in problems if problem is PortProblem.DISABLED]
    down = [port for port, problem in problems if problem is PortProblem.NETDEV_DOWN]
    steps = (*enable_steps(disabled), *netdev_steps(down))
    unknown = [(port, problem) for port, problem in problems if isinstance(problem, Unknown)]
    unread = "; ".join(f"the state of {port.name} is unknown: {problem}" for port, problem in unknown[:4])
    if not steps:
        return unread or NothingToDo(f"none of the {len(ports)} ports is disabled")
    return Plan("Enable disabled ports", steps, note=sentences(KEEP if down else "", unread))


def _is_virtual_function(examination: Examination, port: Port) -> bool:
    """Return whether it is a virtual function of a NIC on this node, which its guest enables."""
    bdf = _physical(examination, port)
    owner = functions_of(examination).get(bdf)
    return bdf != port.device.bdf and owner is not None and owner.kind is PciKind.NIC


def port_query(port: Port) -> tuple[str, ...]:
    """Return the command that queries an InfiniBand port of this NIC, by the empty directed route."""
    number = str(port.facts.number)
    return ("ibportstate", "-C", port.device.name, "-P", number, "-D", "0", number)


def enable_steps(ports: Sequence[Port]) -> tuple[Step, ...]:
    """Enable InfiniBand ports (ibportstate(8))."""
    steps = []
    for port in ports:
        command = port_query(port)
        why, disable = f"Enable {port.name}, which starts link training", (*command, "disable")
        steps.append(Step(why, (*command, "enable"), undo=disable, group="InfiniBand ports"))
    return tuple(steps)


def netdev_steps(ports: Sequence[Port]) -> tuple[Step, ...]:
    """Set up the netdevs that decide the state of RoCE ports (ip-link(8))."""
    return tuple(
        Step(
            f"Set {netdev} up, which brings {port.name} up",
            ("ip", "link", "set", "dev", netdev, "up"),
            undo=("ip", "link", "set", "dev", netdev, "down"),
            group="netdevs",
        )
        for port in ports
        if not isinstance(netdev := port.facts.netdev, Unknown)
    )


def link_type_plan(examination: Examination, ports: Sequence[Port], kind: str) -> Plan:
    """Set the link type of ports, "1" InfiniBand or "2" Ethernet, and reset their cards.

    mlxconfig numbers the ports of a card and the kernel those of a function: with one function per port,
    function .1 is P2 (NVIDIA MFT manual, mlxconfig). mlxfwreset resets the whole card, so all its ports are
    listed.
    """
    steps: list[Step] = []
    interrupted: list[str] = []
    cards = dict.fromkeys(card_of(bdf) for port in ports if (bdf := _physical(examination, port)))
    for card in cards:
        here = [port for port in ports if card_of(_physical(examination, port)) == card]
        steps += _card_steps(examination, here, kind)
        interrupted.append(join_limited(_ports_of_card(examination, card)))
    return Plan(
        "Set the link type and reset the NIC",
        tuple(steps),
        disturbs=f"every connection over {'; '.join(interrupted)} (the reset takes down all ports of a card)",
        note="SSH sessions over these ports are listed before this runs. gdrtop cannot see where a cable "
        "ends: move one that is plugged into the wrong switch instead.",
    )


def _card_steps(examination: Examination, ports: Sequence[Port], kind: str) -> tuple[Step, Step]:
    """Set the type of a card's ports and reset it; the undo sets the old type and resets it."""
    bdf = _physical(examination, ports[0])
    reset = ("mlxfwreset", "-d", bdf, "reset")
    command = ("mlxconfig", "-d", bdf, "set")
    parameters = [_parameter_of(examination, port) for port in ports]
    other, layer = ("1", "Ethernet") if kind == "2" else ("2", "InfiniBand")
    return (
        Step(
            f"Set {join_limited(port.name for port in ports)} to {layer} at the card's next reset",
            (*command, *(f"{name}={kind}" for name in parameters)),
            undo=reset,
        ),
        Step(
            f"Reset the card {card_of(bdf)} to apply the setting",
            reset,
            undo=(*command, *(f"{name}={other}" for name in parameters)),
        ),
    )


def _physical(examination: Examination, port: Port) -> str:
    """Return the physical function of a port, which decides the link type of its virtual functions."""
    bdf = known(port.device.bdf, "")
    function = functions_of(examination).get(bdf)
    return (function.physical_function if function else None) or bdf


def _parameter_of(examination: Examination, port: Port) -> str:
    shares_function = len(port.device.ports) > 1  # mlx4: one function for all ports
    function = int(_physical(examination, port).rpartition(".")[2])
    return f"LINK_TYPE_P{port.facts.number if shares_function else function + 1}"


def _ports_of_card(examination: Examination, card: str) -> list[str]:
    """Return the ports of all functions of a card, with their netdevs."""
    return [
        f"{port.name} ({netdev})" if (netdev := known(port.facts.netdev, "")) else port.name
        for port in known(ports_of(examination), ())
        if card_of(_physical(examination, port)) == card
    ]


def zero_counters(ports: Sequence[Port]) -> Plan:
    """Reset the error counters of InfiniBand ports; those of RoCE ports cannot be reset.

    perfquery sends management datagrams over QP0, which an Ethernet port does not have
    (drivers/infiniband/core/mad.c); sysfs and the NIC's own counters are read-only.
    """
    roce = [port for port in ports if port.is_ethernet]
    steps = [_zero_step(port) for port in ports if not port.is_ethernet]
    if roce:
        netdevs = join_limited(known(port.facts.netdev, f"the netdev of {port.name}") for port in roce)
        steps.append(
            instruction(
                f"Read the wider counters of ethtool -S ({netdevs}), such as rx_symbol_err_phy. The counters "
                f"of RoCE ports ({join_limited(port.name for port in roce)}) cannot be reset.",
                needs_root=False,
            )
        )
    return Plan(
        "Reset the error counters" if len(roce) < len(ports) else "Read wider counters",
        tuple(steps),
        note="Monitoring tools see these counters drop." if len(roce) < len(ports) else "",
    )


def _zero_step(port: Port) -> Step:
    """Reset one port, by its LID: without an address perfquery accepts no mask."""
    number, lid = str(port.facts.number), known(port.facts.lid, 0)
    command = ("perfquery", "-C", port.device.name, "-P", number, "-R")
    if lid:
        by_lid = (*command, str(lid), number, _ERRORS)
        return Step(f"Reset only the error counters of {port.name}", by_lid, group="ports")
    return Step(f"Reset all counters of {port.name}, including the traffic counters", command)


# Settings in the firmware of NVIDIA NICs, which only mlxconfig of MFT shows: manual steps, never a finding.
# Sources: NVIDIA MFT manual, mlxconfig; NVIDIA Network Operator, NIC Configuration Operator, Configuration
# Details, https://docs.nvidia.com/networking/display/kubernetes2670/nic-conf-operator/configuration-details.html;
# NVIDIA AI Enterprise, Optimizing VM Configuration for AI Inference, ATS and ACS configuration.


WRITE_ORDERING = (
    "PCI_WR_ORDERING",
    "per_mkey(0) relaxes the writes of programs that ask for it, as NCCL does; force_relax(1) relaxes all",
)
READS_IN_FLIGHT = (
    "ADVANCED_PCI_SETTINGS MAX_ACC_OUT_READ",
    "MAX_ACC_OUT_READ 0 lets the firmware choose how many reads are in flight. A low number limits "
    "reads. It is shown only if ADVANCED_PCI_SETTINGS is True(1)",
)
CONGESTION_CONTROL = (
    "ROCE_CC_PRIO_MASK_P1",
    "255 means congestion control for all priorities, 0 for none. A reset restores this value",
)


def firmware_steps(
    examination: Examination, bdfs: Iterable[str], setting: tuple[str, str]
) -> tuple[Step, ...]:
    """Return the step that shows a setting of the first NIC of NVIDIA among these; () if there is none."""
    functions = functions_of(examination)
    cards = [bdf for bdf in bdfs if bdf in functions and functions[bdf].vendor_id == CONNECTX.vendor]
    if not cards:
        return ()
    parameters, expected = setting
    others = " (the same for the other NICs)" if len(cards) > 1 else ""
    command = f"mlxconfig -d {cards[0]} q {parameters}"
    return (instruction(f"Look at the firmware settings: `{command}`{others}. {expected}."),)


# A PSID that begins with MT_ is NVIDIA's own board; DEL, HPE, LNV, IBM and others are of who sells the
# machine, NVD of NVIDIA's own machines (DGX, GB200). NVIDIA MFT manual, mlxfwmanager and mlxfwreset.
_OWN_BOARD = "MT_"


def update_firmware(examination: Examination, title: str, nics: Sequence[RdmaDevice]) -> Plan:
    """Return the plan that updates the firmware of NICs: with NVIDIA's tool if the boards are its own."""
    own = [nic for nic in nics if known(nic.board_id, _OWN_BOARD).startswith(_OWN_BOARD)]
    others = [nic for nic in nics if nic not in own]
    boards = join_limited(known(nic.board_id, "") for nic in others)
    steps: list[Step | str] = [Step("Show installed and available firmware", ("mlxfwmanager", "--query"))]
    if is_guest(examination) is True:
        steps.append("Ask the provider of this virtual machine: guests often cannot change a NIC's firmware")
    steps.append("Drain the node")
    if own:
        command = f"`mlxfwmanager --online -u -d {known(own[0].bdf, 'BDF')}`"
        more = " (the same for the other NICs)" if len(own) > 1 else ""
        steps.append(f"Install it: {command}{more}; offline, -i with the image for its PSID")
    if is_gb10(examination) and others:
        steps.append("Install the newest firmware of the machine: fwupdmgr refresh, then fwupdmgr update")
    elif others:
        steps.append(
            f"Ask the maker of the machine for firmware of {boards} and its notes, and install it with the "
            "maker's tool: its builds may have other numbers than NVIDIA's"
        )
    reset = f"`mlxfwreset -d {known(nics[0].bdf, 'BDF')} reset`"
    steps.append(f"Activate it: {reset} for each card, or a power cycle")
    return make_plan(
        title, *steps, disturbs="processes that use these NICs, which disappear during the reset"
    )
