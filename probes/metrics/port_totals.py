"""The counters of ports as the kernel has them, for a monitoring system that makes rates of them itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.live.ports import counter_files, read_counter, rise
from probes.snapshot.rates import PortCounters, read_port

WAIT = "port_xmit_wait"
_SECONDS = 10.0  # for the answer to one question
_OCTETS_A_WORD = 4  # the unit of port_xmit_data


@frozen
class PortTotals:
    """The counters of one port at one moment."""

    device: str
    port: int
    bytes: PortCounters
    counters: Mapping[str, Maybe[int]]  # by the kernel's name; of the wanted ones those that the port has
    ethtool: Maybe[Mapping[str, int]]  # ethtool -S of its netdev


def read_port_totals(host: Host, node: Node, wanted: Iterable[str]) -> Maybe[tuple[PortTotals, ...]]:
    """Read the `wanted` counters of all ports, with their bytes and those of ethtool -S.

    TIMED_OUT: a read hangs.
    """
    names = frozenset(wanted)
    if isinstance(node.rdma, Unknown) and node.rdma.reason is Reason.NOT_THERE:
        return ()
    ask = start_probe(
        host, "port totals", lambda: map_known(node.rdma, lambda rdma: _read(host, rdma, names))
    )
    return ask.answer(_SECONDS)


def _read(host: Host, rdma: RdmaFacts, wanted: frozenset[str]) -> tuple[PortTotals, ...]:
    ports = [(device, port) for device in rdma.devices for port in device.ports]
    netdevs = tuple(dict.fromkeys(filter(None, (known(port.netdev, "") for _, port in ports))))
    ethtool = host.ethtool_counters(netdevs) if netdevs else {}
    absent = Unknown(Reason.NOT_THERE, "ethtool -S")
    return tuple(
        PortTotals(
            device.name,
            port.number,
            read_port(host, device.sysfs_path, port),
            _read_counters(host, device, port, wanted),
            map_known(port.netdev, lambda netdev: ethtool.get(netdev, absent)),
        )
        for device, port in ports
    )


def _read_counters(
    host: Host, device: RdmaDevice, port: RdmaPort, wanted: frozenset[str]
) -> dict[str, Maybe[int]]:
    found: dict[str, Maybe[int]] = {}
    refused: Unknown | None = None
    for name, file in counter_files(host, device, port).items():
        if name in wanted:
            value = read_counter(host, file) if refused is None else refused
            if isinstance(value, Unknown) and value.reason is Reason.IO_ERROR:
                refused = value  # a device that refuses one counter refuses all, and logs each
            found[name] = value
    return found


def wait_ratio(before: PortTotals | None, now: PortTotals) -> Maybe[float]:
    """Return wait ticks / (wait ticks + words of 4 octets sent) between two readings, from 0 to 1.

    A tick's length is the NIC's own (IBTA PortXmitWait), so this does not measure time.
    """
    after = now.counters.get(WAIT, Unknown(Reason.NOT_THERE, WAIT))
    if isinstance(after, Unknown):
        return after
    if before is None:
        return Unknown(Reason.NOT_RECORDED, WAIT, "needs a second sample")
    earlier = before.counters.get(WAIT, Unknown(Reason.NOT_RECORDED, WAIT))
    ticks = earlier if isinstance(earlier, Unknown) else rise(WAIT, earlier, after)
    octets = _risen(before.bytes.sent_bytes, now.bytes.sent_bytes)
    if isinstance(ticks, Unknown):
        return ticks
    if isinstance(octets, Unknown):
        return octets
    total = ticks + octets / _OCTETS_A_WORD
    return ticks / total if total else 0.0


def _risen(before: Maybe[int], after: Maybe[int]) -> Maybe[int]:
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    return after - before if after >= before else Unknown(Reason.MALFORMED, "", "the counter was reset")
