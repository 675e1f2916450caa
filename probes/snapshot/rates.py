"""The cheap reading taken once a second, and the rates between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpudirect import PeermemReading, read_peermem
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.rdma.cxi import RECEIVED_OCTETS, SENT_OCTETS, has_verbs, link_state, telemetry_file
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, is_software, read_numbered
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


# port_xmit_data and port_rcv_data count units of four octets (IBTA PortCounters;
# Documentation/ABI/stable/sysfs-class-infiniband).
_OCTETS_A_UNIT = 4
# Bytes sent and received in hw_counters: efa_verbs.c and bnxt_re/hw_counters.c; erdma_verbs.c.
_HARDWARE_OCTETS = (("tx_bytes", "rx_bytes"), ("tx_bytes_cnt", "rx_bytes_cnt"))
# Without extended counters they are 32 bits wide and stop at their maximum.
_FULL = 0xFFFF_FFFF


def _octets(host: Host, path: str) -> Maybe[int]:
    units = read_integer(host, path)
    if isinstance(units, Unknown):
        return units
    if units == _FULL:
        return Unknown(Reason.MALFORMED, path, "a 32-bit counter has stopped at its maximum")
    return units * _OCTETS_A_UNIT


def _hw_octets(host: Host, device: str, port: str, name: str) -> Maybe[int]:
    octets = read_integer(host, f"{port}/hw_counters/{name}")
    if isinstance(octets, Unknown) and octets.reason is Reason.NOT_THERE:
        return read_integer(host, f"{device}/hw_counters/{name}")
    return octets


def _hardware_octets(port: RdmaPort) -> tuple[str, str] | None:
    """Return the names of a driver's counters of bytes sent and received; None: it has none."""
    has = set(known(port.hw_counters, ()))
    return next((names for names in _HARDWARE_OCTETS if has.issuperset(names)), None)


def read_port(host: Host, device: str, port: RdmaPort) -> PortCounters:
    """Read a port's bytes; `device`: its path in sysfs.

    Some drivers have them only in hw_counters, Slingshot NICs in telemetry/; rxe counts only packets
    (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
    """
    path = f"{device}/ports/{port.number}"
    if isinstance(port.telemetry, Unknown):
        return PortCounters(host.monotonic(), port.telemetry, port.telemetry)
    if port.telemetry:
        sent = read_telemetry(host, telemetry_file(device, SENT_OCTETS))
        at = host.monotonic()
        return PortCounters(at, sent, read_telemetry(host, telemetry_file(device, RECEIVED_OCTETS)))
    if "port_xmit_data" not in known(port.counters, ()) and (names := _hardware_octets(port)):
        sent = _hw_octets(host, device, path, names[0])
        at = host.monotonic()
        return PortCounters(at, sent, _hw_octets(host, device, path, names[1]))
    if isinstance(port.counters, Unknown) and port.counters.reason is Reason.NOT_THERE:
        return PortCounters(host.monotonic(), port.counters, port.counters)
    sent = _octets(host, f"{path}/counters/port_xmit_data")
    at = host.monotonic()
    return PortCounters(at, sent, _octets(host, f"{path}/counters/port_rcv_data"))


def byte_files(host: Host, device: RdmaDevice, port: RdmaPort) -> tuple[tuple[str, ...], int]:
    """Return the files that `read_port` adds up, sent and received, and the bytes in one of their units.

    Of software RDMA they are those of its interface; without any, none.
    """
    path = f"{device.sysfs_path}/ports/{port.number}"
    if {SENT_OCTETS, RECEIVED_OCTETS} <= set(known(port.telemetry, ())):
        sent, received = (telemetry_file(device.sysfs_path, name) for name in (SENT_OCTETS, RECEIVED_OCTETS))
        return (sent, received), 1
    if "port_xmit_data" in known(port.counters, ()):
        return (f"{path}/counters/port_xmit_data", f"{path}/counters/port_rcv_data"), _OCTETS_A_UNIT
    if names := _hardware_octets(port):
        own = f"{path}/hw_counters"
        is_shared = isinstance(read_integer(host, f"{own}/{names[0]}"), Unknown)
        directory = f"{device.sysfs_path}/hw_counters" if is_shared else own
        return (f"{directory}/{names[0]}", f"{directory}/{names[1]}"), 1
    netdev = known(port.netdev, "")
    if is_software(device) and netdev:
        statistics = f"/sys/class/net/{netdev}/statistics"
        return (f"{statistics}/tx_bytes", f"{statistics}/rx_bytes"), 1
    return (), 1


