"""The port counters of a node at the begin and at the end of a job, and what their difference means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from statistics import median

from probes.base.codec import Bounds, Codec, CodecError
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.rdma.devices import RdmaFacts, port_name
from probes.facts.rdma.devices import probe as probe_rdma
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, PORT_COUNTERS, Harm, Rise
from probes.host.protocol import Host
from probes.host.values import BOOT_ID
from probes.live.model.explanations import explanation_of
from probes.live.odd_one_out import LEAST, odd_members
from probes.live.ports import counter_files, pause_percent, read_until_refused, rise
from probes.snapshot.rates import read_port

MAX_BYTES = 4 << 20  # of a saved file
_SCHEMA = "gdrtop/job-counters-begin/1"
_CODEC = Codec(clean=printable, bounds={"": Bounds(text=256, items=4096, least=0)})
_LEAST_BYTES = 10**9  # in all: below, ports are not compared
_LOW = 0.5  # of the median of the others
_RISES: Mapping[str, Rise] = {counter.name: counter.rise for counter in PORT_COUNTERS if counter.rise}


class CountersError(Exception):
    """Saved counters cannot be used; the message says why."""


@frozen
class PortCounts:
    """The counters of one port at one moment."""

    sent_bytes: Maybe[int]
    received_bytes: Maybe[int]
    line_rate_gbps: Maybe[float]
    counters: Mapping[str, int] = field(default_factory=dict)  # by the kernel's name
    ethtool: Mapping[str, int] = field(default_factory=dict)  # of its netdev


@frozen
class JobCounters:
    """The counters of a node at the begin or the end of a job."""

    job: str
    at: float  # seconds since 1970, by the node's clock
    boot_id: Maybe[str]
    ports: Mapping[str, PortCounts]  # "mlx5_0", or "mlx5_0/2" for further ports


@frozen
class GrownCounter:
    """A counter of trouble that grew during the job."""

    name: str
    by: int
    is_lower_bound: bool  # it has wrapped or stopped at its maximum
    sentence: str  # "mlx5_0 retransmits packets"
    explanation: str
    is_high: bool  # more than is normal, on average over the job


@frozen
class PortDifference:
    """What a port did during the job."""

    port: str
    sent_bytes: Maybe[int]
    received_bytes: Maybe[int]
    pause_percent: Maybe[float]  # of the job's time
    grown: tuple[GrownCounter, ...] = ()  # those that are high first
    low: str = ""  # a sentence, if it carried far less than the other ports of its rate
    note: str = ""  # why its counters cannot be compared


@frozen
class JobDifference:
    """The counters of a job's end without those of its begin."""

    job: str
    seconds: Maybe[float]
    ports: tuple[PortDifference, ...]
    note: str = ""  # why nothing can be compared

    @property
    def problems(self) -> int:
        """How many ports are low, and how many things went wrong on some port: two counters may count one."""
        high = {
            grown.sentence.removeprefix(port.port)
            for port in self.ports
            for grown in port.grown
            if grown.is_high
        }
        return len(high) + sum(bool(port.low) for port in self.ports)


def read_counters(host: Host, job: str) -> JobCounters:
    """Read the counters of all ports of a node now."""
    ports: dict[str, PortCounts] = {}
    facts = probe_rdma(host)
    devices = facts.devices if isinstance(facts, RdmaFacts) else ()
    netdevs = {known(port.netdev, "") for device in devices for port in device.ports} - {""}
    ethtool = host.ethtool_counters(sorted(netdevs)) if netdevs else {}
    for device in devices:
        for port in device.ports:
            octets = read_port(host, device.sysfs_path, port)
            counts = read_until_refused(host, counter_files(host, device, port))
            ports[port_name(device.name, port.number)] = PortCounts(
                octets.sent_bytes,
                octets.received_bytes,
                port.rate_gbps,
                {counter: value for counter, value in counts.items() if not isinstance(value, Unknown)},
                known(ethtool.get(known(port.netdev, ""), {}), {}),
            )
    boot_id = map_known(host.read(BOOT_ID, 4096), lambda text: printable(text, 64))
    return JobCounters(job, host.wall_clock(), boot_id, ports)


def to_text(counters: JobCounters) -> str:
    """Return counters as the text of a file."""
    return json.dumps({"schema": _SCHEMA, **_CODEC.encode(counters)}, ensure_ascii=True) + "\n"


def from_text(content: bytes, job: str) -> JobCounters:
    """Return the counters in a file of `to_text`; CountersError if it is none, or of another job."""
    try:
        value = json.loads(content)
        if not isinstance(value, dict) or value.get("schema") != _SCHEMA:
            raise CountersError("it was not written by gdrtop prolog")
        counters = _CODEC.decode(JobCounters, value)
    except CodecError as error:
        raise CountersError(str(error)) from None
    except (ValueError, RecursionError):
        raise CountersError("it is not JSON") from None
    assert isinstance(counters, JobCounters)
    if counters.job != job:
        raise CountersError(f"it is of job {counters.job}")
    return counters


