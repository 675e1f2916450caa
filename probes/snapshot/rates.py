"""The cheap reading taken once a second, and the rates between two readings."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from functools import partial
from itertools import chain
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import PeermemReading, read_peermem
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.pci.nic_families import HARDWARE_OCTETS, Octets
from probes.facts.rdma.cxi import RECEIVED_OCTETS, SENT_OCTETS, has_verbs, link_state, telemetry_file
from probes.facts.rdma.devices import RdmaFacts, RdmaPort, is_software, read_numbered
from probes.facts.rdma.port_health import OCTETS_A_UNIT, RECEIVED, SENT
from probes.host.nvml import NvmlLive
from probes.host.protocol import Host
from probes.host.usage import InterfaceCounters
from probes.host.values import read_integer, read_telemetry


@frozen
class PortCounters:
    """Bytes through a port (port_xmit_data and port_rcv_data, ×4), and when they were read."""

    at: float  # seconds, host.monotonic() between reading the two files
    sent_bytes: Maybe[int]
    received_bytes: Maybe[int]
    interface: str = ""  # the netdev whose counters these are; "": the port's own


@frozen
class Reading:
    """The changing values at one moment."""

    at: float
    ports: dict[tuple[str, int], PortCounters]  # (RDMA device, port)
    gpus: Maybe[dict[str, NvmlLive]]  # by BDF
    peermem: PeermemReading
    module_refcnts: dict[str, Maybe[int]]
    port_states: dict[tuple[str, int], Maybe[str]]  # "ACTIVE", …
    interfaces: Mapping[str, Maybe[InterfaceCounters]] = field(default_factory=dict)  # by netdev, if asked


@frozen
class PortRate:
    """Gb/s (10^9 bits) through a port or netdev since the previous reading."""

    sent_gbps: Maybe[float]
    received_gbps: Maybe[float]
    interface: str = ""  # the netdev whose whole traffic this is; "": the port's own


# Without extended counters they are 32 bits wide and stop at their maximum.
_FULL = 0xFFFF_FFFF
# Intel's NICs count 48 bits (hw/irdma/icrdma_hw.c); so many bytes a second are no traffic, but a reset.
_WRAP, _MOST_BYTES = 1 << 48, 1e12
WITHOUT_FILES = (Reason.NOT_THERE, Reason.FILE_MISSING)
_STATISTIC = "rdma statistic "


def _octets(host: Host, path: str) -> Maybe[int]:
    units = read_integer(host, path)
    if isinstance(units, Unknown):
        return units
    if units == _FULL:
        return Unknown(Reason.MALFORMED, path, "a 32-bit counter has stopped at its maximum")
    return units * OCTETS_A_UNIT


def _hw_octets(host: Host, path: str) -> Maybe[int]:
    octets = read_integer(host, path)
    if isinstance(octets, Unknown) and octets.reason is Reason.NOT_THERE:
        port, _, name = path.rpartition("/hw_counters/")
        return read_integer(host, f"{port.rpartition('/ports/')[0]}/hw_counters/{name}")
    return octets


def _hardware_octets(port: RdmaPort) -> Octets | None:
    """Return the names of a driver's counters of bytes sent and received; None: it has none."""
    has = set(known(port.hw_counters, ()))
    return next((names for names in HARDWARE_OCTETS if has.issuperset(chain(*names))), None)


@frozen
class _ByteCounters:
    """The files whose sums are a port's bytes, and the function that reads one."""

    sent: tuple[str, ...]
    received: tuple[str, ...]
    read: Callable[[Host, str], Maybe[int]]


