"""The counters of RDMA ports and what they mean, and each port's subnet manager, MTU and netdev.

Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c. State, rate and GIDs are
in devices.py, bytes in rates.py. Only the difference between two readings of a counter is meaningful: the
value counts from the last reset, and many counters are so narrow that they stop at their maximum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache, partial

from probes.base.data_files import read_text
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known, parse_known
from probes.facts.rdma.bit_errors import LOST, NDR_GBPS, SYMBOL, per_hour
from probes.facts.rdma.devices import Gid, RdmaDevice, RdmaFacts, RdmaPort
from probes.host.fec import SOURCE, FecState
from probes.host.protocol import Host
from probes.host.values import NO_PMA, read_integer

# The counters of RDMA ports that gdrtop knows: where they are, how wide, and what it means if they rise.
#
# Everything that reads, judges, draws or redacts counters takes them from PORT_COUNTERS.


class Place(Enum):
    """Where a counter is read."""

    STANDARD = "counters"  # Documentation/ABI/stable/sysfs-class-infiniband
    HARDWARE = "hw_counters"  # names of the driver
    ETHTOOL = "ethtool -S"  # of the port's netdev
    TELEMETRY = "device/telemetry"  # of a Slingshot NIC, which has no port in sysfs


class CounterColumn(Enum):
    """Counters that mean the same, which the Live screen adds up in one column."""

    CONGESTION = "CNP"
    RETRANSMITS = "retrans"
    RECEIVER = "RNR"
    DISCARDS = "discards"
    ERRORS = "errors"
    WAIT = "wait"


class Harm(Enum):
    """What goes wrong while a counter rises."""

    SIGNAL = "signal"
    HEAT = "heat"
    FLAP = "flap"
    DISCARDS = "discards"
    TIMEOUT = "timeout"
    RETRY = "retry"
    LOSS = "loss"
    REORDERED = "reordered"  # normal with adaptive routing, unless a counter that shows a loss rises too
    CORRUPT = "corrupt"
    RECEIVER = "receiver"
    CONGESTION = "congestion"


@frozen
class Rise:
    """What a port does whose counter rises faster than is normal."""

    harm: Harm
    sentence: str  # after the port's name: "has signal errors"
    limits: tuple[tuple[float, float], ...]  # more than so many events in so many seconds
    shows_loss: bool = False  # packets out of order were lost, not only overtaken by others
    is_of_symbols: bool = False  # for some line rates, NVIDIA states a limit of its own

    def limits_at(self, gbps: Maybe[float]) -> tuple[tuple[float, float], ...]:
        """Return the limits at a line rate; the last one is that of an hour."""
        if not self.is_of_symbols or gbps != NDR_GBPS:
            return self.limits
        return *self.limits[:-1], (per_hour(SYMBOL.warning, NDR_GBPS), 3600)

    def per_hour(self, gbps: Maybe[float]) -> float:
        """Return the lowest of the limits as events in an hour."""
        return min(events * 3600 / seconds for events, seconds in self.limits_at(gbps))


@frozen
class PortCounter:
    """One counter of a port."""

    name: str
    place: Place
    column: CounterColumn | None = None  # None: among the others
    rise: Rise | None = None  # None: a rise alone means nothing
    bits: int | None = None  # it stops at its maximum; None: it wraps, or is wider than 32 bits
    is_sampled: bool = True  # by the live view, each second or two
    is_expected: bool = False  # every sample has it, with a reason where the NIC has none of that name


# Limits per second, minute and hour: NVIDIA NVSentinel, NIC health monitor. It has none for congestion
# notifications and retransmits: those here are far above what adaptive routing and small incasts cause.
# 120 symbol errors an hour are too many for NDR: at 400 Gb/s, NVIDIA's limit of its error rate is 7 an hour.
# For other generations no limit of the rate is stated, so NVSentinel's stays. That symbol_error counts the
# same events as rx_pcs_symbol_err_phy is a conclusion; no source says so.
_RISES = {
    "signal-errors": Rise(Harm.SIGNAL, "has signal errors", ((100, 10), (120, 3600)), is_of_symbols=True),
    "module-hot": Rise(Harm.HEAT, "has a module that is too hot", ((0, 60),)),
    "module-bad": Rise(Harm.SIGNAL, "has a bad cable or module", ((0, 60),)),
    "recoveries": Rise(Harm.SIGNAL, "recovers from link errors", ((5, 60),)),
    "damaged": Rise(Harm.SIGNAL, "receives damaged packets", ((100, 10),)),
    "integrity": Rise(Harm.SIGNAL, "has link integrity errors", ((0, 60),)),
    "overruns": Rise(Harm.DISCARDS, "has buffer overruns", ((0, 60),)),
    "link-lost": Rise(Harm.FLAP, "lost its link", ((0, 60),)),
    "discarded": Rise(Harm.DISCARDS, "discards packets", ((1000, 10),)),
    "discarded-received": Rise(Harm.DISCARDS, "discards received packets", ((1000, 10),)),
    "ack-timeouts": Rise(Harm.TIMEOUT, "has ACK timeouts", ((10, 10),)),
    "given-up": Rise(Harm.RETRY, "has given up on a peer", ((0, 60),)),
    "slow-restarts": Rise(Harm.LOSS, "restarts slowly after losses", ((100, 10),)),
    "resent": Rise(Harm.LOSS, "retransmits packets", ((100, 10),)),
    "out-of-order": Rise(Harm.REORDERED, "loses packets", ((100, 10),)),
    "corrupt": Rise(Harm.CORRUPT, "receives corrupt RoCE packets", ((10, 10),)),
    "waits-for-receivers": Rise(Harm.RECEIVER, "waits for receivers", ((10, 10),)),
    "no-buffers": Rise(Harm.RECEIVER, "runs out of receive buffers", ((1000, 10),)),
    "slowed": Rise(Harm.CONGESTION, "is slowed down by congestion", ((5_000, 10),)),
    "congested": Rise(Harm.CONGESTION, "receives from a congested network", ((5_000, 10),)),
    "no-credits": Rise(Harm.CONGESTION, "waits for credits from the switch", ((1_000_000, 10),)),
    "lost-and-resent": Rise(Harm.LOSS, "retransmits packets", ((100, 10),), shows_loss=True),
    "lost-acks": Rise(Harm.TIMEOUT, "has ACK timeouts", ((10, 10),), shows_loss=True),
}


def _read_counters() -> tuple[PortCounter, ...]:
    """Return the rows of port_counters.txt."""
    lines = read_text(__package__, "port_counters.txt").splitlines()
    return tuple(_counter(*line.split()) for line in lines if not line.startswith("#"))


def _counter(place: str, name: str, bits: str, column: str, rise: str, *words: str) -> PortCounter:
    return PortCounter(
        name=name.replace("\\040", " "),
        place=Place[place],
        column=None if column == "-" else CounterColumn[column],
        rise=None if rise == "-" else _RISES[rise],
        bits=None if bits == "-" else int(bits),
        is_sampled="unsampled" not in words,
        is_expected="expected" in words,
    )


# Units of four octets (IBTA PortCounters; Documentation/ABI/stable/sysfs-class-infiniband).
PORT_DATA = SENT, RECEIVED = "port_xmit_data", "port_rcv_data"
OCTETS_A_UNIT = 4
PORT_COUNTERS = _read_counters()

LOSSES = frozenset(counter.name for counter in PORT_COUNTERS if counter.rise and counter.rise.shows_loss)
"""Counters that show that packets were lost, and not only overtaken by others."""
REORDERED = frozenset(each.name for each in PORT_COUNTERS if each.rise and each.rise.harm is Harm.REORDERED)
CNPS = frozenset(each.name for each in PORT_COUNTERS if each.rise and each.column is CounterColumn.CONGESTION)
"""Congestion notifications of RoCE that a port has sent or followed."""
MANY_CNPS = min(events / seconds for events, seconds in _RISES["slowed"].limits)
"""A second, from which on they slow a port down."""
_FEW_LOSSES = 0.01  # of the packets out of order: a peer that ended leaves some behind

ERROR_COUNTER_BITS = {counter.name: counter.bits for counter in PORT_COUNTERS if counter.bits is not None}
"""The standard counters, which all count trouble → their width in bits."""


@cache
def sampled(place: Place, is_expected: bool = False) -> tuple[str, ...]:
    """Return the names that the live view reads there; with `is_expected`, those that every sample has."""
    return tuple(
        counter.name
        for counter in PORT_COUNTERS
        if counter.place is place and counter.is_sampled and counter.is_expected >= is_expected
    )


_ETHTOOL_ERRORS = frozenset(
    counter.name
    for counter in PORT_COUNTERS
    if counter.place is Place.ETHTOOL and counter.column is CounterColumn.ERRORS
)
# Settings and traffic, not trouble: mlx5's names, drivers/infiniband/hw/mlx5/counters.c.
_NO_ERRORS = ("lifespan", "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect")
_MAX_HW_COUNTERS = 128
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


_NO_FEC = Unknown(Reason.NOT_THERE, SOURCE, "only Ethernet ports report it")


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
    netdev_state: Maybe[str]  # operstate: "up", "down", "dormant", "unknown" (the driver does not say)
    carrier_changes: Maybe[int]  # link-up and link-down events since the netdev was created
    ecn_priorities: Maybe[tuple[int, ...]]  # those that react to congestion; NOT_THERE: not OFED's driver
    traffic_class: Maybe[int]  # of new connections; NOT_THERE: not set, or not OFED's driver
    ethtool: Maybe[dict[str, int]]  # counters of `ethtool -S` of its netdev, also on InfiniBand
    fec: Maybe[FecState]  # NOT_THERE: InfiniBand, or the driver does not report it

    @property
    def link_counts(self) -> Maybe[Mapping[str, int]]:
        """The counters of its netdev, and of its FEC if the netdev's have nothing of bit errors."""
        fec = {} if isinstance(self.fec, Unknown) else self.fec.counts
        if isinstance(self.ethtool, Unknown):
            return fec or self.ethtool
        return self.ethtool if LOST in self.ethtool else {**fec, **self.ethtool}


