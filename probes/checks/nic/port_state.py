"""Checks of RDMA ports' state and link layer."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable

from probes.bandwidth.model.gains import as_fast_as_its_board, gains_of_ports
from probes.base.evidence import Evidence, Severity, first_n
from probes.base.frozen import frozen
from probes.base.plan import Step, instruction, sentences, user_plan
from probes.base.text import SHOWN
from probes.base.unknown import Unknown, known, map_known
from probes.plans.ports import KEEP, enable_steps, link_type_plan, netdev_steps, port_query
from probes.queries.finding import Area, Outcome, PairGain, end_with, found, need, passed
from probes.queries.kernel_log import switched_off
from probes.queries.ports import (
    NO_PORTS,
    Port,
    PortProblem,
    by_board,
    cost_of_loss,
    devices_of,
    is_placed,
    need_ports,
    port_names,
    problem_of,
)
from probes.snapshot.condition import FLAPPING
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)


def _state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/state", known(port.facts.state, "unknown"))


def _physical_state(port: Port) -> Evidence:
    return Evidence(f"{port.path}/phys_state", known(port.facts.physical_state, "unknown"))


def _link_layer(port: Port) -> Evidence:
    return Evidence(f"{port.path}/link_layer", str(port.facts.link_layer))


# Impact of a port that is down where it is not that of the check: how much it is depends on the GPUs near it.
_LOST_BESIDE = (
    "The port carries no traffic. No GPU is near it: storage or management may be affected, no rail is."
)

_LOST_UNPLACED = "The port carries no traffic. gdrtop does not see which GPUs need it."


@frozen
class _Words:
    """What a check says of ports with one problem."""

    cause: str  # after the names of the ports
    evidence: Callable[[Port], tuple[Evidence, ...]]
    steps: Callable[[list[Port]], Iterable[Step | str]]


def _ports_with(examination: Examination, wanted: Collection[PortProblem]) -> dict[_Words, list[Port]]:
    """Return the ports with these problems by what is said of them; without any, end the check."""
    ports = need_ports(examination)
    if not ports:
        end_with(passed(NO_PORTS))
    problems = [(port, problem_of(port)) for port in ports]
    chosen: dict[_Words, list[Port]] = {}
    for port, problem in problems:
        if not isinstance(problem, Unknown) and problem in wanted:
            chosen.setdefault(_words_of(port, problem), []).append(port)
    if not chosen:
        for _, problem in problems:
            need(problem, "the port states")
        end_with(passed(*first_n(_state(port) for port in ports)))
    return chosen


def _add_check(
    name: str,
    *,
    problems: tuple[PortProblem, ...],
    fix: str,
    note: str = "",
    part_of: tuple[str, ...] = (FLAPPING,),
) -> None:
    """Add a check that finds ports with these problems; its severity depends on the GPUs that need them."""

    @AREA.critical(name, data_path=True, part_of=part_of)
    def judge(examination: Examination) -> Outcome:
        chosen = _ports_with(examination, problems)
        ports = [port for of_words in chosen.values() for port in of_words]
        severity = cost_of_loss(examination, ports)
        is_switched_off = {known(port.device.bdf, "") for port in ports} <= switched_off(examination)
        steps = (step for words, of_words in chosen.items() for step in words.steps(of_words))
        return found(
            _causes(chosen),
            *_evidence(chosen),
            fix=user_plan(fix, *steps, note=note),
            severity=severity,
            devices=devices_of(ports),
            impact=_impact(examination, ports),
            part_of=("nic-power-or-heat",) if is_switched_off else (),
            gains=_gains(examination, ports, severity),
        )


def _causes(chosen: dict[_Words, list[Port]]) -> str:
    return " ".join(f"{port_names(ports)}: {words.cause}" for words, ports in chosen.items())


def _evidence(chosen: dict[_Words, list[Port]]) -> tuple[Evidence, ...]:
    """Return what shows the problem of each port, and all of it for the first port of each problem."""
    of_ports = [(words.evidence(port), port) for words, ports in chosen.items() for port in ports]
    firsts = [ports[0] for ports in chosen.values()]
    more = (fact for facts, port in of_ports if port in firsts for fact in facts[1:])
    return (*first_n(facts[0] for facts, _ in of_ports), *first_n(more))


def _impact(examination: Examination, ports: Collection[Port]) -> str:
    """Return what is lost with ports that no GPU is near; "": the check's own text."""
    if not all(is_placed(examination, port) for port in ports):
        return _LOST_UNPLACED
    near = set(examination.topology.nics_near_gpus)
    return "" if near.intersection(port.device.name for port in ports) else _LOST_BESIDE


def _gains(examination: Examination, down: Iterable[Port], loss: Severity) -> tuple[PairGain, ...]:
    """Return what the ports bring if they come up at the rate of their board's other ports."""
    if loss is Severity.NOTE:  # spare ports bring nothing
        return ()
    ports = need_ports(examination)
    return gains_of_ports(examination, (as_fast_as_its_board(port, ports) for port in down))