def _byte_counters(device: str, port: RdmaPort) -> Maybe[_ByteCounters]:
    path = f"{device}/ports/{port.number}"
    if isinstance(port.telemetry, Unknown):
        return port.telemetry
    if port.telemetry:
        files = [telemetry_file(device, name) for name in (SENT_OCTETS, RECEIVED_OCTETS)]
        return _ByteCounters((files[0],), (files[1],), read_telemetry)
    if SENT not in known(port.counters, ()) and (octets := _hardware_octets(port)):
        directory = statistic(device, port) if port.is_hidden else f"{path}/hw_counters"
        sent, received = (tuple(f"{directory}/{name}" for name in names) for names in octets)
        return _ByteCounters(sent, received, _hw_octets)
    if isinstance(port.counters, Unknown) and port.counters.reason in WITHOUT_FILES:
        return port.counters
    return _ByteCounters((f"{path}/counters/{SENT}",), (f"{path}/counters/{RECEIVED}",), _octets)


def read_port(host: Host, device: str, port: RdmaPort) -> PortCounters:
    """Read a port's bytes; `device`: its path in sysfs.

    Some drivers have them only in hw_counters, Slingshot NICs in telemetry/; rxe counts only packets
    (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
    """
    return _read_bytes(host, _byte_counters(device, port))


def statistic(device: str, port: RdmaPort) -> str:
    """Return what stands for the directory of counters that RDMA netlink has; `device`: its path in sysfs."""
    return f"{_STATISTIC}{posixpath.basename(device)}/{port.number}"


def read_statistics(host: Host, files: Collection[str]) -> dict[str, Maybe[int]] | None:
    """Return the counters of one port that RDMA netlink has, by their files; None: it has none of these."""
    directory, _, _ = next(iter(files), "").rpartition("/")
    if not directory.startswith(_STATISTIC):
        return None
    name = directory.removeprefix(_STATISTIC)
    answer = host.rdma_statistics((name,))[name]
    absent = Unknown(Reason.NOT_THERE, directory, "RDMA netlink no longer has this counter")
    if isinstance(answer, Unknown):
        return dict.fromkeys(files, answer)
    return {file: answer.get(file.rpartition("/")[2], absent) for file in files}


def _read_bytes(host: Host, counters: Maybe[_ByteCounters]) -> PortCounters:
    if isinstance(counters, Unknown):
        return PortCounters(host.monotonic(), counters, counters)
    found = read_statistics(host, (*counters.sent, *counters.received))
    read = partial(counters.read, host) if found is None else found.__getitem__
    sent = _sum(read, counters.sent)
    at = host.monotonic()
    return PortCounters(at, sent, _sum(read, counters.received))


def _sum(read: Callable[[str], Maybe[int]], files: tuple[str, ...]) -> Maybe[int]:
    total = 0
    for file in files:
        octets = read(file)
        if isinstance(octets, Unknown):
            return octets
        total += octets
    return total


@frozen
class _PortSource:
    """What a reading asks for one port."""

    port: tuple[str, int]
    state_file: str  # "": of a device without verbs, whose netdev shows the state
    netdev: Maybe[str]
    counters: Maybe[_ByteCounters]
    is_software: bool


@frozen
class Sources:
    """What a reading asks for, which depends on the node alone."""

    ports: tuple[_PortSource, ...]
    netdevs: tuple[str, ...]
    modules: tuple[str, ...]  # those that are loaded


def _sources(node: Node) -> Sources:
    ports = [
        _PortSource(
            (device.name, port.number),
            f"{device.sysfs_path}/ports/{port.number}/state" if has_verbs(device) else "",
            port.netdev,
            _byte_counters(device.sysfs_path, port),
            is_software(device),
        )
        for device in (node.rdma.readable if isinstance(node.rdma, RdmaFacts) else ())
        for port in device.ports
    ]
    netdevs = dict.fromkeys(port.netdev for port in ports if not isinstance(port.netdev, Unknown))
    modules = node.modules.modules.values() if isinstance(node.modules, ModuleFacts) else ()
    loaded = tuple(module.name for module in modules if module.state is ModuleState.LIVE)
    return Sources(tuple(ports), tuple(netdevs), loaded)


