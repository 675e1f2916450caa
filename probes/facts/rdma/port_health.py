"""The health of each RDMA port: error counters, subnet manager, MTU, and the netdev that RoCE depends on.

Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c. State, rate and GIDs are
in devices.py, bytes in rates.py. Only the difference between two readings of a counter is meaningful: the
value counts from the last reset, and many counters are so narrow that they stop at their maximum.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.facts.rdma.counters import ERROR_COUNTER_BITS
from probes.facts.rdma.devices import Gid, RdmaDevice, RdmaFacts, RdmaPort
from probes.host.protocol import Host
from probes.host.values import NO_PMA, read_integer

# Settings and traffic, not trouble: mlx5's names, drivers/infiniband/hw/mlx5/counters.c.
_NO_ERRORS = ("lifespan", "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect")
_MAX_HW_COUNTERS = 128
# Old kernels print this for a device that answers no PMA query (core/sysfs.c, show_pma_counter).
_PRIORITIES = range(8)
_IFF_UP = 1  # include/uapi/linux/if.h
_ROCE_MTUS = (4096, 2048, 1024, 512, 256)
# GRH, UDP, BTH, XRC, AtomicETH and ICRC: what iboe_get_mtu subtracts (include/rdma/ib_addr.h).
_ROCE_HEADER_BYTES = 40 + 8 + 12 + 4 + 28 + 4
_IPV4_GID = re.compile(r"(?:0000:){5}ffff:([0-9a-f]{2})([0-9a-f]{2}):([0-9a-f]{2})([0-9a-f]{2})")


@frozen
class ErrorCounter:
    """One counter since its last reset."""

    value: int
    is_full: bool  # it has reached its maximum and no longer counts


@frozen
class PortHealth:
    """One port of an RDMA device."""

    device: str
    port: int
    errors: Maybe[dict[str, Maybe[ErrorCounter]]]  # of ERROR_COUNTER_BITS; NOT_THERE: a VF, some drivers
    hw_errors: Maybe[dict[str, Maybe[int]]]  # the driver's own names: "rnr_nak_retry_err"
    sm_lid: Maybe[int]  # 0 on InfiniBand: no subnet manager
    netdev: Maybe[str]
    netdev_mtu_bytes: Maybe[int]
    roce_mtu_bytes: Maybe[int]  # the RDMA MTU that results from the netdev's; NOT_THERE: InfiniBand
    netdev_is_up: Maybe[bool]  # administratively up (IFF_UP)
    carrier_changes: Maybe[int]  # link-up and link-down events since the netdev was created
    ecn_priorities: Maybe[tuple[int, ...]]  # those that react to congestion; NOT_THERE: not OFED's driver
    traffic_class: Maybe[int]  # of new connections; NOT_THERE: not set, or not OFED's driver


@frozen
class PortHealthFacts:
    """By (RDMA device, port)."""

    ports: dict[tuple[str, int], PortHealth]


def probe(host: Host, rdma: RdmaFacts) -> PortHealthFacts:
    """Read the counters of every port. Each read queries the device's firmware, so not every second."""
    pairs = ((device, port) for device in rdma.devices for port in device.ports)
    return PortHealthFacts({(device.name, port.number): _port(host, device, port) for device, port in pairs})


@frozen
class CounterValue:
    """One counter of a port as displayed: its value, and its rise since an earlier reading."""

    name: str
    value: int
    rise: int | None = None  # None: no earlier reading, or the counter was reset in between
    is_full: bool = False  # it has reached its maximum and no longer counts


def counter_values(now: PortHealth, before: PortHealth | None = None) -> tuple[CounterValue, ...]:
    """Return the counters of a port that are not 0 and could be read, rising ones first.

    `before` is the same port at an earlier reading.
    """
    values = _values_of(now)
    earlier = {} if before is None else {name: value for name, (value, _) in _values_of(before).items()}
    found = []
    for name, (value, is_full) in values.items():
        was = earlier.get(name)
        rise = None if was is None or was > value else value - was
        if value:
            found.append(CounterValue(name, value, rise, is_full))
    return tuple(sorted(found, key=lambda counter: -(counter.rise or 0)))


def _values_of(health: PortHealth) -> dict[str, tuple[int, bool]]:
    values: dict[str, tuple[int, bool]] = {}
    for name, counter in known(health.errors, {}).items():
        if not isinstance(counter, Unknown):
            values[name] = (counter.value, counter.is_full)
    for name, value in known(health.hw_errors, {}).items():
        if not isinstance(value, Unknown):
            values.setdefault(name, (value, False))
    return values


def roce_mtu(netdev_mtu_bytes: int) -> int | None:
    """Return the RDMA MTU for a netdev's MTU; None: too small for RoCE (ib_addr.h, iboe_get_mtu)."""
    payload = netdev_mtu_bytes - _ROCE_HEADER_BYTES
    return next((mtu for mtu in _ROCE_MTUS if payload >= mtu), None)


def routable_gids(gids: tuple[Gid, ...]) -> tuple[tuple[int, str], ...]:
    """Return (index, IPv4 address) of the GIDs that RoCE v2 can route: values for NCCL_IB_GID_INDEX."""
    routable = ((gid.index, _IPV4_GID.fullmatch(gid.gid)) for gid in gids if gid.type == "RoCE v2")
    parts = ((index, match.groups()) for index, match in routable if match)
    return tuple((index, ".".join(str(int(part, 16)) for part in groups)) for index, groups in parts)