# What shows each problem, and the steps against it.


def _show_link(ports: list[Port]) -> Iterable[Step]:
    """Show cable, optics and signal, which a virtual function does not see."""
    return [
        Step(f"Show cable, optics and signal of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m"))
        for port in ports
        if not isinstance(port.device.bdf, Unknown) and not port.is_virtual
    ][:2]


def _check_cable(ports: list[Port]) -> Iterable[Step | str]:
    return *_show_link(ports), "Reseat or replace the cable, and check the switch port"


def _check_signal(ports: list[Port]) -> Iterable[Step | str]:
    return (
        *_show_link(ports),
        "Clean or replace cable and optics, and compare the speeds that NIC and switch port allow",
    )


def _check_subnet_manager(ports: list[Port]) -> Iterable[Step | str]:
    port = ports[0]
    query = ("sminfo", "-C", port.device.name, "-P", str(port.facts.number))
    yield Step("Query the fabric's subnet manager", query)
    yield "Start or repair the subnet manager: on the switch, in UFM, or opensm on one node"


def _release_port(ports: list[Port]) -> Iterable[Step | str]:
    yield from (Step(f"Query the state of {port.name}", port_query(port)) for port in ports[:2])
    yield (
        "Read what the subnet manager logs about this port. A NIC with several hosts (multi-host, DPU) needs "
        "one that supports virtual ports"
    )
    reset = shlex.join((*port_query(ports[0]), "reset"))
    yield f"Restart the link where the log shows no reason: `{reset}`"


def _end_test(ports: list[Port]) -> Iterable[Step | str]:
    yield instruction(f"End the test: `mlxlink -d {ports[0].device.name} --test_mode DS`")
    yield from enable_steps(ports)


def _follow_netdev(ports: list[Port]) -> Iterable[Step | str]:
    for port in ports[:2]:
        name = f"{port.device.name}/{port.facts.number}"
        yield Step(
            f"Show the netdev that {port.name} follows", ("rdma", "link", "show", name), needs_root=False
        )
    yield "Bring up the bond, or the netdev in the other network namespace, that the port follows"
    yield "Read what the driver logs about this NIC in the kernel log"


_OF_HOST = "On the host of the virtual function"
# NVIDIA DOCA-OFED manual, SR-IOV; ip-link(8); OpenSM manual, virt_enabled.
_SUPPORT_VIRTUAL = (
    "Enable virtual ports in the subnet manager (virt_enabled 2 in opensm.conf, or virtualization in UFM), "
    "and restart it"
)


def _set_up_virtual(ports: list[Port]) -> Iterable[Step | str]:
    """Give a virtual port what it waits for: GUIDs, the state of the physical port and a subnet manager."""
    if any(port.unset_guids for port in ports):
        yield f"{_OF_HOST}, set its GUIDs: `ip link set dev PF vf N node_guid GUID`, the same with port_guid"
        yield "Then bind the driver of the virtual function again"
    yield f"{_OF_HOST}, let the port follow the physical port: `ip link set dev PF vf N state auto`"
    yield _SUPPORT_VIRTUAL
    yield "On a rented machine, report the port to the provider: all of this is set there"


def _enable_virtual(ports: list[Port]) -> Iterable[Step | str]:
    yield f"{_OF_HOST}, enable it: `ip link set dev PF vf N state auto`, and enable the physical port"


def _virtual_states(port: Port) -> tuple[Evidence, ...]:
    return _state(port), _physical_state(port), *port.unset_guids


