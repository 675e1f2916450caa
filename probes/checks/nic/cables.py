"""Checks of the switch port at the other end of each Ethernet cable, as the switch describes it by LLDP."""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.frozen import frozen
from probes.base.plan import make_plan, user_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Reason, Unknown, known
from probes.checks.nic.roce_gids import NO_ROCE, roce_ports
from probes.facts.node import host_name
from probes.facts.rdma.cable_ends import (
    NOT_INSTALLED,
    CableEnd,
    described_hosts,
    described_nics,
    ends_of_port,
)
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown_without
from probes.queries.ports import Port
from probes.snapshot.examination import Examination

AREA = Area("nic")
_LLDP = "IEEE 802.1AB, 8.5.5 Port Description TLV; lldpctl(8)"
_FRAME_SIZE = "IEEE 802.3, 79.3.4 Maximum Frame Size TLV; lldpd/lldpd issue 511: some switches send the MTU"


@frozen
class _Cable:
    port: Port
    netdev: str
    end: CableEnd

    @property
    def name(self) -> str:
        return f"{self.port.name} ({self.netdev})"

    @property
    def evidence(self) -> Evidence:
        end = self.end
        size = f", frames of at most {end.max_frame_bytes} bytes" if end.max_frame_bytes else ""
        return Evidence("lldpctl", f'{self.netdev}: {end} "{end.port_description}"{size}')


def _cables(examination: Examination) -> list[_Cable]:
    """Return the cables of active RoCE ports whose end is known, or end the check if there is none."""
    ports = roce_ports(examination)
    end_with(None if ports else passed(NO_ROCE))
    what = "what LLDP says of the switch ports"
    ends = need(examination.cable_ends, what)
    heard = [(port, *each) for port in ports for each in ends_of_port(ends, port.facts).items()]
    cables = [_Cable(port, name, end) for port, name, end in heard if not isinstance(end, Unknown)]
    unread = [end for _, _, end in heard if isinstance(end, Unknown)]
    if not cables:
        why = unread[0] if unread else Unknown(Reason.NOT_THERE, "lldpctl", "no netdev has an RDMA port")
        absent = passed(Evidence("lldpctl", why.detail))
        end_with(absent if why == NOT_INSTALLED else unknown_without(what, why))
    return cables


def _devices(found_of: Iterable[tuple[_Cable, object]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cable.port.device.name for cable, _ in found_of))


@AREA.note(
    "cable-port-description",
    "A switch port is described as that of another host or NIC",
    _LLDP,
    ok="Switch ports are described as those of this node, or name no node",
    impact="With a wrong cable, traffic between equal NICs of two nodes crosses the spine. With an old "
    "description, the next repair is done at the wrong cable.",
)
def cable_port_description(examination: Examination) -> Outcome:
    """Compare the description of each switch port with the names of this host and of its NICs."""
    cables = _cables(examination)
    own = need(host_name(examination.node), "the host name")
    names = {
        cable.netdev: (cable.netdev, cable.port.device.name, known(cable.port.facts.netdev, cable.netdev))
        for cable in cables
    }
    every = [name for of_cable in names.values() for name in of_cable]
    of_hosts: list[tuple[_Cable, str]] = []
    of_nics: list[tuple[_Cable, str]] = []
    for cable in cables:
        text = cable.end.port_description
        hosts = described_hosts(text, own)
        nics = described_nics(text, every)
        if hosts and not any(hosts.values()):
            of_hosts.append((cable, next(iter(hosts))))
        elif hosts and nics and not set(nics) & set(names[cable.netdev]):
            of_nics.append((cable, nics[0]))
    wrong = [*of_hosts, *of_nics]
    if not wrong:
        return passed(*first_n(cable.evidence for cable in cables))
    said = join_limited(
        f"the switch port of {cable.name} is described as that of {name}" for cable, name in wrong
    )
    return found(
        f"Either the cable or the description is wrong: {said}.",
        *first_n(cable.evidence for cable, _ in wrong),
        severity=Severity.WARNING if of_hosts else None,
        devices=_devices(wrong),
        fix=user_plan(
            "Find out which is wrong, the cable or the description",
            "Compare the leaf switches of this node's NICs with those of its neighbors: "
            "gdrtop fleet check --cables NODES",
            "Move the cable where the fleet shows another leaf than on the other nodes. Else correct the "
            "port's description on the switch.",
        ),
    )


@AREA.warning(
    "cable-frame-size",
    "A switch port forwards smaller frames than the NIC sends",
    _FRAME_SIZE,
    ok="Switch ports forward frames of the NICs' MTU",
    impact="Small messages get through. The switch drops larger packets, so transfers fail or hang.",
    data_path=True,
)
def cable_frame_size(examination: Examination) -> Outcome:
    """Compare the MTU of each netdev with the largest frame of its switch port, with headers or without."""
    cables = [cable for cable in _cables(examination) if cable.end.max_frame_bytes is not None]
    small: list[tuple[_Cable, int]] = []
    for cable in cables:
        mtu = need(need(cable.port.health, "the NICs' MTUs").netdev_mtu_bytes, "the NICs' MTUs")
        if (cable.end.max_frame_bytes or mtu) < mtu:
            small.append((cable, mtu))
    if not small:
        nothing = Evidence("lldpctl", "no switch sends its largest frame size")
        return passed(*first_n(cable.evidence for cable in cables) or (nothing,))
    said = join_limited(
        f"{cable.end} takes at most {cable.end.max_frame_bytes} bytes, but {cable.name} has an MTU of {mtu}"
        for cable, mtu in small
    )
    return found(
        f"{said}.",
        *first_n(cable.evidence for cable, _ in small),
        devices=_devices(small),
        fix=make_plan(
            "Raise the frame size on the switch",
            *(
                f"On switch {cable.end.label}, set the MTU of port {cable.end.port} to at least {mtu}"
                for cable, mtu in small[:SHOWN]
            ),
            note="Until then, a smaller MTU on the NIC avoids the loss. It must be the same on all nodes.",
        ),
    )