def read(host: Host, node: Node, with_interfaces: bool = False) -> Reading:
    """Read the devices that the node had when it was probed.

    `with_interfaces`: also the netdevs of its ports. On Ethernet the port counters leave out TCP/IP.
    """
    ports: dict[tuple[str, int], PortCounters] = {}
    states: dict[tuple[str, int], Maybe[str]] = {}
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        for port in device.ports:
            if has_verbs(device):
                path = f"{device.sysfs_path}/ports/{port.number}/state"
                states[device.name, port.number] = read_numbered(host, path)
            else:
                states[device.name, port.number] = link_state(host, port.netdev)
            ports[device.name, port.number] = read_port(host, device.sysfs_path, port)
    netdevs = _netdevs(node) if with_interfaces else ()
    interfaces = host.interface_counters(netdevs) if netdevs else {}
    ports.update(_of_software(host, node, ports, interfaces))
    live = host.nvml_live()
    modules = node.modules.modules.values() if isinstance(node.modules, ModuleFacts) else ()
    loaded = [module.name for module in modules if module.state is ModuleState.LIVE]
    refcnts = {name: read_integer(host, f"/sys/module/{name}/refcnt", signed=True) for name in loaded}
    return Reading(
        at=host.monotonic(),
        ports=ports,
        gpus=map_known(live, lambda gpus: {gpu.bdf: gpu for gpu in gpus}),
        peermem=read_peermem(host, refcnts),
        module_refcnts=refcnts,
        port_states=states,
        interfaces=interfaces,
    )


def _of_software(
    host: Host,
    node: Node,
    ports: Mapping[tuple[str, int], PortCounters],
    interfaces: Mapping[str, Maybe[InterfaceCounters]],
) -> dict[tuple[str, int], PortCounters]:
    """Return the interfaces' counters for ports of software RDMA, which count no bytes themselves.

    rxe and siw send through the interface, so its counters have their packets, and all others too
    (drivers/infiniband/sw/rxe/rxe_net.c, sw/siw/siw_qp_tx.c).
    """
    found: dict[tuple[str, int], PortCounters] = {}
    at = host.monotonic()
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        for port in device.ports:
            own = ports[device.name, port.number]
            if not isinstance(own.sent_bytes, Unknown) or not is_software(device):
                continue
            netdev = known(port.netdev, "")
            counters = interfaces.get(netdev)
            if counters is None or isinstance(counters, Unknown):
                continue
            sent, received = counters.sent_bytes, counters.received_bytes
            found[device.name, port.number] = PortCounters(at, sent, received, netdev)
    return found


def _netdevs(node: Node) -> tuple[str, ...]:
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    names = (port.netdev for device in devices for port in device.ports)
    return tuple(dict.fromkeys(name for name in names if not isinstance(name, Unknown)))


def _rate(before: Maybe[int], after: Maybe[int], seconds: float) -> Maybe[float]:
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    if seconds <= 0:
        return Unknown(Reason.NOT_THERE, "", "no time between two readings")
    if after < before:
        return Unknown(Reason.MALFORMED, "", "the counter went backward: it was reset, or 32 bits wrapped")
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
    seconds = after.at - before.at
    for name, new in after.interfaces.items():
        old = before.interfaces.get(name)
        if isinstance(new, Unknown):
            rates[name] = PortRate(new, new)
        elif old is not None and not isinstance(old, Unknown):
            rates[name] = _port_rate(old, new, seconds)
    return rates