def _port(host: Host, device: RdmaDevice, port: RdmaPort) -> PortHealth:
    base = f"{device.sysfs_path}/ports/{port.number}"
    below = map_known(port.netdev, lambda netdev: f"/sys/class/net/{netdev}")

    def number(name: str) -> Maybe[int]:
        return map_known(below, lambda directory: read_integer(host, f"{directory}/{name}"))

    mtu = number("mtu")
    directories = f"{base}/hw_counters", f"{device.sysfs_path}/hw_counters"
    # A bond has no files of ECN, but its ports do.
    queues = below if port.bond is None else f"/sys/class/net/{port.bond.members[0].netdev}"
    return PortHealth(
        device=device.name,
        port=port.number,
        errors=_errors(host, f"{base}/counters", port.counters),
        hw_errors=_hw_errors(host, directories, port.hw_counters),
        sm_lid=read_integer(host, f"{base}/sm_lid"),
        netdev=port.netdev,
        netdev_mtu_bytes=mtu,
        roce_mtu_bytes=_roce_mtu(port, mtu),
        netdev_is_up=map_known(number("flags"), lambda flags: bool(flags & _IFF_UP)),
        carrier_changes=number("carrier_changes"),
        ecn_priorities=map_known(queues, lambda directory: _ecn(host, f"{directory}/ecn/roce_rp/enable")),
        traffic_class=_traffic_class(host, f"{device.sysfs_path}/tc/{port.number}/traffic_class"),
    )


def _roce_mtu(port: RdmaPort, netdev_mtu: Maybe[int]) -> Maybe[int]:
    if isinstance(port.link_layer, Unknown):
        return port.link_layer
    if port.link_layer != "Ethernet":
        return Unknown(Reason.NOT_THERE, "link_layer", "not a RoCE port")
    if isinstance(netdev_mtu, Unknown):
        return netdev_mtu
    too_small = Unknown(Reason.MALFORMED, "mtu", f"{netdev_mtu} bytes are too few for RoCE")
    return roce_mtu(netdev_mtu) or too_small


def parse_counter(text: str, bits: int = 64) -> ErrorCounter | None:
    """Parse a counter of this many bits; None for text that is not a number."""
    if not re.fullmatch(r"[0-9]{1,20}", text):
        return None
    # Some drivers provide wider counters than the MAD has room for; those have not stopped.
    return ErrorCounter(int(text), int(text) == (1 << bits) - 1)


def _errors(
    host: Host, directory: str, names: Maybe[tuple[str, ...]]
) -> Maybe[dict[str, Maybe[ErrorCounter]]]:
    if isinstance(names, Unknown):
        return names
    found: dict[str, Maybe[ErrorCounter]] = {}
    refused: Unknown | None = None
    for name, bits in ERROR_COUNTER_BITS.items():
        if name not in names:
            continue
        text = host.read(f"{directory}/{name}", 4096) if refused is None else refused
        found[name] = _counter(text, f"{directory}/{name}", bits)
        # A device that refuses one counter refuses all, and logs a line to the kernel log for each.
        if isinstance(text, Unknown) and text.reason is Reason.IO_ERROR:
            refused = Unknown(text.reason, text.source, text.detail or "not read again after an error")
    return found


def _counter(text: Maybe[str], path: str, bits: int) -> Maybe[ErrorCounter]:
    if isinstance(text, Unknown):
        return text
    if text == NO_PMA:
        return Unknown(Reason.NOT_THERE, path, text)
    counter = parse_counter(text, bits)
    return Unknown(Reason.MALFORMED, path, printable(text, 40)) if counter is None else counter


def _hw_errors(
    host: Host, directories: tuple[str, str], names: Maybe[tuple[str, ...]]
) -> Maybe[dict[str, Maybe[int]]]:
    if isinstance(names, Unknown):
        return names
    # Counters of the port or, with some drivers, of the device; devices.py lists the first that exists.
    directory = directories[1] if isinstance(host.names(directories[0]), Unknown) else directories[0]
    found: dict[str, Maybe[int]] = {}
    for name in [name for name in names if name not in _NO_ERRORS][:_MAX_HW_COUNTERS]:
        value = found[name] = read_integer(host, f"{directory}/{name}")
        if isinstance(value, Unknown) and value.reason is Reason.IO_ERROR:
            break
    return found


def _ecn(host: Host, directory: str) -> Maybe[tuple[int, ...]]:
    """Return the priorities N whose file ecn/roce_rp/enable/N (OFED) contains 1."""
    names = host.names(directory)
    if isinstance(names, Unknown):
        return names
    enabled = [host.read(f"{directory}/{number}", 4096) for number in _PRIORITIES]
    unread = first_unread(enabled)
    on = tuple(number for number, text in zip(_PRIORITIES, enabled, strict=True) if text == "1")
    return on if on or unread is None else unread


def _traffic_class(host: Host, path: str) -> Maybe[int]:
    """Read OFED's tc/PORT/traffic_class: "Global tclass=106", or empty if none is set."""
    text = host.read(path, 4096)
    if isinstance(text, Unknown):
        return text
    match = re.search(r"Global tclass=([0-9]{1,3})\b", text)
    return int(match[1]) if match else Unknown(Reason.NOT_THERE, path, "no traffic class is set")