def compare(begin: JobCounters, end: JobCounters) -> JobDifference:
    """Return what the ports did between two readings of one node; a reset counter is unknown."""
    seconds: Maybe[float] = end.at - begin.at
    if end.at <= begin.at:
        seconds = Unknown(Reason.MALFORMED, "", "the node's clock was set back")
    boots = {boot for boot in (begin.boot_id, end.boot_id) if not isinstance(boot, Unknown)}
    if len(boots) > 1:
        return JobDifference(
            end.job, seconds, (), "The node was rebooted during the job, which reset all counters"
        )
    ports = []
    for name in sorted(begin.ports.keys() | end.ports.keys()):
        if name not in end.ports:
            gone = Unknown(Reason.NOT_THERE, name, "the port is gone")
            ports.append(_incomparable(name, gone, "was there at the begin and is gone now"))
        elif name not in begin.ports:
            new = Unknown(Reason.NOT_THERE, name, "the port is new")
            ports.append(_incomparable(name, new, "was not there when the job began"))
        else:
            ports.append(_port_difference(name, begin.ports[name], end.ports[name], seconds))
    rates = {name: counts.line_rate_gbps for name, counts in end.ports.items()}
    return JobDifference(end.job, seconds, _with_low(ports, rates))


def _port_difference(
    name: str, before: PortCounts, after: PortCounts, seconds: Maybe[float]
) -> PortDifference:
    if _was_reset(before, after):
        reset = Unknown(Reason.MALFORMED, name, "the counters were reset")
        note = "has counters that were reset during the job (by a NIC reset, a driver reload or an admin)"
        return _incomparable(name, reset, note)
    old, new = {**before.ethtool, **before.counters}, {**after.ethtool, **after.counters}
    risen = {name: rise(name, old[name], new[name]) for name in _RISES if name in old and name in new}
    unusable = [f"{name} ({by.detail})" for name, by in risen.items() if isinstance(by, Unknown)]
    grown = {name: by for name, by in risen.items() if not isinstance(by, Unknown) and by}
    is_lossy = any(_RISES[counter].shows_loss for counter in grown)
    rows = []
    for counter, by in grown.items():
        meaning, bits = _RISES[counter], ERROR_COUNTER_BITS.get(counter)
        passed, limits = known(seconds, 0.0), meaning.limits_at(after.line_rate_gbps)
        is_high = any(by > events * max(1.0, passed / window) for events, window in limits)
        # Packets out of order count only beside a loss.
        is_normal = meaning.harm is Harm.REORDERED and not is_lossy
        is_least = (bits is not None and new[counter] >= (1 << bits) - 1) or new[counter] < old[counter]
        sentence = f"{name} {meaning.sentence}"
        high = is_high and not is_normal
        rows.append(GrownCounter(counter, by, is_least, sentence, explanation_of(meaning.harm), high))
    return PortDifference(
        name,
        _risen(before.sent_bytes, after.sent_bytes),
        _risen(before.received_bytes, after.received_bytes),
        map_known(seconds, lambda passed: pause_percent(dict(before.ethtool), dict(after.ethtool), passed)),
        tuple(sorted(rows, key=lambda row: not row.is_high)),
        note=f"has counters that cannot be compared: {', '.join(unusable)}" if unusable else "",
    )


def _incomparable(name: str, why: Unknown, note: str) -> PortDifference:
    return PortDifference(name, why, why, why, note=note)


def _was_reset(before: PortCounts, after: PortCounts) -> bool:
    """Return whether a counter went back that never wraps: bytes, and counters that stop at their maximum."""
    octets = ((before.sent_bytes, after.sent_bytes), (before.received_bytes, after.received_bytes))
    if any(known(new, 0) < known(old, 0) for old, new in octets if not isinstance(new, Unknown)):
        return True
    return any(
        after.counters.get(name, old) < old
        for name, old in before.counters.items()
        if name in ERROR_COUNTER_BITS
    )


def _risen(before: Maybe[int], after: Maybe[int]) -> Maybe[int]:
    return map_known(before, lambda old: map_known(after, lambda new: new - old))


def _with_low(
    ports: Sequence[PortDifference], rates: Mapping[str, Maybe[float]]
) -> tuple[PortDifference, ...]:
    groups: dict[float, list[tuple[str, int]]] = {}
    for port in ports:
        rate = rates.get(port.port)
        octets = [count for count in (port.sent_bytes, port.received_bytes) if not isinstance(count, Unknown)]
        if isinstance(rate, float) and len(octets) == 2:
            groups.setdefault(rate, []).append((port.port, max(octets)))
    low: dict[str, str] = {}
    for group in groups.values():
        usual = median(count for _, count in group)
        if len(group) < LEAST or usual < _LEAST_BYTES:
            continue
        odd = odd_members([(name, count, count < _LOW * usual) for name, count in group], lambda row: row[2])
        for name, count, _ in odd[0] if odd and not odd[1] else ():
            others = (
                f"the other {len(group) - 1} ports of its rate carried {decimal_bytes(round(usual))} (median)"
            )
            low[name] = f"{name} carried {decimal_bytes(count)}; {others}"
    return tuple(replace(port, low=low.get(port.port, "")) for port in ports)


def decimal_bytes(count: int) -> str:
    """Return an amount of traffic in powers of ten, as rates are: "1.2 TB", "340 MB"."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
