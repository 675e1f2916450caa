"""The switch port at the other end of each cable: by LLDP on Ethernet, by a directed route on InfiniBand.

LLDP is what lldpd has heard (`lldpctl -f json`; lldpd's src/client/json_writer.c). A NIC whose firmware takes
the LLDP frames itself hears nothing here, so "nothing heard" is unknown and never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import REDACTED, parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, is_software
from probes.facts.rdma.roce import netdevs_of
from probes.facts.rdma.switch_ports import ask_ports, node_info, query_failure
from probes.host.protocol import CommandOutput, Host

LLDP = ("lldpctl", "-f", "json")
# Debian's lldpcli belongs to _lldpd, with mode 4750 and group adm (debian/lldpd.postinst). As root, gdrtop
# runs nothing that another user owns: an unprivileged user runs it, in the groups that may ask lldpd.
_DEBIAN = "/usr/sbin/lldpcli"
_AS_NOBODY = (
    *("setpriv", "--reuid=nobody", "--regid=_lldpd", "--groups=adm", "--inh-caps=-all", "--no-new-privs"),
    *LLDP,
)
_JOIN = "run as root, or join the group adm on Debian and Ubuntu, else that of /run/lldpd.socket"
NOT_INSTALLED = Unknown(Reason.NOT_THERE, "lldpctl", "lldpd is not installed")
_SILENT = "lldpd has heard no switch here: it may send no LLDP, or the NIC's firmware may take it"
_SECONDS = 5.0
_MOST_NEIGHBORS = 1000
_TEXT = 80
_MOST_BYTES, _MOST_VLAN = 1_000_000, 4094


@frozen
class CableEnd:
    """A port of a switch. What the switch does not send is "" or None."""

    switch_id: str  # what identifies it: "0c:42:a1:00:00:01", or the GUID of its system image
    switch: str = ""  # its name
    port_id: str = ""  # "swp3", "FourHundredGigE1/0/98"; where it is a MAC address, the description says more
    # What its admin has written, "To-gpu17-eth0"; often the port's own name. On InfiniBand the GUID of the
    # chip, where the switch has several.
    port_description: str = ""
    max_frame_bytes: int | None = None  # some switches send the MTU here (lldpd issue 511)
    vlan: int | None = None  # of untagged frames, as far as the switch sends VLANs
    aggregation: int | None = None  # the link aggregation group of the port
    age: str = ""  # since the switch was first heard: "55 days, 00:25:58"
    ttl_seconds: int | None = None  # after which the switch is forgotten if it is not heard again

    @property
    def label(self) -> str:
        """The switch's name, or what identifies it."""
        return self.switch or self.switch_id

    @property
    def port(self) -> str:
        """The port's name: its id, or its description if the id is an address."""
        return self.port_description if self._has_address and self.port_description else self.port_id

    @property
    def _has_address(self) -> bool:
        return re.fullmatch(r"[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}", self.port_id, re.I) is not None

    @property
    def is_comparable(self) -> bool:
        """Whether other nodes call the switch the same: redacted recordings have names of their own."""
        return not self.switch_id.startswith(REDACTED)

    def __str__(self) -> str:
        return f"{self.label} {self.port}".rstrip()


@frozen
class PortCable:
    """A cable of an RDMA port."""

    device: str
    port: int
    netdev: str  # a bond has several cables; "": unknown
    end: Maybe[CableEnd]


Neighbors = Mapping[str, tuple[CableEnd, ...]]  # by network interface
CableEnds = Mapping[str, Maybe[CableEnd]]  # by netdev


def probe(host: Host, rdma: RdmaFacts) -> CableEnds:
    """Return what lldpd has heard on the netdev of each RoCE port, and on each port of a bond.

    One command, and none on a node without Ethernet ports.
    """
    ethernet = (port for _, port in _ports(rdma) if port.link_layer == "Ethernet")
    names = [netdev for port in ethernet for netdev in netdevs_of(port)]
    neighbors = read_neighbors(host) if names else {}
    return {name: heard_on(neighbors, name) for name in names}


def _ports(rdma: RdmaFacts) -> Iterator[tuple[RdmaDevice, RdmaPort]]:
    for device in rdma.devices:
        if not is_software(device) and not device.is_virtual_function:
            yield from ((device, port) for port in device.ports)


def ends_of_port(ends: CableEnds, port: RdmaPort) -> dict[str, Maybe[CableEnd]]:
    """Return the ends of a port's cables by netdev: a bond has several."""
    return {netdev: ends[netdev] for netdev in netdevs_of(port) if netdev in ends}


def read_cables(host: Host, rdma: RdmaFacts, ends: Maybe[CableEnds]) -> tuple[PortCable, ...]:
    """Return all cables; the switch of each InfiniBand port is asked, which needs root."""
    infiniband = ((device.name, port) for device, port in _ports(rdma) if port.link_layer == "InfiniBand")
    asked = ask_ports(host, infiniband, lambda device, port: infiniband_end(host, device, port.number))
    found: list[PortCable] = []
    for device, port in _ports(rdma):
        of_port = {name: ends if isinstance(ends, Unknown) else ends.get(name) for name in netdevs_of(port)}
        if (device.name, port.number) in asked:
            of_port = {known(port.netdev, ""): asked[device.name, port.number]}
        about = device.name, port.number
        found.extend(PortCable(*about, netdev, end) for netdev, end in of_port.items() if end is not None)
    return tuple(found)


