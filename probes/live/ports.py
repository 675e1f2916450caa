"""Rates and error counters of the NIC ports between two samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.pci.functions import DEVICES, asleep, parse_speed
from probes.facts.rdma.cxi import telemetry_file
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, parse_rate
from probes.facts.rdma.optics import Temperatures, module_sensor, probe, read_modules
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, Place, sampled, without_netdev
from probes.host.protocol import Host
from probes.host.values import Files, read_integer, read_telemetry
from probes.live.model.paced_source import PacedSource, Question
from probes.live.model.sample import PortSample
from probes.snapshot.rates import PortRate, Reading, port_rates, read_statistics, statistic

_TELEMETRY = f"/{Place.TELEMETRY.value}/"
_WRAP = 1 << 32
# At 100 million packets a second, a counter rises by less than this in two seconds.
_NEAR = 1 << 28


def missing(place: Place, names: Maybe[tuple[str, ...]]) -> dict[str, Unknown]:
    """Return why counters that every sample has are not among a port's `names` in this place."""
    wanted = sampled(place, is_expected=True)
    if isinstance(names, Unknown) and names.reason is not Reason.NOT_THERE:
        return dict.fromkeys(wanted, names)
    has: tuple[str, ...] = () if isinstance(names, Unknown) else names
    return {
        name: Unknown(Reason.NOT_THERE, name, f"this NIC has no {name} counter")
        for name in wanted
        if name not in has
    }


def read_counter(host: Files, path: str) -> Maybe[int]:
    """Return a counter of a port, or of a Slingshot NIC."""
    return read_telemetry(host, path) if _TELEMETRY in path else read_integer(host, path)


def read_until_refused(host: Host, files: Mapping[str, str]) -> dict[str, Maybe[int]]:
    """Return counters by name; a device that refuses one refuses all, and logs a kernel message for each."""
    if (statistics := read_statistics(host, files.values())) is not None:
        return {name: statistics[file] for name, file in files.items()}
    found: dict[str, Maybe[int]] = {}
    refused: Unknown | None = None
    for name, file in files.items():
        value = found[name] = read_counter(host, file) if refused is None else refused
        if isinstance(value, Unknown) and value.reason is Reason.IO_ERROR:
            refused = value
    return found


def rise(name: str, before: int, after: int) -> Maybe[int]:
    """Return a counter's rise, over one wrap of 32 bits; MALFORMED: reset, or full (PORT_PMA_ATTR)."""
    bits = ERROR_COUNTER_BITS.get(name)
    if before == after and bits is not None and after == (1 << bits) - 1:
        return Unknown(Reason.MALFORMED, name, "the counter is full")
    if after >= before:
        return after - before
    if _WRAP - _NEAR <= before < _WRAP and after < _NEAR:
        return after + _WRAP - before
    return Unknown(Reason.MALFORMED, name, "the counter was reset")


def pause_percent(before: dict[str, int], after: dict[str, int], seconds: float) -> Maybe[float]:
    """Return the share of time that the port was paused: the priority and direction paused the longest.

    From mlx5's rx_prioN_pause_duration and tx_prioN_pause_duration, in µs
    (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst).
    """
    names = _pause_durations(tuple(after))
    if not names:
        return Unknown(Reason.NOT_THERE, "ethtool -S", "this NIC does not count the duration of pauses")
    rises = [after[name] - before[name] for name in names if after[name] >= before.get(name, after[name] + 1)]
    if not rises or seconds <= 0:
        return Unknown(Reason.NOT_YET, "ethtool -S", "needs a second sample")
    return min(100.0, max(rises) / (seconds * 1e6) * 100)


@lru_cache(maxsize=64)
def _pause_durations(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.endswith("_pause_duration"))


def pcie_stall_percent(now: dict[str, int]) -> Maybe[float]:
    """Return in which share of the last second PCIe reads or writes stalled, as mlx5 reports it."""
    stalls = [now[name] for name in ("outbound_pci_stalled_rd", "outbound_pci_stalled_wr") if name in now]
    if not stalls:
        return Unknown(Reason.NOT_THERE, "ethtool -S", "this NIC does not report PCIe stalls")
    return float(min(100, max(stalls)))


COUNTER_SECONDS = 2.0
LINK_SECONDS = 5.0  # line rates and PCIe links, which seldom change
MODULE_SECONDS = 10.0  # a temperature is a question to the firmware
ETHTOOL_SECONDS = 1.0  # ethtool -S makes the driver query its firmware
_REFUSED_SECONDS = 600.0
_PRIORITIES = range(8)
_SECOND_SAMPLE = Unknown(Reason.NOT_YET, "", "needs a second sample")
_NO_ANSWER = Unknown(Reason.NOT_THERE, "ethtool -S", "no answer")
_NO_RATE = PortRate(_SECOND_SAMPLE, _SECOND_SAMPLE)
_ETHTOOL_EVENTS = sampled(Place.ETHTOOL)
# A port's key, its path, and counter -> its file, for each directory.
_Wanted = tuple[tuple[str, int], str, Sequence[Mapping[str, str]]]


