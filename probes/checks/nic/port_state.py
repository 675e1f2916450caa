"""Checks of RDMA ports' state and link layer."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction, sentences
from probes.base.unknown import Unknown, known
from probes.plans.ports import KEEP, enable_steps, link_type_plan, netdev_steps
from probes.queries.evidence_list import SHOWN, first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, end_with, found, need, passed
from probes.queries.ports import (
    NO_PORTS,
    Condition,
    Port,
    by_board,
    condition_of,
    cost_of_loss,
    devices_of,
    need_ports,
    port_names,
    ports_of,
)
from probes.snapshot.examination import Examination

AREA = Area("nic")
_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband"
_IBPORTSTATE = "ibportstate(8) of infiniband-diags"


def _ports_in(examination: Examination, wanted: Condition) -> list[Port]:
    """Return the ports in a condition; without any, end the check."""
    ports = need_ports(examination)
    if not ports:
        end_with(passed(NO_PORTS))
    conditions = [(port, condition_of(port)) for port in ports]
    chosen = [port for port, condition in conditions if condition is wanted]
    if not chosen:
        for _, condition in conditions:
            need(condition, "the port states")
        end_with(passed(*first_n(_state(port) for port in ports)))
    return chosen


def _state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/state", known(port.facts.state, "unknown"))


def _physical(port: Port) -> Evidence:
    return Evidence(f"{port.path}/phys_state", known(port.facts.physical_state, "unknown"))


# Impact of every port that is down; how much it is depends on the GPUs near it.
_LOST = (
    "The port carries no traffic: one rail less. GPUs near it share another NIC, or lose GPUDirect RDMA if "
    "there is none."
)


@AREA.check(
    "ib-port-not-active",
    Severity.CRITICAL,
    "An RDMA port has no link",
    _ABI,
    ok="Every enabled RDMA port has a link",
    impact=_LOST,
    data_path=True,
)
def port_without_signal(examination: Examination) -> Outcome:
    """Find ports that are down although they are enabled."""
    chosen = _ports_in(examination, Condition.NO_SIGNAL)
    show = [
        Step(f"Show cable, optics and signal of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m"))
        for port in chosen
        if not isinstance(port.device.bdf, Unknown)
    ][:2]
    return found(
        f"{port_names(chosen)}: no signal from the other end. The cable, optics or switch port is faulty, or "
        "nothing is plugged in.",
        *first_n(_physical(port) for port in chosen),
        fix=Plan(
            "Bring the link up",
            (*show, instruction("Reseat or replace the cable, and check the switch port.", needs_root=False)),
            note="If the port is not meant to be used, exclude this check with --skip.",
        ),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
        part_of=("link-layer-wrong",) if _are_wrong(examination, chosen) else (),
    )


def _are_wrong(examination: Examination, chosen: list[Port]) -> bool:
    """Whether all of these ports are down because they use the wrong link layer."""
    ports = ports_of(examination)
    wrong = set() if isinstance(ports, Unknown) else {port.name for port in _of_another_layer(ports)}
    return {port.name for port in chosen} <= wrong


@AREA.check(
    "ib-port-not-active-disabled",
    Severity.CRITICAL,
    "An InfiniBand port is disabled",
    _IBPORTSTATE,
    ok="No InfiniBand port is disabled",
    impact=_LOST,
    data_path=True,
)
def port_disabled(examination: Examination) -> Outcome:
    """Find InfiniBand ports whose physical state is Disabled."""
    chosen = _ports_in(examination, Condition.DISABLED)
    return found(
        f"{port_names(chosen)}: disabled by an admin, on this node or at the switch.",
        *first_n(_physical(port) for port in chosen),
        fix=Plan("Enable the port", enable_steps(chosen)),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-netdev-down",
    Severity.CRITICAL,
    "A RoCE port is down because its netdev is",
    "ip-link(8) of iproute2",
    ok="The netdev of every RoCE port is up",
    impact=_LOST,
    data_path=True,
)
def netdev_down(examination: Examination) -> Outcome:
    """Find RoCE ports whose netdev is set down."""
    chosen = _ports_in(examination, Condition.NETDEV_DOWN)
    return found(
        f"{port_names(chosen)}: a RoCE port follows its netdev, and the netdev is set down.",
        *first_n(
            Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/flags", "IFF_UP is not set")
            for port in chosen
        ),
        fix=Plan("Set the netdev up", netdev_steps(chosen), note=sentences(KEEP)),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-no-subnet-manager",
    Severity.CRITICAL,
    "An InfiniBand port has no subnet manager",
    "opensm(8)",
    ok="Every InfiniBand port knows a subnet manager",
    impact=_LOST,
    data_path=True,
)
def no_subnet_manager(examination: Examination) -> Outcome:
    """Find ports in state INIT without a subnet manager."""
    chosen = _ports_in(examination, Condition.NO_SUBNET_MANAGER)
    return found(
        f"{port_names(chosen)}: the link is up, but no subnet manager has configured the port.",
        *first_n(Evidence(f"{port.path}/sm_lid", "0x0") for port in chosen),
        *first_n(_state(port) for port in chosen[:1]),
        fix=_subnet_manager(chosen[0]),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-subnet-manager-stalled",
    Severity.CRITICAL,
    "The subnet manager has not finished configuring an InfiniBand port",
    "opensm(8)",
    ok="No InfiniBand port is half configured",
    impact=_LOST,
    data_path=True,
)
def subnet_manager_stalled(examination: Examination) -> Outcome:
    """Find ports in state ARMED, or in INIT with a known subnet manager."""
    chosen = _ports_in(examination, Condition.STALLED)
    return found(
        f"{port_names(chosen)}: the subnet manager stopped halfway, is overloaded or refuses this port.",
        *first_n(_state(port) for port in chosen),
        fix=_subnet_manager(chosen[0]),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


def _subnet_manager(port: Port) -> Plan:
    ask = Step(
        "Query the fabric's subnet manager",
        ("sminfo", "-C", port.device.name, "-P", str(port.facts.number)),
    )
    start = instruction(
        "Start or repair the subnet manager: on the switch, in UFM, or opensm on one node.", False
    )
    return Plan("Have the subnet manager configure the port", (ask, start))


@AREA.check(
    "link-layer-wrong",
    Severity.CRITICAL,
    "A port has another link layer than the ports of the same board",
    "NVIDIA MFT manual, mlxconfig: LINK_TYPE_P1, "
    "https://docs.nvidia.com/networking/display/mftv4320/mlxconfig",
    ok="No port is down because of its link layer",
    impact=_LOST,
    data_path=True,
)
def link_layer_wrong(examination: Examination) -> Outcome:
    """Find ports that are down and have another link layer than most ports of the same board."""
    ports = need_ports(examination)
    odd = _of_another_layer(ports)
    if odd:
        layer = known(odd[0].facts.link_layer, "")
        return found(
            f"{port_names(odd)}: {layer} without a link, unlike most ports of the same board. The link type "
            "of the card is wrong, or the cable is in the wrong switch.",
            *first_n(Evidence(f"{port.path}/link_layer", str(port.facts.link_layer)) for port in odd),
            fix=link_type_plan(examination, odd[:SHOWN], "2" if layer == "InfiniBand" else "1"),
            severity=cost_of_loss(examination, odd),
            devices=devices_of(odd),
        )
    for port in ports:
        need(port.facts.link_layer, "the link layers of the ports")
    return passed(
        *first_n(Evidence(f"{port.path}/link_layer", str(port.facts.link_layer)) for port in ports)
        or (NO_PORTS,)
    )


def _of_another_layer(ports: tuple[Port, ...]) -> list[Port]:
    odd: list[Port] = []
    for board in by_board(ports).values():
        layers = [known(port.facts.link_layer, "") for port in board]
        usual = max(sorted(set(layers)), key=layers.count)
        # Half and half is a plan: one fabric for compute, the other for storage.
        if usual and 2 * layers.count(usual) > len(board):
            odd += [port for port, layer in zip(board, layers, strict=True) if layer not in (usual, "")]
    # One that works serves another fabric, and is meant to; one of the wrong type never comes up.
    return [port for port in odd if not port.is_active]