def infiniband_end(host: Host, device: str, port: int) -> Maybe[CableEnd]:
    """Return the switch port at the other end; a cable to anything but a switch is NOT_THERE."""
    info = node_info(host, device, port)
    if isinstance(info, Unknown):
        return info
    if not {"SystemGuid", "LocalPort", "Guid"} <= info.keys():
        return Unknown(Reason.MALFORMED, "smpquery", "its output has no GUID or port")
    system, chip = info["SystemGuid"], info["Guid"]
    return CableEnd(system, "", info["LocalPort"], "" if chip == system else chip)


# Ethernet


def read_neighbors(host: Host) -> Maybe[Neighbors]:
    """Ask lldpd what each network interface has heard."""
    output = host.run(LLDP, _SECONDS)
    if isinstance(output, Unknown) and output.reason is Reason.NOT_THERE:
        may_read = host.access(_DEBIAN)
        if isinstance(may_read, Unknown):
            return NOT_INSTALLED
        if not host.is_root():
            return Unknown(Reason.NEEDS_PERMISSION, _DEBIAN, _JOIN)
        output = host.run(_AS_NOBODY, _SECONDS)
    if isinstance(output, Unknown):
        return output
    return _failure(host, output) if output.exit_status != 0 else parse_lldp(output.stdout)


def _failure(host: Host, output: CommandOutput) -> Unknown:
    text = output.stderr or output.stdout
    if "No such file" in text or "Connection refused" in text:  # of /run/lldpd.socket
        return Unknown(Reason.NOT_THERE, "lldpctl", "lldpd does not run")
    failure = query_failure(host, "lldpctl", text)
    if failure.reason is Reason.NEEDS_ROOT:
        return Unknown(Reason.NEEDS_PERMISSION, "lldpctl", _JOIN)
    return failure


def heard_on(neighbors: Maybe[Neighbors], netdev: str) -> Maybe[CableEnd]:
    """Return the neighbor of a netdev; of several, the first one."""
    if isinstance(neighbors, Unknown):
        return neighbors
    found = neighbors.get(netdev)
    return found[0] if found else Unknown(Reason.NOT_THERE, "lldpctl", _SILENT)


def parse_lldp(text: str) -> Maybe[Neighbors]:
    """Parse lldpctl's JSON; an interface that has heard several switches has several."""
    content = parse_json(text)
    if content is None:
        return Unknown(Reason.MALFORMED, "lldpctl", "its output is not valid JSON")
    interfaces = _item(_item(content, "lldp"), "interface")
    # A list with several neighbors, and an object with one.
    found = (
        (printable(interface, 64), end)
        for listed in _list(interfaces)
        for interface, facts in _items(listed)
        for end in _ends(facts)
    )
    return {interface: tuple(ends) for interface, ends in grouped(found).items()}


def _ends(facts: object) -> Iterator[CableEnd]:
    """Yield the neighbors: a chassis is `{NAME: {"id": …}}`, or `{"id": …}` without a name."""
    chassis, port = _item(facts, "chassis"), _item(facts, "port")
    named = [("", chassis)] if "id" in dict(_items(chassis)) else _items(chassis)
    vlans = [vlan for vlan in _list(_item(facts, "vlan")) if _item(vlan, "pvid") is True]
    for name, described in named:
        if identity := _text(_item(_item(described, "id"), "value")):
            yield CableEnd(
                identity,
                printable(name, _TEXT),
                _text(_item(_item(port, "id"), "value")),
                _text(_item(port, "descr")),
                _number(_item(port, "mfs"), _MOST_BYTES),
                _number(_item(vlans[0], "vlan-id"), _MOST_VLAN) if vlans else None,
                _number(_item(port, "aggregation")),
                _text(_item(facts, "age")),
                _number(_item(port, "ttl")),
            )


def _item(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items())[:_MOST_NEIGHBORS] if isinstance(value, dict) else []


def _list(value: object) -> list[Any]:
    return value[:_MOST_NEIGHBORS] if isinstance(value, list) else [value]


def _text(value: object) -> str:
    return printable(value, _TEXT) if isinstance(value, str) else ""


def _number(value: object, most: int = 1 << 32) -> int | None:
    """Return a number greater than 0, which lldpctl writes as a text."""
    text = _text(value)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
    return number if 0 < number <= most else None


# What the description of a switch port says of the node that it leads to.


def host_form(name: str) -> re.Pattern[str] | None:
    """Return the form of a host's short name with other numbers: that of "gpu017" finds "gpu18".

    A name without a number is followed by one: that of "login" finds "login2". None: it has no letter.
    """
    short = name.partition(".")[0].lower()
    if not re.search(r"[a-z]{2}", short):
        return None
    pieces = re.split(r"([0-9]+)", short)
    form = "".join(r"(\d+)" if piece.isdecimal() else re.escape(piece) for piece in pieces)
    more = r"(\d*)" if len(pieces) == 1 else ""
    return re.compile(rf"(?<![a-z0-9]){form}{more}(?![a-z0-9])", re.ASCII | re.IGNORECASE)


def described_hosts(description: str, own: str) -> dict[str, bool]:
    """Return the hosts that a description names, and whether each is this one; leading zeros do not count."""
    form = host_form(own)
    if form is None:
        return {}
    mine = form.fullmatch(own.partition(".")[0])
    numbers = _numbers(mine) if mine is not None else ()
    return {match[0]: _numbers(match) == numbers for match in form.finditer(description)}


def _numbers(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(digits[-18:] or -1) for digits in match.groups())


def described_nics(description: str, names: Iterable[str]) -> list[str]:
    """Return which of these names of NICs and netdevs a description has as words."""
    text = description.lower()
    return [
        name
        for name in names
        if name.lower() in text
        and re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", description, re.IGNORECASE)
    ]