def _operstate(port: Port) -> tuple[Evidence, ...]:
    state = map_known(port.health, lambda health: health.netdev_state)
    if isinstance(state, Unknown):
        return (_physical_state(port),)
    return (Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/operstate", state), _state(port))


def _physical(port: Port) -> tuple[Evidence, ...]:
    return (_physical_state(port),)


def _both_states(port: Port) -> tuple[Evidence, ...]:
    return _physical_state(port), _state(port)


def _netdev_flags(port: Port) -> tuple[Evidence, ...]:
    return (Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/flags", "IFF_UP is not set"),)


_Steps = Callable[[list[Port]], "Iterable[Step | str]"]
_CHECK_AGAIN = "Check again. If both states stay, update the NIC's firmware and driver"
_LOOK_AT_NETDEV = (
    "Run `ip link`. Set the netdev up if UP is missing; check cable and switch port if it shows NO-CARRIER"
)
_ROWS: dict[PortProblem, tuple[Callable[[Port], tuple[Evidence, ...]], _Steps]] = {
    PortProblem.UNSTEADY: (_both_states, _check_signal),
    PortProblem.CONTRADICTORY: (_both_states, lambda ports: (_CHECK_AGAIN,)),
    PortProblem.NO_SIGNAL: (_physical, _check_cable),
    PortProblem.ASLEEP: (_physical, enable_steps),
    PortProblem.TRAINING: (_both_states, _check_signal),
    PortProblem.RECOVERING: (_both_states, _check_signal),
    PortProblem.TESTED: (_physical, _end_test),
    PortProblem.NO_LINK: (_both_states, _check_cable),
    PortProblem.LINK_LOST: (_both_states, _check_cable),
    PortProblem.NO_CARRIER: (_operstate, _check_cable),
    PortProblem.DISABLED: (_physical, enable_steps),
    PortProblem.HELD_DOWN: (lambda port: (_state(port), _physical_state(port)), _release_port),
    PortProblem.NETDEV_DOWN: (_netdev_flags, netdev_steps),
    PortProblem.NETDEV_UP: (_operstate, _follow_netdev),
    PortProblem.NETDEV_UNSEEN: (lambda port: (_state(port),), lambda ports: (_LOOK_AT_NETDEV,)),
    PortProblem.NO_SUBNET_MANAGER: (
        lambda port: (Evidence(f"{port.path}/sm_lid", "0x0"), _state(port)),
        _check_subnet_manager,
    ),
    PortProblem.STALLED: (lambda port: (_state(port),), _check_subnet_manager),
}
_OF_VIRTUAL: dict[PortProblem, tuple[str, _Steps]] = {
    PortProblem.HELD_DOWN: (
        "whose link is up. Its port waits until the host has set its GUIDs and its link state, and until a "
        "subnet manager that supports virtual ports activates it.",
        _set_up_virtual,
    ),
    PortProblem.NO_SUBNET_MANAGER: (
        "whose port no subnet manager has configured. There is none, or it does not support virtual ports.",
        _set_up_virtual,
    ),
    PortProblem.STALLED: (
        "whose port the subnet manager has not activated. It refuses the port, or does not support virtual "
        "ports.",
        _set_up_virtual,
    ),
    PortProblem.DISABLED: (
        "whose port is disabled: by its link state on the host, or with the NIC's port.",
        _enable_virtual,
    ),
}


def _words_of(port: Port, problem: PortProblem) -> _Words:
    """Return what is said of a port; a GUID of 0 is that of a virtual function, for NICs have their own."""
    cause, (evidence, steps) = problem.value, _ROWS[problem]
    if problem in _OF_VIRTUAL and (port.is_virtual or port.unset_guids):
        why, steps = _OF_VIRTUAL[problem]
        cause, evidence = f"a virtual function, {why}", _virtual_states
    return _Words(f"{cause} Its GUID was never set." if port.unset_guids else cause, evidence, steps)


_add_check(
    "ib-port-not-active",
    problems=(
        *(PortProblem.NO_SIGNAL, PortProblem.NO_CARRIER, PortProblem.ASLEEP, PortProblem.TRAINING),
        *(PortProblem.RECOVERING, PortProblem.TESTED, PortProblem.NO_LINK, PortProblem.LINK_LOST),
        PortProblem.NETDEV_UNSEEN,
    ),
    fix="Bring the link up",
    note="Exclude this check for a spare port with --skip: gdrtop cannot know which ports are spare.",
    part_of=("link-layer-wrong", FLAPPING),
)
_add_check("ib-port-not-active-disabled", problems=(PortProblem.DISABLED,), fix="Enable the port")
_add_check(
    "ib-port-not-active-netdev-down",
    problems=(PortProblem.NETDEV_DOWN,),
    fix="Set the netdev up",
    note=sentences(KEEP),
    part_of=("spark-function-unaddressed", FLAPPING),
)
_add_check(
    "ib-port-not-active-link-up",
    problems=(PortProblem.HELD_DOWN, PortProblem.NETDEV_UP),
    fix="Have the port activated",
    part_of=("link-layer-wrong", FLAPPING),
)
_add_check(
    "ib-port-not-active-no-subnet-manager",
    problems=(PortProblem.NO_SUBNET_MANAGER,),
    fix="Have the subnet manager configure the port",
)
_add_check(
    "ib-port-not-active-subnet-manager-stalled",
    problems=(PortProblem.STALLED,),
    fix="Have the subnet manager configure the port",
)


@AREA.warning("ib-port-active-without-link", data_path=True, part_of=(FLAPPING,))
def ib_port_active_without_link(examination: Examination) -> Outcome:
    """Find ports that are ACTIVE in another physical state than LinkUp."""
    chosen = _ports_with(examination, (PortProblem.UNSTEADY, PortProblem.CONTRADICTORY))
    steps = (step for words, ports in chosen.items() for step in words.steps(ports))
    return found(
        _causes(chosen),
        *_evidence(chosen),
        fix=user_plan("Keep the link up", *steps),
        severity=None
        if any(PortProblem.UNSTEADY.value == words.cause for words in chosen)
        else Severity.NOTE,
        devices=devices_of(port for ports in chosen.values() for port in ports),
    )


@AREA.critical("link-layer-wrong", data_path=True)
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
