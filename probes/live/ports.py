"""Rates and error counters of the NIC ports between two samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, parse_rate
from probes.host.protocol import Host
from probes.live.pacing import Pacing
from probes.live.port_counters import (
    HARDWARE,
    STANDARD,
    missing,
    names_to_read,
    pause_percent,
    pcie_stall_percent,
    read_counter,
    rise,
)
from probes.live.sample import PortSample
from probes.snapshot.rates import PortRate, Reading, port_rates

# Every two seconds, and at most once a second because ethtool -S makes the driver query its firmware; both
# with room for an early timer.
COUNTER_SECONDS = 1.9
ETHTOOL_SECONDS = 0.9
_REFUSED_SECONDS = 600.0
_SECOND_SAMPLE = Unknown(Reason.NOT_THERE, "", "needs a second sample")
_NO_RATE = PortRate(_SECOND_SAMPLE, _SECOND_SAMPLE)
# Counters of ethtool -S that count events.
_ETHTOOL_EVENTS = (
    "link_down_events_phy",
    "rx_discards_phy",
    "tx_discards_phy",
    "outbound_pci_buffer_overflow",
)


@dataclass
class _Port:
    """One port, and the latest that its slow sources said."""

    device: RdmaDevice
    facts: RdmaPort
    paths: dict[str, str]  # counter -> its file
    absent: dict[str, Unknown]
    values: dict[str, int]
    line_rate: Maybe[float]
    counters: dict[str, Maybe[float]]
    pause: Maybe[float]
    stall: Maybe[float]
    ethtool: dict[str, int] | None = None
    events: Mapping[str, Maybe[float]] | None = None  # of ethtool
    refused_at: float | None = None  # the firmware refused a counter
    sample: PortSample | None = None


class PortReader:
    """Read the ports' counters; slow ones are read less often."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._ports: list[_Port] = []
        self._before: Reading | None = None
        self._counters = Pacing(COUNTER_SECONDS)
        self._ethtool = Pacing(ETHTOOL_SECONDS)

    def read(self, host: Host, node: Node, reading: Reading) -> tuple[PortSample, ...]:
        """Return a sample of each port, in the order of the node; a port that did not change stays itself."""
        if node is not self._node:
            self._node, self._ports = node, self._renewed(host, node)
        with self._counters.round(host.monotonic) as seconds:
            if seconds is not None:
                for port in self._ports:
                    _read_counters(host, port, seconds)
        with self._ethtool.round(host.monotonic) as seconds:
            if seconds is not None:
                _read_ethtool(host, self._ports, seconds)
        before = self._before
        is_later = before is not None and reading.at > before.at
        rates = port_rates(before, reading) if before is not None and is_later else {}
        self._before = reading
        return tuple(_sample(port, reading, rates) for port in self._ports)

    def _renewed(self, host: Host, node: Node) -> list[_Port]:
        """Return the node's ports; what was read of one that is still there is kept."""
        old = {(port.device.name, port.facts.number): port for port in self._ports}
        ports = []
        for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
            for facts in device.ports:
                port = _first(host, device, facts)
                was = old.get((device.name, facts.number))
                if was is not None and was.paths == port.paths and was.facts.netdev == facts.netdev:
                    was.device, was.facts, was.line_rate = device, facts, facts.rate_gbps
                    port = was
                ports.append(port)
        return ports


def _first(host: Host, device: RdmaDevice, facts: RdmaPort) -> _Port:
    path = f"{device.sysfs_path}/ports/{facts.number}"
    paths = {
        name.partition("/")[2]: f"{path}/{name}" for name in names_to_read(facts.hw_counters, facts.counters)
    }
    # Some drivers have one hw_counters directory for the device.
    if not isinstance(facts.hw_counters, Unknown) and isinstance(host.names(f"{path}/hw_counters"), Unknown):
        own, shared = f"{path}/hw_counters/", f"{device.sysfs_path}/hw_counters/"
        paths = {name: file.replace(own, shared) for name, file in paths.items()}
    absent = {**missing(facts.hw_counters, HARDWARE), **missing(facts.counters, STANDARD)}
    waiting: dict[str, Maybe[float]] = dict.fromkeys(paths, _SECOND_SAMPLE)
    for name in absent:
        if name not in paths:
            waiting[name] = absent[name]
    netdev = facts.netdev
    first = netdev if isinstance(netdev, Unknown) else _SECOND_SAMPLE
    return _Port(device, facts, paths, absent, {}, facts.rate_gbps, waiting, first, first)