@frozen
class PortHealthFacts:
    """By (RDMA device, port)."""

    ports: dict[tuple[str, int], PortHealth]


def probe(host: Host, rdma: RdmaFacts) -> PortHealthFacts:
    """Read the counters of every port. Each read queries the device's firmware, so not every second."""
    pairs = [(device, port) for device in rdma.devices for port in device.ports]
    netdevs = {known(port.netdev, ""): port.link_layer == "Ethernet" for _, port in pairs}
    netdevs.pop("", None)
    counters = host.ethtool_counters(tuple(netdevs)) if netdevs else {}
    names = tuple(name for name, is_ethernet in netdevs.items() if is_ethernet)
    states = host.fec_states(names) if names else {}
    health = (_port(host, device, port, counters, states) for device, port in pairs)
    return PortHealthFacts({(port.device, port.port): port for port in health})


def without_netdev(port: RdmaPort) -> Unknown:
    """Return why a port has no counters of `ethtool -S`."""
    detail = "this port has no netdev, so no ethtool counters"
    if port.link_layer == "InfiniBand":
        detail += "; ib_ipoib would show bit errors"
    source = port.netdev.source if isinstance(port.netdev, Unknown) else "ethtool -S"
    return Unknown(Reason.NOT_THERE, source, detail)


@frozen
class CounterValue:
    """One counter of a port as displayed: its value, and its rise since an earlier reading."""

    name: str
    value: int
    rise: int | None = None  # None: no earlier reading, or the counter was reset in between
    is_full: bool = False  # it has reached its maximum and no longer counts