@frozen
class _Counters:
    at: float  # seconds, Host.monotonic()
    values: Mapping[tuple[str, int], Mapping[str, Maybe[int]]]
    line_rates: Mapping[tuple[str, int], float]
    links: Mapping[str, tuple[Maybe[float], Maybe[int]]]  # PCIe GT/s and lanes, by BDF
    has_links: bool  # the two before were read in this round


@frozen
class _Ethtool:
    at: float
    values: Mapping[str, Maybe[dict[str, int]]]


@dataclass
class _Port:
    device: RdmaDevice
    facts: RdmaPort
    paths: dict[str, str]  # counter -> its file
    absent: dict[str, Unknown]  # counters that every sample has and this port does not
    line_rate: Maybe[float]
    counters: dict[str, Maybe[float]]
    pause: Maybe[float]
    stall: Maybe[float]
    link: tuple[Maybe[float], Maybe[int]]  # PCIe GT/s and lanes
    values: dict[str, int] = field(default_factory=dict)  # of the round before
    still: Mapping[str, Maybe[int]] | None = None  # the same values, if they did not change in that round
    ethtool: dict[str, int] = field(default_factory=dict)
    events: dict[str, Maybe[float]] = field(default_factory=dict)  # of ethtool
    priorities: dict[int, float] = field(default_factory=dict)  # Gb/s sent
    refused: dict[str, tuple[float, Unknown]] = field(default_factory=dict)  # directory -> when and why
    # Of the sample: one object for as long as nothing rises differently.
    merged: Latest[Mapping[str, Maybe[float]]] = field(default_factory=lambda: Latest(keeps_equal=True))
    sample: PortSample | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.device.name, self.facts.number

    @property
    def path(self) -> str:
        return f"{self.device.sysfs_path}/ports/{self.facts.number}"

    def files(self, now: float) -> dict[str, str]:
        """Return the files to read; a directory that the firmware has refused is left alone for a while."""
        for directory, (at, _) in list(self.refused.items()):
            if not 0 <= now - at < _REFUSED_SECONDS:
                del self.refused[directory]
        if not self.refused:
            return self.paths
        return {name: file for name, file in self.paths.items() if _directory(file) not in self.refused}


class PortReader:
    """Read the ports' counters; slow ones are read less often, in a thread."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._sensors: Temperatures | None = None  # of this node
        self._ports: list[_Port] = []
        self._wanted: list[_Wanted] = []  # of the node, without what was refused
        self._functions: list[str] = []
        self._netdevs: tuple[str, ...] = ()
        self._before: Reading | None = None
        self._counters: PacedSource[_Counters] = PacedSource("port counters", COUNTER_SECONDS)
        self._ethtool: PacedSource[_Ethtool] = PacedSource("ethtool -S", ETHTOOL_SECONDS)
        self._modules: PacedSource[Temperatures] = PacedSource("temperatures", MODULE_SECONDS)
        self._counted: Maybe[_Counters] | None = None  # the rounds that the ports have
        self._links_at: float | None = None
        self._asked: Maybe[_Ethtool] | None = None

    def questions(self, host: Host, node: Node) -> tuple[Question, ...]:
        """Return what to ask before `read`."""
        now = host.monotonic()
        if node is not self._node:
            self._sensors = None
            self._node, self._ports = node, self._renewed(host, node)
            self._wanted = _wanted(self._ports, now)
            self._functions = sorted({bdf for port in self._ports if (bdf := known(port.device.bdf, ""))})
            netdevs = (known(port.facts.netdev, "") for port in self._ports)
            self._netdevs = tuple(dict.fromkeys(filter(None, netdevs)))
        if any(port.refused for port in self._ports):
            self._wanted = _wanted(self._ports, now)
        wanted, functions, names = self._wanted, self._functions, self._netdevs
        with_links = self._links_at is None or not 0 <= now - self._links_at < LINK_SECONDS
        return (
            Question(self._counters, lambda: _read_counters(host, wanted, functions, with_links)),
            Question(
                self._ethtool,
                lambda: _Ethtool(host.monotonic(), host.ethtool_counters(names) if names else {}),
            ),
            Question(self._modules, lambda: self._read_modules(host, node)),
        )

    def _read_modules(self, host: Host, node: Node) -> Maybe[Temperatures]:
        """Read which NICs have modules with a sensor once, then only these sensors."""
        found = self._sensors
        read = (
            map_known(node.rdma, lambda rdma: probe(host, rdma))
            if found is None
            else read_modules(host, found)
        )
        self._sensors = known(read, None)
        return read

    def read(self, reading: Reading) -> tuple[PortSample, ...]:
        """Return a sample of each port, in the order of the node; a port that did not change stays itself."""
        counted, asked = self._counters.answer, self._ethtool.answer
        if counted is not self._counted:
            if not isinstance(counted, Unknown) and counted.has_links:
                self._links_at = counted.at
            for port in self._ports:
                _count(port, self._counted, counted)
            self._counted = counted
        if asked is not self._asked:
            for port in self._ports:
                _note_ethtool(port, self._asked, asked)
            self._asked = asked
        before = self._before
        is_later = before is not None and reading.at > before.at
        rates = port_rates(before, reading) if before is not None and is_later else {}
        self._before = reading
        return tuple(_sample(port, reading, rates, self._modules.answer) for port in self._ports)

    def _renewed(self, host: Host, node: Node) -> list[_Port]:
        """Return the node's ports; what was read of one that is still there is kept."""
        old = {(port.device.name, port.facts.number): port for port in self._ports}
        ports = []
        for device in node.rdma.readable if isinstance(node.rdma, RdmaFacts) else ():
            for facts in device.ports:
                port = _first(host, device, facts)
                was = old.get((device.name, facts.number))
                if was is not None and was.paths == port.paths and was.facts.netdev == facts.netdev:
                    was.device, was.facts, was.line_rate = device, facts, facts.rate_gbps
                    port = was
                ports.append(port)
        return ports