def read(
    host: Host, node: Node, with_interfaces: bool = False, cache: Latest[Sources] | None = None
) -> Reading:
    """Read the devices that the node had when it was probed.

    `with_interfaces`: also the netdevs of its ports. On Ethernet the port counters leave out TCP/IP.
    `cache`: the caller's own, if it reads each second.
    """
    sources = (cache or Latest()).get(lambda: _sources(node), objects=(node,))
    ports: dict[tuple[str, int], PortCounters] = {}
    states: dict[tuple[str, int], Maybe[str]] = {}
    for source in sources.ports:
        file = source.state_file
        states[source.port] = read_numbered(host, file) if file else link_state(host, source.netdev)
        ports[source.port] = _read_bytes(host, source.counters)
    netdevs = sources.netdevs if with_interfaces else ()
    interfaces = host.interface_counters(netdevs) if netdevs else {}
    _count_software(sources, ports, interfaces, host.monotonic())
    live = host.nvml_live()
    refcnts = {
        name: read_integer(host, f"/sys/module/{name}/refcnt", signed=True) for name in sources.modules
    }
    return Reading(
        at=host.monotonic(),
        ports=ports,
        gpus=live if isinstance(live, Unknown) else {gpu.bdf: gpu for gpu in live},
        peermem=read_peermem(host, refcnts),
        module_refcnts=refcnts,
        port_states=states,
        interfaces=interfaces,
    )


def _count_software(
    sources: Sources,
    ports: dict[tuple[str, int], PortCounters],
    interfaces: Mapping[str, Maybe[InterfaceCounters]],
    at: float,
) -> None:
    """Take the interfaces' counters for ports of software RDMA, which count no bytes themselves.

    rxe and siw send through the interface, so its counters have their packets, and all others too
    (drivers/infiniband/sw/rxe/rxe_net.c, sw/siw/siw_qp_tx.c).
    """
    for source in sources.ports:
        if source.is_software and isinstance(ports[source.port].sent_bytes, Unknown):
            netdev = known(source.netdev, "")
            counters = interfaces.get(netdev)
            if counters is not None and not isinstance(counters, Unknown):
                ports[source.port] = PortCounters(at, counters.sent_bytes, counters.received_bytes, netdev)


def _rate(before: Maybe[int], after: Maybe[int], seconds: float) -> Maybe[float]:
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    if seconds <= 0:
        return Unknown(Reason.NOT_THERE, "", "no time between two readings")
    if after < before:
        after += _WRAP
        if not before <= after <= before + _MOST_BYTES * seconds:
            return Unknown(
                Reason.MALFORMED, "", "the counter went backward: it was reset, or 32 bits wrapped"
            )
    return (after - before) * 8 / seconds / 1e9


Bytes = TypeVar("Bytes", PortCounters, InterfaceCounters)


def _port_rate(before: Bytes, after: Bytes, seconds: float, interface: str = "") -> PortRate:
    sent = _rate(before.sent_bytes, after.sent_bytes, seconds)
    return PortRate(sent, _rate(before.received_bytes, after.received_bytes, seconds), interface)


def port_rates(before: Reading, after: Reading) -> dict[tuple[str, int], PortRate]:
    """Return the rates between two readings; a counter that went backward or was not read is unknown."""
    rates: dict[tuple[str, int], PortRate] = {}
    for port, new in after.ports.items():
        old = before.ports.get(port)
        if old is not None and old.interface == new.interface:
            rates[port] = _port_rate(old, new, new.at - old.at, new.interface)
    return rates


def netdev_rates(before: Reading, after: Reading) -> dict[str, PortRate]:
    """Return the TCP/IP traffic between two readings by netdev; RDMA bypasses the netdev."""
    rates: dict[str, PortRate] = {}
    for name, new in after.interfaces.items():
        old = before.interfaces.get(name)
        if isinstance(new, Unknown):
            rates[name] = PortRate(new, new)
        elif old is not None and not isinstance(old, Unknown):
            rates[name] = _port_rate(old, new, after.at - before.at)
    return rates