def _read_counters(host: Host, port: _Port, seconds: float) -> None:
    """Read the counters; `seconds` since the round before, 0 in the first one."""
    now = host.monotonic()
    if port.refused_at is not None and 0 <= now - port.refused_at < _REFUSED_SECONDS:
        return
    port.refused_at = None
    rates: dict[str, Maybe[float]] = {
        name: port.absent[name] for name in port.absent if name not in port.paths
    }
    values: dict[str, int] = {}
    refused: dict[str, Unknown] = {}  # by directory
    for name, path in port.paths.items():
        directory = path.rpartition("/")[0]
        if directory in refused:
            rates[name] = refused[directory]
            continue
        value = read_counter(host, path)
        if isinstance(value, Unknown):
            rates[name] = value
            if value.reason is Reason.IO_ERROR:
                # A device that refuses one counter refuses all, and logs a kernel message for each.
                refused[directory] = value
                port.refused_at = now
            continue
        values[name] = value
        before = port.values.get(name)
        if before is None or seconds <= 0:
            rates[name] = _SECOND_SAMPLE
        else:
            risen = rise(name, before, value)
            rates[name] = risen if isinstance(risen, Unknown) else risen / seconds
    port.values = values
    if rates != port.counters:
        port.counters = rates
    text = host.read(f"{port.device.sysfs_path}/ports/{port.facts.number}/rate", 4096)
    parsed = None if isinstance(text, Unknown) else parse_rate(text)
    if parsed is not None:
        port.line_rate = parsed[0]


def _read_ethtool(host: Host, ports: list[_Port], seconds: float) -> None:
    names = [port.facts.netdev for port in ports if not isinstance(port.facts.netdev, Unknown)]
    answers = host.ethtool_counters(tuple(dict.fromkeys(names))) if names else {}
    for port in ports:
        netdev = port.facts.netdev
        if isinstance(netdev, Unknown):
            port.pause = port.stall = Unknown(
                Reason.NOT_THERE, netdev.source, "this port has no netdev, so no ethtool counters"
            )
            continue
        answer = answers.get(netdev, Unknown(Reason.NOT_THERE, "ethtool -S", "no answer"))
        if isinstance(answer, Unknown):
            port.pause = port.stall = answer
            port.ethtool, port.events = None, None
            continue
        before = port.ethtool or {}
        port.pause = pause_percent(before, answer, seconds)
        port.stall = pcie_stall_percent(answer)
        events: dict[str, Maybe[float]] = {}
        for name in _ETHTOOL_EVENTS:
            if name in answer:
                risen = rise(name, before[name], answer[name]) if name in before else _SECOND_SAMPLE
                no_rate = isinstance(risen, Unknown) or seconds <= 0
                events[name] = (
                    risen if isinstance(risen, Unknown) else _SECOND_SAMPLE if no_rate else risen / seconds
                )
        port.ethtool = dict(answer)
        port.events = events


def _sample(port: _Port, reading: Reading, rates: Mapping[tuple[str, int], PortRate]) -> PortSample:
    key = (port.device.name, port.facts.number)
    rate = rates.get(key, _NO_RATE)
    counters: Mapping[str, Maybe[float]] = {**port.counters, **(port.events or {})}
    old = port.sample
    if old is not None and old.counters == counters:
        counters = old.counters  # one dictionary for as long as nothing rises differently
    new = PortSample(
        device=port.device.name,
        port=port.facts.number,
        netdev=port.facts.netdev,
        state=reading.port_states.get(key, port.facts.state),
        line_rate_gbps=port.line_rate,
        sent_gbps=rate.sent_gbps,
        received_gbps=rate.received_gbps,
        counters=counters,
        pause_percent=port.pause,
        pcie_stall_percent=port.stall,
    )
    port.sample = old if old == new else new
    assert port.sample is not None
    return port.sample