def counter_values(now: PortHealth, before: PortHealth | None = None) -> tuple[CounterValue, ...]:
    """Return a port's known counters that are not 0, rising ones first; `before`: an earlier reading."""
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
    for name, count in known(health.ethtool, {}).items():
        if name in _ETHTOOL_ERRORS:
            values.setdefault(name, (count, False))
    return values


def is_reordered(counts: Mapping[str, float]) -> bool:
    """Return whether packets overtake each other and none is lost: adaptive routing or several paths."""
    reordered, lost = (sum(counts.get(name, 0) for name in names) for names in (REORDERED, LOSSES))
    return lost <= _FEW_LOSSES * reordered and reordered > 0


def roce_mtu(netdev_mtu_bytes: int) -> int | None:
    """Return the RDMA MTU for a netdev's MTU; None: too small for RoCE (ib_addr.h, iboe_get_mtu)."""
    payload = netdev_mtu_bytes - _ROCE_HEADER_BYTES
    return next((mtu for mtu in _ROCE_MTUS if payload >= mtu), None)


def routable_gids(gids: tuple[Gid, ...]) -> tuple[tuple[int, str], ...]:
    """Return (index, IPv4 address) of the GIDs that RoCE v2 can route: values for NCCL_IB_GID_INDEX."""
    routable = ((gid.index, _IPV4_GID.fullmatch(gid.gid)) for gid in gids if gid.type == "RoCE v2")
    parts = ((index, match.groups()) for index, match in routable if match)
    return tuple((index, ".".join(str(int(part, 16)) for part in groups)) for index, groups in parts)


