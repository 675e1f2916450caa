"""Checks of RDMA ports' state and link layer."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_condition import Condition, condition_of
from probes.checks.port_use import NO_PORTS, Port, alike, cost_of_loss, devices_of, names, ports_of
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.plans.ports import KEEP, enable_steps, link_type_plan, netdev_steps
from probes.unknown import Unknown, known

AREA = Area("nic")
_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband"
_IBPORTSTATE = "ibportstate(8) of infiniband-diags"


def _sorted_out(examination: Examination, wanted: Condition) -> Outcome | list[Port]:
    """The ports in this condition; else what the check says."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    if not ports:
        return passed(NO_PORTS)
    conditions = [(port, condition_of(port)) for port in ports]
    chosen = [port for port, condition in conditions if condition is wanted]
    if chosen:
        return chosen
    for port, condition in conditions:
        if isinstance(condition, Unknown):
            return unsure(f"needs the state of {port.name}: {condition}")
    return passed(*at_most(_state(port) for port in ports))


def _state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/state", known(port.facts.state, "unknown"))


def _physical(port: Port) -> Evidence:
    return Evidence(f"{port.path}/phys_state", known(port.facts.physical_state, "unknown"))


@AREA.check(
    "ib-port-not-active",
    Severity.CRITICAL,
    "an RDMA port has no link: nothing answers at its other end",
    _ABI,
)
def port_without_signal(examination: Examination) -> Outcome:
    """Ports that are down though nobody has switched them off."""
    chosen = _sorted_out(examination, Condition.NO_SIGNAL)
    if isinstance(chosen, Outcome):
        return chosen
    look = [
        Step(f"shows cable, module and signal of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m"))
        for port in chosen
        if not isinstance(port.device.bdf, Unknown)
    ][:2]
    return found(
        f"{names(chosen)}: no link. The cable or its optics, the switch's port, or nothing is plugged in",
        *at_most(_physical(port) for port in chosen),
        fix=Plan(
            "Bring the link up",
            (*look, instruction("reseat or replace the cable; look at the switch's port", needs_root=False)),
            note="a port that is not meant to be used is no fault: leave it out with --skip or NCCL_IB_HCA",
        ),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-disabled", Severity.CRITICAL, "an InfiniBand port is switched off", _IBPORTSTATE
)
def port_disabled(examination: Examination) -> Outcome:
    """InfiniBand ports whose physical state is Disabled."""
    chosen = _sorted_out(examination, Condition.DISABLED)
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names(chosen)}: somebody has disabled the port, here or at the switch",
        *at_most(_physical(port) for port in chosen),
        fix=Plan("Switch the port on", enable_steps(chosen)),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-netdev-down",
    Severity.CRITICAL,
    "a RoCE port is down because its netdev is",
    "ip-link(8) of iproute2",
)
def netdev_down(examination: Examination) -> Outcome:
    """RoCE ports whose netdev an admin, or nobody, has set up."""
    chosen = _sorted_out(examination, Condition.NETDEV_DOWN)
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names(chosen)}: RoCE follows its netdev, and that is set down",
        *at_most(
            Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/flags", "IFF_UP is not set")
            for port in chosen
        ),
        fix=Plan("Set the netdev up", netdev_steps(chosen), note=KEEP),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-no-subnet-manager",
    Severity.CRITICAL,
    "an InfiniBand port waits for a subnet manager",
    "opensm(8)",
)
def no_subnet_manager(examination: Examination) -> Outcome:
    """Ports in state INIT that know of no subnet manager."""
    chosen = _sorted_out(examination, Condition.NO_SUBNET_MANAGER)
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names(chosen)}: the link is up, but no subnet manager has configured the port",
        *at_most(Evidence(f"{port.path}/sm_lid", "0x0") for port in chosen),
        *at_most(_state(port) for port in chosen[:1]),
        fix=_subnet_manager(chosen[0]),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


@AREA.check(
    "ib-port-not-active-subnet-manager-stalled",
    Severity.CRITICAL,
    "the subnet manager began to configure an InfiniBand port and did not finish",
    "opensm(8)",
)
def subnet_manager_stalled(examination: Examination) -> Outcome:
    """Ports in state ARMED, or in INIT with a subnet manager that is known."""
    chosen = _sorted_out(examination, Condition.STALLED)
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names(chosen)}: the subnet manager stopped half-way, is overloaded or refuses this port",
        *at_most(_state(port) for port in chosen),
        fix=_subnet_manager(chosen[0]),
        severity=cost_of_loss(examination, chosen),
        devices=devices_of(chosen),
    )


def _subnet_manager(port: Port) -> Plan:
    ask = Step(
        "asks for the fabric's subnet manager",
        ("sminfo", "-C", port.device.name, "-P", str(port.facts.number)),
    )
    start = instruction(
        "start or repair the subnet manager: on the switch, in UFM, or opensm on one node", False
    )
    return Plan("Have the subnet manager configure the port", (ask, start))


@AREA.check(
    "link-layer-wrong",
    Severity.CRITICAL,
    "a port speaks another fabric than its equals",
    "NVIDIA MFT manual, mlxconfig: LINK_TYPE_P1, https://docs.nvidia.com/networking/display/mftv4320/mlxconfig",
)
def link_layer_wrong(examination: Examination) -> Outcome:
    """Ports that do not come up and speak another fabric than most of the same board."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    odd: list[Port] = []
    for board in alike(ports).values():
        layers = [known(port.facts.link_layer, "") for port in board]
        usual = max(sorted(set(layers)), key=layers.count)
        # Half and half is a plan: one fabric for compute, the other for storage.
        if usual and 2 * layers.count(usual) > len(board):
            odd += [port for port, layer in zip(board, layers, strict=True) if layer not in (usual, "")]
    # One that works serves another fabric, and is meant to; one of the wrong type never comes up.
    odd = [port for port in odd if not port.is_active]
    if odd:
        kind = "2" if odd[0].facts.link_layer == "InfiniBand" else "1"
        return found(
            f"{names(odd)}: {odd[0].facts.link_layer} without a link, while most ports of the same board are "
            "not. A card that can do both was set to the wrong one, or is plugged into the wrong switch",
            *at_most(Evidence(f"{port.path}/link_layer", str(port.facts.link_layer)) for port in odd),
            fix=link_type_plan(examination, odd[:4], kind),
            severity=cost_of_loss(examination, odd),
            devices=devices_of(odd),
        )
    for port in ports:
        if isinstance(port.facts.link_layer, Unknown):
            return unsure(f"needs the link layer of {port.name}: {port.facts.link_layer}")
    return passed(
        *at_most(Evidence(f"{port.path}/link_layer", str(port.facts.link_layer)) for port in ports)
        or (NO_PORTS,)
    )
