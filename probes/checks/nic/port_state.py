"""Checks of RDMA ports' state and link layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from probes.bandwidth.model.gains import as_fast_as_its_board, gains_of_ports
from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import Plan, Step, sentences, user_plan
from probes.base.text import SHOWN
from probes.base.unknown import Unknown, known
from probes.plans.ports import KEEP, enable_steps, link_type_plan, netdev_steps
from probes.queries.finding import Area, Outcome, PairGain, end_with, found, need, passed
from probes.queries.ports import (
    NO_PORTS,
    Port,
    PortProblem,
    by_board,
    cost_of_loss,
    devices_of,
    need_ports,
    port_names,
    problem_of,
)
from probes.snapshot.condition import FLAPPING
from probes.snapshot.examination import Examination

AREA = Area("nic")
_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband"


def _state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/state", known(port.facts.state, "unknown"))


def _physical_state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/phys_state", known(port.facts.physical_state, "unknown"))


def _link_layer(port: Port) -> Evidence:
    return Evidence(f"{port.path}/link_layer", str(port.facts.link_layer))


# Impact of every port that is down; how much it is depends on the GPUs near it.
_LOST = (
    "The port carries no traffic, so one rail is missing. GPUs near it share another NIC, or lose GPUDirect"
    " RDMA if there is none."
)

_LOST_BESIDE = (
    "The port carries no traffic. No GPU is near it: storage or management may be affected, no rail is."
)

# Linux ib_verbs.h, IB_PORT_ACTIVE_DEFER; InfiniBand specification, link state machine.
_LINK_LOST = (
    "active, but without its link, and the port waits for the link to come back. If it does not, the cable, "
    "optics or switch port is faulty."
)


def _ports_in(examination: Examination, wanted: PortProblem) -> list[Port]:
    """Return the ports with a problem; without any, end the check."""
    ports = need_ports(examination)
    if not ports:
        end_with(passed(NO_PORTS))
    problems = [(port, problem_of(port)) for port in ports]
    chosen = [port for port, problem in problems if problem is wanted]
    if not chosen:
        for _, problem in problems:
            need(problem, "the port states")
        end_with(passed(*first_n(_state(port) for port in ports)))
    return chosen


def _add_check(
    name: str,
    title: str,
    reference: str,
    *,
    ok: str,
    problem: PortProblem,
    cause: str,
    evidence: Callable[[Port], Evidence],
    fix: Callable[[list[Port]], Plan],
) -> None:
    """Add a check that finds ports with a problem; its severity depends on the GPUs that need them."""
    part_of = ("link-layer-wrong", FLAPPING) if problem is PortProblem.NO_SIGNAL else (FLAPPING,)

    @AREA.critical(name, title, reference, ok=ok, impact=_LOST, data_path=True, part_of=part_of)
    def judge(examination: Examination) -> Outcome:
        ports = _ports_in(examination, problem)
        severity = cost_of_loss(examination, ports)
        is_deferred = all(port.facts.state == "ACTIVE_DEFER" for port in ports)
        shows_state = is_deferred or problem is PortProblem.NO_SUBNET_MANAGER
        return found(
            f"{port_names(ports)}: {_LINK_LOST if is_deferred else cause}",
            *first_n(evidence(port) for port in ports),
            *((_state(ports[0]),) if shows_state else ()),
            fix=fix(ports),
            severity=severity,
            devices=devices_of(ports),
            impact=_impact(examination, ports),
            gains=_gains(examination, ports, severity),
        )


def _impact(examination: Examination, ports: Iterable[Port]) -> str:
    """Return what is lost with ports that no GPU is near; "": the check's own text."""
    near = set(examination.topology.nics_near_gpus)
    return "" if near.intersection(port.device.name for port in ports) else _LOST_BESIDE


def _gains(examination: Examination, down: Iterable[Port], loss: Severity) -> tuple[PairGain, ...]:
    """Return what the ports bring if they come up at the rate of their board's other ports."""
    if loss is Severity.NOTE:  # spare ports bring nothing
        return ()
    ports = need_ports(examination)
    return gains_of_ports(examination, (as_fast_as_its_board(port, ports) for port in down))


def _check_cable(ports: list[Port]) -> Plan:
    steps = [
        Step(f"Show cable, optics and signal of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m"))
        for port in ports
        if not isinstance(port.device.bdf, Unknown)
    ]
    return user_plan(
        "Bring the link up",
        *steps[:2],
        "Reseat or replace the cable, and check the switch port",
        note="Exclude this check for a spare port with --skip: gdrtop cannot know which ports are spare.",
    )


