"""Checks of the switch port at the other end of each Ethernet cable, as the switch describes it by LLDP."""

from __future__ import annotations

from typing import NamedTuple

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import user_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Maybe, Unknown, known
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
from probes.queries.ports import Port, devices_of
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)


class _Cable(NamedTuple):
    port: Port
    netdev: str
    end: CableEnd

    @property
    def name(self) -> str:
        return f"{self.port.name} ({self.netdev})"

    @property
    def evidence(self) -> Evidence:
        size = self.end.max_frame_bytes
        frames = "" if size is None else f", frames of at most {size} bytes"
        return Evidence("lldpctl", f'{self.netdev}: {self.end} "{self.end.port_description}"{frames}')


def _cables(examination: Examination) -> list[_Cable]:
    """Return the cables of active RoCE ports whose end is known, or end the check if there is none."""
    what, ports = "what LLDP says of the switch ports", roce_ports(examination)
    end_with(None if ports else passed(NO_ROCE))
    ends = need(examination.cable_ends, what)
    cables, unread = [], NOT_INSTALLED
    for port in ports:
        for netdev, end in ends_of_port(ends, port.facts).items():
            if isinstance(end, Unknown):
                unread = end
            else:
                cables.append(_Cable(port, netdev, end))
    if not cables:
        absent = passed(Evidence("lldpctl", unread.detail))
        end_with(absent if unread == NOT_INSTALLED else unknown_without(what, unread))
    return cables


@AREA.note("cable-port-description")
def cable_port_description(examination: Examination) -> Outcome:
    """Compare the description of each switch port with the names of this host and of its NICs."""
    cables = _cables(examination)
    own = need(host_name(examination.node), "the host name")
    names = {
        netdev: {netdev, port.device.name, known(port.facts.netdev, netdev)} for port, netdev, _ in cables
    }
    every = sorted(set().union(*names.values()))
    wrong: list[tuple[_Cable, str]] = []
    is_of_host = False
    for cable in cables:
        hosts = described_hosts(cable.end.port_description, own)
        if hosts and not any(hosts.values()):
            is_of_host = True
            wrong.append((cable, next(iter(hosts))))
        elif hosts:  # without a host, these may be names on the switch
            nics = described_nics(cable.end.port_description, every)
            if nics and names[cable.netdev].isdisjoint(nics):
                wrong.append((cable, nics[0]))
    if not wrong:
        return passed(*first_n(cable.evidence for cable in cables))
    said = (f"the switch port of {cable.name} is described as that of {name}" for cable, name in wrong)
    return found(
        f"Either the cable or the description is wrong: {join_limited(said)}.",
        *first_n(cable.evidence for cable, _ in wrong),
        severity=Severity.WARNING if is_of_host else None,
        devices=devices_of(cable.port for cable, _ in wrong),
    )


@AREA.warning("cable-frame-size", data_path=True)
def cable_frame_size(examination: Examination) -> Outcome:
    """Compare the MTU of each netdev with the largest frame of its switch port, with headers or without."""
    cables = [cable for cable in _cables(examination) if cable.end.max_frame_bytes is not None]
    mtus = {cable.netdev: need(_mtu(cable), "the NICs' MTUs") for cable in cables}
    small = [cable for cable in cables if (cable.end.max_frame_bytes or 0) < mtus[cable.netdev]]
    if not small:
        nothing = Evidence("lldpctl", "no switch sends its largest frame size")
        return passed(*first_n(cable.evidence for cable in cables) or (nothing,))
    said = (
        f"{cable.end} takes at most {cable.end.max_frame_bytes} bytes, but {cable.name} has an MTU of"
        f" {mtus[cable.netdev]}"
        for cable in small
    )
    return found(
        f"{join_limited(said)}.",
        *first_n(cable.evidence for cable in small),
        devices=devices_of(cable.port for cable in small),
        fix=user_plan(
            "Raise the frame size on the switch",
            *(
                f"On switch {end.label}, set the MTU of port {end.port} to at least {mtus[netdev]}"
                for _, netdev, end in small[:SHOWN]
            ),
            note="Until then, a smaller MTU on the NIC avoids the loss. It must be the same on all nodes.",
        ),
    )


def _mtu(cable: _Cable) -> Maybe[int]:
    health = cable.port.health
    return health if isinstance(health, Unknown) else health.netdev_mtu_bytes