def counter_files(host: Host, device: RdmaDevice, facts: RdmaPort) -> dict[str, str]:
    """Return the file of each counter that a port has and the live view reads, by the counter's name."""
    if telemetry := known(facts.telemetry, ()):
        kept = (name for name in telemetry if name in sampled(Place.TELEMETRY))
        return {name: telemetry_file(device.sysfs_path, name) for name in kept}
    own: tuple[str, ...] = known(facts.hw_counters, ())
    if facts.is_hidden:
        hidden = statistic(device.sysfs_path, facts)
        return {name: f"{hidden}/{name}" for name in own if name in sampled(Place.HARDWARE)}
    path = f"{device.sysfs_path}/ports/{facts.number}"
    paths: dict[str, str] = {}
    # Some drivers have one hw_counters directory for the device, and mana_ib has both.
    for directory in (f"{device.sysfs_path}/hw_counters", f"{path}/hw_counters") if own else ():
        names = known(host.names(directory), ())
        paths |= {name: f"{directory}/{name}" for name in names if name in sampled(Place.HARDWARE)}
    standard = known(facts.counters, ())
    return paths | {name: f"{path}/counters/{name}" for name in standard if name in sampled(Place.STANDARD)}


def _first(host: Host, device: RdmaDevice, facts: RdmaPort) -> _Port:
    paths = counter_files(host, device, facts)
    absent = missing(Place.HARDWARE, facts.hw_counters) | missing(Place.STANDARD, facts.counters)
    absent = {name: why for name, why in absent.items() if name not in paths}
    waiting: dict[str, Maybe[float]] = {**dict.fromkeys(paths, _SECOND_SAMPLE), **absent}
    netdev = facts.netdev
    first = netdev if isinstance(netdev, Unknown) else _SECOND_SAMPLE
    link = device.bdf if isinstance(device.bdf, Unknown) else _SECOND_SAMPLE
    return _Port(device, facts, paths, absent, facts.rate_gbps, waiting, first, first, (link, link))


def _wanted(ports: Iterable[_Port], now: float) -> list[_Wanted]:
    wanted: list[_Wanted] = []
    for port in ports:
        found: dict[str, dict[str, str]] = {}
        for name, file in port.files(now).items():
            found.setdefault(_directory(file), {})[name] = file
        wanted.append((port.key, port.path, tuple(found.values())))
    return wanted


def _directory(file: str) -> str:
    return file.rpartition("/")[0]


def _read_link(host: Host, bdf: str) -> tuple[Maybe[float], Maybe[int]]:
    if (sleeps := asleep(host, bdf)) is not None:
        return sleeps, sleeps
    path = f"{DEVICES}/{bdf}/current_link"
    text = host.read(f"{path}_speed", 4096)
    if isinstance(text, Unknown):
        return text, text
    speed = parse_speed(text)
    gtps = Unknown(Reason.MALFORMED, f"{path}_speed", printable(text, 40)) if speed is None else speed
    return gtps, read_integer(host, f"{path}_width")