def _check_subnet_manager(ports: list[Port]) -> Plan:
    port = ports[0]
    query = ("sminfo", "-C", port.device.name, "-P", str(port.facts.number))
    ask = Step("Query the fabric's subnet manager", query)
    start = "Start or repair the subnet manager: on the switch, in UFM, or opensm on one node"
    return user_plan("Have the subnet manager configure the port", ask, start)


_add_check(
    "ib-port-not-active",
    "An RDMA port has no link",
    _ABI,
    ok="Every enabled RDMA port has a link",
    problem=PortProblem.NO_SIGNAL,
    cause="no signal from the other end. The cable, optics or switch port is faulty, or nothing is "
    "plugged in.",
    evidence=_physical_state,
    fix=_check_cable,
)
_add_check(
    "ib-port-not-active-disabled",
    "An InfiniBand port is disabled",
    "ibportstate(8) of infiniband-diags",
    ok="No InfiniBand port is disabled",
    problem=PortProblem.DISABLED,
    cause="disabled by an admin, on this node or at the switch.",
    evidence=_physical_state,
    fix=lambda ports: Plan("Enable the port", enable_steps(ports)),
)
_add_check(
    "ib-port-not-active-netdev-down",
    "A RoCE port is down because its netdev is down",
    "ip-link(8) of iproute2",
    ok="The netdev of every RoCE port is up",
    problem=PortProblem.NETDEV_DOWN,
    cause="a RoCE port follows its netdev, and the netdev is set down.",
    evidence=lambda port: Evidence(
        f"/sys/class/net/{known(port.facts.netdev, '?')}/flags", "IFF_UP is not set"
    ),
    fix=lambda ports: Plan("Set the netdev up", netdev_steps(ports), note=sentences(KEEP)),
)
_add_check(
    "ib-port-not-active-no-subnet-manager",
    "An InfiniBand port has no subnet manager",
    "opensm(8)",
    ok="Every InfiniBand port has a subnet manager",
    problem=PortProblem.NO_SUBNET_MANAGER,
    cause="the link is up, but no subnet manager has configured the port.",
    evidence=lambda port: Evidence(f"{port.path}/sm_lid", "0x0"),
    fix=_check_subnet_manager,
)
_add_check(
    "ib-port-not-active-subnet-manager-stalled",
    "The subnet manager has not finished configuring an InfiniBand port",
    "opensm(8)",
    ok="Every InfiniBand port is fully configured",
    problem=PortProblem.STALLED,
    cause="the subnet manager stopped halfway, is overloaded or refuses this port.",
    evidence=_state,
    fix=_check_subnet_manager,
)


@AREA.critical(
    "link-layer-wrong",
    "A port has a different link layer than other ports of the same NIC model",
    "NVIDIA MFT manual, mlxconfig: LINK_TYPE_P1, "
    "https://docs.nvidia.com/networking/display/mftv4320/mlxconfig",
    ok="No port is down because of its link layer",
    impact=_LOST,
    data_path=True,
)
def link_layer_wrong(examination: Examination) -> Outcome:
    """Find ports that are down and have another link layer than most ports of the same board."""
    ports = need_ports(examination)
    odd = _ports_of_wrong_layer(ports)
    if odd:
        layer = known(odd[0].facts.link_layer, "")
        severity = cost_of_loss(examination, odd)
        return found(
            f"{port_names(odd)}: {layer} link layer and no link, unlike most ports of this NIC model. The "
            "card's link type is wrong, or the cable is in the wrong switch.",
            *first_n(_link_layer(port) for port in odd),
            fix=link_type_plan(examination, odd[:SHOWN], "2" if layer == "InfiniBand" else "1"),
            severity=severity,
            devices=devices_of(odd),
            impact=_impact(examination, odd),
            gains=_gains(examination, odd, severity),
        )
    for port in ports:
        need(port.facts.link_layer, "the ports' link layers")
    return passed(*first_n(_link_layer(port) for port in ports) or (NO_PORTS,))


def _ports_of_wrong_layer(ports: tuple[Port, ...]) -> list[Port]:
    odd: list[Port] = []
    for board in by_board(ports).values():
        layers = [known(port.facts.link_layer, "") for port in board]
        usual = max(sorted(set(layers)), key=layers.count)
        # Half and half is intended: one fabric for compute, the other for storage.
        if usual and 2 * layers.count(usual) > len(board):
            odd += [port for port, layer in zip(board, layers, strict=True) if layer not in (usual, "")]
    # A port that works is meant for another fabric. A port with the wrong link type never comes up.
    return [port for port in odd if not port.is_active]