def _port(
    host: Host,
    device: RdmaDevice,
    port: RdmaPort,
    counters: Mapping[str, Maybe[dict[str, int]]],
    states: Mapping[str, Maybe[FecState]],
) -> PortHealth:
    """Read one port; of its netdev's `counters` and FEC `states` take its own."""
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
        errors=map_known(port.counters, lambda names: _errors(host, f"{base}/counters", names)),
        hw_errors=_statistics(host, device, port)
        if port.is_hidden
        else map_known(port.hw_counters, lambda names: _hw_errors(host, directories, names)),
        sm_lid=read_integer(host, f"{base}/sm_lid"),
        netdev=port.netdev,
        netdev_mtu_bytes=mtu,
        roce_mtu_bytes=_roce_mtu(port, mtu),
        netdev_is_up=map_known(number("flags"), lambda flags: bool(flags & _IFF_UP)),
        netdev_state=map_known(below, lambda directory: _operstate(host, f"{directory}/operstate")),
        carrier_changes=number("carrier_changes"),
        ecn_priorities=map_known(queues, lambda directory: _ecn(host, f"{directory}/ecn/roce_rp/enable")),
        traffic_class=_traffic_class(host, f"{device.sysfs_path}/tc/{port.number}/traffic_class"),
        ethtool=counters.get(known(port.netdev, ""), without_netdev(port)),
        fec=states.get(known(port.netdev, ""), _NO_FEC),
    )


def _roce_mtu(port: RdmaPort, netdev_mtu: Maybe[int]) -> Maybe[int]:
    if isinstance(port.link_layer, Unknown):
        return port.link_layer
    if port.link_layer != "Ethernet":
        return Unknown(Reason.NOT_THERE, "link_layer", "not a RoCE port")
    too_small = Unknown(Reason.MALFORMED, "mtu", f"{netdev_mtu} bytes are too few for RoCE")
    return map_known(netdev_mtu, lambda mtu: roce_mtu(mtu) or too_small)


def parse_counter(text: str, bits: int = 64) -> ErrorCounter | None:
    """Parse a counter of this many bits; None for text that is not a number."""
    if not re.fullmatch(r"[0-9]{1,20}", text):
        return None
    # Some drivers provide wider counters than the MAD has room for; those have not stopped.
    return ErrorCounter(int(text), int(text) == (1 << bits) - 1)


def _errors(host: Host, directory: str, names: tuple[str, ...]) -> dict[str, Maybe[ErrorCounter]]:
    found: dict[str, Maybe[ErrorCounter]] = {}
    refused: Unknown | None = None
    for name, bits in ERROR_COUNTER_BITS.items():
        if name not in names:
            continue
        text = host.read(f"{directory}/{name}", 4096) if refused is None else refused
        if text == NO_PMA:
            text = Unknown(Reason.NOT_THERE, f"{directory}/{name}", NO_PMA)
        found[name] = parse_known(text, partial(parse_counter, bits=bits), f"{directory}/{name}")
        # A device that refuses one counter refuses all, and logs a line to the kernel log for each.
        if isinstance(text, Unknown) and text.reason is Reason.IO_ERROR:
            refused = Unknown(text.reason, text.source, text.detail or "not read again after an error")
    return found


def _operstate(host: Host, path: str) -> Maybe[str]:
    return map_known(host.read(path, 64), lambda text: printable(text, 20))


def _hw_errors(host: Host, directories: tuple[str, str], names: tuple[str, ...]) -> dict[str, Maybe[int]]:
    # Counters of the port or, with some drivers, of the device; devices.py lists the first that exists.
    directory = directories[1] if isinstance(host.names(directories[0]), Unknown) else directories[0]
    found: dict[str, Maybe[int]] = {}
    for name in [name for name in names if name not in _NO_ERRORS][:_MAX_HW_COUNTERS]:
        value = found[name] = read_integer(host, f"{directory}/{name}")
        if isinstance(value, Unknown) and value.reason is Reason.IO_ERROR:
            break
    return found


def _statistics(host: Host, device: RdmaDevice, port: RdmaPort) -> Maybe[dict[str, Maybe[int]]]:
    name = f"{device.name}/{port.number}"
    answer = host.rdma_statistics((name,))[name]
    kept = map_known(answer, lambda counts: [item for item in counts.items() if item[0] not in _NO_ERRORS])
    return map_known(kept, lambda counts: dict(counts[:_MAX_HW_COUNTERS]))


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
    matches = map_known(host.read(path, 4096), re.compile(r"Global tclass=([0-9]{1,3})\b").findall)
    absent = Unknown(Reason.NOT_THERE, path, "no traffic class is set")
    return map_known(matches, lambda found: int(found[0]) if found else absent)