def _read_counters(
    host: Host, ports: Iterable[_Wanted], functions: Sequence[str], with_links: bool
) -> _Counters:
    """Read counters; `with_links`: also the ports' line rates and the functions' PCIe links."""
    values: dict[tuple[str, int], dict[str, Maybe[int]]] = {}
    line_rates: dict[tuple[str, int], float] = {}
    at = host.monotonic()
    for key, path, directories in ports:
        found = values[key] = {}
        for files in directories:
            found.update(read_until_refused(host, files))
        text = host.read(f"{path}/rate", 4096) if with_links else None
        parsed = None if text is None or isinstance(text, Unknown) else parse_rate(text)
        if parsed is not None:
            line_rates[key] = parsed[0]
    links = {bdf: _read_link(host, bdf) for bdf in functions} if with_links else {}
    return _Counters(at, values, line_rates, links, with_links)


def _count(port: _Port, before: Maybe[_Counters] | None, now: Maybe[_Counters]) -> None:
    if isinstance(now, Unknown):
        port.values, port.counters = {}, {**port.absent, **dict.fromkeys(port.paths, now)}
        port.still = None
        return
    if port.facts.bond is None:  # the file has the rate of one of a bond's ports
        port.line_rate = now.line_rates.get(port.key, port.line_rate)
    port.link = now.links.get(known(port.device.bdf, ""), port.link)
    found = now.values.get(port.key, {})
    seconds = now.at - before.at if before is not None and not isinstance(before, Unknown) else 0.0
    if seconds > 0 and found == port.still:
        return
    is_still = seconds > 0 and found == port.values  # every one is known, and none has risen
    port.still = found if is_still else None
    rates: dict[str, Maybe[float]] = dict(port.absent)
    values: dict[str, int] = {}
    for name, file in port.paths.items():
        value = found.get(name)
        if value is None:
            directory = _directory(file)
            rates[name] = port.refused[directory][1] if directory in port.refused else _SECOND_SAMPLE
            continue
        if isinstance(value, Unknown):
            rates[name] = value
            if value.reason is Reason.IO_ERROR:
                port.refused[_directory(file)] = (now.at, value)
            continue
        values[name] = value
        rates[name] = _rate(name, port.values.get(name), value, seconds)
    port.values, port.counters = values, rates


def _rate(name: str, before: int | None, after: int, seconds: float) -> Maybe[float]:
    if before is None or seconds <= 0:
        return _SECOND_SAMPLE
    risen = rise(name, before, after)
    return risen if isinstance(risen, Unknown) else risen / seconds


def _note_ethtool(port: _Port, before: Maybe[_Ethtool] | None, now: Maybe[_Ethtool]) -> None:
    netdev = port.facts.netdev
    answer = map_known(now, lambda now: now.values.get(known(netdev, ""), _NO_ANSWER))
    if isinstance(netdev, Unknown):
        answer = without_netdev(port.facts)
    if isinstance(answer, Unknown) or isinstance(now, Unknown):
        port.pause = port.stall = answer if isinstance(answer, Unknown) else _SECOND_SAMPLE
        port.ethtool, port.events, port.priorities = {}, {}, {}
        return
    seconds = now.at - before.at if before is not None and not isinstance(before, Unknown) else 0.0
    port.pause = pause_percent(port.ethtool, answer, seconds)
    port.stall = pcie_stall_percent(answer)
    events = {
        name: _rate(name, port.ethtool.get(name), answer[name], seconds)
        for name in _ETHTOOL_EVENTS
        if name in answer
    }
    port.events = port.events if port.events == events else events
    sent = ((priority, f"tx_prio{priority}_bytes") for priority in _PRIORITIES)
    rates = (
        (each, _rate(name, port.ethtool.get(name), answer[name], seconds))
        for each, name in sent
        if name in answer
    )
    port.priorities = {each: rate * 8 / 1e9 for each, rate in rates if not isinstance(rate, Unknown)}
    port.ethtool = dict(answer)


def _sample(
    port: _Port,
    reading: Reading,
    rates: Mapping[tuple[str, int], PortRate],
    temperatures: Maybe[Temperatures],
) -> PortSample:
    key = port.key
    rate = rates.get(key, _NO_RATE)
    module = module_sensor(temperatures, port.device.bdf)
    new = PortSample(
        device=port.device.name,
        port=port.facts.number,
        netdev=port.facts.netdev,
        state=reading.port_states.get(key, port.facts.state),
        line_rate_gbps=port.line_rate,
        sent_gbps=rate.sent_gbps,
        received_gbps=rate.received_gbps,
        counters=port.merged.get(
            lambda: {**port.counters, **port.events}, objects=(port.counters, port.events)
        ),
        pause_percent=port.pause,
        pcie_stall_percent=port.stall,
        pcie_gtps=port.link[0],
        pcie_width=port.link[1],
        rates_from=rate.interface,
        sent_by_priority=port.priorities,
        module_celsius=map_known(module, lambda sensor: sensor.celsius),
        module_limit_celsius=map_known(module, lambda sensor: sensor.limit_celsius),
    )
    if port.sample is None or port.sample != new:
        port.sample = new
    return port.sample
